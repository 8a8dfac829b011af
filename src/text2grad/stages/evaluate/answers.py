"""Evaluate answer files of any system, and have a judge compare them (`--answers`, `--against`).

The judge is a chat model behind an endpoint; its answers are kept in a journal of the run.
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
from text2grad.eval.answers import (
    HeldoutExamples,
    SystemAnswers,
    pair_answers,
    read_answers,
    read_opponent,
    system_name,
)
from text2grad.eval.critics.spans import SPAN_NAMES
from text2grad.eval.judge import (
    AnswerPair,
    asks_for_ratings,
    check_judge_prompt,
    compare_answers,
    is_rating,
    is_verdict,
)
from text2grad.eval.metrics import mean
from text2grad.eval.texts import text_figures
from text2grad.feedback import Example
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
"""The placeholders for critiques in a judge's prompt."""
_NAMES = {
    "critic.prompted.model and base_url": "evaluate.judge and evaluate.judge_url",
    "critic.prompted.model, max_tokens, temperature": "evaluate.judge, judge.max_tokens",
    "critic.prompted.base_url": "evaluate.judge_url",
    "critic.prompted.max_tokens": "judge.max_tokens",
}
"""The judge's settings, by the critic's settings that endpoint errors name."""


class ReadableChat:
    """A chat model that is asked once more if an answer is not `readable`.

    Answers are kept in the journal, so that equal questions cost nothing the next time. Questions
    without any answer are sent again.
    """

    def __init__(self, chat: OpenAIChat, readable: Callable[[Answer], bool]) -> None:
        self.name = chat.name
        self._chat, self._readable = chat, readable

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Return one answer per conversation, in order.

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
    """The configured judge (`evaluate.judge`): endpoint, journal, prompt, and a test of answers."""

    endpoint: EndpointSettings
    journal: Path
    prompt: str
    readable: Callable[[Answer], bool]

    @staticmethod
    def of(config: Config, prompt: str, readable: Callable[[Answer], bool], max_tokens: int) -> Judge:
        """Return the configured judge; `max_tokens` is the default of `judge.max_tokens`."""
        settings, limit = config.evaluate, config.judge.max_tokens or max_tokens
        endpoint = EndpointSettings(model=settings.judge, base_url=settings.judge_url, max_tokens=limit)
        return Judge(endpoint, RunFolder.of(config).evaluation / "judge.journal", prompt, readable)

    @contextmanager
    def open(self) -> Iterator[Chat]:
        """Open the chat model with its journal; errors name the judge's settings."""
        with renamed_in_errors(_NAMES), OpenAIChat(self.endpoint, self.journal, progress=True) as chat:
            yield ReadableChat(chat, self.readable)


def comparing_judge(config: Config, default_prompt: str, parts: Sequence[str]) -> Judge:
    """Return a judge with `judge.prompt` or the default prompt; `parts` are its placeholders.

    Raises:
        UserError: there is no such prompt, or it is not usable (`eval.judge.check_judge_prompt`).
    """
    prompt = read_prompt(config.judge.prompt or default_prompt)
    check_judge_prompt(prompt, parts)
    if asks_for_ratings(prompt):
        return Judge.of(config, prompt, is_rating, LONGEST_RATINGS)
    return Judge.of(config, prompt, is_verdict, LONGEST_VERDICT)


def refuse_no_judge(config: Config, feature: str) -> None:
    """Refuse a feature that needs a judge if none is configured.

    Raises:
        UsageError: no judge is configured.
    """
    if not config.evaluate.judge:
        cure = "set --evaluate.judge MODEL, and --evaluate.judge_url if it is not at OpenAI"
        raise UsageError(f"{feature} needs a judge", cure)


def judge_of_answers(config: Config) -> Judge:
    """Return the judge that compares answers (`--against`).

    Raises:
        UsageError: no judge is configured.
        UserError: its prompt is not usable.
    """
    refuse_no_judge(config, "--against")
    return comparing_judge(config, COMPARE_PROMPT, ANSWER_PARTS)


