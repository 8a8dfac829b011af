"""Manifests: the SHA-256 of every file in a folder, so that a byte that changed is noticed before
it is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from text2grad.errors import UserError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in a folder and below, once they are complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    sums = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps({"files": sums}), encoding="utf-8")


def find_damage(folder: Path) -> str:
    """Describe the damage of a folder; empty if the files of its manifest are as they were
    saved."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        damaged = [name for name, saved in files.items() if sha256(folder / name) != saved]
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return f"{damaged[0]}: its bytes are not those that were saved" if damaged else ""


def refuse_damaged(folder: Path) -> None:
    """Refuse a model whose files are not those of its manifest; a model without a manifest is
    somebody else's.

    Raises:
        UserError: a file is damaged, missing or was changed.
    """
    if (folder / MANIFEST).is_file() and (damage := find_damage(folder)):
        cure = f"copy it again, or train it again; if the change is meant, remove {folder / MANIFEST}"
        raise UserError(f"the model in {folder} is damaged ({damage})", cure)
