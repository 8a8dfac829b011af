"""Responses of a policy: the ids that were sampled, the text read off them, and files of answers to be judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.align import Aligned, TokenTable
from text2grad.durable.progress import counting
from text2grad.feedback import Example, Failure, Feedback, Source, write_jsonl
from text2grad.formats.export import write_rows
from text2grad.formats.remarks import table
from text2grad.formats.remarks.markup import read_markup
from text2grad.policy.encode import encode_prompts
from text2grad.policy.episode import MakeEnvironment, play, words_and_tokens
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.report.terminal import PolicyAnswer

TOKEN_IDS = "token_ids"
NOT_JUDGED = Failure(kind="unsupported", message="nobody has judged this answer yet")


class Answer(NamedTuple):
    """A response: the ids before it, as it was sampled, its words (a `Transcript` of an episode), and which of them
    each of the policy's tokens wrote."""

    prompt: list[int]
    sample: Sample
    text: str
    aligned: Aligned

    @property
    def ids(self) -> list[Any]:
        """The ids that the policy sampled; of several turns, a list for each."""
        mask = self.sample.mask
        if mask is None or all(mask):
            return self.sample.ids
        runs = groupby(zip(self.sample.ids, mask, strict=True), key=lambda each: each[1])
        return [[index for index, _ in run] for own, run in runs if own]


def answers_to(
    policy: Policy,
    examples: Sequence[Example],
    generation: GenerationSettings,
    environment: MakeEnvironment | None = None,
) -> list[Answer]:
    """One response per example, an episode in an environment. What takes long says how far it is."""
    table, progress = TokenTable(policy.tokenizer), counting("sampling")(len(examples))
    if environment is None:
        prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
        sampled = generate(policy, prompts, generation, progress=progress)
    else:
        sampled = play(policy, examples, environment, generation, progress=progress)
        prompts = [item.prompt or [] for item in sampled]
    return [
        Answer(prompt, item, *words_and_tokens(table, example, item))
        for prompt, example, item in zip(prompts, examples, sampled, strict=True)
    ]


def sample(
    policy: Policy,
    examples: Sequence[Example],
    generation: GenerationSettings,
    environment: MakeEnvironment | None = None,
) -> list[tuple[list[int], str]]:
    """`answers_to` as ids of the policy's own tokens, and its words."""
    return [(each.sample.own, each.text) for each in answers_to(policy, examples, generation, environment)]


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
    row = table.row_of(record)
    return row if read_markup(record.response).text != record.response else {**row, "spans": ""}
