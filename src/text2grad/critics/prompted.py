"""The prompted critic: any chat model, asked for a critique and its spans in the format z.

The annotator is a strong model with long instructions; the reward model (paper, section 3.4) is a local model
fine-tuned on what the annotator wrote. Both are this class: they read `judge_messages` and write z.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import get_args

from text2grad import wire
from text2grad.chat import Answer, Chat, GroundedChat, LimitedChat
from text2grad.critics.votes import voted
from text2grad.errors import UserError
from text2grad.feedback import (
    HUMAN_FEEDBACK,
    Critique,
    Example,
    Failure,
    Judgement,
    Message,
    Source,
    human_feedback_on,
    overlap_of,
)
from text2grad.tasks.base import conversation_text
from text2grad.wire.shown import TAGS, as_data

_HEADING = re.compile(r"^=== (system|user) ===\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")
CUT = " [...] "
_ROUNDS = 24
_TAG = re.compile(r"</([\w-]+)>")


class PromptedCritic:
    """A critic made of a chat model and a prompt.

    `prompt` is the text of a prompt file (`tasks.base.read_prompt`); `ambiguity` says what a quote that
    occurs more than once means (docs/method.md). An unreadable answer is a `Failure`. With `votes`
    above 1 each response is judged so often, and the spans that most judgements agree on stay, weighted by their
    share (`critics.votes.voted`). Where the chat knows its limit, a prompt that is too long loses its middle.

    Raises:
        UserError: the prompt has an unknown placeholder, or no place for the response.
    """

    def __init__(
        self, chat: Chat, prompt: str, source: Source, ambiguity: wire.Ambiguity = "skip", votes: int = 1
    ) -> None:
        if ambiguity not in get_args(wire.Ambiguity):
            raise UserError(f"unknown ambiguity {ambiguity!r}", f"one of {', '.join(get_args(wire.Ambiguity))}")
        check_prompt(prompt)
        self.source = source
        self.overlap = overlap_of(chat)
        self._chat = chat
        self._prompt = prompt
        self._ambiguity: wire.Ambiguity = ambiguity
        self._votes = votes

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Ask for all critiques at once and read the answers."""
        once = [self._messages(*pair) for pair in zip(examples, responses, strict=True)]
        asked = [messages for messages in once for _ in range(self._votes)]
        about = [response for response in responses for _ in range(self._votes)]
        chat = self._chat
        answers = chat.complete_about(asked, about) if isinstance(chat, GroundedChat) else chat.complete(asked)
        read = [self._read(answer, response) for answer, response in zip(answers, about, strict=True)]
        return [voted(read[first : first + self._votes]) for first in range(0, len(read), self._votes)]

    def _messages(self, example: Example, response: str) -> list[Message]:
        chat = self._chat
        return fitted_messages(
            self._prompt, example, response, chat.excess if isinstance(chat, LimitedChat) else _no_limit
        )

    def _read(self, answer: Answer, response: str) -> Judgement:
        if isinstance(answer, Failure):
            return answer
        if answer.truncated:
            # Even where the object is closed: a critique cut short has not said all it had to say.
            return Failure(kind="truncated", message="the answer ran into the token limit", raw=answer.text)
        read = wire.parse(answer.text, response, ambiguity=self._ambiguity)
        return read.model_copy(update={"forced": 1}) if answer.forced and isinstance(read, Critique) else read


def judge_messages(prompt: str, example: Example, response: str) -> list[Message]:
    """The conversation that asks for a critique of `response`; the trained reward model is asked the same.

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

    The response is never cut. What does not fit without it stays too long, for whoever asked to refuse.
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

    A token is taken for two characters: rather once too often than too much at a time.
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


def _no_limit(conversation: Sequence[Message]) -> int:
    return 0


def check_prompt(prompt: str) -> None:
    """Refuse a prompt that cannot be filled.

    Raises:
        UserError: an unknown placeholder, or {{response}} is missing.
    """
    names = set(_PLACEHOLDER.findall(prompt))
    unknown = sorted(n for n in names - {"prompt", "response", "reference"} if not n.startswith("meta."))
    if unknown:
        raise UserError(
            f"the prompt asks for {{{{{unknown[0]}}}}}", "known: prompt, response, reference, meta.<key>"
        )
    if "response" not in names:
        raise UserError("the prompt has no {{response}}", "say where the response goes")


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
