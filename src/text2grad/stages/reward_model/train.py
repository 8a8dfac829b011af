"""`train-reward`, and how well the reward model marks held-out answers."""

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
from text2grad.eval.critics.marks import numbered, people, read_marks
from text2grad.eval.critics.reward_model import reward_model_report, verdict_order
from text2grad.eval.critics.spans import SpanCase, span_report
from text2grad.eval.judge import Pair as JudgedPair
from text2grad.eval.judge import compare_critics
from text2grad.feedback import Feedback, Source, Span
from text2grad.jsonl import write_jsonl
from text2grad.page import signs
from text2grad.page.quality import FEW_REMARKS
from text2grad.policy.adapters import BASE_DIGEST, digest_of_base
from text2grad.policy.load import base_of, load_policy
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
from text2grad.stages.reward_model.gate import GATE_FILE, check_reward_model, read_gate, release
from text2grad.stages.run_folder import RunFolder, read_feedback, write_json
from text2grad.stages.training import TrainingStage, facts_of_pairs, prepare, prepare_training, warn_if_loss_flat
from text2grad.train.pairs import Pair
from text2grad.train.supervised import Heads, train_supervised

JUDGE_PROMPT = "compare_critiques"


@dataclass(frozen=True, kw_only=True)
class RewardModelSummary(Summary):
    """Records, pairs trained on, how many of them praise people's corrections and how many are
    spoiled answers, the last metrics, the rates on held-out records, and the verdict.
    """

    records: int
    trained_on: int
    corrections: int | None = None
    damaged: int | None = None
    metrics: Mapping[str, float] = inlined()
    rates: Mapping[str, float] = inlined()
    gate: Mapping[str, Any] | None = None
    out: str


@dataclass(frozen=True, kw_only=True)
class RewardModelEvaluation(Summary):
    """The full report on a reward model on held-out records (`eval.critics.reward_model`)."""

    report: Mapping[str, Any] = inlined()


def run_train_reward(config: Config, resume: ResumeMode = "auto") -> RewardModelSummary:
    """Train the reward model on z and check it; writes `reward_model/policy`,
    `reward_model/gate.json` and `evaluation/reward_model.json`.
    """
    summary = train_reward_model(prepare_training(config, "reward_model", "reward_model", resume, "reward model"))
    release()  # what was trained is gone before the model that was written is loaded
    model = RewardModel.of(config)
    cases = [case for _, case in heldout_cases(model)]
    rates = measure_reward_model(model.run, cases)
    gate = check_reward_model(model, cases, config.generation, config.credit, config.run.seed)
    return replace(summary, rates=rates, gate=asdict(gate))


def train_reward_model(stage: TrainingStage) -> RewardModelSummary:
    """Train the reward model and write it."""
    settings = stage.config.reward_model
    chosen = training_records(stage.run)
    start = learner_settings(stage.run, settings)
    policy = load_policy(start)
    praised = with_corrections(chosen)
    shown = [*praised, *with_damage(chosen, settings, stage.config.run.seed)[len(chosen) :]]
    pairs = [pair for _, pair in fitting(policy, shown, settings)]
    if settings.score_head:
        refuse_no_score(pairs)
    run = stage.finalise(policy, facts_of_pairs(policy, pairs))
    base = digest_of_base(policy.model) if settings.shared else ""
    settings = run.config.reward_model
    with run.begin(start) as options:
        metrics = train_supervised(
            policy,
            pairs,
            settings.training,
            options,
            section="reward_model.training",
            heads=Heads(settings.weight_of_labels, settings.score_head, settings.tags),
        )
        (stage.folder / GATE_FILE).unlink(missing_ok=True)  # it is of the model before
        if base:
            (stage.folder / "policy" / BASE_DIGEST).write_text(base + "\n", encoding="utf-8")
    warn_if_loss_flat(stage.folder, "reward_model.training", settings.training.lr)
    return RewardModelSummary(
        records=len(chosen),
        trained_on=len(pairs),
        corrections=len(praised) - len(chosen) or None,
        damaged=len(shown) - len(praised) or None,
        metrics=metrics,
        out=str(stage.folder / "policy"),
    )


def training_records(run: RunFolder) -> list[Feedback]:
    """The records to train on; says on stderr that a few of people's are few."""
    train, _ = reward_data(run)
    if len(train) < FEW_REMARKS and any(record.source.kind == "human" for record in train):
        first = f"text2grad train --offline {run.feedback_file}"
        print(f"{len(train)} records are few for a reward model: start with {first}", file=sys.stderr)
    return train


def refuse_no_score(pairs: Sequence[Pair]) -> None:
    """Raises UserError: a head is to learn the verdict, and no critique has one."""
    if pairs and all(pair.score is None for pair in pairs):
        raise UserError("no critique has a score for a head to learn", "--reward_model.score_head false")


def learner_settings(run: RunFolder, settings: RewardModelSettings) -> PolicySettings:
    """The model that becomes the reward model.

    Raises:
        UserError: it is to share the policy's base weights, but has different ones, or no adapter.
    """
    start = run.policy()
    chosen = start
    if settings.model is not None:
        chosen = run.base.model_copy(update={"model": settings.model, "chat_template": None})
    if settings.shared and base_of(chosen.model) != base_of(start.model):
        problem = f"the reward model starts from {chosen.model}, the policy from {start.model}: no weights to share"
        raise UserError(problem, "reward_model.model null, or reward_model.shared false")
    if settings.shared and (chosen.lora is None or start.lora is None):
        raise UserError("only adapters can share base weights", "set policy.lora, or reward_model.shared false")
    return chosen


