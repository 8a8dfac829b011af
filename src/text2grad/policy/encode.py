"""Messages to token ids through the tokenizer's own chat template, whatever it is.

A response is tokenised here only as a *target* of supervised training. Sampled responses keep the ids they were
sampled as. The text of a message or target is data: only the template writes control tokens.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import AddedToken

from text2grad.errors import UserError, warn_once
from text2grad.feedback import Example, Message
from text2grad.policy.template import TEMPLATE, TURN, Frame, Turn, beginning, frame, render, rewrites

_ASKED = Message(role="user", content="x")


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, and of all that the template writes before an answer (`policy.template`).

    A message that spells the name of a special token is encoded as those characters, in ordinary tokens: no message
    can end its turn or begin another, and no character is lost.

    Raises:
        UserError: the template refuses or drops a turn.
    """
    return _read(tokenizer, _opening(tokenizer, messages)[0])


def encode_prompts(tokenizer: Any, examples: Sequence[Example], limit: int | None, room: int) -> list[list[int]]:
    """Prompt ids of examples, each with room for `room` new tokens (see `check_lengths`)."""
    prompts = [encode_prompt(tokenizer, example.prompt) for example in examples]
    check_lengths([(example.id, ids) for example, ids in zip(examples, prompts, strict=True)], limit, room)
    return prompts


