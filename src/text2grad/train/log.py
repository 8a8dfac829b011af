"""What a training loop writes as it goes: metrics, samples, and a line that shows that it is alive."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from text2grad.errors import UserError
from text2grad.feedback import to_json
from text2grad.train.checkpoint import sync
from text2grad.train.guard import writing

LOGS, PARTIAL = ("metrics.jsonl", "samples.jsonl"), ".partial"


class RunLog:
    """A folder with `metrics.jsonl` and `samples.jsonl`, and one line of progress on stderr.

    Earlier files stay until the first line of the new ones is written. In the folder of a complete run (it has
    a `policy`) they stay until the new run is complete: it writes `*.partial` beside them, and `finish` puts
    them in their place, so that a run that fails leaves metrics and policy of the earlier one together and whole.

    On a terminal the line is a live bar; elsewhere a plain line about every tenth of the run. With `silent`
    nothing is written or shown: another process of the same run does it.
    """

    def __init__(
        self, folder: Path, title: str, steps: int, show: tuple[str, ...] = ("loss",), silent: bool = False
    ) -> None:
        if not silent:
            folder.mkdir(parents=True, exist_ok=True)
        self.silent = silent
        self.folder = folder
        self.title = title
        self.steps = steps
        self.show = show
        suffix = PARTIAL if (folder / "policy").is_dir() else ""
        self._paths = {name: folder / (name + suffix) for name in LOGS}
        self._written = {name: Written() for name in LOGS}
        self._begun = False
        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console) if console.is_terminal and not silent else None
        self._task = self._bar.add_task(title, total=steps) if self._bar else None

    def __enter__(self) -> RunLog:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

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
        """How far the files are written, and the hash of that much; all of it is on the disk."""
        for path in self._paths.values():
            if path.exists():
                sync(path)
        return {name: {"bytes": w.bytes, "sha256": w.digest.hexdigest()} for name, w in self._written.items()}

    def go_back(self, positions: Mapping[str, Mapping[str, Any]], checkpoint: Path) -> None:
        """Cut the files to what they were at `positions`, and go on from there.

        Raises:
            UserError: the files are not those that the checkpoint was saved beside.
        """
        if self.silent:
            return
        for name, position in positions.items():
            # A run that was killed while it put its files in place may have them under either name.
            places = (self.folder / (name + PARTIAL), self.folder / name)
            if position["bytes"] == 0:
                self._paths[name].unlink(missing_ok=True)
                continue
            begins = [path for path in places if Written.of(path, position["bytes"]).is_at(position)]
            if not begins:
                raise UserError(
                    f"{self._paths[name]} is not the file that {checkpoint} was saved beside",
                    "--restart begins anew",
                )
            self._paths[name] = begins[0]
            self._written[name] = Written.of(begins[0], position["bytes"])
            os.truncate(begins[0], position["bytes"])
        self._begun = True

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics; a value that is not a number is an error of the loop, not data."""
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise FloatingPointError(f"{', '.join(wrong)} is not finite")
        if self.silent:
            return
        self._append("metrics.jsonl", {"step": step, **values})
        line = " ".join(f"{name} {values[name]:.3g}" for name in self.show if name in values)
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step + 1, description=f"{self.title} {line}")
        elif step == self.steps - 1 or step % max(1, self.steps // 10) == 0:
            print(f"{self.title}: {step + 1}/{self.steps} {line}", file=sys.stderr, flush=True)

    def sample(self, record: Mapping[str, Any]) -> None:
        """Append one token strip (see docs/data.md, samples.jsonl)."""
        if not self.silent:
            self._append("samples.jsonl", record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            for earlier in self._paths.values():
                earlier.unlink(missing_ok=True)
        line = (to_json(record) + "\n").encode("utf-8")
        with writing(self._paths[name]), self._paths[name].open("ab") as handle:
            handle.write(line)
        self._written[name].add(line)


class Written:
    """So many bytes, and their SHA-256."""

    def __init__(self) -> None:
        self.bytes = 0
        self.digest = hashlib.sha256()

    @classmethod
    def of(cls, path: Path, length: int) -> Written:
        """The first `length` bytes of a file; fewer if it is shorter or not there."""
        written = cls()
        if path.exists():
            with path.open("rb") as handle:
                written.add(handle.read(length))
        return written

    def add(self, data: bytes) -> None:
        """Count these bytes too."""
        self.bytes += len(data)
        self.digest.update(data)

    def is_at(self, position: Mapping[str, Any]) -> bool:
        """Whether these are the bytes of a position."""
        return (self.bytes, self.digest.hexdigest()) == (position["bytes"], position["sha256"])
