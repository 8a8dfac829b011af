"""Published benchmarks: all their questions are held out."""

from text2grad.feedback import Example
from text2grad.tasks.base import Split, TaskSettings, refuse_split_settings


class Benchmark:
    """A published benchmark: every question is held out, and `evaluate` counts its answers in a way
    of its own.

    Raises:
        UserError: `task.split` or `task.heldout_data` is set, or the questions cannot be read.
    """

    name: str
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self._questions = self.read(settings)

    def read(self, settings: TaskSettings) -> list[Example]:
        """All questions of `task.data`, else of the data set that the benchmark has on the hub."""
        raise NotImplementedError

    def examples(self, split: Split) -> list[Example]:
        """Every question for `heldout`, none for the others."""
        return self._questions if split == "heldout" else []

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """None without a model, a judge or a sandbox."""
        return {}