def encode_target(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an assistant's answer as a training target: the text and the end of its turn.

    It is read behind what the template writes before it, and cut there: some tokenizers put a space in front of a
    text that stands alone. It is read alone where this would move the tokens before it (a line break joins one),
    or lose white space to a control token that strips what follows it.

    Raises:
        UserError: the template writes such an answer otherwise, as one with a block of reasoning of its own.
    """
    hidden = _control(tokenizer).hide(text)
    _refuse_rewritten(tokenizer, hidden)
    header, lead = _opening(tokenizer, [_ASKED])
    answer = hidden + turn_end(tokenizer)
    before, bare = _read(tokenizer, header), header.rstrip()
    whole = _read(tokenizer, header + lead + answer)
    stripping = bare != header and _read(tokenizer, bare) == before
    alone = stripping or whole[: len(before)] != before
    return _read(tokenizer, answer) if alone else whole[len(before) :]


def encode_between(
    tokenizer: Any, asked: Sequence[Message], words: str, others: Sequence[Message]
) -> list[int] | None:
    """Token ids of what the template writes behind a finished turn of the policy, up to where its next one begins.

    The turn said `words` in the conversation `asked`, and `others` answered. Its end is its own last token. None
    where the template, once others have answered, writes what stands before them in another way (it leaves out
    reasoning, say): then the model reads other tokens than those that were sampled. White space at the ends of a
    turn is the turn's own, whether the template keeps it or not.

    Raises:
        UserError: the template refuses or drops a turn.
    """

    def written(said: str) -> str:
        turn = Message(role="assistant", content=said)
        return _opening(tokenizer, [*asked, turn, *others])[0]

    before = "".join(_opening(tokenizer, asked))
    head, _, tail = written(TURN).partition(TURN)
    hide = _control(tokenizer).hide
    if head != before or written(words.strip()) != head + hide(words.strip()) + tail:
        return None
    if _template_end(tokenizer):  # which may be another token inside a conversation: the sampled one stands for it
        tail = tail.lstrip().removeprefix(_control(tokenizer).first_name(tail.lstrip()))
    # Read behind the end of the turn, as some tokenizers put a space in front of a text that stands alone.
    ended, whole = _read(tokenizer, turn_end(tokenizer)), _read(tokenizer, turn_end(tokenizer) + tail)
    return whole[len(ended) :] if whole[: len(ended)] == ended else _read(tokenizer, tail)


def _refuse_rewritten(tokenizer: Any, answer: str) -> None:
    chat = _chat(tokenizer, [_ASKED])
    known = _asked(tokenizer, str(tokenizer.chat_template))
    if rewrites(tokenizer, chat, answer, known) and rewrites(tokenizer, chat, answer, frame(tokenizer, chat)):
        raise UserError(
            f"the chat template rewrites the answer that begins {answer.strip()[:40]!r}",
            f"leave reasoning out of the answers, or {TEMPLATE}, one that writes answers as they are",
        )


def rendering_of(tokenizer: Any, messages: Iterable[Message]) -> Iterator[str]:
    """What the ids of messages depend on: the template, and the ids of each message alone.

    Not the ids of a rendered conversation: a template may write today's date.
    """
    yield str(tokenizer.chat_template)
    hide = _control(tokenizer).hide
    yield from (str(_read(tokenizer, hide(message.content))) for message in messages)


def turn_end(tokenizer: Any) -> str:
    """What the chat template writes right after an assistant's answer, up to the token that ends generation.

    Found by rendering a probe answer. A template that writes nothing there gets the tokenizer's
    end-of-sequence token, without which a policy would never learn to stop.
    """
    return _template_end(tokenizer) or str(tokenizer.eos_token)


def _template_end(tokenizer: Any) -> str:
    """The token that the template writes right after an answer; empty where it writes none."""
    after = _asked(tokenizer, str(tokenizer.chat_template)).after or ""
    return _control(tokenizer).first_name(after.strip())


def stop_ids(tokenizer: Any, model: Any = None) -> list[int]:
    """Ids that end a response: the template's end of turn, the tokenizer's end of sequence, and those of a model.

    A model has them in its generation config, one or a list. Only special tokens count: where the config is derived
    from a model class's defaults, its id may be any word of this vocabulary.
    """
    config = getattr(model, "generation_config", None)
    listed = getattr(config, "eos_token_id", None)
    own = {listed} if isinstance(listed, int) else set(listed or ())
    special = set(_control(tokenizer).names.values())
    return sorted({tokenizer.convert_tokens_to_ids(turn_end(tokenizer)), tokenizer.eos_token_id} | own & special)


def _opening(tokenizer: Any, messages: Sequence[Message]) -> tuple[str, str]:
    """What the template writes before the answer to a conversation, and a space that the answer takes from it."""
    before = frame(tokenizer, _chat(tokenizer, messages)).before
    space = _space(tokenizer, str(tokenizer.chat_template))
    return before.removesuffix(space), space if before.endswith(space) else ""


@lru_cache(maxsize=8)
def _space(tokenizer: Any, template: str) -> str:
    """The space that a `template`, the tokenizer's, writes before an answer, if tokens of words include it.

    Such a space is part of the first token of most answers, and is sampled and learned with it.
    """
    begun = beginning(tokenizer)
    added = begun.finished if begun else ""
    space = added[len(added.rstrip(" ")) :]
    before = _asked(tokenizer, template).before
    ids = _read(tokenizer, before)
    taken = any(_read(tokenizer, before + word)[: len(ids)] != ids for word in ("The", "a", "yes", "{", "1"))
    return space if taken else ""


def _chat(tokenizer: Any, messages: Iterable[Message]) -> list[Turn]:
    """Turns for the template, in which no text spells a special token."""
    hide = _control(tokenizer).hide
    return [{"role": _role(tokenizer, each.role), "content": hide(each.content)} for each in messages]


def _role(tokenizer: Any, role: str) -> str:
    """The role under which the template writes a turn: what a tool says is the user's where there are no tools."""
    if role != "tool" or _knows_tools(tokenizer, str(tokenizer.chat_template)):
        return role
    warn_once("the chat template has no turns of tools: they are written as the user's")
    return "user"


@lru_cache(maxsize=8)
def _knows_tools(tokenizer: Any, template: str) -> bool:
    """Whether a `template`, the tokenizer's, writes what a tool says, and not as if the policy had said it."""

    def written(role: str) -> str:
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
        try:
            return render(tokenizer, [*turns, {"role": role, "content": TURN}])
        except UserError:
            return ""

    return TURN in written("tool") and written("tool") != written("assistant")


@lru_cache(maxsize=8)
def _asked(tokenizer: Any, template: str) -> Frame:
    """What a `template`, which is the tokenizer's, writes around the answer of a short conversation."""
    return frame(tokenizer, _chat(tokenizer, [_ASKED]))


def _read(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a rendered text. Only hidden names take another road than the tokenizer's own."""
    control = _control(tokenizer)
    if control.hides(text):
        return control.read(text)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class _Control:
    """The special tokens of a tokenizer by name, and how a text that spells such a name is encoded as text.

    Names in messages are replaced by marks before the template is rendered, so that the special tokens in the
    rendered text are the template's own. These are then replaced by aliases and the marks by the names, and a twin
    of the tokenizer that knows the aliases but no special token encodes the whole: nothing else is read
    differently.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        own = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self.names: dict[str, int] = {name: index for name, index in {**own, **added}.items() if name}
        self._tokenizer = tokenizer
        self._pattern = _any_of(self.names)
        self._secret = secrets.token_hex(8)  # so that no message can spell a mark or an alias
        self._marks = {name: f"{self._secret}m{index}m" for name, index in self.names.items()}
        self._aliases = {name: f"{self._secret}a{index}a" for name, index in self.names.items()}
        self._hidden = {mark: name for name, mark in self._marks.items()}
        self._marked = _any_of(self._hidden)

    def hide(self, text: str) -> str:
        """The text with a mark for each special token's name."""
        return self._pattern.sub(lambda found: self._marks[found[0]], text)

    def first_name(self, text: str) -> str:
        """The special token that a rendered text begins with, the longest of several; else empty."""
        return max((name for name in self.names if text.startswith(name)), key=len, default="")

    def hides(self, text: str) -> bool:
        """Whether there is a mark in the text."""
        return self._secret in text

    def read(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are control and marks are the characters of their names."""
        if getattr(self._tokenizer, "backend_tokenizer", None) is None:
            return self._read_pieces(text)
        twin, own = self._twin
        controlled = self._pattern.sub(lambda found: self._aliases[found[0]], text)
        ids = twin.encode(self._shown(controlled), add_special_tokens=False).ids
        return [own.get(index, index) for index in ids]

    @cached_property
    def _twin(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that takes special tokens' names for text, and the ids for which its aliases stand."""
        twin = copy.deepcopy(self._tokenizer.backend_tokenizer)
        twin.encode_special_tokens = True
        twin.no_padding()
        twin.no_truncation()
        flags = {index: _flags(token) for index, token in self._tokenizer.added_tokens_decoder.items()}
        own = {}
        for name, alias in self._aliases.items():
            options = flags.get(self.names[name], {"normalized": False})
            twin.add_tokens([AddedToken(alias, special=False, **options)])
            own[twin.token_to_id(alias)] = self.names[name]
        return twin, own

    def _read_pieces(self, text: str) -> list[int]:
        """For a tokenizer in Python, of which there is no twin: what stands between control tokens, each alone."""
        options = {"add_special_tokens": False, "split_special_tokens": True}
        ids, place = [], 0
        for found in self._pattern.finditer(text):
            ids += self._tokenizer(self._shown(text[place : found.start()]), **options)["input_ids"]
            ids.append(self.names[found[0]])
            place = found.end()
        return [*ids, *self._tokenizer(self._shown(text[place:]), **options)["input_ids"]]

    def _shown(self, text: str) -> str:
        return self._marked.sub(lambda found: self._hidden[found[0]], text)


def _control(tokenizer: Any) -> _Control:
    """Made once for a tokenizer of so many tokens: special ones may be added later."""
    return _made(tokenizer, len(tokenizer))


@lru_cache(maxsize=8)
def _made(tokenizer: Any, size: int) -> _Control:
    return _Control(tokenizer)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Any of these, the longest that fits."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _flags(token: Any) -> dict[str, bool]:
    """How the text around a special token is read."""
    return {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "normalized")}


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
