"""Manifests: the SHA-256 of every file in a folder, to detect changed files before use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from text2grad.errors import UserError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in a folder and below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    sums = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps({"files": sums}), encoding="utf-8")


def find_damage(folder: Path) -> str:
    """Describe the first file that differs from the manifest; return an empty string if none."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        damaged = [name for name, saved in files.items() if sha256(folder / name) != saved]
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return f"{damaged[0]}: its content has changed" if damaged else ""


def refuse_damaged(folder: Path) -> None:
    """Raise a `UserError` if the files of a model differ from its manifest."""
    if (folder / MANIFEST).is_file() and (damage := find_damage(folder)):
        cure = f"copy, train or convert it again; if the change is intended, remove {folder / MANIFEST}"
        raise UserError(f"the model in {folder} is damaged ({damage})", cure)
