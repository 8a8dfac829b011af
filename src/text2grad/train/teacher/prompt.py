"""What the teacher is shown: the question with a right answer and the critique in its last turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Judgement, Message
from text2grad.policy.encode import encode_prompt
from text2grad.policy.model import Policy
from text2grad.tasks.prompt_files import prompt_version, read_prompt
from text2grad.train.ppo_settings import TeacherSettings
from text2grad.train.rollout import Responses

PROMPT = "teacher"
_HEADING = re.compile(r"^=== (\w+) ===\n", re.MULTILINE)


class Lesson(NamedTuple):
    """A row of a batch, and the token ids of the prompt under which the teacher reads its answer."""

    row: int
    prompt: list[int]


@cache
def _parts() -> dict[str, str]:
    """The parts of the prompt file by name."""
    pieces = _HEADING.split(read_prompt(PROMPT))
    return {name: text.strip("\n") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def teacher_version() -> str:
    """`name@hash` of the prompt file."""
    return prompt_version(PROMPT)


def shown(prompt: Sequence[Message], solution: str, feedback: str) -> list[Message]:
    """A conversation whose last turn ends with a right answer and with feedback on the own one; "" for neither."""
    parts = _parts()
    additions = [
        *([parts["solution"].replace("{{solution}}", solution)] if solution else []),
        *([parts["feedback"].replace("{{feedback}}", feedback)] if feedback else []),
        parts["end"],
    ]
    last = prompt[-1]
    return [*prompt[:-1], last.model_copy(update={"content": "\n\n".join([last.content, *additions])})]


def words_of(judgement: Judgement) -> str:
    """The text of a critique with what it names as missing; "" for a failure."""
    if not isinstance(judgement, Critique):
        return ""
    return "\n".join([judgement.text, *(f"- missing: {each}" for each in judgement.omissions)]).strip()


def succeeded(judgement: Judgement, least: float) -> bool:
    """Whether an answer was right, by its verdict."""
    return isinstance(judgement, Critique) and judgement.score is not None and judgement.score >= least


def sibling(row: int, right: Sequence[bool], size: int) -> int | None:
    """The first right answer, but itself, to the prompt of a row, of `size` answers each; None if there is none."""
    first = row // size * size
    return next((each for each in range(first, first + size) if right[each] and each != row), None)


def lessons(
    tokenizer: Any, responses: Responses, settings: TeacherSettings, size: int, context: int | None
) -> tuple[list[Lesson], int]:
    """The rows that have feedback to show, and how many others were too long for the context.

    A right answer is shown without feedback, which is about unsuccessful attempts.
    """
    right = [succeeded(judgement, settings.success) for judgement in responses.judgements]
    kept, too_long = [], 0
    for row, example in enumerate(responses.examples):
        other = sibling(row, right, size)
        solution = "" if other is None else responses.aligned[other].text
        feedback = "" if right[row] else words_of(responses.judgements[row])
        if not (solution.strip() or feedback):
            continue
        ids = encode_prompt(tokenizer, shown(example.prompt, solution, feedback))
        fits = context is None or len(ids) + len(responses.samples[row].ids) <= context
        too_long += not fits
        kept += [Lesson(row, ids)] if fits else []
    return kept, too_long


def refuse_unfit(policy: Policy, examples: Sequence[Example], settings: TeacherSettings, sharded: bool) -> None:
    """Refuse what a teacher cannot work with, before anything is spent.

    Raises:
        UserError: weights are split, a prompt ends in no turn of the user, or `top_k` exceeds the vocabulary.
    """
    if sharded:
        raise UserError("a teacher reads with whole weights", "--run.parallel ddp, or ppo.teacher.kind none")
    ended = next((example for example in examples if example.prompt[-1].role != "user"), None)
    if ended is not None:
        raise UserError(
            f"prompt {ended.id!r} does not end in a turn of the user, where a teacher is shown its feedback",
            "leave it out, or ppo.teacher.kind none",
        )
    vocabulary = int(policy.model.get_output_embeddings().weight.shape[0])
    if settings.width > vocabulary:
        raise UserError(
            f"ppo.teacher.top_k {settings.width} exceeds the model's {vocabulary} tokens", "lower ppo.teacher.top_k"
        )
