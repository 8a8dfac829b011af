"""`sample` and `try`: what the policies of a run, or any models, answer to a prompt of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.critics.table import spec_of
from text2grad.data.export import table_row, write_rows
from text2grad.data.files import convert_rows, read_rows
from text2grad.data.markup import read_markup
from text2grad.data.published import question_example
from text2grad.durable.state import seed_everything
from text2grad.errors import UsageError, UserError
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Message,
    Record,
    Source,
    conversation_text,
    judgements_of,
)
from text2grad.jsonl import reading, write_jsonl
from text2grad.page.terminal import PolicyAnswer
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.critics import open_critic, refuse_unfit, runner_of
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sampling import sample, sample_episodes
from text2grad.stages.training import prepare
from text2grad.tasks.base import environment_of

BEFORE = "before"
SHOWN_PROMPTS = 2
SHOWN_TOKENS = 64
"""Of an answer that is only shown."""
FORGET, LEAVE = "/new", "/quit"
NOT_JUDGED = Failure(kind="unsupported", message="nobody has judged this answer yet")


@dataclass(frozen=True)
class PromptAnswers:
    """A prompt, and what each policy answered."""

    example: Example
    answers: tuple[PolicyAnswer, ...]

    @property
    def prompt(self) -> str:
        """The prompt as text."""
        return conversation_text(self.example.prompt)

    def as_row(self) -> dict[str, Any]:
        """One line of JSON: `id`, `prompt`, `answers` with name, response and the judgement, where there is one."""
        answers = [{"name": told.name, "response": told.response, **_judged(told)} for told in self.answers]
        prompt = [message.model_dump() for message in self.example.prompt]
        return {"id": self.example.id, "prompt": prompt, "answers": answers}


def _judged(told: PolicyAnswer) -> dict[str, Any]:
    if told.judgement is None:
        return {}
    if isinstance(told.judgement, Critique):
        found = told.judgement.model_dump(mode="json", include={"spans", "score"})
        return {"critique": told.judgement.text, **found}
    return {"error": Record.model_dump(told.judgement, mode="json")}


def run_sample(
    config: Config, examples: Sequence[Example], names: Sequence[str], critique: bool
) -> list[PromptAnswers]:
    """Have each of the named policies answer every prompt; with `critique`, the run's critic judges the answers.

    Raises:
        UserError: there is no such policy, or a prompt is too long for one.
    """
    chosen = prepare(config).policies(names)
    with _critic(config, critique, examples) as critic:
        told = [_answers(config, examples, settings) for _, settings in chosen]
        judged = [_judgements(critic, examples, texts) for texts in told]
    return [
        PromptAnswers(
            example, tuple(PolicyAnswer(name, told[i][row], judged[i][row]) for i, (name, _) in enumerate(chosen))
        )
        for row, example in enumerate(examples)
    ]


def _answers(
    config: Config,
    examples: Sequence[Example],
    settings: PolicySettings,
    environment: MakeEnvironment | None = None,
) -> list[str]:
    """One policy at a time is in memory, and each draws the same random numbers."""
    policy = load_frozen(settings)
    seed_everything(config.run.seed)
    if environment is not None:
        return [text for _, text in sample_episodes(policy, examples, config.generation, environment)]
    return [text for _, text in sample(policy, examples, config.generation)]


def _judgements(critic: Critic | None, examples: Sequence[Example], texts: Sequence[str]) -> list[Any]:
    return judgements_of(critic, examples, texts) if critic else [None] * len(texts)


@contextmanager
def _critic(config: Config, wanted: bool, examples: Sequence[Example]) -> Iterator[Critic | None]:
    """The critic of the run, with a journal in its folder where it has one."""
    if not wanted:
        yield None
        return
    refuse_unfit(config.critic.kind, examples)
    folder = config.run.folder
    journal = folder / "sample.journal" if folder.is_dir() else None
    with (
        runner_of(config.sandbox) as runner,
        open_critic(config, config.critic.kind, None, runner, None, journal) as critic,
    ):
        yield critic


def source_of(config: Config, critique: bool) -> Source:
    """Who judges what `run_sample` shows: the run's critic, or people, who are yet to do so."""
    return Source(kind=spec_of(config.critic.kind).source if critique else "human")


