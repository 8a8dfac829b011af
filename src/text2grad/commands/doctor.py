"""`text2grad doctor`: check this machine and a model folder, with a cure for each problem.

A check changes nothing and never uses the network.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from text2grad.durable.machine import count_cores, total_memory
from text2grad.errors import UserError
from text2grad.sandbox import CURE, probe_tiers

DEMO_MEMORY_GB, DEMO_DISK_GB = 4.0, 0.5
SANDBOX_MEMORY_MB = 1024


@dataclass(frozen=True)
class Check:
    """The result of one check; `cure` is empty if nothing needs to be done."""

    name: str
    ok: bool
    detail: str
    cure: str = ""


def examine(model: Path | None = None) -> list[Check]:
    """Check this machine, and a model folder if one is given."""
    checks = [check_python(), check_memory(), check_precision(), check_disk(Path.cwd()), *check_sandbox()]
    return checks if model is None else [*checks, check_model(model)]


def as_text(checks: list[Check]) -> str:
    """Format one line per check; a failed check is followed by its cure."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:{width}}  {check.detail}")
        lines += [f"{'':{width + 8}}-> {check.cure}"] if check.cure else []
    return "\n".join(lines)


def as_dict(checks: list[Check]) -> dict[str, Any]:
    """Return the results as plain data: `ok` and the list `checks`."""
    return {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}


def check_python() -> Check:
    """Check that the packages for training are installed."""
    missing = [name for name in ("torch", "transformers", "peft") if find_spec(name) is None]
    detail = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    if missing:
        return Check("python", False, f"{detail}, without {', '.join(missing)}", "pip install 'text2grad[train]'")
    return Check("python", True, detail)


def check_memory() -> Check:
    """Check that the demo fits into the memory of this machine or container."""
    memory = total_memory() / 1e9
    cure = "" if memory >= DEMO_MEMORY_GB else f"use a machine with {DEMO_MEMORY_GB:.0f} GB"
    return Check("memory", not cure, f"{memory:.1f} GB, {count_cores()} cores", cure)


def check_precision() -> Check:
    """Name the precisions to train in; float16 would need loss scaling, which is not supported."""
    detail = "train in bfloat16 or float32; not in float16, which needs loss scaling"
    if find_spec("torch") is None:
        return Check("precision", True, detail)
    import torch

    without_bfloat16 = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
    cure = "set policy.dtype auto or float32: this GPU has no bfloat16" if without_bfloat16 else ""
    return Check("precision", not cure, detail, cure)


def check_disk(folder: Path) -> Check:
    """Check that a run can be written to a folder."""
    if not os.access(folder, os.W_OK):
        return Check("disk", False, f"cannot write to {folder}", "change to a folder you can write to")
    free = shutil.disk_usage(folder).free / 1e9
    cure = "" if free >= DEMO_DISK_GB else f"free {DEMO_DISK_GB} GB"
    return Check("disk", not cure, f"{free:.1f} GB free in {folder}", cure)


def check_sandbox() -> Iterator[Check]:
    """Start each tier of the sandbox with a program that tries to escape; one must work."""
    probes = list(probe_tiers(SANDBOX_MEMORY_MB))
    usable = any(probe.works for probe in probes)
    for probe in probes:
        blocked = f"works: a program inside could not {', '.join(probe.held)}"
        detail = blocked if probe.works else f"not available: {probe.reason}"
        yield Check(f"sandbox {probe.tier}", usable, detail, "" if usable else CURE)


def check_model(folder: Path) -> Check:
    """Load a model folder as training would."""
    from text2grad.policy.load import load_frozen
    from text2grad.policy.settings import PolicySettings

    if not folder.is_dir():
        return Check("model", False, f"no folder {folder}", "download the model or correct the path")
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9
    if size > total_memory() / 2e9:
        return Check("model", True, f"{size:.2f} GB; not loaded: more than half of this machine's memory")
    try:
        policy = load_frozen(PolicySettings(model=str(folder), dtype="bfloat16", device="cpu"))
    except UserError as error:
        return Check("model", False, error.problem, error.cure)
    return Check("model", True, f"{policy.model.config.model_type}, {size:.2f} GB, {len(policy.tokenizer)} tokens")
