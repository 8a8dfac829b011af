"""`train-reward`, and how well the reward model marks held-out answers."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from text2grad import wire
from text2grad.align import Aligned, TokenTable
from text2grad.chat import Chat, OpenAIChat
from text2grad.config import Config, RewardModelSettings, with_tiny_rates
from text2grad.critics.prompted import PromptedCritic, fitted_messages, judge_messages
from text2grad.errors import UserError
from text2grad.eval.judge import Pair as JudgedPair
from text2grad.eval.judge import compare_critics
from text2grad.eval.marks import agreement, read_marks
from text2grad.eval.reward_model import reward_model_report
from text2grad.eval.spans import SpanCase, span_report, token_scores
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source, read_jsonl, write_jsonl
from text2grad.policy.adapters import BASE_DIGEST, digest_of_base, name_base
from text2grad.policy.encode import encode_prompt, encode_target, load_tokenizer
from text2grad.policy.model import Policy, load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.critics import REWARD_MODEL_PROMPT, critic_over, reward_model_critic
from text2grad.stages.folder import note_settings, prepare, read_feedback, resuming, start_policy, write_json
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.tasks.base import question_of, read_prompt, split_of, words_of
from text2grad.train.run import ResumeMode
from text2grad.train.settings import EarlyStoppingSettings
from text2grad.train.state import digest_of_texts, flatten
from text2grad.train.stopping import EarlyStopping
from text2grad.train.supervised import Pair, train_supervised

JUDGE_PROMPT = "compare_critiques"


def run_train_reward(config: Config, resume: ResumeMode = "auto") -> dict[str, Any]:
    """Train the reward model on z; writes `reward_model/policy` and `evaluation/reward_model.json`."""
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
    note_settings(config, folder, begins=True)
    if config.reward_model.shared:
        name_base(policy, settings.model)
    stopping = early_stopping(config, policy, validation)
    metrics = train_supervised(
        *(policy, pairs, training, folder / "reward_model", config.run.seed, "reward model"),
        resume=resuming(config, resume, **validation_inputs(config, validation)),
        section="reward_model.training",
        stopping=stopping,
    )
    if config.reward_model.shared:
        note_base(policy, folder / "reward_model" / "policy")
    note_settings(config, folder)
    quality = measure_reward_model(config)
    counts = {"records": len(train) + len(validation), "trained_on": len(pairs)}
    return {**counts, **metrics, **quality, "out": str(folder / "reward_model" / "policy")}


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


def validation_split(
    records: Sequence[Feedback], settings: EarlyStoppingSettings, seed: int
) -> tuple[list[Feedback], list[Feedback]]:
    """Training records without those of `settings.share` of the prompts, and at most `settings.records` of these.

    Raises:
        UserError: there are not two prompts.
    """
    questions = sorted({words_of(question_of(record)) for record in records})
    if len(questions) < 2:
        raise UserError(
            "one training prompt cannot be split for early stopping", "reward_model.early_stopping null"
        )
    dice = random.Random(seed)
    count = min(len(questions) - 1, max(1, round(settings.share * len(questions))))
    apart = set(dice.sample(questions, count))
    train = [record for record in records if words_of(question_of(record)) not in apart]
    others = [record for record in records if words_of(question_of(record)) in apart]
    readable = [record for record in others if isinstance(record.judgement(), Critique)]
    return train, dice.sample(readable, min(settings.records, len(readable)))


def validation_inputs(config: Config, validation: Sequence[Feedback]) -> dict[str, str]:
    """What early stopping depends on beside the training data, by name; nothing where it is off."""
    settings = config.reward_model
    if settings.early_stopping is None:
        return {}
    return {
        **flatten((), **{"reward_model.early_stopping": settings.early_stopping}),
        **flatten((), **{"reward_model.generation": settings.generation}),
        "reward_model.grounded": settings.grounded,
        "the validation records": digest_of_texts(record.model_dump_json() for record in validation),
    }


def early_stopping(config: Config, policy: Policy, validation: Sequence[Feedback]) -> EarlyStopping | None:
    """Measures the policy in training as the critic it becomes, on records that it is not trained on.

    Raises:
        UserError: no validation record can be measured on.
    """
    settings = config.reward_model.early_stopping
    if settings is None:
        return None
    gold = [record for record, _ in fitting(policy, validation, config.reward_model)]
    if not gold:
        cure = "raise reward_model.early_stopping.share, or reward_model.early_stopping null"
        raise UserError("no critique of the validation prompts can be measured on", cure)
    start = start_policy(config)
    table = TokenTable(load_tokenizer(start.model, start.chat_template))
    critic = critic_over(config, policy, "reward model in training")
    return EarlyStopping(policy, settings, lambda: span_f1(judged_cases(critic, gold, table), config))


def span_f1(cases: Sequence[SpanCase], config: Config) -> float:
    """The mean of the F1 of good tokens and the F1 of poor tokens."""
    rates = token_scores(cases, config.credit.membership)
    return (rates["good_f1"] + rates["poor_f1"]) / 2


def note_base(policy: Policy, folder: Path) -> None:
    """Leave beside an adapter what identifies the weights it was trained on."""
    (folder / BASE_DIGEST).write_text(digest_of_base(policy.model) + "\n", encoding="utf-8")


def without_repeats(records: Sequence[Feedback], limit: int | None) -> list[Feedback]:
    """The records in their order, of equal responses to equal prompts the first `limit`.

    A policy that is sure of itself samples one response again and again; each repeat costs as much to train on
    as a new response, and teaches less.
    """
    seen: Counter[tuple[object, str]] = Counter()
    kept = []
    for record in records:
        seen[record.prompt, record.response] += 1
        if limit is None or seen[record.prompt, record.response] <= limit:
            kept.append(record)
    return kept


def fitting(
    policy: Policy, records: Sequence[Feedback], settings: RewardModelSettings
) -> list[tuple[Feedback, Pair]]:
    """The readable records with their training pairs, as far as they fit the model.

    A prompt that is too long loses its middle, the response and z nothing: half a critique would teach to stop
    half-way. What does not fit even so is left out. Both are said in a line.
    """
    lengths = (policy.context, settings.training.max_length)
    limit = min((length for length in lengths if length is not None), default=None)
    readable = [(record, pair) for record in records if (pair := reward_pair(record, settings)) is not None]
    fitted = [(record, _shortened(policy, record, pair, limit)) for record, pair in readable]
    kept = [(record, pair) for record, pair in fitted if pair is not None]
    cut = sum(pair.prompt != whole.prompt for (_, pair), (_, whole) in zip(fitted, readable, strict=True) if pair)
    if cut:
        print(f"{cut} of {len(readable)} prompts lose their middle to fit {limit} tokens", file=sys.stderr)
    if len(kept) < len(readable):
        count, whole = len(readable) - len(kept), len(readable)
        line = f"{count} of {whole} critiques are left out: even so they exceed {limit} tokens"
        print(line, file=sys.stderr)
    return kept


def _shortened(policy: Policy, record: Feedback, pair: Pair, limit: int | None) -> Pair | None:
    """The pair with as much of its prompt as fits; None if response and z alone are too long."""
    target = len(encode_target(policy.tokenizer, pair.target))

    def excess(messages: Sequence[Message]) -> int:
        return 0 if limit is None else len(encode_prompt(policy.tokenizer, messages)) + target - limit

    if excess(pair.prompt) <= 0:
        return pair
    prompt = fitted_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response, excess)
    return replace(pair, prompt=tuple(prompt)) if excess(prompt) <= 0 else None


def reward_data(config: Config) -> tuple[list[Feedback], list[Feedback]]:
    """Training and held-out records: no question is in both, and none held out by the task is trained on.

    What `annotate` sampled was split by the task already; what people wrote is split here, by the same rule.
    """
    folder = config.run.folder
    records = read_feedback(folder / "feedback.jsonl")
    beside = folder / "feedback_heldout.jsonl"
    heldout = list(read_jsonl(beside, Feedback)) if beside.is_file() else []
    asked = {words_of(question_of(record)) for record in heldout}
    train: list[Feedback] = []
    for record in records:
        question = question_of(record)
        by_words = split_of(question, config.task) if record.source.kind == "human" or not heldout else "train"
        kept_out = by_words == "heldout" or words_of(question) in asked
        (heldout if kept_out else train).append(record)
    return train, heldout


def reward_pair(record: Feedback, settings: RewardModelSettings) -> Pair | None:
    """(judge's conversation, z) of one record; None for a failed critique, which teaches nothing."""
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return None
    messages = judge_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response)
    z = wire.render(as_taught(judgement, settings), record.response)
    weight = settings.poor_weight
    emphasis = ((*wire.poor_part(z), weight),) if weight != 1 else ()
    return Pair(record.id, tuple(messages), z, emphasis)


