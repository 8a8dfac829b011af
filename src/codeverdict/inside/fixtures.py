"""The fixtures that pytest itself provides: `monkeypatch`, `request`, `caplog`, `recwarn`."""

from __future__ import annotations

import contextlib
import io
import os
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from codeverdict.inside import standin
from codeverdict.inside.mirror import Mirror


class Session(Protocol):
    """What fixtures need to know of the running tests."""

    endings: list[Iterator[Any]]
    mirror: Mirror

    @property
    def test(self) -> Any: ...

    def fixture(self, name: str) -> Any: ...

    def capsys(self) -> Any: ...


ABSENT = object()


class MonkeyPatch:
    """Changes that are undone when the test ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._undo: list[Callable[[], Any]] = []
        session.endings.append(self._ending())

    def _ending(self) -> Iterator[None]:
        self.undo()
        yield

    def undo(self) -> None:
        """Undo the changes."""
        while self._undo:
            self._undo.pop()()

    def setattr(self, target: Any, name: Any, value: Any = ABSENT, raising: bool = True) -> None:
        """Set an attribute: `(object, name, value)` or `("module.name", value)`."""
        if isinstance(target, str):
            module, _, last = target.rpartition(".")
            target, name, value = _found(module), last, name
        old = getattr(target, name, ABSENT)
        if old is ABSENT and raising:
            raise AttributeError(f"{target!r} has no attribute {name!r}")
        self._undo.append(lambda: self._put_back(target, name, old))
        setattr(target, name, value)
        self._session.mirror.patched(target, name)

    def _put_back(self, target: Any, name: str, old: Any) -> None:
        delattr(target, name) if old is ABSENT else setattr(target, name, old)
        self._session.mirror.unpatched(target, name)

    def delattr(self, target: Any, name: str, raising: bool = True) -> None:
        """Delete an attribute."""
        if hasattr(target, name) or raising:
            old = getattr(target, name)
            self._undo.append(lambda: setattr(target, name, old))
            delattr(target, name)

    def setitem(self, target: Any, name: Any, value: Any) -> None:
        """Set an item."""
        had, old = name in target, target.get(name)
        self._undo.append(lambda: target.__setitem__(name, old) if had else target.pop(name, None))
        target[name] = value

    def delitem(self, target: Any, name: Any, raising: bool = True) -> None:
        """Delete an item."""
        if name in target or raising:
            old = target[name]
            self._undo.append(lambda: target.__setitem__(name, old))
            del target[name]

    def setenv(self, name: str, value: str, prepend: Any = None) -> None:
        """Set an environment variable, in the solution's process too."""
        old = os.environ.get(name)
        self._undo.append(lambda: self._session.mirror.set_environment(name, old))
        self._session.mirror.set_environment(name, f"{value}{prepend}{old}" if prepend and old else str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        """Remove an environment variable."""
        if name not in os.environ and raising:
            raise KeyError(name)
        old = os.environ.get(name)
        self._undo.append(lambda: self._session.mirror.set_environment(name, old))
        self._session.mirror.set_environment(name, None)

    def chdir(self, folder: Any) -> None:
        """Change the current folder, the solution's too."""
        old = os.getcwd()
        self._undo.append(lambda: self._session.mirror.change_folder(old))
        self._session.mirror.change_folder(str(folder))

    @contextlib.contextmanager
    def context(self) -> Iterator[MonkeyPatch]:
        """Changes that are undone at the end of a block."""
        inner = MonkeyPatch(self._session)
        yield inner
        inner.undo()

    def __getattr__(self, name: str) -> Any:
        raise standin.NotSupported(f"monkeypatch.{name}")


class Request:
    """What a fixture may ask about the test it is made for."""

    def __init__(self, session: Session, param: Any) -> None:
        self._session = session
        self.node = types.SimpleNamespace(name=session.test.name.rpartition("::")[2])
        self.cls, self.function = session.test.owner, session.test.call
        if param is not ABSENT:
            self.param = param

    def addfinalizer(self, end: Callable[[], Any]) -> None:
        """Call this when the test ends."""

        def ending() -> Iterator[None]:
            end()
            yield

        self._session.endings.append(ending())

    def getfixturevalue(self, name: str) -> Any:
        """The value of another fixture."""
        return self._session.fixture(name)

    def __getattr__(self, name: str) -> Any:
        if name == "param":
            raise AttributeError("the fixture has no parameters")
        raise standin.NotSupported(f"request.{name}")


def _found(path: str) -> Any:
    """The object of a dotted name."""
    first, *rest = path.split(".")
    found: Any = __import__(first)
    for name in rest:
        found = getattr(found, name, None) or __import__(path, fromlist=[name])
    return found


@contextlib.contextmanager
def not_captured() -> Iterator[None]:
    """Discards what is printed in this block."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class WarningsRecorder:
    """The warnings of a test."""

    def __init__(self, session: Session) -> None:
        block = warnings.catch_warnings(record=True)
        self.list: Any = block.__enter__()
        warnings.simplefilter("always")
        session.endings.append(self._ending(block))

    def _ending(self, block: Any) -> Iterator[None]:
        block.__exit__(None, None, None)
        yield

    def pop(self, kind: type[Warning] = Warning) -> Any:
        """Remove and return the first warning of this kind."""
        return self.list.pop(next(n for n, each in enumerate(self.list) if issubclass(each.category, kind)))

    def clear(self) -> None:
        """Clear the list."""
        self.list.clear()

    def __len__(self) -> int:
        return len(self.list)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.list)

    def __getitem__(self, place: int) -> Any:
        return self.list[place]


def _handler(logging: Any, records: list[Any]) -> Any:
    """A log handler that keeps the records."""
    made = logging.Handler()
    made.emit = records.append
    return made


class LogCapture:
    """The log records of a test: `records`, `messages`, `text`, `record_tuples`."""

    def __init__(self, session: Session) -> None:
        import logging

        self._logging: Any = logging
        self.records: list[Any] = []
        self.handler = _handler(logging, self.records)
        root = logging.getLogger()
        root.addHandler(self.handler)
        self._levels = {root: root.level}
        session.endings.append(self._ending())

    def _ending(self) -> Iterator[None]:
        self._logging.getLogger().removeHandler(self.handler)
        for logger, level in self._levels.items():
            logger.setLevel(level)
        yield

    @property
    def messages(self) -> list[str]:
        """The text of each record."""
        return [record.getMessage() for record in self.records]

    @property
    def text(self) -> str:
        """All records as a formatter writes them."""
        lines = [
            f"{record.levelname:8} {record.name}:{record.filename}:{record.lineno} {record.getMessage()}\n"
            for record in self.records
        ]
        return "".join(lines)

    @property
    def record_tuples(self) -> list[tuple[str, int, str]]:
        """(logger, level, text) of each record."""
        return [(record.name, record.levelno, record.getMessage()) for record in self.records]

    def clear(self) -> None:
        """Clear the list."""
        self.records.clear()

    def set_level(self, level: Any, logger: str | None = None) -> None:
        """Set the lowest level that a logger records, until the test ends."""
        found = self._logging.getLogger(logger)
        self._levels.setdefault(found, found.level)
        found.setLevel(level)

    @contextlib.contextmanager
    def at_level(self, level: Any, logger: str | None = None) -> Iterator[None]:
        """The same, for the duration of a block."""
        found = self._logging.getLogger(logger)
        before = found.level
        found.setLevel(level)
        yield
        found.setLevel(before)


BUILT_IN: dict[str, Callable[[Session], Any]] = {
    "capsys": lambda session: session.capsys(),
    "capfd": lambda session: session.capsys(),
    "caplog": LogCapture,
    "recwarn": WarningsRecorder,
    "tmp_path_factory": lambda session: types.SimpleNamespace(mktemp=lambda *_, **__: _temporary_folder()),
    "tmp_path": lambda session: _temporary_folder(),
    "monkeypatch": MonkeyPatch,
    "request": lambda session: Request(session, ABSENT),
}


def _temporary_folder() -> Any:
    import pathlib
    import tempfile

    return pathlib.Path(tempfile.mkdtemp())
