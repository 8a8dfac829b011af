"""The identity of a run: settings by name, and digests of weights, files and texts.

A run resumes only if its identity is unchanged. Torch is imported for the digest of the weights
alone; the identity of a critic does not need it.
"""

from __future__ import annotations

import hashlib
import itertools
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


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that bitwise equality depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def flatten(without: Collection[str] = (), /, **sections: BaseModel) -> dict[str, str]:
    """Return settings as `section.key` -> text, without those declared `MAY_CHANGE` or listed."""
    return {
        f"{section}.{key}": str(value)
        for section, settings in sections.items()
        for key, value in settings.model_dump(mode="json").items()
        if f"{section}.{key}" not in without and type(settings).model_fields[key].json_schema_extra != MAY_CHANGE
    }


def hash_starting_weights(policy: Policy) -> str:
    """Return the SHA-256 of a run's starting weights, without those of a randomly set adapter."""
    from text2grad.policy.files.save import hash_weights

    weights = list(policy.model.named_parameters())
    frozen = [(name, parameter) for name, parameter in weights if not parameter.requires_grad]
    return hash_weights(weights if policy.continued else frozen or weights)


def hash_custom_code(label: str, name: str) -> dict[str, str]:
    """Return a digest of the module in `module:Name` under `label`; nothing for other names."""
    if not is_import_path(name):
        return {}
    file = module_file(label, name)
    return {label: sha256(file) if file else ""}


def hash_texts(texts: Iterable[str]) -> str:
    """Return the SHA-256 of a sequence of texts and their boundaries."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()


def hash_data(policy: Policy, records: Iterable[str], messages: Iterable[Message]) -> str:
    """Return the SHA-256 of records and of the tokenizer's rendering of their messages."""
    from text2grad.policy.encode import describe_encoding

    return hash_texts(itertools.chain(records, describe_encoding(policy.tokenizer, messages)))


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the differences of two identities: settings with both values, digests by name."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [name if "." not in name else f"{name} {before.get(name)} -> {now.get(name)}" for name in names]


def refuse_changed(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a `UserError` if the identity of a run to resume has changed."""
    if changes := describe_changes(before, now):
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise UserError(
            f"the unfinished run in {folder} started with other settings or inputs: {', '.join(changes[:3])}{more}",
            "--restart starts over, --force resumes anyway",
        )
