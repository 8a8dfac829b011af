"""Canned steps by each of the processes that torchrun started: `torchrun ... two_processes.py MODEL FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from both_engines import FailsSometimes, left_by

from text2grad.policy.settings import LoraSettings
from text2grad.train.ppo_settings import PPOSettings

SETTINGS = PPOSettings(
    **{"steps": 2, "rollouts": 8, "samples_per_prompt": 4, "advantage": "group", "mini_batches": 2, "epochs": 2},
    **{"lr": 0.5, "micro_batch_size": 4, "max_failed": 1.0},
)


def run(model: Path, folder: Path, kind: str) -> Any:
    lora = LoraSettings(r=2) if kind == "adapters" else None
    return left_by("trl", model, folder, SETTINGS, critic=FailsSometimes(), lora=lora)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
