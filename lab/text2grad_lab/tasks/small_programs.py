"""Small programs for pretrained models: the embedded problems and MBPP's training problems.

Evaluation is on the embedded task's held-out combinations; on MBPP's test split and HumanEval with
`text2grad evaluate NAME --task text2grad_lab.benchmarks.programs:MBPP` (and `:HumanEval`).
"""

from __future__ import annotations

import random

from text2grad.data.published import read_examples
from text2grad.feedback import Example
from text2grad.tasks.base import Split, TaskSettings
from text2grad.tasks.demo import DemoTask
from text2grad_lab.benchmarks.programs import MBPP_DATA, SHAPES, in_mbpp_split

MBPP_SHARE = 4
"""Every fourth demonstration is from MBPP, as long as there are enough."""


class SmallProgramsTask:
    """The embedded task (`tasks.demo`) with MBPP's training split added to `sft` and `train`.

    `task.data` is MBPP's file or hub name; `task.limit` counts demonstrations.

    Raises:
        UserError: MBPP's problems cannot be read.
    """

    name = "small_programs"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings) -> None:
        self._embedded = DemoTask(settings)
        published = read_examples(settings.data or MBPP_DATA, SHAPES, None, split="train")
        self._mbpp = in_mbpp_split(published, "train")
        self._seed = settings.seed

    def examples(self, split: Split) -> list[Example]:
        """Return demonstrations (`sft`) or problems with tests (`train`, `heldout`)."""
        embedded = self._embedded.examples(split)
        if split == "heldout":
            return embedded
        published = self._mbpp
        if split == "sft":
            published = published[: self._embedded.limit // MBPP_SHARE]
            embedded = embedded[: self._embedded.limit - len(published)]
        programs = [*embedded, *published]
        return random.Random(f"{self._seed}/{split}").sample(programs, len(programs))

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return nothing: the stage scores a program by its tests."""
        return {}
