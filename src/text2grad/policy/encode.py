"""Messages to token ids through the tokenizer's own chat template; nothing assumes one template.

A response is tokenised here only when it is a *target* of supervised training. Sampled responses keep the
ids they were sampled as.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.policy.gguf import local_model

_PROBE = "\u2756probe\u2756"


def load_tokenizer(model: str, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name, with a chat template and a padding token.

    Raises:
        UserError: there is no tokenizer, no chat template, or the template file cannot be read.
    """
    model = local_model(model)
    refuse_missing_folder(model)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        local = "put the model's tokenizer.json and tokenizer_config.json into the folder"
        cure = local if Path(model).is_dir() else "check the name and the connection, or give a folder"
        raise UserError(f"no tokenizer in {model!r}: {_first_line(error)}", cure) from error
    if chat_template is not None:
        tokenizer.chat_template = _read_template(chat_template)
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {model!r} has no chat template", "--policy.chat_template FILE.jinja")
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model!r} has no end-of-sequence token", "set eos_token in its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def refuse_missing_folder(model: str) -> None:
    """A path that leads nowhere is an error at once; without this it would be looked up on the hub.

    Raises:
        UserError: `model` can only be a path, and there is no folder there.
    """
    path = Path(model)
    beside = len(path.parts) > 1 and path.parent.is_dir()  # models/mine, where models/ is here
    if not path.is_dir() and (beside or model.startswith(("/", ".", "~")) or len(path.parts) > 2):
        raise UserError(f"no model folder {model!r}", "check policy.model: a folder or a hub name")


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read chat template {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"chat template {path} is not UTF-8 text", "save the file as UTF-8") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to and including the header of the assistant's turn.

    A message is data: where it holds the name of a special token of this tokenizer, that gets a space after its
    first character, so that no message can end its turn or begin another.
    """
    chat = [{"role": each.role, "content": _without_control(tokenizer, each.content)} for each in messages]
    text = _render(tokenizer, chat, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_prompts(tokenizer: Any, examples: Sequence[Example], limit: int | None, room: int) -> list[list[int]]:
    """Prompt ids of examples, each with room for `room` new tokens (see `check_lengths`)."""
    prompts = [encode_prompt(tokenizer, example.prompt) for example in examples]
    check_lengths([(example.id, ids) for example, ids in zip(examples, prompts, strict=True)], limit, room)
    return prompts


def encode_target(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an assistant's answer as a training target: the text and the end of its turn."""
    return list(tokenizer(text + turn_end(tokenizer), add_special_tokens=False)["input_ids"])


def turn_end(tokenizer: Any) -> str:
    """What the chat template writes right after an assistant's answer, up to the token that ends generation.

    Found by rendering a probe answer. A template that writes nothing there gets the tokenizer's
    end-of-sequence token, without which a policy would never learn to stop.
    """
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    tail = _render(tokenizer, chat).rpartition(_PROBE)[2].strip()
    stops = [token for token in tokenizer.all_special_tokens if tail.startswith(token)]
    return max(stops, key=len) if stops else str(tokenizer.eos_token)


def stop_ids(tokenizer: Any) -> list[int]:
    """Ids that end a response: the template's end of turn and the tokenizer's end of sequence."""
    return sorted({tokenizer.convert_tokens_to_ids(turn_end(tokenizer)), tokenizer.eos_token_id})


def _render(tokenizer: Any, chat: list[dict[str, str]], add_generation_prompt: bool = False) -> str:
    """The conversation as the template writes it, in the sandbox of transformers.

    The sandbox ends a `range` of more than 100,000 and a text that does not fit into memory with errors of Python.
    """
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=add_generation_prompt))
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
        RecursionError,
    ) as error:
        roles = ", ".join(message["role"] for message in chat)
        raise UserError(
            f"the chat template refuses the turns {roles}: {_first_line(error)}",
            "--policy.chat_template FILE.jinja",
        ) from error


def _without_control(tokenizer: Any, text: str) -> str:
    names = _control(tokenizer, len(tokenizer))
    while names.search(text):
        text = names.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text


@lru_cache(maxsize=8)
def _control(tokenizer: Any, size: int) -> re.Pattern[str]:
    """The special tokens of a tokenizer, which has `size` tokens now, by their names, the longest first."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    names = {name for name in [*tokenizer.all_special_tokens, *added] if len(name) > 1}
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


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
