"""What the asserts of a test file are rewritten to: the operands of the one that failed last are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from codeverdict.inside.values import TEXT_LIMIT

TEST_FILE = "<tests>"
COMPARE = "__cdv_compare__"
TRUTH = "__cdv_truth__"

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "is": operator.is_, "is not": operator.is_not},
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


class Operands:
    """The assertion that failed last: the call, what it gave, what was expected."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}

    def names(self) -> dict[str, Any]:
        """What rewritten asserts call."""
        return {COMPARE: self._compare, TRUTH: self._truth}

    def _compare(self, call: str, symbol: str, left: Any, right: Any) -> bool:
        result = bool(_OPERATORS[symbol](left, right))  # once: an object may say now this and now that
        if not result:
            wanted = shown(right) if symbol == "==" else f"{symbol} {shown(right)}"
            self.last = {"call": call, "got": shown(left), "expected": wanted}
        return result

    def _truth(self, call: str, value: Any) -> bool:
        result = bool(value)
        if not result:
            self.last = {"call": call, "got": shown(value), "expected": "a true value"}
        return result


def shown(value: Any) -> str:
    """A value as text, shortened."""
    try:
        return repr(value)[:TEXT_LIMIT]
    except Exception as error:  # the `__repr__` of an object of the program, or of the tests
        return type(error).__name__
