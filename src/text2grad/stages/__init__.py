"""The stages of a run. Between them there are only files: JSON Lines, checkpoints, metrics.

Each stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and returns
a plain summary. Nothing here computes: it opens files, builds the parts and hands them to the layer below.
A stage is imported when it is asked for: not every one needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "run_annotate": "annotate",
    "run_evaluate": "evaluate",
    "run_evaluate_samples": "evaluate",
    "run_import": "intake",
    "run_merge": "merge",
    "run_report": "report",
    "run_sft": "supervised",
    "run_train": "ppo",
    "run_train_reward": "reward_model",
    "write_json": "folder",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
