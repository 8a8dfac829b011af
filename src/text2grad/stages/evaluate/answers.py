"""Answers of any system, and the judge that compares them (`evaluate --answers`, `--against`).

The judge is a chat model behind an endpoint; every answer
of it is in the run's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from text2grad.chat import Answer, Chat, Conversation, EndpointSettings, OpenAIChat
from text2grad.chat.asking import accept
from text2grad.chat.journal import State
from text2grad.chat.questions import Question
from text2grad.config import Config
from text2grad.data.files import bad_record
from text2grad.data.published import refuse_shared_ids
from text2grad.errors import UsageError
from text2grad.eval.answers import Known, SystemAnswers, name_of, pair_with, read_answers, theirs_of
from text2grad.eval.critics.spans import SPAN_NAMES
from text2grad.eval.judge import (
    AnswerPair,
    compare_answers,
    is_rating,
    is_verdict,
    rates,
    refuse_judge_prompt,
)
from text2grad.eval.metrics import mean
from text2grad.eval.texts import text_figures
from text2grad.feedback import Example
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import renamed_in_errors
from text2grad.stages.run_folder import RunFolder, heldout_prompts
from text2grad.tasks.base import question_text, read_prompt

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


class ReadableChat:
    """A chat model of which only `readable` answers count: another is asked for once, and then kept
    as it is.

    What was answered is in the journal, so that the same questions, asked again, cost nothing;
    those that had no answer at all are sent again.
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


@dataclass(frozen=True)
class Judge:
    """The configured judge (`evaluate.judge`): its endpoint and journal, its prompt, and which
    answers count."""

    endpoint: EndpointSettings
    journal: Path
    prompt: str
    readable: Callable[[Answer], bool]

    @staticmethod
    def of(config: Config, prompt: str, readable: Callable[[Answer], bool], longest: int) -> Judge:
        """The judge of a configuration, whose answers have at most `longest` tokens unless it says
        otherwise."""
        settings, limit = config.evaluate, config.judge.max_tokens or longest
        endpoint = EndpointSettings(model=settings.judge, base_url=settings.judge_url, max_tokens=limit)
        return Judge(endpoint, RunFolder.of(config).evaluation / "judge.journal", prompt, readable)

    @contextmanager
    def open(self) -> Iterator[Chat]:
        """The chat model, with its journal; errors name the judge's settings."""
        with renamed_in_errors(_NAMES), OpenAIChat(self.endpoint, self.journal, progress=True) as chat:
            yield ReadableChat(chat, self.readable)


def comparing_judge(config: Config, usual: str, parts: Sequence[str]) -> Judge:
    """The judge that compares by `judge.prompt`, else by the prompt `usual`.

    `parts` are the placeholders of what is compared.

    Raises:
        UserError: there is no such prompt, or it cannot be used (`eval.judge.refuse_judge_prompt`).
    """
    prompt = read_prompt(config.judge.prompt or usual)
    refuse_judge_prompt(prompt, parts)
    if rates(prompt):
        return Judge.of(config, prompt, is_rating, LONGEST_RATINGS)
    return Judge.of(config, prompt, is_verdict, LONGEST_VERDICT)


def refuse_no_judge(config: Config, what: str) -> None:
    """Refuse before anything is loaded or spent.

    Raises:
        UsageError: `what` needs a judge, and none is named.
    """
    if not config.evaluate.judge:
        raise UsageError(f"{what} needs a judge", "--evaluate.judge MODEL, and --evaluate.judge_url if not OpenAI")


def judge_of_answers(config: Config) -> Judge:
    """The judge that compares answers (`--against`).

    Raises:
        UsageError: none is named. UserError: its prompt cannot be used.
    """
    refuse_no_judge(config, "--against")
    return comparing_judge(config, COMPARE_PROMPT, ANSWER_PARTS)