def as_taught(critique: Critique, settings: RewardModelSettings) -> Critique:
    """What of a critique the reward model learns to write: a small one has no capacity for all of it."""
    spans = tuple(
        span.model_copy(update={"reason": _taught_reason(span.reason, settings)}) for span in critique.spans
    )
    return critique.model_copy(update={"text": critique.text if settings.critique else "", "spans": spans})


def _taught_reason(reason: str, settings: RewardModelSettings) -> str:
    return {"full": reason, "short": shortened_reason(reason), "none": ""}[settings.reasons]


def shortened_reason(reason: str) -> str:
    """`Wrong-Grounding: the passage says ...` -> `Wrong-Grounding`."""
    return " ".join(re.split(r"[:.;,?!\n]", reason.strip(), maxsplit=1)[0].split()[:4])


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
    source = Source(kind="reward_model", model=config.critic.model or "reward_model")
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
        judge = OpenAIChat(config.evaluate.judge, base_url=config.evaluate.judge_url, max_tokens=16)
        with judge:
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


def judged_cases(critic: PromptedCritic, gold: Sequence[Feedback], table: TokenTable) -> list[SpanCase]:
    """What a critic says of the responses of some records, beside what the records say."""
    predicted = critic.critique([example_of(record) for record in gold], [record.response for record in gold])
    return [
        SpanCase(_critique(record), judgement, _aligned(record, table))
        for record, judgement in zip(gold, predicted, strict=True)
    ]


def example_of(record: Feedback) -> Example:
    """The prompt of a record."""
    return Example(id=record.id, prompt=record.prompt)


def _aligned(record: Feedback, table: TokenTable) -> Aligned:
    """By the ids the policy sampled; a response that people wrote about elsewhere has none."""
    ids = record.meta.get(TOKEN_IDS)
    return table.align(ids) if ids else table.align_text(record.response)


def _critique(record: Feedback) -> Critique:
    judgement = record.judgement()
    assert isinstance(judgement, Critique)
    return judgement
