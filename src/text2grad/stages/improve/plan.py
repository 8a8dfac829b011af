"""Choose the training steps by the kind of feedback, and hold out questions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.config import TINY, Config
from text2grad.errors import UserError
from text2grad.feedback import Example, Feedback
from text2grad.settings import is_set, with_values
from text2grad.stages.run_folder import SFT
from text2grad.tasks.base import digest, question_key

QUESTIONS, HELDOUT = "questions.jsonl", "heldout.jsonl"
OFFLINE = "offline"
"""The run of `train --offline`."""
HELDOUT_SHARE, MAX_HELDOUT, MIN_TRAINING = 0.2, 100, 4
"""Share and largest number of held-out questions; smallest number of questions to learn from."""
CORRECTIONS_ONLY = 0.8
"""Share of corrected answers from which only the corrections are learned."""
MAX_ANSWER_TOKENS = 512


@dataclass(frozen=True)
class Plan:
    """The steps, the reason for them, and the split of the questions.

    Without steps there is nothing to learn.
    """

    steps: tuple[str, ...]
    reason: str
    training: tuple[Example, ...] = ()
    heldout: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Earlier:
    """Feedback that the current policy was trained on, and the questions held out from it."""

    records: Sequence[Feedback] = ()
    heldout: Collection[str] = ()


def make_plan(records: Sequence[Feedback], name: str, earlier: Earlier = Earlier()) -> Plan:
    """Choose the steps, and split the questions; questions of `earlier` stay on their side.

    `name` is the source of the records, for errors.

    Raises:
        UserError: fewer than `MIN_TRAINING` questions are left to learn from.
    """
    corrected = [record for record in records if _correction(record)]
    has_spans = any(record.spans for record in records)
    scores = {record.score for record in records if record.score is not None}
    if not corrected and not has_spans and len(scores) < 2:
        ratings = "all ratings are equal" if scores else "there are no ratings"
        return Plan((), f"nothing to learn: no answer is corrected, no word is marked, and {ratings}")
    if len(corrected) >= CORRECTIONS_ONLY * len(records):
        steps: tuple[str, ...] = (SFT,)
        reason = f"{len(corrected)} of {len(records)} answers are corrected: learn the corrections (sft)"
    else:
        signal = "the comments" if has_spans else "the ratings"
        answers = "the answers as sent, corrected where people did" if corrected else "the answers as sent"
        steps, reason = (SFT, OFFLINE), f"learn {answers} (sft), then {signal} (train --offline)"
    training, heldout = _split(records, earlier)
    if len(training) < MIN_TRAINING:
        problem = f"{name}: {len(_by_question(records))} questions are too few to learn from"
        raise UserError(problem, f"collect {MIN_TRAINING + 1} or more; about fifty make a difference")
    return Plan(steps, reason, training, heldout)


def _correction(record: Feedback) -> str:
    corrected = str(record.meta.get("corrected") or "")
    return corrected if corrected.strip() != str(record.response).strip() else ""


def _split(records: Sequence[Feedback], earlier: Earlier) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Return training and held-out questions, each once, with the best known answer."""
    new, old = _by_question(records), _by_question(earlier.records)
    unseen = sorted(new.keys() - old.keys() - {*earlier.heldout}, key=digest)
    count = min(MAX_HELDOUT - len(earlier.heldout), max(not earlier.heldout, round(HELDOUT_SHARE * len(unseen))))
    held_out = {*earlier.heldout, *unseen[: max(0, count)]}
    training = tuple(_as_example(answers) for question, answers in new.items() if question not in held_out)
    merged = {**old, **{question: [*old.get(question, []), *answers] for question, answers in new.items()}}
    return training, tuple(_as_example(answers) for question, answers in merged.items() if question in held_out)


def _by_question(records: Sequence[Feedback]) -> dict[str, list[Feedback]]:
    groups: dict[str, list[Feedback]] = {}
    for record in records:
        groups.setdefault(question_key(record), []).append(record)
    return groups


def _as_example(records: Sequence[Feedback]) -> Example:
    """Return a question with the answer to imitate: a correction, else the best rated.

    Its id is of the question, because ids of several files may be equal.
    """
    best = max(records, key=lambda record: (bool(_correction(record)), record.score or 0.0))
    reference = _correction(best) or str(best.response)
    id = f"question-{digest(question_key(best)).hex()[:12]}"
    return Example(id=id, prompt=best.prompt, reference=reference)


def with_settings(config: Config, plan: Plan, records: Sequence[Feedback]) -> Config:
    """Return the configuration of all steps of a plan."""
    folder = config.run.folder
    values: dict[str, Any] = {
        "task.name": "qa",
        "task.data": str(folder / QUESTIONS),
        "task.heldout_data": str(folder / HELDOUT),
    }
    if not is_set(config, "evaluate.samples"):
        values["evaluate.samples"] = 1
    longest = max((len(str(example.reference)) for example in (*plan.training, *plan.heldout)), default=0)
    if config.policy.model != TINY:
        # Tokens have three characters or more, so this leaves room for half as much again.
        values["generation.max_new_tokens"] = min(MAX_ANSWER_TOKENS, max(32, longest // 2))
        if plan.steps == (SFT,):
            values["sft.least_loss"] = None  # no later step samples from this policy
    if plan.steps == (SFT, OFFLINE) and not any(record.spans for record in records):
        values["credit.scheme"] = "spread_score"
    return with_values(config, values)
