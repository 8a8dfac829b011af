"""Revisions of answers by their critiques, by a policy: for `refine` (ILF) and for `evaluate --reflect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from text2grad.chat import Completion
from text2grad.config import Config
from text2grad.critics.prompted import Prompt
from text2grad.critics.revision import refusal_of, revision_messages
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example
from text2grad.policy.local_chat import LocalChat
from text2grad.tasks.base import prompt_version, read_prompt


class Case(NamedTuple):
    """An answer, and what is wrong with it."""

    example: Example
    response: str
    critique: Critique


class Revision(NamedTuple):
    """What an answer became, or why it is of no use: `critics.revision.Refusal`, truncated or unsupported."""

    text: str
    refused: str = ""


def revise(chat: LocalChat, prompt: Prompt, cases: Sequence[Case]) -> list[Revision]:
    """One revision of each case, in their order."""
    asked = [revision_messages(prompt.text, *case, chat.excess) for case in cases]
    return [_read(answer, case, prompt.text) for answer, case in zip(chat.complete(asked), cases, strict=True)]


def _read(answer: object, case: Case, prompt: str) -> Revision:
    if not isinstance(answer, Completion):
        return Revision("", "unsupported")
    if answer.truncated:
        return Revision(answer.text, "truncated")
    return Revision(answer.text, refusal_of(answer.text, case.response, prompt, case.critique) or "")


def revision_prompt(config: Config) -> Prompt:
    """The prompt file of `refine.prompt`.

    Raises:
        UserError: there is none, or it has no place for the critique.
    """
    name = config.refine.prompt
    prompt = Prompt(read_prompt(name), prompt_version(name))
    if "{{meta.critique}}" not in prompt.text:
        raise UserError(f"the prompt {name} has no {{{{meta.critique}}}}", "say where the critique goes")
    return prompt
