"""Revising an answer by its critique: what a model is shown, and which revisions are of no use.

A revision that copies the answer teaches nothing, and one that carries words of the prompt it was asked with would
teach a policy to write them (both are what models do that cannot follow the instruction). Neither becomes a target.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

from text2grad.critics.prompted.messages import fitted_messages
from text2grad.feedback import Critique, Example, Message
from text2grad.unicode_words import pieces

Refusal = Literal["empty", "copied", "leaked"]
LONGEST_SHARED = 40
"""Characters of the instruction that a revision may have by chance."""
_MARKUP = re.compile(r"</?[a-z][\w-]*>|\{\{[\w.]+\}\}")


def revision_messages(
    prompt: str, question: Example, response: str, critique: Critique, excess: Callable[[Sequence[Message]], int]
) -> list[Message]:
    """The conversation that asks for `response` anew: the question, the answer and the critique, and nothing else.

    `prompt` is the text of a prompt file with {{prompt}}, {{response}} and {{meta.critique}}. What is known about
    the example besides, a reference or tests, is left out.
    """
    said = "\n".join([critique.text, *(f"- missing: {each}" for each in critique.omissions)]).strip()
    known = Example(id=question.id, prompt=question.prompt, meta={"critique": said})
    return fitted_messages(prompt, known, response, excess)


def refusal_of(revision: str, response: str, prompt: str, critique: Critique) -> Refusal | None:
    """Why a revision is rejected; None if it may be used.

    Copied: the answer but for white space. Leaked: it has a tag of the prompt, `LONGEST_SHARED` characters of its
    instruction, or the whole critique, where that is as long.
    """
    words, before = _plain(revision), _plain(response)
    if not words:
        return "empty"
    if words == before:
        return "copied"
    tags = [tag for tag in set(_MARKUP.findall(prompt)) if tag in revision and tag not in response]
    said = _plain(critique.text)
    whole = [said] if len(said) >= LONGEST_SHARED else []
    shared = any(piece in words and piece not in before for piece in (*_pieces(prompt), *whole))
    return "leaked" if tags or shared else None


def finds_nothing(critique: Critique) -> bool:
    """Whether a critique asks for no change: no poor span, no omission, no negative verdict."""
    if critique.omissions or any(span.label < 0 for span in critique.spans):
        return False
    if critique.score is not None:
        return critique.score > 0
    return bool(critique.spans) or not critique.text.strip()


def _plain(text: str) -> str:
    """Normalise white space and Unicode composition."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _pieces(prompt: str) -> Sequence[str]:
    """All substrings of `LONGEST_SHARED` characters of the instruction that start at a word."""
    words = _plain(_MARKUP.sub(" ", prompt))
    starts = [start for start, _ in pieces(words)]
    return [words[start : start + LONGEST_SHARED] for start in starts if start + LONGEST_SHARED <= len(words)]
