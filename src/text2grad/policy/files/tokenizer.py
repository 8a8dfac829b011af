"""Loading a tokenizer, with a chat template and a padding token."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HFValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from text2grad.errors import UserError, first_line, warn_once
from text2grad.policy.encode import ASKED, TEMPLATE, answer_turn, chat_format
from text2grad.policy.files.gguf import SMOLLM2, local_model
from text2grad.policy.files.weights import read_config

SWITCHES = ("enable_thinking", "thinking")
"""Arguments that keep a model from thinking if they are false (of Qwen 3 and GLM; of DeepSeek and
Granite)."""


def load_tokenizer(model: str, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name, with a chat template and a padding token.

    Raises:
        UserError: there is no tokenizer, no chat template, or the template file cannot be read.
    """
    model = local_model(model)
    refuse_missing_folder(model)
    refuse_unreachable(model)
    try:
        if (Path(model) / "config.json").is_file():
            read_config(model)  # the tokenizer's loader reads it too, and would blame the tokenizer
    except (OSError, ValueError) as error:
        raise UserError(f"no model in {model!r}: {first_line(error)}", "get the model's own config.json") from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        local = "put the model's tokenizer.json and tokenizer_config.json into the folder"
        if (Path(model) / "adapter_config.json").is_file():
            raise UserError(f"the adapter in {model!r} has no tokenizer", f"{local}: those of its base") from error
        cure = local if Path(model).is_dir() else "check the name and the connection, or give a folder"
        raise UserError(f"no tokenizer in {model!r}: {first_line(error)}", cure) from error
    if chat_template is not None:
        tokenizer.chat_template = _read_template(chat_template)
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {model!r} has no chat template", TEMPLATE)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(f"the tokenizer of {model!r} has no tokenizer.json", "convert it to a fast tokenizer")
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model!r} has no end-of-sequence token", "set eos_token in its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    _show_beginning(model, tokenizer)
    return tokenizer


def _show_beginning(model: str, tokenizer: Any) -> None:
    """Say on stderr, once, what the template writes before an answer on its own account."""
    chat = chat_format(tokenizer)
    if not "".join(chat.beginning).strip():
        return
    finished, requested = (repr(text) if text else "nothing" for text in chat.beginning)
    line = f"{model}: its chat template writes {finished} before an answer"
    if chat.beginning.requested:
        line += f" that is there, and {requested} before one that is asked for; the first is taken"
    asked = {name: chat.render([ASKED], add_generation_prompt=True, **{name: False}) for name in SWITCHES}
    switch = next((name for name, text in asked.items() if text == chat.frame([ASKED]).before), None)
    served = f"when you serve the policy, set {switch} to false" if switch else "serve the policy with the same"
    warn_once(f"{line}: it belongs to the prompt, and is neither trained nor judged ({served})")


def written_turn(tokenizer: Any, reasoning: str, content: str, calls: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a turn with its reasoning and tool calls, as the template writes it after a question.

    None if it does not write them, or not between what it writes around any answer.
    """
    chat = chat_format(tokenizer)
    numbered = enumerate(calls, start=1)
    listed = [{"type": "function", "id": f"{number:09d}", "function": dict(call)} for number, call in numbered]
    parts = {"reasoning_content": reasoning, "tool_calls": listed}
    turn = {**answer_turn(content), **{name: value for name, value in parts.items() if value}}
    try:
        around, text = chat.frame([ASKED]), chat.render([ASKED, turn])
    except UserError:
        return None
    if around.after is None or not (text.startswith(around.before) and text.endswith(around.after)):
        return None
    written = text[len(around.before) : len(text) - len(around.after)]
    expected = [reasoning.strip(), content.strip(), *(str(call["name"]) for call in calls)]
    return written if all(part in written for part in expected) else None


def refuse_missing_folder(model: str) -> None:
    """A path that leads nowhere is an error at once; without this it would be looked up on the hub.

    Raises:
        UserError: `model` can only be a path, and there is no folder there.
    """
    path = Path(model)
    beside = len(path.parts) > 1 and path.parent.is_dir()  # models/mine, where models/ is here
    if not path.is_dir() and (beside or model.startswith(("/", ".", "~")) or len(path.parts) > 2):
        raise UserError(f"no model folder {model!r}", "check policy.model: a folder or a hub name")


def refuse_unreachable(model: str) -> None:
    """A hub name that is not in the cache is an error at once where there is no network: the hub's
    client tries for most of a minute. Behind a proxy nothing is known, and the client is left to
    it.

    Raises:
        UserError: the hub's address cannot be looked up.
    """
    try:
        cached = Path(model).is_dir() or try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return  # no name of the hub's: the loader says so
    if cached or any(getproxies().get(kind) for kind in ("https", "http", "all")):
        return
    host = urlsplit(ENDPOINT).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        near = difflib.get_close_matches(model, (SMOLLM2, "tiny"), n=1)
        cure = (
            f"did you mean {near[0]}?" if near else f"check the name, or give a folder; {SMOLLM2} comes from PyPI"
        )
        raise UserError(f"no model {model!r} on this machine, and no network to {host}", cure) from error


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read chat template {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"chat template {path} is not UTF-8 text", "save the file as UTF-8") from error
