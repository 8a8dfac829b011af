"""Tasks on published data: examples by split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from text2grad.data.files import hub_data
from text2grad.data.published import Shape, read_examples
from text2grad.feedback import Example
from text2grad.tasks.base import Split, TaskSettings, in_split, rouge_l_scores


class DataTask:
    """Base of tasks on published data: examples by split, and ROUGE-L against the reference.

    Held out are those of `task.heldout_data`, else those of the split that the data set comes with
    (`HUB`), else a share of the questions (`in_split`).

    Raises:
        UserError: see `read_examples`.
    """

    def __init__(
        self,
        settings: TaskSettings,
        default: str,
        shapes: Sequence[Shape],
        kept: Callable[[list[Example], str], list[Example]] = lambda examples, data: examples,
    ) -> None:
        def read(data: str, split: str) -> list[Example]:
            return kept(read_examples(data, shapes, settings.limit, split), data)

        data = settings.data or default
        beside = settings.heldout_data or data
        hub = hub_data(beside)
        heldout = hub.heldout or (hub.train if settings.heldout_data else "")
        self._settings = settings
        self._examples = read(data, hub_data(data).train)
        self._heldout = read(beside, heldout) if heldout else None

    def examples(self, split: Split) -> list[Example]:
        """The examples of one split, with the reference where the data has one."""
        return in_split(self._examples, split, self._settings, self._heldout)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """ROUGE-L F1 against the reference; empty without one."""
        return rouge_l_scores(example.reference, response) if example.reference else {}
