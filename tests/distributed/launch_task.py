"""A plug-in task for runs that a launcher starts: prompts for programs that a random model cannot write."""

from __future__ import annotations

from text2grad.feedback import Example, Message
from text2grad.tasks.base import Split, TaskSettings

TESTS = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"


class LaunchTask:
    """Eight prompts."""

    name = "launch"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: Split) -> list[Example]:
        """Return the same prompts for every split."""
        prompts = [Message(role="user", content=f"write f number {n}") for n in range(8)]
        return [Example(id=str(n), prompt=(p,), meta={"tests": TESTS}) for n, p in enumerate(prompts)]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Measure nothing beside the tests."""
        return {}


SETTINGS = [
    *("--task.name", "launch_task:LaunchTask", "--critic.kind", "program", "--critic.program.gate", "false"),
    *("--run.threads", "1", "--policy.device", "cpu", "--sandbox.workers", "1", "--generation.max_new_tokens", "8"),
    *("--ppo.rollouts", "6", "--ppo.max_failed", "1", "--ppo.lr", "1e-3"),
]
"""Settings of a run on this task."""
