"""`train-reward --units`: a model that labels each step (PRM-PPO) or each token (dense reward) of an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.critics.steps import PROMPT, labelled_steps, own_steps, steps_of
from text2grad.critics.units import Units, judgement_of
from text2grad.durable.run import ResumeMode
from text2grad.errors import UsageError
from text2grad.eval.critics.spans import SpanCase
from text2grad.eval.critics.units import unit_report
from text2grad.feedback import Critique, Failure, Feedback
from text2grad.policy.heads.model import HeadModel, as_tokens
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.judge.critics import UNITS_FILE
from text2grad.stages.learn.gate import release
from text2grad.stages.learn.logged import refuse_transcripts
from text2grad.stages.learn.reward_data import SplitData, reward_data
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.results import write_json
from text2grad.stages.run.settle import facts_of_pairs
from text2grad.stages.run.summary import Summary, inlined
from text2grad.stages.run.training import training
from text2grad.tasks.qa import is_ultrafeedback
from text2grad.train.objectives.head_model import JudgedAnswer, encode_units, train_unit_model, units_of
from text2grad.train.pairs import Pair


@dataclass(frozen=True, kw_only=True)
class UnitModelSummary(Summary):
    """Records that were read, answers trained on and held out, records that label nothing by the reason, the last
    metrics of the training, figures on held-out answers (`heldout_*`, `eval.critics`), and the model's folder."""

    records: int
    trained_on: int
    heldout: int
    left_out: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = inlined()
    figures: Mapping[str, float] = inlined()
    out: str


def run_train_unit_model(config: Config, units: Units, resume: ResumeMode = "auto") -> UnitModelSummary:
    """Train a unit model on the run's feedback; writes `unit_model/<units>/policy` and its figures beside it.

    Raises:
        UsageError: the answers of the task have no such units.
    """
    refuse_no_steps(config, units)
    with training(config, "unit_model", f"unit_model/{units}", resume, f"unit model of {units}") as stage:
        place = stage.place / "policy"
        with stage.preparing():
            policy, data = policy_and_answers(config, units)
        answers = [Pair(each.id, each.prompt, each.response) for each in data.train]
        run = stage.settle(policy, facts_of_pairs(policy, answers))
        with run.begin() as options:
            metrics = train_unit_model(policy, data.train, run.config.unit_model.training, options)
            del policy
            release()  # what was trained is gone before the model that was written is loaded
            figures = measure(run.config, place, data.heldout) if stage.ranks.first else {}
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


def refuse_no_steps(config: Config, units: Units) -> None:
    """Nothing is read or written yet.

    Raises:
        UsageError: steps are asked for of UltraFeedback, whose answers have none (paper, appendix N).
    """
    if units == "steps" and is_ultrafeedback(config.task):
        raise UsageError("the answers of UltraFeedback have no steps to label", "--units tokens")


def policy_and_answers(config: Config, units: Units) -> tuple[Policy, SplitData[JudgedAnswer]]:
    """The policy to train and the answers that fit it. The feedback is read first: a bad file costs nothing."""
    data = judged_answers(config, units)
    policy = load_policy(start_policy(config))

    def tokens(some: Sequence[JudgedAnswer]) -> list[int]:
        return [each.tokens for each in encode_units(policy, some)]

    return policy, data.fitting(tokens, policy.context, "feedback")


def judged_answers(config: Config, units: Units) -> SplitData[JudgedAnswer]:
    """The records of the run as answers with labelled units, split as those of the reward model are."""
    left_out: Counter[str] = Counter()
    splits: list[list[JudgedAnswer]] = []
    for records in reward_data(config):
        refuse_transcripts(records, "a unit model")
        found = [judged_answer(record, units) for record in records]
        left_out.update(each for each in found if isinstance(each, str))
        splits.append([each for each in found if isinstance(each, JudgedAnswer)])
    return SplitData(splits[0], splits[1], left_out)


def judged_answer(record: Feedback, units: Units) -> JudgedAnswer | str:
    """A record as an answer with labelled units, or the reason why it labels none.

    Of steps all are good but those that a poor span overlaps; a critic that was asked for steps has labelled each.
    A poor answer without a poor span labels no step: one of them is wrong, and nobody knows which.
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


def measure(config: Config, folder: Path, answers: Sequence[JudgedAnswer]) -> dict[str, float]:
    """The figures of a new unit model on answers that are held out; none where there are none."""
    if not answers:
        return {}
    settings = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    threshold = config.critic.unit_model.poor_threshold  # it is measured as it criticises
    labeller = HeadModel(load_frozen(settings), poor_threshold=threshold)
    return unit_report(cases_of(labeller, answers), config.run.seed)


def cases_of(labeller: HeadModel, answers: Sequence[JudgedAnswer]) -> list[SpanCase]:
    """What a unit model says of answers, beside their own labels; the tokens of a case are the answer's units."""
    places = None if answers[0].places is None else [each.places or () for each in answers]
    found = labeller.label([each.prompt for each in answers], [each.response for each in answers], places)
    return [
        SpanCase(
            Critique(text="", spans=each.spans),
            judgement_of(each.response, said),
            as_tokens(each.response, units_of(labeller.divide, each).units),
        )
        for each, said in zip(answers, found, strict=True)
    ]