class Conversations:
    """A conversation with each of several policies, which are asked the same."""

    def __init__(
        self, policies: Sequence[tuple[str, Policy]], config: Config, keep: bool, critic: Critic | None = None
    ) -> None:
        self._policies = policies
        self._config = config
        self._keep = keep
        self._critic = critic
        self._count = 0
        self.forget()

    def forget(self) -> None:
        """Begin again."""
        self._said: dict[str, tuple[Message, ...]] = {name: () for name, _ in self._policies}

    def ask(self, words: str) -> PromptAnswers:
        """What each policy answers to these words after what was said before.

        Raises:
            UserError: the conversation is too long for a model; nothing of it is forgotten.
        """
        self._count += 1
        examples, texts = [], []
        for name, policy in self._policies:
            turns = (*self._said[name], Message(role="user", content=words))
            examples.append(Example(id=f"turn-{self._count}", prompt=turns))
            texts.append(sample(policy, examples[-1:], self._config.generation)[0][1])
        if self._keep:
            for (name, _), example, text in zip(self._policies, examples, texts, strict=True):
                self._said[name] = (*example.prompt, Message(role="assistant", content=text))
        judged = [_judgements(self._critic, [each], [text])[0] for each, text in zip(examples, texts, strict=True)]
        told = [
            PolicyAnswer(name, text, said)
            for (name, _), text, said in zip(self._policies, texts, judged, strict=True)
        ]
        return PromptAnswers(typed_prompt(f"turn-{self._count}", words), tuple(told))


@contextmanager
def conversations(
    config: Config, names: Sequence[str], keep: bool = True, critique: bool = False
) -> Iterator[Conversations]:
    """The policies of a run, loaded to be asked, with its critic if wanted.

    Raises:
        UserError: there is no such policy, or the critic cannot judge what a person types.
    """
    chosen = prepare(config).policies(names)
    with _critic(config, critique, [typed_prompt("line", "")]) as critic:
        policies = [(name, load_frozen(settings)) for name, settings in chosen]
        seed_everything(config.run.seed)
        yield Conversations(policies, config, keep, critic)


def run_try(
    config: Config,
    names: Sequence[str],
    lines: Iterable[str],
    show: Callable[[PromptAnswers], None],
    keep: bool = True,
    critique: bool = False,
) -> None:
    """Answer line by line until there are no more; `keep`: as one conversation, which `/new` begins again.

    A line that does not fit is told on stderr, and the conversation begins again.

    Raises:
        UserError: there is no such policy.
    """
    with conversations(config, names, keep, critique) as talk:
        for words in map(str.strip, lines):
            if words == LEAVE:
                return
            if words == FORGET:
                talk.forget()
            elif words:
                _answer(talk, words, show)


def _answer(talk: Conversations, words: str, show: Callable[[PromptAnswers], None]) -> None:
    try:
        show(talk.ask(words))
    except UserError as error:
        print(f"{error}; the conversation begins again", file=sys.stderr)
        talk.forget()


def before_and_after(config: Config, name: str) -> list[PromptAnswers]:
    """What a trained policy and the one it was made of answer to the first `SHOWN_PROMPTS` held-out prompts.

    The likeliest words, at most `SHOWN_TOKENS`; nobody chose the prompts. None where no prompt is held out.

    Raises:
        UserError: a prompt is too long.
    """
    run = RunFolder.of(config)
    task = run.task()
    examples = task.examples("heldout")[:SHOWN_PROMPTS]
    if not examples:
        return []
    tokens = min(SHOWN_TOKENS, config.generation.max_new_tokens)
    generation = config.generation.model_copy(update={"temperature": 0.0, "max_new_tokens": tokens})
    short = config.model_copy(update={"generation": generation})
    policies = {BEFORE: run.policy(), name: run.policy(name)}
    make = environment_of(task)
    told = {title: _answers(short, examples, settings, make) for title, settings in policies.items()}
    return [
        PromptAnswers(example, tuple(PolicyAnswer(title, texts[row]) for title, texts in told.items()))
        for row, example in enumerate(examples)
    ]


