"""Ask for revisions of answers by their critiques, and refuse unusable ones.

A copy of the answer teaches nothing, and a revision that repeats the instruction would teach the
policy to write it. Models that cannot follow the instruction do both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from text2grad.chat import Answer, LimitedChat
from text2grad.config import Config, extra_settings
from text2grad.critics.prompted import Prompt
from text2grad.critics.prompted.messages import fitted_messages
from text2grad.critics.table import spec_of
from text2grad.errors import UsageError
from text2grad.feedback import Critique, Example, Failure, Message
from text2grad.settings import Settings
from text2grad.tasks.base import prompt_version, read_prompt
from text2grad.unicode_words import pieces

Refusal = Literal["", "empty", "copied", "leaked", "truncated", "unsupported"]
LONGEST_SHARED = 40
"""Characters of the instruction that a revision may share by chance."""
PROMPT = str(Path(__file__).with_name("refine.txt"))
_MARKUP = re.compile(r"</?[a-z][\w-]*>|\{\{[\w.]+\}\}")


class RefineSettings(Settings):
    """`extra.refine`: how answers are revised by their critiques (`refine`, `reflect`)."""

    samples: int = Field(default=4, ge=1, description="revisions per answer")
    answers_per_prompt: int | None = Field(
        default=None, ge=1, description="refine only the first answers per prompt; null: all"
    )


def refine_settings(config: Config) -> RefineSettings:
    """Return `extra.refine`."""
    return extra_settings(config, "refine", RefineSettings)


def refuse_informed_critic(config: Config) -> None:
    """Refuse a critic that reads the reference or runs the tests, since these measure the answers.

    Raises:
        UsageError: the critic of the run does.
    """
    if not spec_of(config.critic.kind).reference_free:
        cure = "--critic.kind prompted or reward_model, or compare without reflection"
        raise UsageError(f"the critic {config.critic.kind} knows the reference or the tests", cure)


def revision_prompt() -> Prompt:
    """Return the prompt that asks for a revision (`refine.txt`)."""
    return Prompt(read_prompt(PROMPT), prompt_version(PROMPT))


class Case(NamedTuple):
    """An answer to revise, and its critique."""

    example: Example
    response: str
    critique: Critique


class Revision(NamedTuple):
    """A revised answer; `refused` is the reason why it is unusable, "" if it is usable."""

    text: str
    refused: Refusal = ""


def revise(chat: LimitedChat, prompt: Prompt, cases: Sequence[Case]) -> list[Revision]:
    """Return one revision per case, in their order."""
    conversations = [revision_messages(prompt.text, case, chat.excess) for case in cases]
    answers = chat.complete(conversations)
    return [_checked(answer, case, prompt.text) for answer, case in zip(answers, cases, strict=True)]


def _checked(answer: Answer, case: Case, prompt: str) -> Revision:
    if isinstance(answer, Failure):
        return Revision("", "unsupported")
    if answer.truncated:
        return Revision(answer.text, "truncated")
    return Revision(answer.text, refusal_of(answer.text, case, prompt))


def revision_messages(prompt: str, case: Case, excess: Callable[[Sequence[Message]], int]) -> list[Message]:
    """Return messages that ask for a revision, with the question, the answer and the critique.

    `prompt` is the text of a prompt file with {{prompt}}, {{response}} and {{meta.critique}}. The
    example's reference and tests are never shown.
    """
    critique = case.critique
    words = "\n".join([critique.text, *(f"- missing: {omission}" for omission in critique.omissions)]).strip()
    example = Example(id=case.example.id, prompt=case.example.prompt, meta={"critique": words})
    return fitted_messages(prompt, example, case.response, excess)


def refusal_of(revision: str, case: Case, prompt: str) -> Refusal:
    """Return the reason why a revision is unusable, "" if it is usable.

    Copied: it equals the answer except for whitespace. Leaked: it contains a tag of the prompt,
    `LONGEST_SHARED` characters of its instruction, or the full critique if that is as long.
    """
    words, before = _plain(revision), _plain(case.response)
    if not words:
        return "empty"
    if words == before:
        return "copied"
    tags = [tag for tag in set(_MARKUP.findall(prompt)) if tag in revision and tag not in case.response]
    critique = _plain(case.critique.text)
    long_critique = [critique] if len(critique) >= LONGEST_SHARED else []
    texts = (*_pieces(prompt), *long_critique)
    return "leaked" if tags or any(text in words and text not in before for text in texts) else ""


def asks_no_change(critique: Critique) -> bool:
    """True if a critique asks for no change: no poor span, no omission, no negative verdict."""
    if critique.omissions or any(span.label < 0 for span in critique.spans):
        return False
    if critique.score is not None:
        return critique.score > 0
    return bool(critique.spans) or not critique.text.strip()


def _plain(text: str) -> str:
    """Normalise whitespace and Unicode composition."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _pieces(prompt: str) -> list[str]:
    """Return the substrings of `LONGEST_SHARED` characters of a prompt that start at a word."""
    words = _plain(_MARKUP.sub(" ", prompt))
    starts = [start for start, _ in pieces(words)]
    return [words[start : start + LONGEST_SHARED] for start in starts if start + LONGEST_SHARED <= len(words)]
