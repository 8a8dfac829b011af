"""Atomic checkpoints: folders of safetensors and JSON.

`checkpoint-N` holds what a loop needs to resume after N steps. Its files are written to
`checkpoint-N.partial` and flushed to the disk, the manifest (SHA-256 of each file) last. Then the
folder is renamed. If the program stops before that, the previous checkpoint is untouched.
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

from text2grad.policy.files.manifest import MANIFEST, find_damage, write_manifest

CHECKPOINT_PREFIX, PARTIAL = "checkpoint-", ".partial"
TENSORS, STATE = "tensors.safetensors", "state.json"
CHECKPOINT_COUNT = 2


@dataclass(frozen=True)
class Checkpoint:
    """An undamaged checkpoint: named tensors, and everything else as JSON."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(parent: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write `checkpoint-<step>` below `parent` and remove old checkpoints.

    The newest `CHECKPOINT_COUNT` up to this step stay. Later ones are removed too: they belong to a
    run that has since resumed from an earlier step.

    Raises:
        OSError, SafetensorError: the checkpoint could not be written. Earlier ones are untouched.
    """
    folder = parent / f"{CHECKPOINT_PREFIX}{step}"
    partial = folder.with_name(folder.name + PARTIAL)
    _remove_partial(parent)
    try:
        partial.mkdir(parents=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial / TENSORS)
        (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
        write_manifest(partial)
        for path in (partial / TENSORS, partial / STATE, partial / MANIFEST, partial):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged checkpoint of the same step
        os.replace(partial, folder)
        sync(parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    checkpoints = sorted(_checkpoints(parent))
    earlier = [path for number, path in checkpoints if number <= step]
    later = [path for number, path in checkpoints if number > step]
    for path in [*earlier[:-CHECKPOINT_COUNT], *later]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def newest_checkpoint(parent: Path) -> Checkpoint | None:
    """Read the newest checkpoint that matches its manifest; report damaged ones on stderr."""
    for step, path in sorted(_checkpoints(parent), reverse=True):
        if damage := find_damage(path):
            print(f"skipped the damaged checkpoint {path} ({damage})", file=sys.stderr)
            continue
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        return Checkpoint(path, step, load_file(path / TENSORS), state)
    return None


def oldest_step(parent: Path, default: int) -> int:
    """Return the step of the oldest checkpoint, or the default without any."""
    return min((step for step, _ in _checkpoints(parent)), default=default)


def remove_checkpoints(parent: Path) -> None:
    """Remove all checkpoints below `parent`, the newest last, and `parent` if it is then empty."""
    _remove_partial(parent)
    for _, path in sorted(_checkpoints(parent)):
        shutil.rmtree(path)
    if parent.is_dir() and not any(parent.iterdir()):
        parent.rmdir()


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checkpoints(parent: Path) -> list[tuple[int, Path]]:
    folders = (path for path in parent.glob(f"{CHECKPOINT_PREFIX}*") if path.is_dir())
    suffixes = ((path.name.removeprefix(CHECKPOINT_PREFIX), path) for path in folders)
    return [(int(suffix), path) for suffix, path in suffixes if suffix.isdecimal()]


def _remove_partial(parent: Path) -> None:
    for path in parent.glob(f"{CHECKPOINT_PREFIX}*{PARTIAL}"):
        shutil.rmtree(path)
