"""What a run depends on and must find unchanged to resume: settings by name, weights, files and
texts as digests.

Torch is loaded for the weights alone: a critic's inputs are told without it.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from text2grad.errors import UserError
from text2grad.feedback import Message
from text2grad.named import is_import_path, module_file
from text2grad.policy.files.manifest import sha256
from text2grad.settings import MAY_CHANGE

if TYPE_CHECKING:
    from text2grad.policy.model import Policy

VERSIONS = ("text2grad", "torch", "transformers", "peft", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """The versions on which equality to the bit depends."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in VERSIONS},
    }


def flatten(without: Collection[str] = (), /, **sections: BaseModel) -> dict[str, str]:
    """Settings as `section.key` -> text, without those that are declared `MAY_CHANGE` and some
    more."""
    return {
        f"{section}.{key}": str(value)
        for section, settings in sections.items()
        for key, value in settings.model_dump(mode="json").items()
        if f"{section}.{key}" not in without and type(settings).model_fields[key].json_schema_extra != MAY_CHANGE
    }


def digest_of_reference(policy: Policy) -> str:
    """SHA-256 over the weights a run starts from; a new adapter, made at random, is not among
    them."""
    from text2grad.policy.files.save import digest_of_weights

    weights = list(policy.model.named_parameters())
    frozen = [(name, parameter) for name, parameter in weights if not parameter.requires_grad]
    return digest_of_weights(weights if policy.continued else frozen or weights)


def own_code(what: str, name: str) -> dict[str, str]:
    """Under `what` a digest of the module that a setting names as `module:Name`; else nothing."""
    if not is_import_path(name):
        return {}
    file = module_file(what, name)
    return {what: sha256(file) if file else ""}


def digest_of_texts(texts: Iterable[str]) -> str:
    """SHA-256 over texts, one after the other; where one ends counts."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()


def digest_of_data(policy: Policy, records: Iterable[str], messages: Iterable[Message]) -> str:
    """Of records, and of how the tokenizer reads their messages."""
    from text2grad.policy.encode import rendering_of

    return digest_of_texts([*records, *rendering_of(policy.tokenizer, messages)])


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two identities, in words: settings with both values, digests by name."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [name if "." not in name else f"{name} {before.get(name)} -> {now.get(name)}" for name in names]


def refuse_changed(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run in a folder with another identity.

    Raises:
        UserError: names what changed.
    """
    if changes := changed(before, now):
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise UserError(
            f"the unfinished run in {folder} began with other settings or inputs: {', '.join(changes[:3])}{more}",
            "--restart starts over, --force resumes all the same",
        )
