"""Messages to token ids through the tokenizer's own chat template, whatever it is.

A response is tokenised here only as a *target* of supervised training. Sampled responses keep the
ids they were sampled as. The text of a message or target is data: only the template writes control
tokens.

Templates differ in how they begin an answer. As a generation prompt some write less than before a
finished answer (an empty `<think>` block comes only with the answer), some more (an open `<think>`
that a finished answer lacks). Training and sampling both use what precedes a finished answer: an
answer follows what the template itself writes before it, and never begins inside a block that the
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
PROBE, TURN = "\u2756probe\u2756", "\u2756turn\u2756"
QUESTION = Message(role="user", content="x")
ASKED = {"role": "user", "content": TURN}

Turn = Mapping[str, str]


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Return the ids of a conversation, up to where the template lets an answer begin.

    A message that spells the name of a special token is encoded as those characters, in ordinary
    tokens: no message can end its turn or begin another, and no character is lost.

    Raises:
        UserError: the template refuses or drops a turn.
    """
    chat = chat_format(tokenizer)
    return chat.ids(chat.opening(messages)[0])


def encode_prompts(tokenizer: Any, examples: Sequence[Example], limit: int | None, room: int) -> list[list[int]]:
    """Return the prompt ids of examples, each with room for `room` new tokens (see
    `check_lengths`)."""
    prompts = [encode_prompt(tokenizer, example.prompt) for example in examples]
    check_lengths([(example.id, ids) for example, ids in zip(examples, prompts, strict=True)], limit, room)
    return prompts


