"""`sample` and `try`: answers of a run's policies, or of any models, to the user's prompts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.data.export import table_row, write_rows
from text2grad.data.files import convert_rows, read_rows
from text2grad.data.published import question_example
from text2grad.data.spans.markup import read_markup
from text2grad.durable.state import seed_everything
from text2grad.errors import UsageError, UserError
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Feedback,
    Judgement,
    Message,
    Record,
    Source,
    conversation_text,
    get_judgements,
)
from text2grad.json_text import split_lines
from text2grad.jsonl import reading, write_jsonl
from text2grad.page.answers import NOT_MARKED
from text2grad.page.terminal import PolicyAnswer
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.critics import CriticFactory, critic_factory
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare

RESET, QUIT = "/new", "/quit"


@dataclass(frozen=True)
class PromptAnswers:
    """A prompt and the answer of each policy."""

    example: Example
    answers: tuple[PolicyAnswer, ...]

    @property
    def prompt(self) -> str:
        """The conversation as text."""
        return conversation_text(self.example.prompt)

    def as_row(self) -> dict[str, Any]:
        """Return a JSON row: `id`, `prompt`, `answers` with name, response and any judgement."""
        answers = [
            {"name": answer.name, "response": answer.response, **_judgement_fields(answer.judgement)}
            for answer in self.answers
        ]
        prompt = [message.model_dump() for message in self.example.prompt]
        return {"id": self.example.id, "prompt": prompt, "answers": answers}


def _judgement_fields(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    if isinstance(judgement, Critique):
        return {"critique": judgement.text, **judgement.model_dump(mode="json", include={"spans", "score"})}
    return {"error": Record.model_dump(judgement, mode="json")}


def run_sample(
    config: Config, examples: Sequence[Example], names: Sequence[str], critique: bool
) -> list[PromptAnswers]:
    """Have the named policies answer every prompt; with `critique`, the critic judges the answers.

    Raises:
        UserError: there is no such policy, or a prompt is too long for one.
    """
    prepare(config)
    with critic_factory(config) as factory, _open_critic(factory, examples, critique) as critic:
        columns = []
        for name, settings in factory.run.policies(names):
            policy = load_frozen(settings)  # one policy at a time is in memory
            seed_everything(config.run.seed)  # all policies draw the same random numbers
            responses = [text for _, text in sample(policy, examples, config.generation)]
            judgements = get_judgements(critic, examples, responses) if critic else [None] * len(examples)
            columns.append([PolicyAnswer(name, *pair) for pair in zip(responses, judgements, strict=True)])
    rows = zip(*columns, strict=True)
    return [PromptAnswers(example, answers) for example, answers in zip(examples, rows, strict=True)]


@contextmanager
def _open_critic(factory: CriticFactory, examples: Sequence[Example], critique: bool) -> Iterator[Critic | None]:
    """Open the run's critic if `critique`, with a journal in the run's folder if that exists."""
    if not critique:
        yield None
        return
    factory.refuse_unfit(examples)
    folder = factory.run.path
    with factory.open(journal=folder / "sample.journal" if folder.is_dir() else None) as critic:
        yield critic


class Conversation:
    """Parallel conversations: several policies answer the same messages."""

    def __init__(
        self, policies: Mapping[str, Policy], generation: GenerationSettings, critic: Critic | None
    ) -> None:
        self._policies, self._generation, self._critic = policies, generation, critic
        self._count = 0
        self.reset()

    def reset(self) -> None:
        """Start over with an empty conversation."""
        self._turns: dict[str, tuple[Message, ...]] = dict.fromkeys(self._policies, ())

    def ask(self, message: str) -> PromptAnswers:
        """Return the answer of each policy to a message that continues the conversation.

        Raises:
            UserError: the conversation is too long for a model; it is left unchanged.
        """
        self._count += 1
        id, answers, turns = f"turn-{self._count}", [], {}
        for name, policy in self._policies.items():
            prompt = (*self._turns[name], Message(role="user", content=message))
            example = Example(id=id, prompt=prompt)
            text = sample(policy, [example], self._generation)[0][1]
            judgement = get_judgements(self._critic, [example], [text])[0] if self._critic else None
            answers.append(PolicyAnswer(name, text, judgement))
            turns[name] = (*prompt, Message(role="assistant", content=text))
        self._turns = turns
        return PromptAnswers(typed_prompt(id, message), tuple(answers))


def run_try(
    config: Config,
    names: Sequence[str],
    lines: Iterable[str],
    show: Callable[[PromptAnswers], None],
    keep: bool = True,
    critique: bool = False,
) -> None:
    """Answer line by line until the input ends.

    With `keep` the lines are one conversation, until `/new` starts another. A line that does not
    fit the context is reported on stderr and starts another too.

    Raises:
        UserError: there is no such policy, or the critic is unable to judge typed prompts.
    """
    prepare(config)
    line = [typed_prompt("line", "")]
    with critic_factory(config) as factory, _open_critic(factory, line, critique) as critic:
        policies = {name: load_frozen(policy) for name, policy in factory.run.policies(names)}
        seed_everything(config.run.seed)
        conversation = Conversation(policies, config.generation, critic)
        for message in map(str.strip, lines):
            if message == QUIT:
                return
            if message == RESET or not keep:
                conversation.reset()
            if message and message != RESET:
                try:
                    show(conversation.ask(message))
                except UserError as error:
                    print(f"{error}; starting a new conversation", file=sys.stderr)
                    conversation.reset()


def prompts_to_ask(prompt: str | None, file: Path | None) -> list[Example]:
    """Return the typed prompt, or those of a file: .txt with one per line, or rows with a `prompt`.

    Raises:
        UserError: both or neither are given, or the file has no prompts.
    """
    if (prompt is None) == (file is None):
        raise UsageError("give either a prompt or --prompts FILE", 'text2grad sample "When is it due?"')
    if file is not None:
        return _read_prompts(file)
    assert prompt is not None
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'text2grad sample "When is it due?"')
    if "\n" not in prompt and len(prompt) < 200 and Path(prompt).is_file():
        raise UsageError(f"{prompt} is a file", f"read its prompts with --prompts {prompt}")
    return [typed_prompt("prompt", prompt)]


def _read_prompts(file: Path) -> list[Example]:
    if file.suffix == ".txt":
        with reading(file):
            lines = enumerate(split_lines(file.read_text(encoding="utf-8-sig")), 1)
        examples = [typed_prompt(f"{file.stem}-{number}", line) for number, line in lines if line.strip()]
    else:
        prompt = frozenset({"prompt"})
        rows = read_rows(file)
        converted = convert_rows(
            rows, file, prompt, lambda row, id: [question_example(row, id)], "row with a prompt"
        )
        examples = list(converted)
    if not examples:
        raise UserError(f"{file} has no prompts", "use a .txt file with one per line, or rows with a 'prompt'")
    return examples


def typed_prompt(id: str, text: str) -> Example:
    """Return typed text as a single-turn prompt."""
    return Example(id=id, prompt=(Message(role="user", content=text),))


def repeated(examples: Sequence[Example], count: int) -> list[Example]:
    """Return each example `count` times in a row, with unique ids."""
    if count == 1:
        return list(examples)
    numbers = range(1, count + 1)
    return [
        example.model_copy(update={"id": f"{example.id}#{number}"}) for example in examples for number in numbers
    ]


def to_mark(results: Iterable[PromptAnswers], source: Source) -> list[Feedback]:
    """Return answers as records; `source` is the source of their judgements.

    An answer without a judgement becomes a failed record, so that nothing learns from it or takes
    it for a faultless answer.
    """
    records = []
    for result in results:
        for answer in result.answers:
            id = f"{result.example.id}:{answer.name}" if len(result.answers) > 1 else result.example.id
            example = Example(id=id, prompt=result.example.prompt, meta={"policy": answer.name})
            records.append(Feedback.of(example, answer.response, answer.judgement or NOT_MARKED, source))
    return records


def write_to_mark(path: Path, records: Sequence[Feedback]) -> str:
    """Write answers for people or a critic to judge, and return a line with the next command.

    A .csv file is a spreadsheet with columns to fill in, for `import`. Any other file is JSON Lines
    of records, for `annotate`, `feedback-report` and `import`.

    Raises:
        UserError: the file is not writable.
    """
    if path.suffix.lower() == ".csv":
        rows = []
        for record in records:  # `spans: none` stays where an answer looks like mark-up
            is_plain = read_markup(record.response).text == record.response
            rows.append({**table_row(record), **({"spans": ""} if is_plain else {})})
        write_rows(rows, "csv", path)
        command = shlex.join(["text2grad", "import", str(path), "--out", str(path.with_suffix(".jsonl"))])
        return f"fill in good, poor, critique, score or corrected, then run: {command}"
    write_jsonl(path, records)
    return f"to have them judged, run: text2grad annotate --responses {path}"
