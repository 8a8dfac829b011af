"""Canned steps by each process that torchrun started:
`torchrun ... two_processes.py MODEL FOLDER KIND [stop]`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from both_engines import FailsSometimes, left_by

from text2grad.engines.trl.run import PPORun
from text2grad.policy.settings import LoraSettings
from text2grad.train.ppo_settings import PPOSettings

SETTINGS = PPOSettings(
    **{"steps": 2, "rollouts": 8, "samples_per_prompt": 4, "advantage": "group", "mini_batches": 2, "epochs": 2},
    **{"lr": 0.5, "micro_batch_size": 4, "max_failed": 1.0},
)


def run(model: Path, folder: Path, kind: str) -> Any:
    lora = LoraSettings(r=2) if kind == "adapters" else None
    return left_by("trl", model, folder, SETTINGS, critic=FailsSometimes(), lora=lora)


def stop_in_the_first_step() -> None:
    """Have the second process be asked to stop after the first of a step's updates."""
    finish = PPORun.on_step_end

    def asked(self: PPORun, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 1 and not self.first:
            os.kill(os.getpid(), signal.SIGTERM)
        finish(self, args, state, control, **more)

    PPORun.on_step_end = asked  # type: ignore[method-assign]


if __name__ == "__main__":
    if "stop" in sys.argv:
        stop_in_the_first_step()
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
