"""Encode messages as token ids with the tokenizer's chat template.

A response is tokenised here only as a *target* of supervised training; sampled responses keep their
ids. Texts of messages and targets are data: only the template writes control tokens.

Templates differ in their generation prompts. Some write less than before a finished answer (an
empty `<think>` block comes only with the answer), some more (an open `<think>`). Training and
sampling both use the text before a finished answer, so no answer begins inside a block that the
template has opened.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from jinja2 import TemplateError
from tokenizers import AddedToken

from text2grad.errors import UserError, first_line, warn_once
from text2grad.feedback import Example, Message

TEMPLATE = "--policy.chat_template FILE.jinja"
OTHER_TURNS = f"move the system text into the first user turn, or {TEMPLATE}"
PROBE, TURN_PROBE = "\u2756probe\u2756", "\u2756turn\u2756"
QUESTION = Message(role="user", content="x")
USER_TURN = {"role": "user", "content": TURN_PROBE}

Turn = Mapping[str, str]


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Return the ids of a conversation, up to the start of the next answer.

    A special token's name inside a message is encoded as ordinary characters, so no message can end
    its turn or begin another.

    Raises:
        UserError: the template refuses or drops a turn.
    """
    chat = chat_format(tokenizer)
    return chat.encode(chat.opening(messages)[0])


def encode_prompts(tokenizer: Any, examples: Sequence[Example], limit: int | None, room: int) -> list[list[int]]:
    """Return the prompt ids of examples, checked by `check_lengths`."""
    prompts = [encode_prompt(tokenizer, example.prompt) for example in examples]
    check_lengths([(example.id, ids) for example, ids in zip(examples, prompts, strict=True)], limit, room)
    return prompts


def count_excess(tokenizer: Any, messages: Sequence[Message], limit: int | None, room: int = 0) -> int:
    """Return the tokens by which a conversation and `room` new tokens exceed a context of `limit`.

    The result is 0 or negative if they fit, and 0 without a limit.
    """
    return 0 if limit is None else len(encode_prompt(tokenizer, messages)) + room - limit


