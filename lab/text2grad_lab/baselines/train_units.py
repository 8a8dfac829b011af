"""`train-units`: train a model that labels each step (PRM-PPO) or each token (dense reward) of an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config, extra_settings
from text2grad.durable.run import ResumeMode
from text2grad.errors import UsageError
from text2grad.eval.critics.reward_model import baselines
from text2grad.eval.critics.spans import SpanCase, intervals, span_report, tally
from text2grad.feedback import Critique, Failure, Feedback
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages import Summary, inlined
from text2grad.stages.reward_model.data import reward_data
from text2grad.stages.reward_model.gate import release
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.stages.training import training
from text2grad_lab.baselines.records import SplitData, refuse_transcripts
from text2grad_lab.baselines.steps import PROMPT, is_ultrafeedback, labelled_steps, own_steps, steps_of
from text2grad_lab.baselines.unit_model import (
    JudgedAnswer,
    UnitModel,
    as_tokens,
    encode_units,
    load_unit_head,
    train_unit_model,
    units_of,
)
from text2grad_lab.baselines.units import UNITS_FILE, UnitKind, UnitModelSettings, judgement_of

UNINFORMED = {"random": "random_spans", "always": "always_poor"}
RATES = [f"{name}_{rate}" for name in ("poor", "good") for rate in ("precision", "recall", "f1")]


@dataclass(frozen=True, kw_only=True)
class UnitModelSummary(Summary):
    """Records read, answers trained on and held out, unusable records by reason, last metrics of the training,
    figures on held-out answers (`heldout_*`, `unit_report`), and the model's folder."""

    records: int
    trained_on: int
    heldout: int
    left_out: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = inlined()
    figures: Mapping[str, float] = inlined()
    out: str


def run_train_units(config: Config, units: UnitKind, resume: ResumeMode = "auto") -> UnitModelSummary:
    """Train a unit model on the run's feedback; write `unit_model/<units>/policy` and its figures.

    Raises:
        UsageError: the answers of the task have no such units.
    """
    refuse_no_steps(config, units)
    settings = extra_settings(config, "unit_model", UnitModelSettings)
    with training(config, None, f"unit_model/{units}", resume, f"unit model of {units}") as stage:
        place = stage.place / "policy"
        with stage.preparing():
            policy, data = policy_and_answers(config, units)
        with stage.settle().begin() as options:
            metrics = train_unit_model(policy, data.train, settings.training, options)
            del policy
            release()  # the trained model is freed before the written one is loaded
            figures = measure(config, place, data.heldout, settings.poor_threshold) if stage.ranks.first else {}
            if stage.ranks.first:
                write_json(place / UNITS_FILE, {"units": units, "heldout": figures})
    return UnitModelSummary(
        records=data.records,
        trained_on=len(data.train),
        heldout=len(data.heldout),
        left_out=dict(data.left_out) or None,
        metrics=metrics,
        figures={f"heldout_{name}": value for name, value in figures.items()},
        out=str(place),
    )


def refuse_no_steps(config: Config, units: UnitKind) -> None:
    """Refuse steps of UltraFeedback, whose answers have none (paper, appendix N).

    Raises:
        UsageError: they are asked for.
    """
    if units == "steps" and is_ultrafeedback(config.task):
        raise UsageError("the answers of UltraFeedback have no steps to label", "train-units tokens")


def policy_and_answers(config: Config, units: UnitKind) -> tuple[Policy, SplitData[JudgedAnswer]]:
    """Return the policy to train and the answers that fit it; the feedback is read first."""
    data = judged_answers(config, units)
    policy = load_policy(RunFolder.of(config).policy())

    def tokens(answers: Sequence[JudgedAnswer]) -> list[int]:
        return [encoded.tokens for encoded in encode_units(policy, answers)]

    return policy, data.fitting(tokens, policy.context, "feedback")


