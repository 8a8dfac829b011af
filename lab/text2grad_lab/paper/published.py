"""`published`: write the answers that were published with a data set, for annotation.

The paper annotated these (4.1): the drafts of SLF5K, GPT-4o's programs of KodCode, the completions
of UltraFeedback. Human feedback on them is left out, because the chat model judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.data.files import hub_data, load_rows
from text2grad.data.published import Response, responses_of
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.jsonl import write_jsonl
from text2grad.stages import Summary
from text2grad.stages.reward_model.data import splits_of_task
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks.base import assign_split, feedback_split, question_key


@dataclass(frozen=True, kw_only=True)
class PublishedSummary(Summary):
    """Numbers of answers to training questions, to held-out ones, and to those of other splits."""

    answers: int
    heldout: int
    other_shares: int
    out: str


def run_published(config: Config, data: str, limit: int | None, out: Path) -> PublishedSummary:
    """Write the answers of a published data set; held-out questions have a separate file.

    Args:
        data: the data set, default `task.data`.
        limit: the number of answers to write for training, default all.
        out: the file; `<out>_heldout.jsonl` has the answers to held-out questions.

    Raises:
        UserError: a row has no answer of a published form.
    """
    data = data or config.task.data
    splits, share = splits_of_task(RunFolder.of(config)), feedback_split(config.task)
    written: dict[str, list[Response]] = {}
    for split, response in published_answers(data):
        question = question_key(Example(id=response.id, prompt=response.prompt, meta=response.meta))
        assigned = splits.get(question, assign_split(question, config.task))
        written.setdefault("heldout" if split == "heldout" else assigned, []).append(response)
    answers, heldout = written.pop(share, [])[:limit], written.pop("heldout", [])
    write_jsonl(out, answers)
    write_jsonl(out.with_name(f"{out.stem}_heldout.jsonl"), heldout)
    others = sum(map(len, written.values()))
    return PublishedSummary(answers=len(answers), heldout=len(heldout), other_shares=others, out=str(out))


def published_answers(data: str) -> Iterator[tuple[str, Response]]:
    """Yield the answers of a data set with their split on the hub, `train` or `heldout`."""
    places = hub_data(data)
    for split, name in (("train", places.train), ("heldout", places.heldout)):
        for row in load_rows(data, split=name) if name else ():
            responses = responses_of(row)
            if responses is None:
                raise UserError(f"{data}: a row without a published answer", "docs/data.md lists the forms")
            yield from ((split, response.model_copy(update={"feedback": ""})) for response in responses)
