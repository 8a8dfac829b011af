"""Responses of a policy: the ids that were sampled, the text read off them, and files of answers to be judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from text2grad.align import TokenTable
from text2grad.data.export import table_row, write_rows
from text2grad.data.markup import read_markup
from text2grad.durable.progress import counting
from text2grad.feedback import Example, Failure, Feedback, Source, write_jsonl
from text2grad.page.terminal import PolicyAnswer
from text2grad.policy.encode import encode_prompts
from text2grad.policy.episode import MakeEnvironment, play, words_and_tokens
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

TOKEN_IDS = "token_ids"
NOT_JUDGED = Failure(kind="unsupported", message="nobody has judged this answer yet")


def sample(
    policy: Policy, examples: Sequence[Example], generation: GenerationSettings
) -> list[tuple[list[int], str]]:
    """One response per example: the sampled ids, and the text read off them. What takes long says how far it is."""
    table = TokenTable(policy.tokenizer)
    prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
    sampled = generate(policy, prompts, generation, progress=counting("sampling")(len(prompts)))
    return [(item.ids, table.align(item.ids).text) for item in sampled]


def sample_episodes(
    policy: Policy, examples: Sequence[Example], generation: GenerationSettings, environment: MakeEnvironment
) -> list[tuple[list[list[int]], str]]:
    """One episode per example: the sampled ids of each turn, and the transcript, or the text of its one turn."""
    table = TokenTable(policy.tokenizer)
    found = []
    played = play(policy, examples, environment, generation, progress=counting("sampling")(len(examples)))
    for example, item in zip(examples, played, strict=True):
        runs = groupby(zip(item.ids, item.mask or [], strict=True), key=itemgetter(1))
        turns = [[index for index, _ in run] for own, run in runs if own]
        found.append((turns, words_and_tokens(table, example, item)[0]))
    return found


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
