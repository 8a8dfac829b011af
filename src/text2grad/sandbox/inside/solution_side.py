"""The process that holds the solution: it loads it, and then does what the tests ask for."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

from text2grad.sandbox.inside import wire

OUTPUT_CHARACTERS = 1 << 20


def serve(reader: int, writer: int, code: str, coverage: bool) -> None:
    """Load `code` as the module `solution`, say what came of it, and serve the tests until they end."""
    peer = wire.Peer(reader, writer, first=1, wary=False, guard=lambda op, target, name: True)
    output = Output()
    sys.stdout = sys.stderr = output
    lines = Lines() if coverage else None
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    peer.controls = {
        "output": lambda args: output.drain(),
        "names": lambda args: [name for name in args[0] if name in module.__dict__],
        "seed": lambda args: _seed(*args),
        "begin": lambda args: lines.begin() if lines else None,
        "lines": lambda args: lines.end() if lines else [],
    }
    try:
        exec(compile(code, wire.SOLUTION_FILE, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        peer.send({"e": peer.pack_error(error)})
        return
    peer.send({"v": peer.pack_module(module)})
    while True:
        peer.serve(peer.receive())


def run_program(code: str, given: str) -> None:
    """Run `code` as a script that reads `given` from its standard input; output goes to descriptor 1."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(code, wire.SOLUTION_FILE, "exec", dont_inherit=True), module.__dict__)
    finally:
        sys.stdout.flush()


def _seed(value: Any, numpy_too: bool) -> None:
    import random

    random.seed(value)
    if numpy_too:
        import numpy

        numpy.random.seed(value)


class Output(io.TextIOBase):
    """Keeps the beginning of what is printed, for tests that look at it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = OUTPUT_CHARACTERS
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Keep what still fits."""
        if self._left > 0:
            self._pieces.append(text[: self._left])
            self._left -= len(text)
        return len(text)

    def writable(self) -> bool:
        """True."""
        return True

    def drain(self) -> str:
        """What was printed since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._left = OUTPUT_CHARACTERS
        return text


class _Bytes(io.RawIOBase):
    def __init__(self, text: Output) -> None:
        self._text = text

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


class Lines:
    """Which lines of the solution run between `begin` and `end`, from 1."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._monitored = hasattr(sys, "monitoring")
        if self._monitored:
            self._watch()

    def begin(self) -> None:
        """Forget what ran before."""
        self._seen.clear()
        if self._monitored:
            _monitoring().restart_events()
        else:
            self._trace_with(self._trace)

    def end(self) -> list[int]:
        """The lines that ran, in order."""
        if not self._monitored:
            self._trace_with(None)
        return sorted(self._seen)

    def _trace_with(self, function: Any) -> None:
        import threading

        sys.settrace(function)
        threading.settrace(function)

    def _trace(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != wire.SOLUTION_FILE:
            return None
        if event == "line":
            self._seen.add(frame.f_lineno)
        return self._trace

    def _watch(self) -> None:
        monitoring = _monitoring()
        tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(tool, "text2grad")
        monitoring.register_callback(tool, monitoring.events.LINE, self._line)
        monitoring.set_events(tool, monitoring.events.LINE)

    def _line(self, code: types.CodeType, line: int) -> Any:
        if code.co_filename == wire.SOLUTION_FILE:
            self._seen.add(line)
        return _monitoring().DISABLE


def _monitoring() -> Any:
    """`sys.monitoring`, from Python 3.12 on."""
    return getattr(sys, "monitoring")  # noqa: B009 (the types of 3.11 do not have it)
