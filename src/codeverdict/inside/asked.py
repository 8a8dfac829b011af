"""The peer that a stand-in asks, and the errors for what cannot be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Unsupported(BaseException):
    """The tests use what cannot cross to the solution: no verdict."""


class ByNature(Unsupported):
    """The same, whatever the solution does."""


class Asker(Protocol):
    """The end of the connection a stand-in asks over. `changes`: requests so far that may have changed a thing."""

    wary: bool
    changes: int
    swallowed: Callable[[Any], None]

    def request(
        self, op: str, target: Any, name: str = "", args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any: ...

    def derive(self, made: type, bases: tuple[type, ...], options: dict[str, Any]) -> None: ...
