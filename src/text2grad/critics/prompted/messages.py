"""What a prompted critic is shown: a prompt file, filled with one example and one response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from text2grad import wire
from text2grad.errors import UserError
from text2grad.feedback import HUMAN_FEEDBACK, Example, Message, human_feedback_on
from text2grad.tasks.base import conversation_text
from text2grad.wire.shown import TAGS, as_data

_HEADING = re.compile(r"^=== (system|user) ===\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")
CUT = " [...] "
_ROUNDS = 24
_TAG = re.compile(r"</([\w-]+)>")
_PUBLISHED = (
    ("textual_feedback", "good_spans", "poor_spans"),
    ("Code Feedback", "wrong_code", "improvement_code"),
)
"""The keys of the answers that the paper's appendix B asks for."""


@dataclass(frozen=True)
class Prompt:
    """The text of a prompt file, and the version of it that records and question ids name.

    Raises:
        UserError: it has an unknown placeholder, or no place for the response.
    """

    text: str
    version: str = ""

    def __post_init__(self) -> None:
        names = set(_PLACEHOLDER.findall(self.text))
        unknown = sorted(n for n in names - {"prompt", "response", "reference"} if not n.startswith("meta."))
        if unknown:
            cure = "known: prompt, response, reference, meta.<key>"
            raise UserError(f"the prompt asks for {{{{{unknown[0]}}}}}", cure)
        if "response" not in names:
            raise UserError("the prompt has no {{response}}", "say where the response goes")

    @cached_property
    def schema(self) -> str:
        """The JSON schema of the answer it asks for, as JSON."""
        if '"words"' in self.text:
            return json.dumps(wire.words_schema())
        for keys in _PUBLISHED:
            if all(f'"{key}"' in self.text for key in keys):
                return json.dumps(wire.published_schema(*keys))
        return json.dumps(wire.json_schema('"reasoning"' in self.text, '"improvable_spans"' in self.text))


def judge_messages(prompt: str, example: Example, response: str) -> list[Message]:
    """The conversation that asks for a critique of `response`.

    `prompt` is the text of a prompt file: parts under `=== system ===` and `=== user ===` headings (without
    headings: one user turn; a note before the first heading is not sent), with {{prompt}}, {{response}},
    {{reference}} and {{meta.key}} filled in one pass. What is filled in is data (`wire.shown`): it cannot close the
    tags it stands between, holds no control token of a chat model, and a placeholder in it stays as it is.
    """
    fill = _filler(example, response, _tags(prompt))
    return [
        Message.model_validate({"role": role, "content": "".join([fixed + fill(name) for fixed, name in parts])})
        for role, parts in _turns(prompt)
    ]


@lru_cache(maxsize=16)
def _turns(prompt: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The turns of a prompt's text: role, and pairs of fixed text and the placeholder after it ("": none)."""
    parts = _HEADING.split(prompt)
    turns = [("user", parts[0])] if len(parts) == 1 else list(zip(parts[1::2], parts[2::2], strict=True))
    split = [(role, [*_PLACEHOLDER.split(text.strip("\n")), ""]) for role, text in turns]
    return tuple((role, tuple(zip(pieces[::2], pieces[1::2], strict=True))) for role, pieces in split)


@lru_cache(maxsize=16)
def _tags(prompt: str) -> frozenset[str]:
    """The tags that what is filled in must not close."""
    return TAGS | {name.lower() for name in _TAG.findall(prompt)}


def fitted_messages(
    prompt: str, example: Example, response: str, excess: Callable[[Sequence[Message]], int]
) -> list[Message]:
    """`judge_messages` of an example whose longest turn loses its middle until `excess` (in tokens) is gone.

    The response is never cut. What still does not fit stays too long, and the caller refuses it.
    """
    messages = judge_messages(prompt, example, response)
    for _ in range(_ROUNDS):
        over = excess(messages)
        shorter = without_middle(example, over) if over > 0 else example
        if shorter is example:
            break
        example = shorter
        messages = judge_messages(prompt, example, response)
    return messages


def without_middle(example: Example, tokens: int) -> Example:
    """The example with about `tokens` tokens less in the middle of its longest turn; itself if there is no more.

    Assumes two characters per token: several short cuts are better than one that removes too much.
    """
    place = max(range(len(example.prompt)), key=lambda index: len(example.prompt[index].content))
    turn = example.prompt[place]
    half = len(turn.content) // 2
    before, mark, after = turn.content.partition(CUT)
    if not mark:
        before, after = turn.content[:half], turn.content[half:]
    less = max(tokens, len(CUT))
    kept = f"{before[: max(0, len(before) - less)]}{CUT}{after[less:]}"
    if len(kept) >= len(turn.content):
        return example
    turns = [*example.prompt[:place], turn.model_copy(update={"content": kept}), *example.prompt[place + 1 :]]
    return example.model_copy(update={"prompt": tuple(turns)})


def _filler(example: Example, response: str, tags: frozenset[str]) -> Callable[[str], str]:
    values = {
        "": "",
        "prompt": conversation_text(example.prompt),
        "response": response,
        "reference": example.reference or "(none)",
        f"meta.{HUMAN_FEEDBACK}": human_feedback_on(example, response) or "(none)",
    }

    def fill(name: str) -> str:
        value = values[name] if name in values else str(example.meta.get(name.removeprefix("meta."), "(none)"))
        return as_data(value, tags)

    return fill
