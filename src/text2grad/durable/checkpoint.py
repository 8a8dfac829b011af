"""Checkpoints: folders of safetensors and JSON that are whole or not there.

`checkpoint-N` holds what a loop needs to resume after N steps. It is written as
`checkpoint-N.partial`, every file is flushed to the disk, the manifest (SHA-256 of each file) last,
and then the folder gets its name. Whatever stops the program in between, the checkpoint before it
stays as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from text2grad.policy.files.manifest import MANIFEST, damage_of, write_manifest

PREFIX, PARTIAL = "checkpoint-", ".partial"
TENSORS, STATE = "tensors.safetensors", "state.json"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: named tensors, and everything else as JSON."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(parent: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write `checkpoint-<step>` below `parent`, and remove all but the newest `KEPT` up to this
    one.

    Raises:
        OSError, SafetensorError: it could not be written. What was there before is untouched.
    """
    place = parent / f"{PREFIX}{step}"
    partial = place.with_name(place.name + PARTIAL)
    _remove_partial(parent)
    try:
        partial.mkdir(parents=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial / TENSORS)
        (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
        write_manifest(partial)
        for path in (partial / TENSORS, partial / STATE, partial / MANIFEST, partial):
            sync(path)
        shutil.rmtree(place, ignore_errors=True)  # a damaged one of the same step
        os.replace(partial, place)
        sync(parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _prune(parent, step)
    return place


def newest_checkpoint(parent: Path) -> Checkpoint | None:
    """The newest checkpoint that matches its manifest; damaged ones are reported on stderr."""
    for _, path in sorted(_checkpoints(parent), reverse=True):
        if damage := damage_of(path):
            print(f"{path} is damaged ({damage}) and passed over", file=sys.stderr)
            continue
        return read_checkpoint(path)
    return None


def oldest_step(parent: Path, default: int) -> int:
    """The step after which the oldest checkpoint that is kept was written; without one the
    default."""
    return min((step for step, _ in _checkpoints(parent)), default=default)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint that is known to be whole."""
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    return Checkpoint(path, int(path.name.removeprefix(PREFIX)), load_file(path / TENSORS), state)


def remove_checkpoints(parent: Path) -> None:
    """Remove all checkpoints below `parent`, the newest last, and `parent` if nothing else is in
    it."""
    _remove_partial(parent)
    for _, path in sorted(_checkpoints(parent)):
        shutil.rmtree(path)
    if parent.is_dir() and not any(parent.iterdir()):
        parent.rmdir()


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checkpoints(parent: Path) -> list[tuple[int, Path]]:
    names = [(path.name.removeprefix(PREFIX), path) for path in parent.glob(f"{PREFIX}*") if path.is_dir()]
    return [(int(step), path) for step, path in names if step.isdecimal()]


def _remove_partial(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*{PARTIAL}"):
        shutil.rmtree(path)


def _prune(parent: Path, saved: int) -> None:
    """Keep the newest up to `saved`; later ones belong to a run that resumed from an earlier
    step."""
    found = sorted(_checkpoints(parent))
    upto = [path for step, path in found if step <= saved]
    for path in [*upto[:-KEPT], *(path for step, path in found if step > saved)]:
        shutil.rmtree(path, ignore_errors=True)
