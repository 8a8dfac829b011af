"""Load tokenizers with a chat template and a padding token."""

from __future__ import annotations

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

from text2grad.errors import UserError, first_line, suggestion, warn_once
from text2grad.policy.encode import TEMPLATE, USER_TURN, assistant_turn, chat_format
from text2grad.policy.files.gguf import SMOLLM2, local_model
from text2grad.policy.files.weights import read_config

SWITCHES = ("enable_thinking", "thinking")
"""Template arguments that disable thinking if false (Qwen 3, GLM; DeepSeek, Granite)."""


def load_tokenizer(model: str, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or hub name, with a chat template and a padding token.

    Raises:
        UserError: the tokenizer or the chat template is missing or unreadable.
    """
    model = local_model(model)
    refuse_missing_folder(model)
    refuse_unreachable(model)
    try:
        if (Path(model) / "config.json").is_file():
            read_config(model)  # the tokenizer's loader reads it too, with a misleading error
    except (OSError, ValueError) as error:
        cure = "download the model's config.json again"
        raise UserError(f"no model in {model!r}: {first_line(error)}", cure) from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        files = "tokenizer.json and tokenizer_config.json into the folder"
        if (Path(model) / "adapter_config.json").is_file():
            raise UserError(f"the adapter in {model!r} has no tokenizer", f"copy its base's {files}") from error
        cure = "check the name and the network, or give a folder"
        if Path(model).is_dir():
            cure = f"copy the model's {files}"
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
    _report_answer_prefix(model, tokenizer)
    return tokenizer


def _report_answer_prefix(model: str, tokenizer: Any) -> None:
    """Report once on stderr the text that the template adds before an answer."""
    chat = chat_format(tokenizer)
    if not "".join(chat.beginning).strip():
        return
    finished, requested = (repr(text) if text else "nothing" for text in chat.beginning)
    line = f"{model}: its chat template writes {finished} before an answer"
    if chat.beginning.requested:
        line += f", but {requested} as generation prompt; the former is used"
    prompts = {name: chat.render([USER_TURN], add_generation_prompt=True, **{name: False}) for name in SWITCHES}
    switch = next((name for name, text in prompts.items() if text == chat.frame([USER_TURN]).before), None)
    advice = f"set {switch} to false" if switch else "use the same text"
    warn_once(f"{line}: it belongs to the prompt and is neither trained nor judged (to serve the policy, {advice})")


def render_turn(tokenizer: Any, reasoning: str, content: str, calls: Sequence[Mapping[str, Any]]) -> str | None:
    """Render a turn with its reasoning and tool calls, without the template's text around it.

    Return None if the template leaves out a part or writes another text around the turn.
    """
    chat = chat_format(tokenizer)
    numbered = enumerate(calls, start=1)
    tool_calls = [{"type": "function", "id": f"{number:09d}", "function": dict(call)} for number, call in numbered]
    parts = {"reasoning_content": reasoning, "tool_calls": tool_calls}
    turn = {**assistant_turn(content), **{name: value for name, value in parts.items() if value}}
    try:
        frame, text = chat.frame([USER_TURN]), chat.render([USER_TURN, turn])
    except UserError:
        return None
    if frame.after is None or not (text.startswith(frame.before) and text.endswith(frame.after)):
        return None
    rendered = text[len(frame.before) : len(text) - len(frame.after)]
    expected = [reasoning.strip(), content.strip(), *(str(call["name"]) for call in calls)]
    return rendered if all(part in rendered for part in expected) else None


def refuse_missing_folder(model: str) -> None:
    """Refuse a path without a folder, which would otherwise be looked up on the hub.

    Raises:
        UserError: `model` can only be a path, and the folder does not exist.
    """
    path = Path(model)
    in_local_folder = len(path.parts) > 1 and path.parent.is_dir()  # models/mine, where models/ exists
    if not path.is_dir() and (in_local_folder or model.startswith(("/", ".", "~")) or len(path.parts) > 2):
        raise UserError(f"no model folder {model!r}", "check policy.model: a folder or a hub name")


def refuse_unreachable(model: str) -> None:
    """Refuse an uncached hub name without a network, for which the hub's client waits a minute.

    Behind a proxy the network is not checked.

    Raises:
        UserError: the hub's address cannot be resolved.
    """
    try:
        cached = Path(model).is_dir() or try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return  # not a valid hub name: the loader reports it
    if cached or any(getproxies().get(kind) for kind in ("https", "http", "all")):
        return
    host = urlsplit(ENDPOINT).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        cure = suggestion(model, (SMOLLM2, "tiny"))
        cure = cure or f"check the name, or give a folder; {SMOLLM2} comes from PyPI"
        raise UserError(f"no model {model!r} on this machine, and no network to {host}", cure) from error


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read chat template {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"chat template {path} is not UTF-8 text", "save the file as UTF-8") from error
