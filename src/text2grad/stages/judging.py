"""The judge of an evaluation: a chat model behind an endpoint, with every answer in the run's journal. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from text2grad.chat import Answer, Chat, Conversation, EndpointSettings, OpenAIChat
from text2grad.chat.asking import as_it_came
from text2grad.chat.journal import State
from text2grad.chat.questions import Question
from text2grad.config import Config
from text2grad.errors import UsageError, UserError
from text2grad.eval.judge import AnswerPair, compare_answers, is_verdict
from text2grad.feedback import Example
from text2grad.tasks.base import read_prompt

COMPARE_PROMPT = "compare_answers"
REFERENCES = "references"
"""In the place of a file to compare with: the reference answers."""
LONGEST_VERDICT, LONGEST_RATING = 16, 2048


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
        ask = self._chat.asker.questioner.questions
        return self._chat.answers(list(chain(*map(ask, conversations))), self._verdict)

    def _verdict(self, question: Question, answer: Answer, last: bool) -> State | None:
        state = as_it_came(question, answer, last)
        if state != "ok" or self._readable(answer):
            return state
        return "invalid" if last else None


@contextmanager
def open_judge(config: Config, readable: Callable[[Answer], bool], max_tokens: int) -> Iterator[Chat]:
    """The judge of `evaluate.judge`, with its journal in `evaluation/judge.journal`."""
    settings = config.evaluate
    asked = EndpointSettings(model=settings.judge, base_url=settings.judge_url, max_tokens=max_tokens)
    with OpenAIChat(asked, config.run.folder / "evaluation" / "judge.journal", progress=True) as chat:
        yield Judge(chat, readable)


def refuse_no_judge(config: Config, what: str) -> None:
    """Before anything is loaded or spent.

    Raises:
        UsageError: `what` needs a judge, and none is named.
    """
    if not config.evaluate.judge:
        raise UsageError(f"{what} needs a judge", "--evaluate.judge MODEL, and --evaluate.judge_url if not OpenAI")


def pair_with(
    name: str, against: str, examples: Sequence[Example], texts: Sequence[str], theirs: Mapping[str, str]
) -> list[AnswerPair]:
    """Two answers to each prompt; `theirs` by id.

    Raises:
        UserError: a prompt has no answer by the other, or a system answers it twice.
    """
    lacking = [example.id for example in examples if example.id not in theirs]
    if lacking:
        cure = "compare answers to the same prompts: the ids must agree"
        raise UserError(f"{against} has no answer to {lacking[0]!r} ({len(lacking)} of {len(examples)} lack)", cure)
    ids = [example.id for example in examples]
    if repeated := next((id for id in ids if ids.count(id) > 1), None):
        raise UserError(f"{name} answers {repeated!r} twice", "one answer to a prompt, to compare")
    return [AnswerPair(each, text, theirs[each.id]) for each, text in zip(examples, texts, strict=True)]


def judged_against(config: Config, against: str, pairs: Sequence[AnswerPair]) -> dict[str, float | str]:
    """What the judge says of pairs of answers (`eval.judge.compare_answers`), as figures `judge_*`."""
    with open_judge(config, is_verdict, LONGEST_VERDICT) as judge:
        found = compare_answers(judge, read_prompt(COMPARE_PROMPT), pairs)
    named = {"judge_model": config.evaluate.judge, "judge_against": Path(against).name}
    return {**named, **{f"judge_{name.removeprefix('judge_')}": value for name, value in found.items()}}
