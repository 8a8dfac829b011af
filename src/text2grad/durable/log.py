"""The log of a training loop: metrics, samples, progress, and seconds by phase."""

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
from text2grad.durable.guard import report_disk_errors
from text2grad.durable.progress import ProgressLine
from text2grad.errors import UserError
from text2grad.json_text import to_json

if TYPE_CHECKING:
    from text2grad.durable.loggers import Logger

LOGS, PARTIAL = ("metrics.jsonl", "samples.jsonl"), ".partial"


class RunLog:
    """Writes `metrics.jsonl` and `samples.jsonl`, and reports progress on stderr.

    Files of an earlier run are replaced by the first line of this one. In the folder of a complete
    run (it has a `policy`) they stay until this run is complete too: it writes `*.partial`, which
    `finish` renames. A run that fails there leaves the earlier metrics and policy untouched.

    The progress line has the run's title and the metrics `show`. With `silent`, another process of
    the same run writes the log.
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
        self._has_lines = False
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
        """Write the metrics to these trackers too, from step `first` on."""
        if names and not self.silent:
            from text2grad.durable.loggers import open_loggers  # optional packages

            self._loggers = open_loggers(names, self.folder, self.title, first)

    def finish(self) -> None:
        """Replace the files of an earlier run with those of this one."""
        if self.silent:
            return
        for name, path in self._paths.items():
            if path.name != name:
                (self.folder / name).unlink(missing_ok=True)
                if path.exists():
                    os.replace(path, self.folder / name)

    def positions(self) -> dict[str, dict[str, Any]]:
        """Flush the files, and return the number and the hash of the bytes written to each."""
        for path in self._paths.values():
            if path.exists():
                sync(path)
        return {name: _prefix_digest(path if self._has_lines else None) for name, path in self._paths.items()}

    def rewind(self, positions: Mapping[str, Mapping[str, Any]], checkpoint: Path) -> None:
        """Truncate the files to `positions`, so that the next line follows there.

        Raises:
            UserError: the files do not begin as they did when the checkpoint was saved.
        """
        if self.silent:
            return
        for name, position in positions.items():
            if position["bytes"] == 0:
                self._paths[name].unlink(missing_ok=True)
                continue
            # If the run was killed in `finish`, the file may have either name.
            candidates = (self.folder / (name + PARTIAL), self.folder / name)
            path = next((path for path in candidates if _prefix_digest(path, position["bytes"]) == position), None)
            if path is None:
                raise UserError(
                    f"{self._paths[name]} has changed since {checkpoint} was saved",
                    "--restart starts over",
                )
            self._paths[name] = path
            os.truncate(path, position["bytes"])
        self._has_lines = True

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics.

        Raises:
            FloatingPointError: a value is not finite.
        """
        non_finite = [name for name, value in values.items() if not math.isfinite(value)]
        if non_finite:
            raise FloatingPointError(f"{', '.join(non_finite)} is not finite")
        if self.silent:
            return
        self._append("metrics.jsonl", {"step": step, **values})
        for logger in self._loggers:
            logger.log(step, values)
        # Three significant digits; + 0.0 turns -0 into 0.
        figures = (f"{name} {round(values[name], 9) + 0.0:.3g}" for name in self.show if name in values)
        self.progress.finish_step(step, " ".join(figures))

    def sample(self, record: Mapping[str, Any]) -> None:
        """Append one sample to `samples.jsonl`."""
        if not self.silent:
            self._append("samples.jsonl", record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if not self._has_lines:
            self._has_lines = True
            for earlier in self._paths.values():
                earlier.unlink(missing_ok=True)
        append_line(self._paths[name], record)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a JSONL file."""
    with report_disk_errors(path), path.open("ab") as handle:
        handle.write((to_json(record) + "\n").encode("utf-8"))


def truncate_log(path: Path, step: int) -> None:
    """Remove the lines from this step on, and an incomplete last line."""
    if path.is_file():
        *lines, _ = path.read_bytes().split(b"\n")
        path.write_bytes(b"".join(line + b"\n" for line in lines if json.loads(line)["step"] < step))


def _prefix_digest(path: Path | None, length: int | None = None) -> dict[str, Any]:
    """Return the number and SHA-256 of the first `length` bytes of a file (None: all)."""
    data = b""
    if path is not None and path.exists():
        with path.open("rb") as handle:
            data = handle.read(length)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class Stopwatch:
    """Measures the seconds of each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lap_start = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to the phase `name`."""
        now = time.perf_counter()
        key = f"seconds_{name}"
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._lap_start
        self._lap_start = now
