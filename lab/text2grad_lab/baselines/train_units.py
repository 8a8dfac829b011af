"""`train-units`: train a tagger on the steps (PRM-PPO) or the tokens (dense reward) of the run's
feedback.

The run folder `unit_model/<units>` gets the records with labelled units and the reward model.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from text2grad.align import Aligned
from text2grad.config import Config
from text2grad.durable.run import ResumeMode
from text2grad.errors import UsageError
from text2grad.eval.critics.reward_model import baselines
from text2grad.eval.critics.spans import SpanCase, count_case, intervals, span_report
from text2grad.feedback import Failure, Feedback, Place
from text2grad.jsonl import write_jsonl
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import RewardModel
from text2grad.stages.reward_model.data import reward_data
from text2grad.stages.reward_model.gate import release_memory
from text2grad.stages.reward_model.train import heldout_cases, train_reward_model
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.stages.training import prepare_training
from text2grad_lab.baselines.records import refuse_transcripts
from text2grad_lab.baselines.steps import PROMPT, is_ultrafeedback, labelled_steps, step_spans, steps_of
from text2grad_lab.baselines.units import TAGGER, UNITS_FILE, UnitKind, label_steps

UNINFORMED = {"random": "random_spans", "always": "always_poor"}
RATES = [f"{name}_{rate}" for name in ("poor", "good") for rate in ("precision", "recall", "f1")]


@dataclass(frozen=True, kw_only=True)
class UnitModelSummary(Summary):
    """Records read, answers trained on and held out, unusable records by reason, last metrics of
    the training, figures on held-out answers (`heldout_*`, `unit_report`), and the model's
    folder."""

    records: int
    trained_on: int
    heldout: int
    left_out: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = inlined()
    figures: Mapping[str, float] = inlined()
    out: str


def run_train_units(config: Config, units: UnitKind, resume: ResumeMode = "auto") -> UnitModelSummary:
    """Train a unit model on the run's feedback; write `unit_model/<units>/reward_model/policy` and
    its figures.

    Raises:
        UsageError: the answers of the task have no such units.
    """
    refuse_no_steps(config, units)
    left_out = write_labelled(config, units)
    unit_config = tagger_config(config, units)
    stage = prepare_training(unit_config, "reward_model", "reward_model", resume, f"unit model of {units}")
    trained = train_reward_model(stage)
    release_memory()  # free the trained model before the saved one is loaded
    cases = unit_cases(unit_config, units)
    figures = unit_report(cases, config.run.seed) if cases else {}
    place = stage.folder / "policy"
    write_json(place / UNITS_FILE, {"units": units, "heldout": figures})
    return UnitModelSummary(
        records=trained.records + len(cases) + left_out.total(),
        trained_on=trained.trained_on,
        heldout=len(cases),
        left_out=dict(left_out) or None,
        metrics=trained.metrics,
        figures={f"heldout_{name}": value for name, value in figures.items()},
        out=str(place),
    )


def refuse_no_steps(config: Config, units: UnitKind) -> None:
    """Refuse steps of UltraFeedback, whose answers have none (paper, appendix N).

    Raises:
        UsageError: steps are requested.
    """
    if units == "steps" and is_ultrafeedback(config.task):
        raise UsageError("the answers of UltraFeedback have no steps to label", "train-units tokens")


def tagger_config(config: Config, units: UnitKind) -> Config:
    """Return the configuration of the run that trains the unit model, from the initial policy."""
    sections = {
        "run": {"folder": config.run.folder / "unit_model" / units},
        "policy": {"model": RunFolder.of(config).policy().model},
        "reward_model": TAGGER,
    }
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    critic = config.critic.model_copy(update={"reward_model": type(config.critic.reward_model)()})
    return config.model_copy(update={**changed, "critic": critic})


def write_labelled(config: Config, units: UnitKind) -> Counter[str]:
    """Write the run's records with labelled units; return counts of the others by reason."""
    left_out: Counter[str] = Counter()
    folder = config.run.folder / "unit_model" / units
    for name, records in zip(("feedback", "feedback_heldout"), reward_data(RunFolder.of(config)), strict=True):
        refuse_transcripts(records, "a unit model")
        labelled = [labelled_record(record, units) for record in records]
        left_out.update(reason for reason in labelled if isinstance(reason, str))
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / f"{name}.jsonl", [record for record in labelled if isinstance(record, Feedback)])
    if left_out:
        words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items())
        print(f"left out of the feedback: {words}", file=sys.stderr)
    return left_out


def labelled_record(record: Feedback, units: UnitKind) -> Feedback | str:
    """Return a record whose spans are its labelled units, or the reason for leaving it out.

    Steps are good unless a poor span overlaps them; a critic asked for steps labels each. In a
    poor answer without a poor span an unknown step is wrong, so it labels no steps.
    """
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return "failed"
    if not record.response.strip():
        return "blank"
    if units == "tokens":
        return record
    if (judgement.score or 0) < 0 and not any(span.label < 0 for span in record.spans):
        return "poor_without_a_place"
    if record.source.prompt_version.startswith(f"{PROMPT}@"):
        spans = step_spans(record.spans)
    else:
        spans = labelled_steps(steps_of(record.example(), record.response), record.response, record.spans)
    return record.model_copy(update={"spans": tuple(spans)}) if spans else "without_steps"


def unit_cases(config: Config, units: UnitKind) -> list[SpanCase]:
    """Return the unit model's predictions for the held-out answers with their labels."""
    cases = []
    for record, case in heldout_cases(RewardModel.of(config)):
        if units == "steps":
            places = [(span.start, span.end) for span in record.spans]
            predicted = label_steps(case.predicted, places, record.response)
            case = case._replace(predicted=predicted, aligned=as_tokens(record.response, places))
        cases.append(case)
    return cases


def as_tokens(response: str, places: Sequence[Place]) -> Aligned:
    """Align a response with a token for each place."""
    starts, ends = (np.array([place[edge] for place in places], dtype=np.int64) for edge in (0, 1))
    return Aligned.of(response, starts, ends)


def unit_report(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, float]:
    """Return figures of held-out answers, whose "tokens" are units (paper, Table 17).

    Returns:
        `answers`, `units`; `poor_share` of the units; `unreadable`, the share of the answers
        without labels; `poor_*` and `good_*`: precision, recall and F1 of the units with the label,
        F1 with the bounds of its 95 % interval over the answers (`poor_f1_low`, `poor_f1_high`);
        `random_poor_f1` and `always_poor_f1`, for random spans of the same lengths and for spans
        that are all poor.

    Raises:
        ValueError: nothing to compare.
    """
    rates = span_report(cases)
    bounds = intervals(cases, seed=seed)
    units = sum(len(case.aligned) for case in cases)
    poor = sum(count_case(case)["poor_token_gold"] for case in cases)
    report = {"answers": float(len(cases)), "units": float(units), "poor_share": poor / units}
    report |= {name: rates[name] for name in ("unreadable", *RATES)}
    for name in ("poor_f1", "good_f1"):
        report[f"{name}_low"], report[f"{name}_high"] = bounds[name]
    uninformed = baselines(cases, seed=seed)
    report |= {f"{name}_poor_f1": uninformed[of]["poor_f1"] for name, of in UNINFORMED.items()}
    return report