def measure_reward_model(run: RunFolder, cases: Sequence[SpanCase]) -> dict[str, float]:
    """The rates of the reward model on held-out records, for the report; empty if there are
    none."""
    if not cases:
        return {}
    order = verdict_order(cases)
    told_apart = {} if order is None else {"verdict_order": order}
    rates = {**span_report(cases), **told_apart}
    write_json(run.evaluation / "reward_model.json", rates)
    return rates


def run_evaluate_reward_model(
    config: Config, against: Path | None = None, marks: Path | None = None
) -> RewardModelEvaluation:
    """The full report on the reward model on held-out records, with baselines that know nothing.

    The judge, if there is one, compares its critiques with those in `against`, by default the
    annotations. `marks` is a file of people's marks of its critiques.

    Writes to `evaluation/`: the rates of each for the report, everything in
    `reward_model.full.json`, and the critiques of the reward model in `reward_model.said.jsonl`,
    for people to mark.

    Raises:
        UserError: there are no held-out records, or the judge's prompt cannot be used.
    """
    if config.judge.prompt and not config.evaluate.judge:
        raise UsageError("judge.prompt needs a judge", "--evaluate.judge MODEL")
    judge = comparing_judge(config, JUDGE_PROMPT, CRITIQUE_PARTS)
    prepare(config)
    model = RewardModel.of(config)
    if marks:
        read_marks(marks)  # before the model is asked for nothing
    judged = heldout_cases(model)
    if not judged:
        raise UserError("no held-out feedback to measure on", "raise task.heldout_share, or annotate more")
    report, gold, critiques = measured_critiques(model, judged, config.run.seed)
    if marks:
        aligned = {record.id: case.aligned for record, (_, case) in zip(critiques, judged, strict=True)}

        def length(record: Feedback, span: Span) -> int:
            return int(abs(token_labels([span], aligned[record.id])).sum())

        report["people"] = people(marks, critiques, length)
    if config.evaluate.judge:
        with judge.open() as chat:
            report["judge"] = compared(against, judge.prompt, chat, gold, critiques)
    _say_signs(report)
    write_json(model.run.evaluation / "reward_model.full.json", report)
    return RewardModelEvaluation(report=report)


def measured_critiques(
    model: RewardModel, judged: Sequence[tuple[Feedback, SpanCase]], seed: int
) -> tuple[dict[str, Any], list[Feedback], list[Feedback]]:
    """The report on a reward model's critiques of held-out records, those records, and the
    critiques as records.

    Writes the rates, those of the baselines, and the critiques.
    """
    cases = [case for _, case in judged]
    report, folder = reward_model_report(cases, seed), model.run.evaluation
    verdict = read_gate(model.run)
    report["gate"] = asdict(verdict) if verdict else None
    gold = list(numbered(record for record, _ in judged))
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


def _say_signs(report: Mapping[str, Any]) -> None:
    said = [
        *signs.quote_warnings(report["unmatched"], "of the reward model"),
        *signs.human_warnings(report.get("people", {})),
    ]
    for line in said:
        print(f"warning: {line}", file=sys.stderr)


def compared(
    path: Path | None, prompt: str, judge: Chat, gold: Sequence[Feedback], said: Sequence[Feedback]
) -> dict[str, float]:
    """The judge's verdicts on the reward model's critiques compared with those of `path`, else
    `gold`: of the same response to the same prompt, however many a prompt has.

    A response that has no critique there, for its annotation failed in that run, is left out and
    counted (`left_out`).

    Raises:
        UserError: the other critiques are of other responses.
    """
    theirs: dict[tuple[str, str], list[Feedback]] = {}
    for record in gold if path is None else read_feedback(path):
        theirs.setdefault(_about(record), []).append(record)
    both = []
    ids = {id for id, _ in theirs}
    for record in said:  # equal responses are paired in their order
        if same := theirs.get(_about(record)):
            both.append((record, same.pop(0)))
    met = {_about(record)[0] for record, _ in both}
    differ = [record.id for record in said if (id := _about(record)[0]) in ids and id not in met]
    if differ or not both:
        other = differ[0] if differ else said[0].id
        raise UserError(f"{path} has no critique of the response {other!r}", "evaluate both on the same records")
    pairs = [
        JudgedPair(example_of(ours), ours.response, ours.judgement(), other.judgement()) for ours, other in both
    ]
    return {**compare_critics(judge, prompt, pairs), "left_out": len(said) - len(both)}


def _about(record: Feedback) -> tuple[str, str]:
    """The id of the prompt, without the number of the answer (`numbered`), and the response."""
    return re.sub(r"#\d+$", "", record.id), record.response


def heldout_cases(trained: RewardModel) -> list[tuple[Feedback, SpanCase]]:
    """The held-out records that fit the model, with what the reward model says of them, token by
    token."""
    _, heldout = reward_data(trained.run)
    if not heldout:
        return []
    model = trained.load()
    gold = [record for record, _ in fitting(model, heldout, trained.settings)]
    if not gold:
        return []
    print(f"reward model: asked about {len(gold)} held-out answers", file=sys.stderr, flush=True)
    return list(zip(gold, judged_cases(trained.over(model), gold, token_table(trained.run)), strict=True))
