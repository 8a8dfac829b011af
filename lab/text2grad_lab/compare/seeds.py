"""Run the commands of a comparison, several in parallel, and record those that succeeded."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from text2grad.config import Config, dump_config
from text2grad.demo import UNSTOPPED, run_command
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.settings import with_values
from text2grad.stages.reward_model.gate import refuse_unfit_reward_model
from text2grad.stages.run_folder import IMPORTED, RunFolder, write_atomically, write_json
from text2grad_lab.compare.methods import COMMON, REWARD_MODEL, Work, is_shared, with_imported_feedback

DONE = "done"
"""The folder of a seed with a record of every command that has succeeded."""
WITHOUT_EFFECT = {"run": {"folder", "threads", "loggers"}}
GATE = "critic.reward_model.gate"
"""A setting that, like `WITHOUT_EFFECT`, affects no result."""


class Seed:
    """The works of one seed in its folder.

    No run is ended early (`UNSTOPPED`), so a method that collapses is measured like the others.
    Interrupted commands resume. Commands print to a log next to their record.
    """

    def __init__(self, config: Config, number: int, folder: Path, works: Mapping[str, Work]) -> None:
        self.imported = RunFolder.of(config).feedback_file
        values: dict[str, Any] = {"run.seed": number, "run.folder": folder, "task.seed": number}
        if config.task.data == IMPORTED:
            values["task.data"], works = str(self.imported), with_imported_feedback(works)
        self.config = with_values(config, values)
        self.folder, self.number, self.works = folder, number, works

    def record_file(self, name: str) -> Path:
        """Return the file that records the success of a work."""
        return self.folder / DONE / f"{name.replace(' ', '_')}.json"

    def done(self, name: str) -> dict[str, Any] | None:
        """Return the record of a work that succeeded with these settings, or None."""
        if not self.record_file(name).is_file():
            return None
        record: dict[str, Any] = json.loads(self.record_file(name).read_text(encoding="utf-8"))
        return record if record["digest"] == self.digest(name) else None

    def digest(self, name: str) -> str:
        """Return a digest of a work's inputs except data: words, settings, and earlier works."""
        work = self.works[name]
        sections = {*COMMON, *work.reads}
        settings = with_values(self.settings(work), {GATE: True}).model_dump_json(
            include=sections, exclude=WITHOUT_EFFECT, exclude_defaults=True
        )
        before = [self.digest(earlier) for earlier in work.after]
        return hashlib.sha256(f"{settings} {work.words} {before}".encode()).hexdigest()[:16]

    def with_prerequisites(self, name: str) -> dict[str, Work]:
        """Return a work and its prerequisites by name."""
        works: dict[str, Work] = {}
        for earlier in self.works[name].after:
            works |= self.with_prerequisites(earlier)
        return {**works, name: self.works[name]}

    def settings(self, work: Work) -> Config:
        """Return the configuration of a work, with its recipe and its scaled rate."""
        settings = with_values(work.configure(self.config), {**UNSTOPPED, "run.threads": 1})
        return _scale(settings, work.rate, work.factor) if work.factor != 1.0 else settings

    def words(self, name: str) -> list[str]:
        """Return the command line of a work, and write its configuration.

        An interrupted command resumes, unless its settings have changed since.
        """
        work, place = self.works[name], self.record_file(name).with_suffix(".yaml")
        write_atomically(place, dump_config(self.settings(work), only_set=True))
        names = {"folder": self.folder, "model": self.config.policy.model, "imported": self.imported}
        filled = [word.format(**names) for word in work.words]
        stale = self._start_file(name).is_file() and not self.was_started(name)
        configured = [] if work.words[0] == "export" else ["--config", str(place)]
        return [*filled, *configured, *(["--restart"] if stale and work.restart else []), "--json"]

    def was_started(self, name: str) -> bool:
        """True if a command was started with these settings."""
        file = self._start_file(name)
        return file.is_file() and file.read_text(encoding="utf-8") == self.digest(name)

    def _start_file(self, name: str) -> Path:
        return self.record_file(name).with_suffix(".begun")

    def run(self, name: str) -> None:
        """Run a command that has not succeeded with these settings, and record time and memory.

        A command has succeeded even if some records failed; this is printed and recorded.

        Raises:
            UserError: the command failed, or a method would refuse its reward model.
        """
        if not self.done(name):
            self._run(name)
        if name == REWARD_MODEL:
            self._refuse_unfit()

    def _refuse_unfit(self) -> None:
        """Fail before any method trains if a method would refuse the reward model."""
        refused: dict[str, UserError] = {}
        for name, work in self.works.items():
            try:
                if work.trains_by_sampling:
                    refuse_unfit_reward_model(self.settings(work), warn=False)
            except UserError as error:
                refused[name] = error
        if refused:
            names, first = ", ".join(refused), next(iter(refused.values()))
            raise UserError(f"{self.folder.name}: {names}: {first.problem}", f"remove {names}, or {first.cure}")

    def _run(self, name: str) -> None:
        command = [sys.executable, "-m", "text2grad_lab", *self.words(name)]
        write_atomically(self._start_file(name), self.digest(name))
        started = time.perf_counter()
        log = self.record_file(name).with_suffix(".log")
        code, peak = run_command(command, log)
        some_failed = code == EXIT_SOME_RECORDS_FAILED
        if code and not some_failed:
            raise self._failure(name, code, log)
        cost = {"seconds": round(time.perf_counter() - started, 1), "peak_mb": round(peak, 1)}
        write_json(
            self.record_file(name), {"digest": self.digest(name), **cost, "some_records_failed": some_failed}
        )
        failures = f"; some records failed, see {log}" if some_failed else ""
        print(f"{self.folder.name}: {name} ({cost['seconds']:.0f} s{failures})", file=sys.stderr, flush=True)

    def _failure(self, name: str, code: int, log: Path) -> UserError:
        """Return an error with the last line that a command printed."""
        lines = log.read_text(encoding="utf-8").strip().splitlines() or [f"exit code {code}"]
        problem = lines[-1].removeprefix("error: ")
        return UserError(f"{self.folder.name}: {name} failed: {problem}", f"the full output is in {log}")


def run_parallel(seeds: Iterable[Seed], at_once: int) -> None:
    """Run the works of all seeds in parallel, each after its prerequisites.

    Shared works run first, so that an unfit reward model is found before any method trains. After a
    failure no further work starts.

    Raises:
        UserError: the first failure.
    """
    works = [(seed, name, work) for seed in seeds for name, work in seed.works.items()]
    works.sort(key=lambda item: not is_shared(item[1]))
    waiting = {(seed.folder, name): (seed, work) for seed, name, work in works}
    running: dict[Future[None], tuple[Path, str]] = {}
    ended: set[tuple[Path, str]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        while waiting or running:
            for (folder, name), (seed, work) in list(waiting.items()):
                if len(running) < at_once and all((folder, earlier) in ended for earlier in work.after):
                    running[pool.submit(seed.run, name)] = (folder, name)
                    del waiting[folder, name]
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended.add(running.pop(future))
                future.result()


def _scale(config: Config, key: str, factor: float) -> Config:
    """Return a configuration with one set number, named `section.key`, multiplied."""
    data = config.model_dump(exclude_unset=True)
    *sections, last = key.split(".")
    values = data
    for section in sections:
        values = values[section]
    values[last] = float(values[last]) * factor
    return Config.model_validate(data)
