"""A plug-in task, one of whose processes is killed in the middle of its training, once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from text2grad.feedback import Example, Message
from text2grad.tasks.base import Split, TaskSettings

TESTS = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"


class DyingTask:
    """Prompts for programs that a random model cannot write. `DIE_IN` names a run's folder: once its metrics have
    three lines, the second process is killed, unless it has been."""

    name = "dying"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: Split) -> list[Example]:
        """Eight prompts."""
        if os.environ.get("DIE_IN") and os.environ.get("RANK") == "1":
            threading.Thread(target=die, args=(Path(os.environ["DIE_IN"]),), daemon=True).start()
        prompts = [Message(role="user", content=f"write f number {n}") for n in range(8)]
        return [Example(id=str(n), prompt=(p,), meta={"tests": TESTS}) for n, p in enumerate(prompts)]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Nothing beside the tests."""
        return {}


def die(folder: Path) -> None:
    """SIGKILL to this process, in its fourth step."""
    metrics, done = folder / "metrics.jsonl", folder / "killed"
    while not done.exists():
        if metrics.exists() and len(metrics.read_bytes().splitlines()) >= 3:
            done.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)


SETTINGS = (
    f"--task.name dying_task:{DyingTask.__name__} --critic.kind program --critic.program.gate false --run.threads 1"
    " --policy.device cpu --sandbox.workers 1 --generation.max_new_tokens 8 --ppo.rollouts 6 --ppo.max_failed 1"
    " --ppo.lr 1e-3"
).split()
"""Of a run on this task, on the command line."""