def prompts_to_ask(prompt: str | None, file: Path | None) -> list[Example]:
    """The prompt that was typed, or those of a file: .txt with one in each line, else rows with a `prompt`.

    Raises:
        UserError: neither or both are given, or the file has none.
    """
    if (prompt is None) == (file is None):
        raise UsageError("one of a prompt and --prompts FILE is needed", 'text2grad sample "When is it due?"')
    if file is not None:
        return _prompts_of(file)
    assert prompt is not None
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'text2grad sample "When is it due?"')
    if "\n" not in prompt and len(prompt) < 200 and Path(prompt).is_file():
        raise UsageError(f"{prompt} is a file", f"its prompts are read by --prompts {prompt}")
    return [typed_prompt("prompt", prompt)]


def _prompts_of(file: Path) -> list[Example]:
    if file.suffix == ".txt":
        with reading(file):
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        found = [
            typed_prompt(f"{file.stem}-{number}", line) for number, line in enumerate(lines, 1) if line.strip()
        ]
    else:
        rows = list(read_rows(file))
        read = frozenset({"prompt"})
        found = list(
            convert_rows(rows, file, read, lambda row, id: [question_example(row, id)], "row with a prompt")
        )
    if not found:
        raise UserError(f"{file} has no prompts", "one in each line of a .txt file, or JSON Lines with a 'prompt'")
    return found


def typed_prompt(id: str, text: str) -> Example:
    """What a user typed, as the prompt of one turn."""
    return Example(id=id, prompt=(Message(role="user", content=text),))


def repeated(examples: Sequence[Example], count: int) -> list[Example]:
    """Each example `count` times in a row, under ids of their own where it is more than once."""
    if count == 1:
        return list(examples)
    numbers = range(1, count + 1)
    return [each.model_copy(update={"id": f"{each.id}#{number}"}) for each in examples for number in numbers]


def to_mark(told: Iterable[tuple[Example, Sequence[PolicyAnswer]]], source: Source) -> list[Feedback]:
    """Answers as records; `source` judged those that come with a judgement, and the others say that nobody did.

    Such a record is no feedback: whatever learns from records leaves it out as a failure, and never takes it for an
    answer without a fault.
    """
    records = []
    for example, answers in told:
        for each in answers:
            name = f"{example.id}:{each.name}" if len(answers) > 1 else example.id
            asked = Example(id=name, prompt=example.prompt, meta={"policy": each.name})
            records.append(Feedback.of(asked, each.response, each.judgement or NOT_JUDGED, source))
    return records


def write_to_mark(path: Path, records: Sequence[Feedback]) -> str:
    """Write answers for people or a critic to judge; returns the command for the next step.

    A .csv is a spreadsheet with columns to fill in, which `import` reads; anything else is JSON Lines of records,
    which `annotate`, `feedback-report` and `import` read.

    Raises:
        UserError: the file cannot be written.
    """
    if path.suffix.lower() == ".csv":
        write_rows([_row_to_mark(record) for record in records], "csv", path)
        return f"fill in good, poor, critique, score or corrected, then: text2grad import {path}"
    write_jsonl(path, records)
    return f"to have them judged: text2grad annotate --responses {path}"


def _row_to_mark(record: Feedback) -> dict[str, Any]:
    """A row with nothing said yet; that there are no spans is said only where the answer looks like mark-up."""
    row = table_row(record)
    return row if read_markup(record.response).text != record.response else {**row, "spans": ""}
