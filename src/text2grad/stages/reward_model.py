"""`train-reward`, and how well the reward model marks held-out answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.align import TokenTable
from text2grad.chat import Chat, EndpointSettings, OpenAIChat
from text2grad.config import Config, RewardModelSettings, with_tiny_rates
from text2grad.errors import UserError
from text2grad.eval.judge import Pair as JudgedPair
from text2grad.eval.judge import compare_critics
from text2grad.eval.marks import agreement, read_marks
from text2grad.eval.reward_model import reward_model_report
from text2grad.eval.spans import SpanCase, span_report
from text2grad.feedback import Feedback, Source, write_jsonl
from text2grad.policy.adapters import BASE_DIGEST, digest_of_base, name_base
from text2grad.policy.model import load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.critics import reward_model_critic
from text2grad.stages.early_stopping import early_stopping, validation_inputs, validation_split
from text2grad.stages.folder import (
    note_settings,
    prepare,
    processes,
    read_feedback,
    resuming,
    start_policy,
    write_json,
)
from text2grad.stages.reward_data import example_of, fitting, judged_cases, reward_data, without_repeats
from text2grad.tasks.base import read_prompt
from text2grad.train.labels import LabelLoss
from text2grad.train.run import ResumeMode
from text2grad.train.supervised import train_supervised

JUDGE_PROMPT = "compare_critiques"


def run_train_reward(config: Config, resume: ResumeMode = "auto") -> dict[str, Any]:
    """Train the reward model on z; writes `reward_model/policy` and `evaluation/reward_model.json`."""
    with processes(config) as ranks:
        with ranks.agreeing():
            folder = prepare(config)
            train, _ = reward_data(config)
            settings = learner_settings(config)
            policy = load_policy(settings)
            training = with_tiny_rates(config).reward_model.training
            validation: list[Feedback] = []
            if config.reward_model.early_stopping is not None:
                train, validation = validation_split(train, config.reward_model.early_stopping, config.run.seed)
            chosen = without_repeats(train, config.reward_model.repeats)
            pairs = [pair for _, pair in fitting(policy, chosen, config.reward_model)]
            if ranks.first:
                note_settings(config, folder, begins=True)
            if config.reward_model.shared:
                name_base(policy, settings.model)
            base = digest_of_base(policy.model) if config.reward_model.shared else ""
            stopping = early_stopping(config, policy, validation, ranks)
        metrics = train_supervised(
            *(policy, pairs, training, folder / "reward_model", config.run.seed, "reward model"),
            resume=resuming(config, resume, settings, **validation_inputs(config, validation)),
            section="reward_model.training",
            stopping=stopping,
            ranks=ranks,
            marking=label_loss(config.reward_model),
        )
        if ranks.first:
            if base:
                note_base(base, folder / "reward_model" / "policy")
            note_settings(config, folder)
    quality = measure_reward_model(config) if ranks.first else {}
    counts = {"records": len(train) + len(validation), "trained_on": len(pairs)}
    return {**counts, **metrics, **quality, "out": str(folder / "reward_model" / "policy")}


def label_loss(settings: RewardModelSettings) -> LabelLoss | None:
    """The second loss, if it is wanted."""
    return LabelLoss(settings.label_weight) if settings.label_weight else None


def learner_settings(config: Config) -> PolicySettings:
    """The model that becomes the reward model.

    Raises:
        UserError: it is to share the policy's base weights, and has others, or no adapter.
    """
    start = start_policy(config)
    chosen = config.reward_model.policy or start
    if config.reward_model.shared and chosen.model != start.model:
        told = f"the reward model starts from {chosen.model}, the policy from {start.model}: no weights to share"
        raise UserError(told, "reward_model.policy null, or reward_model.shared false")
    if config.reward_model.shared and (chosen.lora is None or start.lora is None):
        raise UserError("only adapters can share base weights", "set policy.lora, or reward_model.shared false")
    return chosen


def note_base(digest: str, folder: Path) -> None:
    """Leave beside an adapter what identifies the weights it was trained on (`digest_of_base`)."""
    (folder / BASE_DIGEST).write_text(digest + "\n", encoding="utf-8")


def measure_reward_model(config: Config) -> dict[str, float]:
    """The rates of the reward model on held-out records, for the report; nothing where there are none."""
    cases = [case for _, case in heldout_cases(config)]
    if not cases:
        return {}
    rates = span_report(cases)
    write_json(config.run.folder / "evaluation" / "reward_model.json", rates)
    return rates


def evaluate_reward_model(config: Config) -> dict[str, Any]:
    """Everything there is to say of the reward model on held-out records, beside baselines that know nothing.

    Leaves in `evaluation/`: the rates of each for the report, the whole in `reward_model.full.json`, and what
    the reward model said in `reward_model.said.jsonl`, for people to mark.

    Raises:
        UserError: there are no held-out records.
    """
    found = heldout_cases(config)
    if not found:
        raise UserError("no held-out feedback to measure on", "raise task.heldout_share, or annotate more")
    cases = [case for _, case in found]
    report = reward_model_report(cases, config.credit.membership, config.run.seed)
    said = numbered([record for record, _ in found])
    source = Source(kind="reward_model", model=str(config.critic.reward_model.folder or "reward_model"))
    records = [
        Feedback.of(example_of(record), record.response, case.predicted, source)
        for record, case in zip(said, cases, strict=True)
    ]
    folder = config.run.folder / "evaluation"
    write_json(folder / "reward_model.json", span_report(cases, config.credit.membership))
    for name, rates in report["baselines"].items():
        write_json(folder / f"reward_model_{name}.json", rates)
    write_jsonl(folder / "reward_model.said.jsonl", records)
    if config.evaluate.marks:
        report["people"] = agreement(read_marks(config.evaluate.marks), {record.id for record in records})
    if config.evaluate.judge:
        asked = EndpointSettings(model=config.evaluate.judge, base_url=config.evaluate.judge_url, max_tokens=16)
        with OpenAIChat(asked, folder / "judge.journal") as judge:
            report["judge"] = compared(config, judge, said, records)
    write_json(folder / "reward_model.full.json", report)
    return report


def compared(config: Config, judge: Chat, gold: Sequence[Feedback], said: Sequence[Feedback]) -> dict[str, float]:
    """The judge's verdicts on the reward model's critiques beside those of `evaluate.against`.

    Raises:
        UserError: the other critiques are not of the same responses.
    """
    path = config.evaluate.against
    theirs = {record.id: record for record in (gold if path is None else read_feedback(path))}
    lacking = [record.id for record in said if theirs.get(record.id, record).response != record.response]
    lacking += [record.id for record in said if record.id not in theirs]
    if lacking:
        raise UserError(
            f"{path} has no critique of the response {lacking[0]!r}", "evaluate both on the same records"
        )
    pairs = [
        JudgedPair(example_of(ours), ours.response, ours.judgement(), theirs[ours.id].judgement()) for ours in said
    ]
    return compare_critics(judge, read_prompt(JUDGE_PROMPT), pairs)


def numbered(records: Sequence[Feedback]) -> list[Feedback]:
    """The records under ids that name each of them: the second of a prompt is `id#2`."""
    seen: Counter[str] = Counter()
    named = []
    for record in records:
        seen[record.id] += 1
        suffix = f"#{seen[record.id]}" if seen[record.id] > 1 else ""
        named.append(record.model_copy(update={"id": record.id + suffix}))
    return named


def heldout_cases(config: Config) -> list[tuple[Feedback, SpanCase]]:
    """The held-out records that fit the model, with what the reward model says of them, token by token."""
    _, heldout = reward_data(config)
    policy = load_policy(start_policy(config))
    gold = [record for record, _ in fitting(policy, heldout, config.reward_model)]
    if not gold:
        return []
    return list(
        zip(gold, judged_cases(reward_model_critic(config), gold, TokenTable(policy.tokenizer)), strict=True)
    )