def encode_target(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of an assistant's answer and its end of turn as a training target.

    The text is encoded together with the template's text before it, because some tokenizers add a
    space to a text that is encoded alone. It is encoded alone if a token would otherwise cover the
    border, or if a control token would strip whitespace from it.

    Raises:
        UserError: the template rewrites the answer, for example because it contains reasoning.
    """
    chat = chat_format(tokenizer)
    hidden = chat.hide(text)
    chat.refuse_rewritten(hidden)
    header, space = chat.opening([QUESTION])
    answer, bare = hidden + end_of_turn(tokenizer), header.rstrip()
    stripping = bare != header and chat.encode(bare) == chat.encode(header)
    ids = None if stripping else chat.encode_after(header, space + answer)
    return chat.encode(answer) if ids is None else ids


def encode_between(
    tokenizer: Any, conversation: Sequence[Message], words: str, others: Sequence[Message]
) -> list[int] | None:
    """Return the ids that the template writes between two turns of the policy.

    The end-of-turn token belongs to the turn before. Whitespace at the ends of a turn is ignored,
    because templates may strip it.

    Args:
        conversation: the messages before the finished turn.
        words: the text of the finished turn.
        others: the messages that answer it.

    Returns:
        The ids, or None if the template rewrites earlier turns (it may leave out reasoning), so
        that the model would read other tokens than those sampled.

    Raises:
        UserError: the template refuses or drops a turn.
    """
    chat = chat_format(tokenizer)

    def render_with(words: str) -> str:
        return chat.opening([*conversation, Message(role="assistant", content=words), *others])[0]

    head, _, tail = render_with(TURN_PROBE).partition(TURN_PROBE)
    words = words.strip()
    if head != "".join(chat.opening(conversation)) or render_with(words) != head + chat.hide(words) + tail:
        return None
    if chat.end:  # inside a conversation it may be another token, which the sampled one replaces
        tail = tail.lstrip().removeprefix(chat.leading_special(tail.lstrip()))
    ids = chat.encode_after(end_of_turn(tokenizer), tail)
    return chat.encode(tail) if ids is None else ids


def describe_encoding(tokenizer: Any, messages: Iterable[Message]) -> Iterator[str]:
    """Yield what the ids of messages depend on: the template, and the ids of each message alone.

    Ids of a rendered conversation would change daily if the template writes the date.
    """
    chat = chat_format(tokenizer)
    encode = lru_cache(lambda content: str(chat.encode(chat.hide(content))))  # a system prompt is in each record
    yield str(tokenizer.chat_template)
    yield from (encode(message.content) for message in messages)


def end_of_turn(tokenizer: Any) -> str:
    """Return the special token that the template writes after an answer.

    If the template writes none, this is the tokenizer's end-of-sequence token. Without an end the
    policy would never learn to stop.
    """
    return chat_format(tokenizer).end or str(tokenizer.eos_token)


def stop_ids(tokenizer: Any, model: Any = None) -> list[int]:
    """Return the ids that end a response: those of the template, the tokenizer and the model.

    Of the ids in the model's generation config only special tokens count: an id that comes from a
    model class's defaults may be any word of this vocabulary.
    """
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    model_ends = {configured} if isinstance(configured, int) else set(configured or ())
    special = set(chat_format(tokenizer).names.values())
    return sorted(
        {tokenizer.convert_tokens_to_ids(end_of_turn(tokenizer)), tokenizer.eos_token_id} | model_ends & special
    )


def check_lengths(prompts: Sequence[tuple[str, list[int]]], limit: int | None, room: int) -> None:
    """Refuse prompts that leave no room for `room` new tokens in a context of `limit` tokens.

    Raises:
        UserError: some prompts are too long; names the first and counts them.
    """
    if limit is None:
        return
    long = [(name, len(ids)) for name, ids in prompts if len(ids) + room > limit]
    if long:
        name, length = long[0]
        raise UserError(
            f"{len(long)} of {len(prompts)} prompts are too long: {name!r} has {length} tokens, which with"
            f" {room} new ones exceeds the model's context of {limit}",
            "shorten the prompts, lower generation.max_new_tokens, or use a model with a longer context",
        )


class Frame(NamedTuple):
    """A template's text before and after an answer; `after` is None if it renders no answers."""

    before: str
    after: str | None

    def surrounds(self, answer: str, text: str) -> bool:
        """Return True if `text` is `answer` in this frame, or the template renders no answers."""
        if self.after is None:
            return True
        return text.removeprefix(self.before).removesuffix(self.after).strip() == answer.strip()


class Beginning(NamedTuple):
    """The text before a finished and a requested answer, from where the two differ."""

    finished: str = ""
    requested: str = ""


class ChatFormat:
    """A tokenizer with its chat template: renders messages and encodes the rendered text.

    Names of special tokens in messages are replaced by marks before rendering, so every special
    token in the rendered text comes from the template. Then these are replaced by aliases and the
    marks by the names, and a copy of the tokenizer that knows the aliases as its only special
    tokens encodes the text.

    Attributes:
        names: the ids of the special tokens by name.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        listed = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self.names: dict[str, int] = {name: index for name, index in {**listed, **added}.items() if name}
        self._tokenizer = tokenizer
        self._pattern = _match_any(self.names)
        self._secret = secrets.token_hex(8)  # so that no message can spell a mark or an alias
        self._marks = {name: f"{self._secret}m{index}m" for name, index in self.names.items()}
        self._aliases = {name: f"{self._secret}a{index}a" for name, index in self.names.items()}
        self._names_of_marks = {mark: name for name, mark in self._marks.items()}
        self._marked = _match_any(self._names_of_marks)

    # Text to ids.

    def hide(self, text: str) -> str:
        """Return the text with a mark in place of each special token's name."""
        return self._pattern.sub(lambda match: self._marks[match[0]], text)

    def leading_special(self, text: str) -> str:
        """Return the longest special token that a rendered text begins with, or an empty string."""
        return max((name for name in self.names if text.startswith(name)), key=len, default="")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered text; marks are encoded as the characters they hide."""
        if self._secret not in text:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return self.encode_with_twin(text)

    def encode_after(self, before: str, text: str) -> list[int] | None:
        """Return the ids of a text after another; None if a token covers the border."""
        prefix, joined = self.encode(before), self.encode(before + text)
        return joined[len(prefix) :] if joined[: len(prefix)] == prefix else None

    def encode_with_twin(self, text: str) -> list[int]:
        """Return the ids of a rendered text as the copy of the tokenizer reads it."""
        twin, alias_ids = self._twin
        aliased = self._pattern.sub(lambda match: self._aliases[match[0]], text)
        unmarked = self._marked.sub(lambda match: self._names_of_marks[match[0]], aliased)
        return [alias_ids.get(index, index) for index in twin.encode(unmarked, add_special_tokens=False).ids]

    @cached_property
    def _twin(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that reads special tokens' names as text, and the ids of its aliases."""
        twin = copy.deepcopy(self._tokenizer.backend_tokenizer)
        twin.encode_special_tokens = True
        twin.no_padding()
        twin.no_truncation()
        alias_ids = {}
        for name, alias in self._aliases.items():
            token = self._tokenizer.added_tokens_decoder.get(self.names[name], AddedToken(name, normalized=False))
            strips = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")}
            twin.add_tokens([AddedToken(alias, special=False, **strips)])
            alias_ids[twin.token_to_id(alias)] = self.names[name]
        return twin, alias_ids

    # Messages to text.

    def render(self, turns: Sequence[Mapping[str, Any]], **arguments: bool) -> str:
        """Render a conversation with the template, in the sandbox of transformers.

        Raises:
            UserError: the template refuses the conversation.
        """
        # The sandbox raises Python's errors for a range above 100,000 and for texts beyond memory.
        refusals = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, MemoryError, RecursionError)
        try:
            return str(self._tokenizer.apply_chat_template(list(turns), tokenize=False, **arguments))
        except refusals as error:
            roles = ", ".join(turn["role"] for turn in turns)
            problem = f"the chat template refuses the turns {roles}: {first_line(error)}"
            raise UserError(problem, OTHER_TURNS if "system" in roles else TEMPLATE) from error

    def render_if_accepted(self, turns: Sequence[Mapping[str, Any]], **arguments: bool) -> str:
        """Render a conversation; return an empty string if the template refuses it."""
        try:
            return self.render(turns, **arguments)
        except UserError:
            return ""

    def opening(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text before an answer, and its final space if the answer's tokens include it.

        Raises:
            UserError: see `frame`.
        """
        before = self.frame(self._turns(messages)).before
        return before.removesuffix(self.space), self.space if before.endswith(self.space) else ""

    def frame(self, turns: Sequence[Turn]) -> Frame:
        """Return the template's text around the answer to a conversation.

        If the template cannot render a finished conversation (it has no answers, or writes the
        system text only in the last turn), this is its generation prompt.

        Raises:
            UserError: the template refuses the conversation or drops a turn.
        """
        finished = [*turns, assistant_turn(PROBE)]
        before, probe, after = self.render_if_accepted(finished).rpartition(PROBE)
        if probe and self._find_dropped_role(finished, before) is None:
            return Frame(before, after)
        generated = self.render(turns, add_generation_prompt=True)
        if (role := self._find_dropped_role(turns, generated, add_generation_prompt=True)) is not None:
            raise UserError(
                f"the chat template drops the {role} turn", OTHER_TURNS if role == "system" else TEMPLATE
            )
        finished_start, requested_start = self.beginning
        if generated.endswith(requested_start):
            generated = generated.removesuffix(requested_start) + finished_start
        return Frame(generated, None)

    def refuse_rewritten(self, answer: str) -> None:
        """Refuse an answer that the template changes, except for whitespace at its ends.

        Raises:
            UserError: the template changes the answer.
        """
        if not answer.strip():
            return
        turns = self._turns([QUESTION])
        text = self.render([*turns, assistant_turn(answer)])
        # If the template writes the date, the cached frame may be yesterday's.
        if not (self.probe_frame.surrounds(answer, text) or self.frame(turns).surrounds(answer, text)):
            raise UserError(
                f"the chat template rewrites the answer that begins {answer.strip()[:40]!r}",
                f"leave reasoning out of the answers, or use a template that keeps it: {TEMPLATE}",
            )

    def _turns(self, messages: Sequence[Message]) -> list[Turn]:
        """Return turns for the template: special tokens hidden, unsupported tool turns as user."""
        roles = [message.role for message in messages]
        if "tool" in roles and not self.supports_tools:
            warn_once("the chat template has no tool turns: they are written as user turns")
            roles = ["user" if role == "tool" else role for role in roles]
        return [{"role": r, "content": self.hide(m.content)} for r, m in zip(roles, messages, strict=True)]

    def _find_dropped_role(self, turns: Sequence[Turn], text: str, **arguments: bool) -> str | None:
        """Return the role of the first turn that is missing in `text`, or None.

        Print a warning about turns that the template changes.
        """
        for index, turn in enumerate(turns):
            role, content = turn["role"], turn["content"]
            if content == PROBE or content.strip() in text:
                continue
            probe = {**turn, "content": TURN_PROBE}
            probed = self.render([*turns[:index], probe, *turns[index + 1 :]], **arguments)
            if TURN_PROBE not in (probed.rpartition(PROBE)[0] if PROBE in probed else probed):
                return role
            change = f"changes the text of {role} turns"
            if role == "assistant" and "</" in content:
                change = "leaves the reasoning out of earlier answers"
            warn_once(f"the chat template {change}; the model reads the changed text")
        return None

    # Facts about the template, computed once by rendering probes.

    @cached_property
    def probe_frame(self) -> Frame:
        """The frame of the answer to a short question."""
        return self.frame(self._turns([QUESTION]))

    @cached_property
    def end(self) -> str:
        """The special token that the template writes after an answer, or an empty string."""
        return self.leading_special((self.probe_frame.after or "").strip())

    @cached_property
    def beginning(self) -> Beginning:
        """The text before a finished and before a requested answer; empty if either is refused."""
        before, probe, _ = self.render_if_accepted([USER_TURN, assistant_turn(PROBE)]).rpartition(PROBE)
        generated = self.render_if_accepted([USER_TURN], add_generation_prompt=True)
        if not (probe and generated):
            return Beginning()
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(before, generated, strict=False))
        shared = "".join(character for character, _ in pairs).rstrip("<")  # cut no tag
        return Beginning(before.removeprefix(shared), generated.removeprefix(shared))

    @cached_property
    def space(self) -> str:
        """The space before an answer, if the tokens of words include it.

        Such a space is sampled and learned as part of the answer's first token.
        """
        added = self.beginning.finished
        before, words = self.probe_frame.before, ("The", "a", "yes", "{", "1")
        joins = any(self.encode_after(before, word) is None for word in words)
        return added[len(added.rstrip(" ")) :] if joins else ""

    @cached_property
    def supports_tools(self) -> bool:
        """True if the template renders tool turns, and not as the assistant's."""
        turns = [{"role": "user", "content": "x"}, assistant_turn("x")]
        tool = self.render_if_accepted([*turns, {"role": "tool", "content": TURN_PROBE}])
        return TURN_PROBE in tool and tool != self.render_if_accepted([*turns, assistant_turn(TURN_PROBE)])


def chat_format(tokenizer: Any) -> ChatFormat:
    """Return the format of a tokenizer, cached until its template or its size changes."""
    return _cached_format(tokenizer, str(tokenizer.chat_template), len(tokenizer))


@lru_cache(maxsize=8)
def _cached_format(tokenizer: Any, template: str, size: int) -> ChatFormat:
    return ChatFormat(tokenizer)


def _match_any(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of these names, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def assistant_turn(text: str) -> Turn:
    """Return the template's turn for an answer."""
    return {"role": "assistant", "content": text}
