"""Compare answers to EvalPlus inputs with the reference's, by the rules of evalplus 0.3.1.

The rules are equality, a tolerance for floats, and exceptions for a few ambiguous questions. This
file is copied into the test module of every EvalPlus task, so it imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

AS_SETS = {
    *("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly"),
    *("larg_nnum", "intersection_array", "find_dissimilar", "Diff"),
}
MATCH_OR_NONE = {"check_str", "text_match_three", "text_starta_endb"}
FLOAT_TOLERANCE = 1e-6


class Expected:
    """The reference's answer to one input; equal to every answer that counts as right."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, arguments: Sequence[Any], value: Any, tolerance: float, mbpp: bool) -> None:
        self.name, self.arguments, self.value, self.tolerance, self.mbpp = name, arguments, value, tolerance, mbpp

    def __repr__(self) -> str:
        return repr(self.value)

    def __eq__(self, got: object) -> bool:
        if not self.mbpp and self.name == "find_zero":
            return abs(polynomial(self.arguments[0], got)) <= self.tolerance
        equal = self._mbpp(got) if self.mbpp else got == self.value
        tolerance = self.tolerance or (FLOAT_TOLERANCE if all_floats(self.value) else 0)
        if equal or not tolerance:
            return bool(equal)
        return close(got, self.value, tolerance)

    def _mbpp(self, got: Any) -> bool:
        if self.name in AS_SETS:
            return set(got) == set(self.value)
        if self.name in MATCH_OR_NONE:
            has_match = self.value is not None
            return bool(has_match == (got if isinstance(got, bool) else got is not None))
        return bool(got == self.value) or self.other_reading(got)

    def other_reading(self, got: Any) -> bool:
        """True if the answer fits another reading of an ambiguous question."""
        if self.name == "are_equivalent":
            return True
        if self.name == "sum_div":
            return bool(got == 0)
        if self.name == "surface_Area":
            base, height = self.arguments
            slanted = 4 * (base * sqrt((base / 2) ** 2 + height**2)) / 2
            return bool(abs(got - round(base**2 + slanted)) <= self.tolerance)
        if self.name == "digit_distance_nums":
            first, second = map(str, self.arguments)
            width = max(len(first), len(second))
            pairs = zip(first.zfill(width), second.zfill(width), strict=True)
            return bool(got == sum(abs(int(a) - int(b)) for a, b in pairs))
        return False


def polynomial(coefficients: Sequence[float], x: Any) -> float:
    """Return c0 + c1 x + c2 x² + ..."""
    return float(sum(c * x**power for power, c in enumerate(coefficients)))


def all_floats(value: Any) -> bool:
    """True if a value is a float, or a list or tuple of floats."""
    if isinstance(value, list | tuple) and value:
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def close(got: Any, expected: Any, tolerance: float) -> bool:
    """True if types and lengths are equal and every number is within the tolerance."""
    return type(got) is type(expected) and within(got, expected, tolerance)


def within(got: Any, expected: Any, tolerance: float) -> bool:
    """True if numbers differ by at most `tolerance` + 1e-7 · |expected|; lists are nested.

    Infinities equal themselves.
    """
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(expected) and all(
            within(a, b, tolerance) for a, b in zip(got, expected, strict=True)
        )
    if not isinstance(got, int | float) or not isinstance(expected, int | float):
        return bool(got == expected)
    return got == expected or abs(got - expected) <= tolerance + 1e-7 * abs(expected)