def judge_against(judge: Judge, against: str, pairs: Sequence[AnswerPair]) -> dict[str, float | str]:
    """Have a judge compare pairs of answers, and return the figures `judge_*`."""
    with judge.open() as chat:
        figures = compare_answers(chat, judge.prompt, pairs)
    names = {"judge_model": judge.endpoint.model, "judge_against": Path(against).name}
    return {**names, **{f"judge_{name.removeprefix('judge_')}": value for name, value in figures.items()}}


def run_evaluate_answers(config: Config, files: Sequence[Path], against: str | None = None) -> dict[str, Any]:
    """Measure answer files, and have a judge compare them with `against`: a file or "references".

    Figures are written to `evaluation/<task>/<file's name>.json` of the run.

    Returns:
        The figures of the file; for several files, `systems` holds them by name. `failed_records`
        counts comparisons and ratings without a readable answer of the judge.

    Raises:
        UsageError: two files have the same name, or a comparison has no judge.
        UserError: a file is not readable, a column is missing, a reference is empty, or the answers
            belong to another task.
    """
    names = [system_name(file) for file in files]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two files of answers are called {repeated!r}", "rename one: the names label the results")
    judge = judge_of_answers(config) if against is not None else None
    run = RunFolder.of(config)
    run.refuse_unwritable()
    heldout = cache(lambda: load_heldout(run, config.evaluate.limit))
    systems = [read_answers(file, heldout) for file in files]
    pairs = {} if against is None else _pair_answers(systems, files, against, heldout)
    figures = {system.name: _figures(system) for system in systems}
    if judge and against:
        for name in names:
            figures[name] |= judge_against(judge, against, pairs[name])
    outs = [_write(run, file, system, figures[system.name]) for file, system in zip(files, systems, strict=True)]
    failed = sum(int(values.get("judge_failed") or 0) for values in figures.values())
    return {
        **(figures[names[0]] if len(names) == 1 else {"systems": figures}),
        **({} if against is None else {"failed_records": failed}),
        **({"out": str(outs[0])} if len(outs) == 1 and outs[0] else {}),
    }


def _pair_answers(
    systems: Sequence[SystemAnswers], files: Sequence[Path], against: str, heldout: HeldoutExamples
) -> dict[str, list[AnswerPair]]:
    """Pair the answers of each system with those to compare with; the result is by system name."""
    for system, file in zip(systems, files, strict=True):
        for number, example in enumerate(system.examples, start=1):
            if not question_text(example).strip():
                raise bad_record(file, number, ValueError("no column 'prompt', which the judge needs"))
    return {
        name: pair_answers(name, against, examples, texts, read_opponent(against, examples, heldout))
        for name, examples, texts, _ in systems
    }


def load_heldout(run: RunFolder, limit: int | None) -> dict[str, Example]:
    """Return the held-out prompts of the task by id.

    Raises:
        UserError: the task has no held-out prompts.
    """
    examples = heldout_prompts(run.task(), limit)
    refuse_shared_ids(examples, run.task_settings.name)
    return {example.id: example for example in examples}


def _figures(system: SystemAnswers) -> dict[str, Any]:
    """Return the figures of one file."""
    counts: dict[str, Any] = {"answers": len(system.texts)}
    counts |= {} if system.missing is None else {"missing": system.missing}
    lengths = {"length_characters": mean([len(text) for text in system.texts])}
    references = [example.reference for example in system.examples]
    return {**counts, **text_figures(references, system.texts), **lengths}


def _write(run: RunFolder, file: Path, system: SystemAnswers, figures: Mapping[str, Any]) -> Path | None:
    """Write the figures and return their file; None for answers that `evaluate` wrote itself."""
    if file.absolute().is_relative_to(run.evaluation.absolute()):
        return None
    rows = [
        {"id": example.id, "response": text, "scores": {}}
        for example, text in zip(system.examples, system.texts, strict=True)
    ]
    return run.write_results(system.name, figures, rows)