def judged_against(judge: Judge, against: str, pairs: Sequence[AnswerPair]) -> dict[str, float | str]:
    """Return the figures `judge_*` of a judge that compares pairs of answers
    (`eval.judge.compare_answers`)."""
    with judge.open() as chat:
        figures = compare_answers(chat, judge.prompt, pairs)
    named = {"judge_model": judge.endpoint.model, "judge_against": Path(against).name}
    return {**named, **{f"judge_{name.removeprefix('judge_')}": value for name, value in figures.items()}}


@dataclass(frozen=True, kw_only=True)
class AnswersSummary(Summary):
    """The figures of a file of answers; of several files, `systems` has those of each by its name.

    `failed_records`: pairs of answers, or ratings, of which the judge said nothing readable.
    """

    figures: Mapping[str, Any] = inlined()
    failed_records: int | None = None
    out: str | None = None


def run_evaluate_answers(config: Config, files: Sequence[Path], against: str | None = None) -> AnswersSummary:
    """Measure files of answers, and have each compared with `against`: a file like them, or
    "references".

    Figures are written to `evaluation/<task>/<file's name>.json` of the run.

    Raises:
        UsageError: two files of one name, or a comparison without a judge.
        UserError: a file cannot be read, a column is missing, a reference is empty, answers of
            another task.
    """
    names = [name_of(file) for file in files]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two files of answers are called {repeated!r}", "rename one: the name is that of the row")
    judge = judge_of_answers(config) if against is not None else None
    run = RunFolder.of(config)
    run.refuse_unwritable()
    known = cache(lambda: heldout_of(run, config.evaluate.limit))
    systems = [read_answers(file, known) for file in files]
    pairs = {} if against is None else _pairs(systems, files, against, known)
    figures = {system.name: _figures(system) for system in systems}
    if judge and against:
        for name in names:
            figures[name] |= judged_against(judge, against, pairs[name])
    outs = [_written(run, file, system, figures[system.name]) for file, system in zip(files, systems, strict=True)]
    failed = sum(int(each.get("judge_failed") or 0) for each in figures.values())
    return AnswersSummary(
        figures=figures[names[0]] if len(names) == 1 else {"systems": figures},
        failed_records=None if against is None else failed,
        out=str(outs[0]) if len(outs) == 1 and outs[0] else None,
    )


def _pairs(
    systems: Sequence[SystemAnswers], files: Sequence[Path], against: str, known: Known
) -> dict[str, list[AnswerPair]]:
    """The answers of each system beside those they are compared with, by its name."""
    for system, file in zip(systems, files, strict=True):
        for number, example in enumerate(system.examples, start=1):
            if not question_text(example).strip():
                raise bad_record(file, number, ValueError("no column 'prompt': a judge reads the prompt, too"))
    return {
        name: pair_with(name, against, examples, texts, theirs_of(against, examples, known))
        for name, examples, texts, _ in systems
    }


def heldout_of(run: RunFolder, limit: int | None) -> dict[str, Example]:
    """The prompts of the task that are measured on, by id.

    Raises:
        UserError: there are none.
    """
    found = heldout_prompts(run.task(), limit)
    refuse_shared_ids(found, run.task_settings.name)
    return {example.id: example for example in found}


def _figures(each: SystemAnswers) -> dict[str, Any]:
    """Return the figures of one file."""
    counts: dict[str, Any] = {"answers": len(each.texts)}
    counts |= {} if each.missing is None else {"missing": each.missing}
    lengths = {"length_characters": mean([len(text) for text in each.texts])}
    references = [example.reference for example in each.examples]
    return {**counts, **text_figures(references, each.texts), **lengths}


def _written(run: RunFolder, file: Path, each: SystemAnswers, figures: Mapping[str, Any]) -> Path | None:
    """Write the figures, and return their file; None for answers of an evaluation, which has its
    own figures."""
    if file.absolute().is_relative_to(run.evaluation.absolute()):
        return None
    rows = [
        {"id": example.id, "response": text, "scores": {}}
        for example, text in zip(each.examples, each.texts, strict=True)
    ]
    return run.write_results(each.name, figures, rows)
