"""Published benchmarks: all their questions are held out."""

from text2grad.feedback import Example
from text2grad.tasks.base import Split, TaskSettings, refuse_split_settings


class Benchmark:
    """A published benchmark: every question is held out.

    Raises:
        UserError: `task.split` or `task.heldout_data` is set, or the questions cannot be read.
    """

    name: str
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self._questions = self.read_questions(settings)

    def read_questions(self, settings: TaskSettings) -> list[Example]:
        """Return all questions of `task.data`, by default of the benchmark's hub data set."""
        raise NotImplementedError

    def examples(self, split: Split) -> list[Example]:
        """Return all questions for `heldout`, none for other splits."""
        return self._questions if split == "heldout" else []

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return nothing: scores need a model, a judge or a sandbox."""
        return {}