def encode_target(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of an assistant's answer as a training target: the text and the end of its
    turn.

    The text is encoded behind what the template writes before it, and cut there: some tokenizers
    put a space in front of a text that stands alone. It is encoded alone where this would move the
    tokens before it (a line break joins one), or lose white space to a control token that strips
    what follows it.

    Raises:
        UserError: the template rewrites such an answer, for example one with a block of reasoning
            of its own.
    """
    chat = chat_format(tokenizer)
    hidden = chat.hide(text)
    chat.refuse_rewritten(hidden)
    header, space = chat.opening([QUESTION])
    answer, bare = hidden + turn_end(tokenizer), header.rstrip()
    stripping = bare != header and chat.ids(bare) == chat.ids(header)
    ids = None if stripping else chat.ids_after(header, space + answer)
    return chat.ids(answer) if ids is None else ids


def encode_between(
    tokenizer: Any, asked: Sequence[Message], words: str, others: Sequence[Message]
) -> list[int] | None:
    """Return the ids that the template writes between a finished turn of the policy and its next
    one.

    The turn said `words` in the conversation `asked`, and `others` answered. Its end is its own
    last token. White space at the ends of a turn is the turn's own, whether the template keeps it
    or not. None if the template, once others have answered, writes the turns before them
    differently (it leaves out reasoning, for example): then the model reads other tokens than those
    that were sampled.

    Raises:
        UserError: the template refuses or drops a turn.
    """
    chat = chat_format(tokenizer)

    def written(words: str) -> str:
        return chat.opening([*asked, Message(role="assistant", content=words), *others])[0]

    head, _, tail = written(TURN).partition(TURN)
    words = words.strip()
    if head != "".join(chat.opening(asked)) or written(words) != head + chat.hide(words) + tail:
        return None
    if chat.end:  # which may be another token inside a conversation: the sampled one stands for it
        tail = tail.lstrip().removeprefix(chat.first_name(tail.lstrip()))
    ids = chat.ids_after(turn_end(tokenizer), tail)
    return chat.ids(tail) if ids is None else ids


def rendering_of(tokenizer: Any, messages: Iterable[Message]) -> Iterator[str]:
    """Yield what the ids of messages depend on: the template, and the ids of each message alone.

    Not the ids of a rendered conversation: a template may write today's date.
    """
    chat = chat_format(tokenizer)
    yield str(tokenizer.chat_template)
    yield from (str(chat.ids(chat.hide(message.content))) for message in messages)


def turn_end(tokenizer: Any) -> str:
    """Return what the template writes right after an answer, up to the token that ends generation.

    A template that writes nothing there gets the tokenizer's end-of-sequence token, without which a
    policy would never learn to stop.
    """
    return chat_format(tokenizer).end or str(tokenizer.eos_token)


def stop_ids(tokenizer: Any, model: Any = None) -> list[int]:
    """Return the ids that end a response: the template's end of turn, the tokenizer's end of
    sequence, the model's.

    A model has them in its generation config, one or a list. Only special tokens count: where the
    config is derived from a model class's defaults, its id may be any word of this vocabulary.
    """
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    of_model = {listed} if isinstance(listed, int) else set(listed or ())
    special = set(chat_format(tokenizer).names.values())
    return sorted(
        {tokenizer.convert_tokens_to_ids(turn_end(tokenizer)), tokenizer.eos_token_id} | of_model & special
    )


def check_lengths(prompts: Sequence[tuple[str, list[int]]], limit: int | None, room: int) -> None:
    """Refuse prompts that leave no room for `room` new tokens in a context of `limit` tokens.

    Raises:
        UserError: names the first such prompt by id, and how many there are.
    """
    if limit is None:
        return
    long = [(name, len(ids)) for name, ids in prompts if len(ids) + room > limit]
    if long:
        name, length = long[0]
        raise UserError(
            f"{len(long)} of {len(prompts)} prompts are too long: {name!r} has {length} tokens, and with"
            f" {room} new ones exceeds the model's {limit}",
            "shorten the prompts, lower generation.max_new_tokens, or take a model with a longer context",
        )


class Frame(NamedTuple):
    """The text that a template writes before and after an answer; `after` is None where it writes
    no answers."""

    before: str
    after: str | None

    def surrounds(self, answer: str, text: str) -> bool:
        """True if `text` is `answer` in this frame, or the template writes no answers."""
        if self.after is None:
            return True
        return text.removeprefix(self.before).removesuffix(self.after).strip() == answer.strip()


class Beginning(NamedTuple):
    """The beginnings of a finished and a requested answer, from where they differ; empty if
    refused."""

    finished: str = ""
    requested: str = ""


class ChatFormat:
    """A tokenizer with its chat template: what the template writes, and how that text becomes ids.

    Names of special tokens in messages are replaced by marks before the template is rendered, so
    that the special tokens in the rendered text are the template's own. These are then replaced by
    aliases and the marks by the names, and a twin of the tokenizer that knows the aliases but no
    special token encodes the whole: nothing else is read differently. `names`: the ids of the
    special tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        listed = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self.names: dict[str, int] = {name: index for name, index in {**listed, **added}.items() if name}
        self._tokenizer = tokenizer
        self._pattern = _any_of(self.names)
        self._secret = secrets.token_hex(8)  # so that no message can spell a mark or an alias
        self._marks = {name: f"{self._secret}m{index}m" for name, index in self.names.items()}
        self._aliases = {name: f"{self._secret}a{index}a" for name, index in self.names.items()}
        self._names_of_marks = {mark: name for name, mark in self._marks.items()}
        self._marked = _any_of(self._names_of_marks)

    # Text to ids.

    def hide(self, text: str) -> str:
        """Return the text with a mark for each special token's name."""
        return self._pattern.sub(lambda match: self._marks[match[0]], text)

    def first_name(self, text: str) -> str:
        """Return the special token that a rendered text begins with, the longest of several; else
        ""."""
        return max((name for name in self.names if text.startswith(name)), key=len, default="")

    def ids(self, text: str) -> list[int]:
        """Return the ids of a rendered text; marks become the characters of the names they hide."""
        if self._secret not in text:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return self.ids_by_twin(text)

    def ids_after(self, before: str, text: str) -> list[int] | None:
        """Return the ids of a text behind another; None if together they have other tokens across
        the border."""
        prefix, joined = self.ids(before), self.ids(before + text)
        return joined[len(prefix) :] if joined[: len(prefix)] == prefix else None

    def ids_by_twin(self, text: str) -> list[int]:
        """Return the ids of a rendered text as the twin of the tokenizer reads it."""
        twin, ids_of_aliases = self._twin
        aliased = self._pattern.sub(lambda match: self._aliases[match[0]], text)
        shown = self._marked.sub(lambda match: self._names_of_marks[match[0]], aliased)
        return [ids_of_aliases.get(index, index) for index in twin.encode(shown, add_special_tokens=False).ids]

    @cached_property
    def _twin(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that takes special tokens' names for text, and the ids for which its aliases
        stand."""
        twin = copy.deepcopy(self._tokenizer.backend_tokenizer)
        twin.encode_special_tokens = True
        twin.no_padding()
        twin.no_truncation()
        ids_of_aliases = {}
        for name, alias in self._aliases.items():
            token = self._tokenizer.added_tokens_decoder.get(self.names[name], AddedToken(name, normalized=False))
            strips = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")}
            twin.add_tokens([AddedToken(alias, special=False, **strips)])
            ids_of_aliases[twin.token_to_id(alias)] = self.names[name]
        return twin, ids_of_aliases

    # Messages to text.

    def render(self, turns: Sequence[Mapping[str, Any]], **arguments: bool) -> str:
        """Return the conversation as the template writes it, in the sandbox of transformers.

        The sandbox ends a `range` of more than 100,000 and a text that does not fit into memory
        with errors of Python.

        Raises:
            UserError: the template refuses the conversation.
        """
        refusals = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, MemoryError, RecursionError)
        try:
            return str(self._tokenizer.apply_chat_template(list(turns), tokenize=False, **arguments))
        except refusals as error:
            roles = ", ".join(turn["role"] for turn in turns)
            problem = f"the chat template refuses the turns {roles}: {first_line(error)}"
            raise UserError(problem, OTHER_TURNS if "system" in roles else TEMPLATE) from error

    def render_if_accepted(self, turns: Sequence[Mapping[str, Any]], **arguments: bool) -> str:
        """Return the conversation as the template writes it; "" if the template refuses it."""
        try:
            return self.render(turns, **arguments)
        except UserError:
            return ""

    def opening(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text before the answer to a conversation, and a space at its end that the
        answer takes over.

        Raises:
            UserError: see `frame`.
        """
        before = self.frame(self._turns(messages)).before
        return before.removesuffix(self.space), self.space if before.endswith(self.space) else ""

    def frame(self, turns: Sequence[Turn]) -> Frame:
        """Return what the template writes around the answer to a conversation.

        For a template that cannot write a finished conversation (it has no answers, or has the
        system's text only in the last turn) its generation prompt is taken.

        Raises:
            UserError: the template refuses the conversation, or drops a turn.
        """
        finished = [*turns, answer_turn(PROBE)]
        before, probe, after = self.render_if_accepted(finished).rpartition(PROBE)
        if probe and self._dropped_role(finished, before) is None:
            return Frame(before, after)
        generated = self.render(turns, add_generation_prompt=True)
        if (role := self._dropped_role(turns, generated, add_generation_prompt=True)) is not None:
            raise UserError(
                f"the chat template drops the {role} turn", OTHER_TURNS if role == "system" else TEMPLATE
            )
        finished_start, requested_start = self.beginning
        if generated.endswith(requested_start):
            generated = generated.removesuffix(requested_start) + finished_start
        return Frame(generated, None)

    def refuse_rewritten(self, answer: str) -> None:
        """Refuse an answer that the template writes differently; white space at its ends is the
        answer's own.

        Raises:
            UserError: the template rewrites the answer.
        """
        if not answer.strip():
            return
        turns = self._turns([QUESTION])
        written = self.render([*turns, answer_turn(answer)])
        # A template may write a date: the cached frame may be yesterday's.
        if not (self.asked.surrounds(answer, written) or self.frame(turns).surrounds(answer, written)):
            raise UserError(
                f"the chat template rewrites the answer that begins {answer.strip()[:40]!r}",
                f"leave reasoning out of the answers, or {TEMPLATE}, one that writes answers as they are",
            )

    def _turns(self, messages: Sequence[Message]) -> list[Turn]:
        """Return turns for the template: no text spells a special token, a tool may have to speak
        as the user."""
        roles = [message.role for message in messages]
        if "tool" in roles and not self.knows_tools:
            warn_once("the chat template has no turns of tools: they are written as the user's")
            roles = ["user" if role == "tool" else role for role in roles]
        return [{"role": r, "content": self.hide(m.content)} for r, m in zip(roles, messages, strict=True)]

    def _dropped_role(self, turns: Sequence[Turn], text: str, **arguments: bool) -> str | None:
        """The role of the first turn of which `text`, before the answer, has nothing.

        A turn that the template changes is named on stderr.
        """
        for place, turn in enumerate(turns):
            role, content = turn["role"], turn["content"]
            if content == PROBE or content.strip() in text:
                continue
            probed = self.render([*turns[:place], {**turn, "content": TURN}, *turns[place + 1 :]], **arguments)
            if TURN not in (probed.rpartition(PROBE)[0] if PROBE in probed else probed):
                return role
            reasons = role == "assistant" and "</" in content
            change = (
                "leaves the reasoning out of earlier answers" if reasons else f"changes the text of {role} turns"
            )
            warn_once(f"the chat template {change}, and the model reads them so")
        return None

    # Facts about the template, each found once by rendering probes.

    @cached_property
    def asked(self) -> Frame:
        """The frame of the answer to a short question."""
        return self.frame(self._turns([QUESTION]))

    @cached_property
    def end(self) -> str:
        """The token that the template writes right after an answer; "" if it writes none."""
        return self.first_name((self.asked.after or "").strip())

    @cached_property
    def beginning(self) -> Beginning:
        """The beginnings of a finished and of a requested answer to the same question."""
        before, probe, _ = self.render_if_accepted([ASKED, answer_turn(PROBE)]).rpartition(PROBE)
        generated = self.render_if_accepted([ASKED], add_generation_prompt=True)
        if not (probe and generated):
            return Beginning()
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(before, generated, strict=False))
        shared = "".join(ours for ours, _ in pairs).rstrip("<")  # no tag is cut
        return Beginning(before.removeprefix(shared), generated.removeprefix(shared))

    @cached_property
    def space(self) -> str:
        """The space that the template writes before an answer, if tokens of words include it.

        Such a space is part of the first token of most answers, and is sampled and learned with it.
        """
        added = self.beginning.finished
        joins = any(self.ids_after(self.asked.before, word) is None for word in ("The", "a", "yes", "{", "1"))
        return added[len(added.rstrip(" ")) :] if joins else ""

    @cached_property
    def knows_tools(self) -> bool:
        """True if the template writes a tool's turn, and not as if the policy had said it."""
        turns = [{"role": "user", "content": "x"}, answer_turn("x")]
        tool = self.render_if_accepted([*turns, {"role": "tool", "content": TURN}])
        return TURN in tool and tool != self.render_if_accepted([*turns, answer_turn(TURN)])


def chat_format(tokenizer: Any) -> ChatFormat:
    """Return the format of a tokenizer, made once for a template and so many tokens: special ones
    may be added."""
    return _made(tokenizer, str(tokenizer.chat_template), len(tokenizer))


@lru_cache(maxsize=8)
def _made(tokenizer: Any, template: str, size: int) -> ChatFormat:
    return ChatFormat(tokenizer)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of these, the longest that fits."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def answer_turn(text: str) -> Turn:
    """Return the turn of an answer, for the template."""
    return {"role": "assistant", "content": text}
