"""Base class of tasks on published data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from text2grad.data.files import hub_data
from text2grad.data.published import Shape, read_examples
from text2grad.feedback import Example
from text2grad.tasks.base import Split, TaskSettings, rouge_l_scores, select_split


class DataTask:
    """Base of tasks on published data: examples by split, and ROUGE-L against the reference.

    The held-out examples are those of `task.heldout_data`, or else of the data set's own test split
    (`HUB`), or else a share of the questions (`select_split`).

    Args:
        default: the data to use if `task.data` is empty.
        shapes: the formats to accept.
        select: filters the examples of a data file or hub data set.

    Raises:
        UserError: see `read_examples`.
    """

    def __init__(
        self,
        settings: TaskSettings,
        default: str,
        shapes: Sequence[Shape],
        select: Callable[[list[Example], str], list[Example]] = lambda examples, data: examples,
    ) -> None:
        def load(data: str, split: str) -> list[Example]:
            return select(read_examples(data, shapes, settings.limit, split), data)

        data = settings.data or default
        heldout_data = settings.heldout_data or data
        hub = hub_data(heldout_data)
        heldout_split = hub.heldout or (hub.train if settings.heldout_data else "")
        self._settings = settings
        self._examples = load(data, hub_data(data).train)
        self._heldout = load(heldout_data, heldout_split) if heldout_split else None

    def examples(self, split: Split) -> list[Example]:
        """Return the examples of one split."""
        return select_split(self._examples, split, self._settings, self._heldout)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return ROUGE-L F1 against the reference; empty without one."""
        return rouge_l_scores(example.reference, response) if example.reference else {}
