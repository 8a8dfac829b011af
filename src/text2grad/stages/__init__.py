"""The stages of a run. Between them there are only files: JSON Lines, checkpoints, metrics.

Each stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and returns
a plain summary. Nothing here computes: it opens files, builds the parts and hands them to the layer below.
"""

from __future__ import annotations

from text2grad.stages.annotate import run_annotate
from text2grad.stages.evaluate import run_evaluate, run_evaluate_samples
from text2grad.stages.folder import write_json
from text2grad.stages.intake import run_import
from text2grad.stages.merge import run_merge
from text2grad.stages.ppo import run_train
from text2grad.stages.report import run_report
from text2grad.stages.reward_model import run_train_reward
from text2grad.stages.supervised import run_sft

__all__ = [
    "run_annotate",
    "run_evaluate",
    "run_evaluate_samples",
    "run_import",
    "run_merge",
    "run_report",
    "run_sft",
    "run_train",
    "run_train_reward",
    "write_json",
]
