"""What a training loop writes as it goes: metrics, samples, its progress, and seconds by phase."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.durable.checkpoint import sync
from text2grad.durable.guard import writing
from text2grad.durable.progress import ProgressLine
from text2grad.errors import UserError
from text2grad.json_text import to_json

if TYPE_CHECKING:
    from text2grad.durable.loggers import Logger

LOGS, PARTIAL = ("metrics.jsonl", "samples.jsonl"), ".partial"


class RunLog:
    """A folder with `metrics.jsonl` and `samples.jsonl`, and its progress on stderr
    (`durable.progress`).

    Earlier files stay until the first line of the new ones is written. In the folder of a complete
    run (it has a `policy`) they stay until the new run is complete: it writes `*.partial` beside
    them, which `finish` moves into place, so that a run that fails leaves the earlier one's metrics
    and policy together and whole.

    `show` names the metrics on the line of progress. With `silent` nothing is written or shown:
    another process of the same run does it.
    """

    def __init__(
        self, folder: Path, title: str, steps: int, show: tuple[str, ...] = ("loss",), silent: bool = False
    ) -> None:
        if not silent:
            folder.mkdir(parents=True, exist_ok=True)
        self.silent = silent
        self.folder = folder
        self.title = title
        self.show = show
        suffix = PARTIAL if (folder / "policy").is_dir() else ""
        self._paths = {name: folder / (name + suffix) for name in LOGS}
        self._begun = False
        self.progress = ProgressLine(title, steps, silent)
        self._loggers: list[Logger] = []

    def __enter__(self) -> RunLog:
        self.progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__()
        for logger in self._loggers:
            logger.close()

    def open_loggers(self, names: Sequence[str], first: int) -> None:
        """Have the metrics written to other places too, from step `first` on
        (`durable.loggers`)."""
        if names and not self.silent:
            from text2grad.durable.loggers import open_loggers  # trackers are for those who name one

            self._loggers = open_loggers(names, self.folder, self.title, first)

    def finish(self) -> None:
        """Put the files of this run in the place of an earlier one's."""
        if self.silent:
            return
        for name, path in self._paths.items():
            if path.name != name:
                (self.folder / name).unlink(missing_ok=True)
                if path.exists():
                    os.replace(path, self.folder / name)

    def positions(self) -> dict[str, dict[str, Any]]:
        """How many bytes this run has written to each file, and their hash; all of them are on the
        disk."""
        for path in self._paths.values():
            if path.exists():
                sync(path)
        return {name: _beginning(path if self._begun else None) for name, path in self._paths.items()}

    def go_back(self, positions: Mapping[str, Mapping[str, Any]], checkpoint: Path) -> None:
        """Cut the files to what they were at `positions`; the next line follows there.

        Raises:
            UserError: the files are not those that the checkpoint was saved beside.
        """
        if self.silent:
            return
        for name, position in positions.items():
            if position["bytes"] == 0:
                self._paths[name].unlink(missing_ok=True)
                continue
            # A run that was killed while it put its files in place may have them under either name.
            places = (self.folder / (name + PARTIAL), self.folder / name)
            found = next((path for path in places if _beginning(path, position["bytes"]) == position), None)
            if found is None:
                raise UserError(
                    f"{self._paths[name]} is not the file that {checkpoint} was saved beside",
                    "--restart starts over",
                )
            self._paths[name] = found
            os.truncate(found, position["bytes"])
        self._begun = True

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics; a value that is not a number is an error of the loop, not
        data."""
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise FloatingPointError(f"{', '.join(wrong)} is not finite")
        if self.silent:
            return
        self._append("metrics.jsonl", {"step": step, **values})
        for logger in self._loggers:
            logger.log(step, values)
        self.progress.done(step, " ".join(f"{name} {shown(values[name])}" for name in self.show if name in values))

    def sample(self, record: Mapping[str, Any]) -> None:
        """Append one token strip to samples.jsonl."""
        if not self.silent:
            self._append("samples.jsonl", record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            for earlier in self._paths.values():
                earlier.unlink(missing_ok=True)
        append_line(self._paths[name], record)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a file of lines."""
    with writing(path), path.open("ab") as handle:
        handle.write((to_json(record) + "\n").encode("utf-8"))


def keep_before(path: Path, step: int) -> None:
    """Cut off the lines of this step and later ones, and an incomplete last line."""
    if path.is_file():
        *lines, _ = path.read_bytes().split(b"\n")
        path.write_bytes(b"".join(line + b"\n" for line in lines if json.loads(line)["step"] < step))


def shown(value: float) -> str:
    """A figure for a line of progress: what rounding leaves of zero is zero."""
    return f"{round(value, 9) + 0.0:.3g}"


def _beginning(path: Path | None, length: int | None = None) -> dict[str, Any]:
    """The first `length` bytes of a file (all by default) as their number and SHA-256; none without
    a file."""
    data = b""
    if path is not None and path.exists():
        with path.open("rb") as handle:
            data = handle.read(length)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class Stopwatch:
    """Seconds by phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.perf_counter()
        key = f"seconds_{name}"
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self._since = now
