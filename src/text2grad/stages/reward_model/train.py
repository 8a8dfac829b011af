"""`train-reward`: train a reward model, and measure it on held-out answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.align import token_labels
from text2grad.chat import Chat
from text2grad.config import Config, RewardModelSettings
from text2grad.durable.run import ResumeMode
from text2grad.errors import UsageError, UserError
from text2grad.eval.critics.marks import marks_report, number_repeated_ids, read_marks
from text2grad.eval.critics.reward_model import reward_model_report, verdict_order
from text2grad.eval.critics.spans import SpanCase, span_report
from text2grad.eval.judge import Pair as JudgedPair
from text2grad.eval.judge import compare_critics
from text2grad.feedback import Feedback, Source, Span
from text2grad.jsonl import write_jsonl
from text2grad.page import signs
from text2grad.page.quality import FEW_RECORDS
from text2grad.policy.adapters import BASE_DIGEST, hash_base_weights
from text2grad.policy.load import base_model_name, load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import RewardModel
from text2grad.stages.evaluate.answers import CRITIQUE_PARTS, comparing_judge
from text2grad.stages.reward_model.corrections import with_corrections
from text2grad.stages.reward_model.data import (
    example_of,
    fitting,
    judged_cases,
    reward_data,
    token_table,
    with_damage,
)
from text2grad.stages.reward_model.gate import check_reward_model, read_gate, release_memory
from text2grad.stages.run_folder import GATE_FILE, RunFolder, read_feedback, write_json
from text2grad.stages.training import (
    TrainingStage,
    facts_of_pairs,
    prepare,
    prepare_training,
    refuse_other_engines,
)
from text2grad.train.supervised import Heads, train_supervised
from text2grad.train.watch.steps import save_every

JUDGE_PROMPT = "compare_critiques"


@dataclass(frozen=True, kw_only=True)
class RewardModelSummary(Summary):
    """Counts of the training data, the last metrics, the rates on held-out records, the verdict.

    `corrections` counts praise of people's corrections, `damaged` corrupted answers.
    """

    records: int
    trained_on: int
    corrections: int | None = None
    damaged: int | None = None
    metrics: Mapping[str, float] = inlined()
    rates: Mapping[str, float] = inlined()
    gate: Mapping[str, Any] | None = None
    out: str


def run_train_reward(config: Config, resume: ResumeMode = "auto") -> RewardModelSummary:
    """Train the reward model on z, check it, and measure it on held-out records.

    Writes `reward_model/policy`, `reward_model/gate.json` and `evaluation/reward_model.json`.
    """
    summary = train_reward_model(prepare_training(config, "reward_model", "reward_model", resume, "reward model"))
    release_memory()  # the trained model is freed before the written one is loaded
    model = RewardModel.of(config)
    cases = [case for _, case in heldout_cases(model)]
    rates = measure_reward_model(model.run, cases)
    gate = check_reward_model(model, cases, config.generation, config.credit, config.run.seed)
    return replace(summary, rates=rates, gate=asdict(gate))


def train_reward_model(stage: TrainingStage) -> RewardModelSummary:
    """Train the reward model and write it.

    Raises:
        UserError: there is nothing to train on, or no critique has a score for a score head.
    """
    settings = stage.config.reward_model
    refuse_other_engines(stage)
    records = training_records(stage.run)
    start = starting_model(stage.run, settings)
    policy = load_policy(start)
    praised = with_corrections(records)
    corrupted = with_damage(records, settings, stage.config.run.seed)[len(records) :]
    pairs = [pair for _, pair in fitting(policy, [*praised, *corrupted], settings)]
    if settings.score_head and pairs and all(pair.score is None for pair in pairs):
        raise UserError("no critique has a score for a score head to learn", "--reward_model.score_head false")
    run = stage.finalise(policy, facts_of_pairs(policy, pairs))
    base = hash_base_weights(policy.model) if settings.shared else ""
    settings = run.config.reward_model
    with run.begin(start, on_step=save_every(settings.keep_every, policy, stage.folder)) as options:
        metrics = train_supervised(
            policy,
            pairs,
            settings.training,
            options,
            section="reward_model.training",
            heads=Heads(settings.weight_of_labels, settings.score_head, settings.tags),
        )
        (stage.folder / GATE_FILE).unlink(missing_ok=True)  # the verdict on the previous model
        for place in (stage.folder / "policy", *stage.folder.glob("*-step-*")) if base else ():
            (place / BASE_DIGEST).write_text(base + "\n", encoding="utf-8")
    return RewardModelSummary(
        records=len(records),
        trained_on=len(pairs),
        corrections=len(praised) - len(records) or None,
        damaged=len(corrupted) or None,
        metrics=metrics,
        out=str(stage.folder / "policy"),
    )


def training_records(run: RunFolder) -> list[Feedback]:
    """Return the records to train on; warn on stderr if there are few records of people."""
    train, _ = reward_data(run)
    if len(train) < FEW_RECORDS and any(record.source.kind == "human" for record in train):
        first = f"text2grad train --offline {run.feedback_file}"
        print(f"{len(train)} records are few for a reward model: start with {first}", file=sys.stderr)
    return train


def starting_model(run: RunFolder, settings: RewardModelSettings) -> PolicySettings:
    """Return the settings of the model that the reward model is trained from.

    Raises:
        UserError: `reward_model.shared` is set, but the base weights differ from the policy's, or
            one of the models has no adapter.
    """
    policy = run.policy()
    start = policy
    if settings.model is not None:
        start = run.base.model_copy(update={"model": settings.model, "chat_template": None})
    if settings.shared and base_model_name(start.model) != base_model_name(policy.model):
        problem = f"the reward model starts from {start.model}, the policy from {policy.model}: nothing to share"
        raise UserError(problem, "set reward_model.model null, or reward_model.shared false")
    if settings.shared and (start.lora is None or policy.lora is None):
        raise UserError("only adapters can share base weights", "set policy.lora, or reward_model.shared false")
    return start


def measure_reward_model(run: RunFolder, cases: Sequence[SpanCase]) -> dict[str, float]:
    """Write and return the rates of the reward model on held-out records, for the report."""
    if not cases:
        return {}
    order = verdict_order(cases)
    rates = {**span_report(cases), **({} if order is None else {"verdict_order": order})}
    write_json(run.evaluation / "reward_model.json", rates)
    return rates


def run_evaluate_reward_model(
    config: Config, against: Path | None = None, marks: Path | None = None
) -> dict[str, Any]:
    """Measure the reward model and trivial baselines on held-out records.

    Writes the rates, the full report (`reward_model.full.json`) and the reward model's critiques,
    for people to mark (`reward_model.said.jsonl`), to `evaluation/`.

    Args:
        against: critiques that the judge compares with; default: the annotations.
        marks: a file of people's marks of the reward model's critiques.

    Returns:
        The full report (`eval.critics.reward_model`).

    Raises:
        UserError: there are no held-out records, or the judge's prompt is not usable.
    """
    if config.judge.prompt and not config.evaluate.judge:
        raise UsageError("judge.prompt needs a judge", "--evaluate.judge MODEL")
    judge = comparing_judge(config, JUDGE_PROMPT, CRITIQUE_PARTS)
    prepare(config)
    model = RewardModel.of(config)
    if marks:
        read_marks(marks)  # fails before the model is loaded
    cases = heldout_cases(model)
    if not cases:
        raise UserError("no held-out feedback to measure on", "raise task.heldout_share, or annotate more")
    report, gold, critiques = measure_critiques(model, cases, config.run.seed)
    if marks:
        aligned = {record.id: case.aligned for record, (_, case) in zip(critiques, cases, strict=True)}

        def length(record: Feedback, span: Span) -> int:
            return int(abs(token_labels([span], aligned[record.id])).sum())

        report["people"] = marks_report(marks, critiques, length)
    if config.evaluate.judge:
        with judge.open() as chat:
            report["judge"] = compare_with(against, judge.prompt, chat, gold, critiques)
    quotes = signs.quote_warnings(report["unmatched"], "of the reward model")
    for line in (*quotes, *signs.human_warnings(report.get("people", {}))):
        print(f"warning: {line}", file=sys.stderr)
    write_json(model.run.evaluation / "reward_model.full.json", report)
    return report


def measure_critiques(
    model: RewardModel, heldout: Sequence[tuple[Feedback, SpanCase]], seed: int
) -> tuple[dict[str, Any], list[Feedback], list[Feedback]]:
    """Measure a reward model's critiques, and write the rates and the critiques.

    Returns:
        The report, the held-out records, and the critiques as records.
    """
    cases = [case for _, case in heldout]
    report, folder = reward_model_report(cases, seed), model.run.evaluation
    verdict = read_gate(model.run)
    report["gate"] = asdict(verdict) if verdict else None
    gold = list(number_repeated_ids(record for record, _ in heldout))
    source = Source(kind="reward_model", model=str(model.run.reward_model_folder))
    critiques = [
        Feedback.of(example_of(record), record.response, case.predicted, source)
        for record, case in zip(gold, cases, strict=True)
    ]
    write_json(folder / "reward_model.json", span_report(cases))
    for name, rates in report["baselines"].items():
        write_json(folder / f"reward_model_{name}.json", rates)
    write_jsonl(folder / "reward_model.said.jsonl", critiques)
    return report, gold, critiques


def compare_with(
    path: Path | None, prompt: str, judge: Chat, gold: Sequence[Feedback], critiques: Sequence[Feedback]
) -> dict[str, float]:
    """Have a judge compare the reward model's critiques with those in `path`, else with `gold`.

    Critiques of the same response to the same prompt are compared. A response without a critique in
    `path`, where its annotation failed, is counted in `left_out`.

    Raises:
        UserError: the other critiques are of other responses.
    """
    others: dict[tuple[str, str], list[Feedback]] = {}
    for record in gold if path is None else read_feedback(path):
        others.setdefault(_answer_key(record), []).append(record)
    matched = []
    for record in critiques:  # equal responses are paired in order
        if candidates := others.get(_answer_key(record)):
            matched.append((record, candidates.pop(0)))
    ids = {id for id, _ in others}
    matched_ids = {_answer_key(record)[0] for record, _ in matched}
    differ = [record.id for record in critiques if (id := _answer_key(record)[0]) in ids and id not in matched_ids]
    if differ or not matched:
        first = differ[0] if differ else critiques[0].id
        raise UserError(f"{path} has no critique of the response {first!r}", "evaluate both on the same records")
    pairs = [
        JudgedPair(example_of(record), record.response, record.judgement(), other.judgement())
        for record, other in matched
    ]
    return {**compare_critics(judge, prompt, pairs), "left_out": len(critiques) - len(matched)}


def _answer_key(record: Feedback) -> tuple[str, str]:
    """Return the prompt id without its answer number, and the response."""
    return re.sub(r"#\d+$", "", record.id), record.response


def heldout_cases(trained: RewardModel) -> list[tuple[Feedback, SpanCase]]:
    """Return the held-out records that fit the model, with its judgement of each token."""
    _, heldout = reward_data(trained.run)
    if not heldout:
        return []
    model = trained.load()
    gold = [record for record, _ in fitting(model, heldout, trained.settings)]
    if not gold:
        return []
    print(f"reward model: judging {len(gold)} held-out answers", file=sys.stderr, flush=True)
    return list(zip(gold, judged_cases(trained.over(model), gold, token_table(trained.run)), strict=True))