def judged_answers(config: Config, units: UnitKind) -> SplitData[JudgedAnswer]:
    """Return the records of the run as answers with labelled units, split as those of the reward model."""
    left_out: Counter[str] = Counter()
    splits: list[list[JudgedAnswer]] = []
    for records in reward_data(RunFolder.of(config)):
        refuse_transcripts(records, "a unit model")
        answers = [judged_answer(record, units) for record in records]
        left_out.update(reason for reason in answers if isinstance(reason, str))
        splits.append([answer for answer in answers if isinstance(answer, JudgedAnswer)])
    return SplitData(splits[0], splits[1], left_out)


def judged_answer(record: Feedback, units: UnitKind) -> JudgedAnswer | str:
    """Return a record as an answer with labelled units, or the reason why it labels none.

    Steps are good unless a poor span overlaps them; a critic that was asked for steps has labelled each itself. A
    poor answer without a poor span labels no step: one of them is wrong, but which is unknown.
    """
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return "failed"
    if not record.response.strip():
        return "blank"
    if units == "tokens":
        return JudgedAnswer(record.id, record.prompt, record.response, record.spans)
    if (judgement.score or 0) < 0 and not any(span.label < 0 for span in record.spans):
        return "poor_without_a_place"
    if record.source.prompt_version.startswith(f"{PROMPT}@"):
        if not (spans := own_steps(record.spans)):
            return "without_steps"
        places = [(span.start, span.end) for span in spans]
    else:
        places = steps_of(record.example(), record.response)
        spans = labelled_steps(places, record.response, record.spans)
    return JudgedAnswer(record.id, record.prompt, record.response, tuple(spans), tuple(places))


def measure(
    config: Config, folder: Path, answers: Sequence[JudgedAnswer], poor_threshold: float | None
) -> dict[str, float]:
    """Return the figures of a new unit model on held-out answers; none without answers."""
    if not answers:
        return {}
    settings = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    policy = load_unit_head(load_frozen(settings), folder)
    model = UnitModel(policy, poor_threshold=poor_threshold)  # it is measured as it criticises
    return unit_report(cases_of(model, answers), config.run.seed)


def cases_of(model: UnitModel, answers: Sequence[JudgedAnswer]) -> list[SpanCase]:
    """Return the labels of a unit model beside the answers' own; the tokens of a case are the answer's units."""
    places = None if answers[0].places is None else [answer.places or () for answer in answers]
    labelled = model.label([answer.prompt for answer in answers], [answer.response for answer in answers], places)
    return [
        SpanCase(
            Critique(text="", spans=answer.spans),
            judgement_of(answer.response, units),
            as_tokens(answer.response, units_of(model.divide, answer).units),
        )
        for answer, units in zip(answers, labelled, strict=True)
    ]


def unit_report(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, float]:
    """Return the figures of held-out answers, in which the "tokens" of a case are its units (paper, Table 17).

    Returns:
        `answers`, `units`; `poor_share` of the units; `unreadable`, the share of the answers without labels;
        `poor_*` and `good_*`: precision, recall and F1 of the units with the label, F1 with the bounds of its 95 %
        interval over the answers (`poor_f1_low`, `poor_f1_high`); `random_poor_f1` and `always_poor_f1`, those of
        random spans of the same lengths and of one label for all.

    Raises:
        ValueError: nothing to compare.
    """
    rates = span_report(cases)
    bounds = intervals(cases, seed=seed)
    units = sum(len(case.aligned) for case in cases)
    poor = sum(tally(case)["poor_token_gold"] for case in cases)
    report = {"answers": float(len(cases)), "units": float(units), "poor_share": poor / units}
    report |= {name: rates[name] for name in ("unreadable", *RATES)}
    for name in ("poor_f1", "good_f1"):
        report[f"{name}_low"], report[f"{name}_high"] = bounds[name]
    uninformed = baselines(cases, seed=seed)
    report |= {f"{name}_poor_f1": uninformed[of]["poor_f1"] for name, of in UNINFORMED.items()}
    return report
