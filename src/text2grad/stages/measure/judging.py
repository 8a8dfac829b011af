"""The judge of an evaluation: a chat model behind an endpoint, with every answer in the run's journal. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from text2grad.chat import Answer, Chat, Conversation, EndpointSettings, OpenAIChat
from text2grad.chat.asking import accept
from text2grad.chat.journal import State
from text2grad.chat.questions import Question
from text2grad.config import Config
from text2grad.errors import UsageError, UserError
from text2grad.eval.critics.spans import SPAN_NAMES
from text2grad.eval.judge import (
    AnswerPair,
    compare_answers,
    is_rating,
    is_verdict,
    rates,
    refuse_judge_prompt,
)
from text2grad.tasks.base import read_prompt

COMPARE_PROMPT = "compare_answers"
LONGEST_VERDICT, LONGEST_RATINGS = 16, 1024
ANSWER_PARTS = ("first", "second")
CRITIQUE_PARTS = (
    "response",
    *(f"{place}{part}" for place in ANSWER_PARTS for part in ("", *(f".{name}" for name in SPAN_NAMES.values()))),
)
"""The placeholders of what is compared."""
_NAMES = {
    "critic.prompted.model and base_url": "evaluate.judge and evaluate.judge_url",
    "critic.prompted.model, max_tokens, temperature": "evaluate.judge, judge.max_tokens",
    "critic.prompted.base_url": "evaluate.judge_url",
    "critic.prompted.max_tokens": "judge.max_tokens",
}
"""What the judge's settings are called, where an endpoint's errors name the critic's."""


class Judge:
    """A chat model of which only `readable` answers count: another is asked for once more, and then kept as it is.

    What was answered is in the journal, so that the same questions, asked again, cost nothing; those that had no
    answer at all are sent again.
    """

    def __init__(self, chat: OpenAIChat, readable: Callable[[Answer], bool]) -> None:
        self.name = chat.name
        self._chat, self._readable = chat, readable

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """One answer per conversation, in their order.

        Raises:
            UserError: see `OpenAIChat`.
        """
        ask = self._chat.asker.questioner.question
        return self._chat.answers(list(map(ask, conversations)), self._verdict)

    def _verdict(self, question: Question, answer: Answer, last: bool) -> State | None:
        state = accept(question, answer, last)
        if state != "ok" or self._readable(answer):
            return state
        return "invalid" if last else None


@contextmanager
def open_judge(config: Config, readable: Callable[[Answer], bool], max_tokens: int) -> Iterator[Chat]:
    """The judge of `evaluate.judge`, with its journal in `evaluation/judge.journal`."""
    settings = config.evaluate
    limit = config.judge.max_tokens or max_tokens
    asked = EndpointSettings(model=settings.judge, base_url=settings.judge_url, max_tokens=limit)
    try:
        with OpenAIChat(asked, config.run.folder / "evaluation" / "judge.journal", progress=True) as chat:
            yield Judge(chat, readable)
    except UserError as error:
        line = str(error)
        for name, own in _NAMES.items():
            line = line.replace(name, own)
        raise UserError(line, exit_code=error.exit_code) from error


@dataclass(frozen=True)
class Comparison:
    """How a judge is asked which of two it prefers: the prompt, which answers count, and how long they may be."""

    prompt: str
    readable: Callable[[Answer], bool]
    longest: int


def comparison(config: Config, usual: str, parts: Sequence[str]) -> Comparison:
    """As `judge.prompt` has it, else by the prompt `usual`. `parts` are the placeholders of what is compared.

    Raises:
        UserError: there is no such prompt, or it cannot be used (`eval.judge.refuse_judge_prompt`).
    """
    prompt = read_prompt(config.judge.prompt or usual)
    refuse_judge_prompt(prompt, parts)
    return (
        Comparison(prompt, is_rating, LONGEST_RATINGS)
        if rates(prompt)
        else Comparison(prompt, is_verdict, LONGEST_VERDICT)
    )


def refuse_no_judge(config: Config, what: str) -> None:
    """Before anything is loaded or spent.

    Raises:
        UsageError: `what` needs a judge, and none is named. UserError: its prompt cannot be used.
    """
    if not config.evaluate.judge:
        raise UsageError(f"{what} needs a judge", "--evaluate.judge MODEL, and --evaluate.judge_url if not OpenAI")
    if config.judge.prompt:
        comparison(config, COMPARE_PROMPT, ANSWER_PARTS)


def judged_against(config: Config, against: str, pairs: Sequence[AnswerPair]) -> dict[str, float | str]:
    """What the judge says of pairs of answers (`eval.judge.compare_answers`), as figures `judge_*`."""
    asked = comparison(config, COMPARE_PROMPT, ANSWER_PARTS)
    with open_judge(config, asked.readable, asked.longest) as judge:
        found = compare_answers(judge, asked.prompt, pairs)
    named = {"judge_model": config.evaluate.judge, "judge_against": Path(against).name}
    return {**named, **{f"judge_{name.removeprefix('judge_')}": value for name, value in found.items()}}
