"""The process of the solution, which loads the program and serves the tests."""

from __future__ import annotations

import builtins
import importlib
import io
import os
import sys
import types
import warnings
from typing import Any

from codeverdict.inside import frames, peer, values

OUTPUT_CHARACTERS = 1 << 20
ERROR_CHARACTERS = 300
_PIECES = 1000


def serve(source: int, reader: int, writer: int) -> None:
    """Load the program in `source` as the module `solution`, reply, and serve the tests."""
    job = frames.read_once(source)
    code, coverage = job.pop("code"), job["coverage"]
    tests = peer.Peer(reader, writer, 1, None)
    printed: list[Any] = []
    sys.stdout, sys.stderr = _stream(printed, False), _stream(printed, True)
    tests.said = lambda: _take(printed)
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: printed.append(tests.pack_error(message))  # type: ignore[arg-type,unused-ignore]
    lines = Lines() if coverage else None
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    tests.controls = {
        "names": lambda names: [name for name in names if name in module.__dict__],
        "seed": _seed,
        "replace": _replace,
        "begin": lambda: lines.begin() if lines else None,
        "lines": lambda: lines.end() if lines else [],
        "log": lambda: _log(printed),
    }
    try:
        exec(compile(code, peer.SOLUTION_FILE, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # a program may raise anything, which the tests get
        tests.reply({"e": tests.pack_error(error)})
        return
    tests.reply({"v": tests.pack(module)})
    tests.serve_forever()


def script(source: int, stdin: int, errors: int, output: int) -> None:
    """Run the program in `source` as a script.

    It reads from `stdin` and writes to `output`. An exception that ends it is written to `errors`
    as one line.
    """
    job = frames.read_once(source)
    for standard, descriptor in enumerate((stdin, output)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    builtins.open = io.open = _open_with_stdin(io.open)
    try:
        _run_program(job.pop("code"))
    except SystemExit as stop:
        if stop.code not in (None, 0):
            os.write(errors, f"SystemExit: {stop.code}"[:ERROR_CHARACTERS].encode("utf-8", "replace"))
    except BaseException as error:  # a program may raise anything
        os.write(errors, values.describe(error).encode("utf-8", "replace"))


def _open_with_stdin(plain: Any) -> Any:
    """Return an `open` that maps `/dev/stdin` to descriptor 0, as there may be no /proc."""

    def open(file: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(os.dup(0) if str(file) in ("/dev/stdin", "/dev/fd/0") else file, *args, **kwargs)

    return open


def _run_program(code: str) -> None:
    sys.stdin, sys.stdout = (open(n, "rw"[n], encoding="utf-8", closefd=False) for n in (0, 1))  # noqa: SIM115
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(code, peer.SOLUTION_FILE, "exec", dont_inherit=True), module.__dict__)
    finally:
        sys.stdout.flush()


def _log(printed: list[Any]) -> None:
    """Send log records of all levels to the tests, which filter them."""
    import logging

    handler = logging.Handler()
    handler.emit = lambda record: printed.append([record.levelno, record.name, record.getMessage()])  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(1)
    logging.lastResort = None


def _seed(module: str, *args: Any) -> None:
    importlib.import_module(module).seed(*args)


_ORIGINALS: dict[str, Any] = {}


def _replace(name: str, *value: Any) -> None:
    """Replace a part of the standard library as the tests did; without a value, restore it."""
    if name == "os.environ":
        os.environ.update(*value)
        for key in os.environ.keys() - value[0].keys():
            del os.environ[key]
    elif name == "os.curdir":
        os.chdir(*value)
    else:
        module, _, part = name.rpartition(".")
        holder = importlib.import_module(module)
        original = _ORIGINALS.setdefault(name, getattr(holder, part))
        setattr(holder, part, value[0] if value else original)


def _take(printed: list[Any]) -> list[Any]:
    items = printed[:]
    printed.clear()
    return items


def _stream(printed: list[Any], is_error: bool) -> io.TextIOWrapper:
    buffer: Any = Output(printed, is_error)
    return io.TextIOWrapper(buffer, "utf-8", "replace", write_through=True)


class Output(io.RawIOBase):
    """Buffers the output, up to a limit, until the next message carries it."""

    def __init__(self, printed: list[Any], is_error: bool) -> None:
        self._said, self._is_error = printed, is_error

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Buffer data up to the limit."""
        remaining = OUTPUT_CHARACTERS - sum(len(piece[1]) for piece in self._said if type(piece[0]) is bool)
        text = bytes(data).decode("utf-8", "replace")[:remaining]
        last: list[Any] = self._said[-1] if self._said else [None]
        if text and last[0] is self._is_error:
            last[1] += text
        elif text and len(self._said) < _PIECES:
            self._said.append([self._is_error, text])
        return len(data)


class Lines:
    """Records the lines of the solution, from 1, that run between `begin` and `end`."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def begin(self) -> None:
        """Start recording."""
        self._seen.clear()
        _trace_with(self._trace)

    def end(self) -> list[int]:
        """Stop recording and return the sorted lines."""
        _trace_with(None)
        return sorted(self._seen)

    def _trace(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != peer.SOLUTION_FILE:
            return None
        if event == "line":
            self._seen.add(frame.f_lineno)
        return self._trace


def _trace_with(function: Any) -> None:
    import threading

    sys.settrace(function)
    threading.settrace(function)
