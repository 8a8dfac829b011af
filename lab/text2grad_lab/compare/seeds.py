"""Run the commands of a comparison: each once, several side by side, with a note of each that has
ended."""

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
from text2grad.demo import run_command
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.settings import with_values
from text2grad.stages.reward_model.gate import refuse_unfit_reward_model
from text2grad.stages.run_folder import IMPORTED, RunFolder, write_atomically, write_json
from text2grad_lab.compare.methods import COMMON, REWARD_MODEL, Work, is_shared, on_imported

DONE = "done"
"""The folder of a seed with a note of every command that has succeeded."""
UNREAD = {"run": {"folder", "threads", "loggers"}}
UNSTOPPED = {"ppo.max_kl": None, "ppo.max_failed": 1.0}
GATE = "critic.reward_model.gate"
"""With `UNREAD`, settings that no result depends on."""


class Seed:
    """The works of one seed, by name, in its folder. No run is stopped (`ppo.max_kl`,
    `ppo.max_failed`): a method that collapses is measured like the others.
    Commands that were stopped resume; they print to a log beside their note."""

    def __init__(self, config: Config, number: int, folder: Path, works: Mapping[str, Work]) -> None:
        self.imported = RunFolder.of(config).feedback_file
        values: dict[str, Any] = {"run.seed": number, "run.folder": folder, "task.seed": number}
        if config.task.data == IMPORTED:
            values["task.data"], works = str(self.imported), on_imported(works)
        self.config = with_values(config, values)
        self.folder, self.number, self.works = folder, number, works

    def note(self, name: str) -> Path:
        """The file that notes that a work has succeeded."""
        return self.folder / DONE / f"{name.replace(' ', '_')}.json"

    def done(self, name: str) -> dict[str, Any] | None:
        """The note of a work that succeeded with these settings."""
        if not self.note(name).is_file():
            return None
        note: dict[str, Any] = json.loads(self.note(name).read_text(encoding="utf-8"))
        return note if note["digest"] == self.digest(name) else None

    def digest(self, name: str) -> str:
        """Digest of the inputs of a work except data: its words, the settings it reads, and the
        works before it."""
        work = self.works[name]
        read = {*COMMON, *work.reads}
        settings = with_values(self.settings(work), {GATE: True}).model_dump_json(
            include=read, exclude=UNREAD, exclude_defaults=True
        )
        before = [self.digest(earlier) for earlier in work.after]
        return hashlib.sha256(f"{settings} {work.words} {before}".encode()).hexdigest()[:16]

    def with_those_before(self, name: str) -> dict[str, Work]:
        """A work and all that it waits for, by name."""
        works: dict[str, Work] = {}
        for earlier in self.works[name].after:
            works |= self.with_those_before(earlier)
        return {**works, name: self.works[name]}

    def settings(self, work: Work) -> Config:
        """The configuration of a work: with its recipe, and its rate times its factor."""
        settings = with_values(work.laid_over(self.config), {**UNSTOPPED, "run.threads": 1})
        return _times(settings, work.rate, work.factor) if work.factor != 1.0 else settings

    def words(self, name: str) -> list[str]:
        """The command line of a work; its configuration is written beside its note.

        A command that was stopped resumes; one whose settings have changed since starts over.
        """
        work, place = self.works[name], self.note(name).with_suffix(".yaml")
        write_atomically(place, dump_config(self.settings(work), only_set=True))
        names = {"folder": self.folder, "model": self.config.policy.model, "imported": self.imported}
        filled = [word.format(**names) for word in work.words]
        stale = self._beginning(name).is_file() and not self.begun(name)
        configured = [] if work.words[0] == "export" else ["--config", str(place)]
        return [*filled, *configured, *(["--restart"] if stale and work.restart else []), "--json"]

    def begun(self, name: str) -> bool:
        """Whether a command was begun with these settings."""
        file = self._beginning(name)
        return file.is_file() and file.read_text(encoding="utf-8") == self.digest(name)

    def _beginning(self, name: str) -> Path:
        return self.note(name).with_suffix(".begun")

    def run(self, name: str) -> None:
        """Run a command, unless it has succeeded with these settings, and note its time and memory.

        It has succeeded, too, where only some records failed, which is printed and noted; its log
        has the counts.

        Raises:
            UserError: the command failed, or made a reward model that a method of the comparison
                would refuse.
        """
        if not self.done(name):
            self._run(name)
        if name == REWARD_MODEL:
            self._refuse_unfit()

    def _refuse_unfit(self) -> None:
        """Before any method trains, name those whose training would be refused later."""
        refused: dict[str, UserError] = {}
        for name, work in self.works.items():
            try:
                if work.trains_by_sampling:
                    refuse_unfit_reward_model(self.settings(work), warn=False)
            except UserError as error:
                refused[name] = error
        if refused:
            names, first = ", ".join(refused), next(iter(refused.values()))
            raise UserError(f"{self.folder.name}: {names}: {first.problem}", f"leave out {names}, or {first.cure}")

    def _run(self, name: str) -> None:
        command = [sys.executable, "-m", "text2grad_lab", *self.words(name)]
        write_atomically(self._beginning(name), self.digest(name))  # a run of other settings starts over
        started = time.perf_counter()
        log = self.note(name).with_suffix(".log")
        code, peak = run_command(command, log)
        some_failed = code == EXIT_SOME_RECORDS_FAILED
        if code and not some_failed:
            raise self._failure(name, code, log)
        cost = {"seconds": round(time.perf_counter() - started, 1), "peak_mb": round(peak, 1)}
        write_json(self.note(name), {"digest": self.digest(name), **cost, "some_records_failed": some_failed})
        lost = f"; some records failed, their number is in {log}" if some_failed else ""
        print(f"{self.folder.name}: {name} ({cost['seconds']:.0f} s{lost})", file=sys.stderr, flush=True)

    def _failure(self, name: str, code: int, log: Path) -> UserError:
        """The last line that a command printed."""
        lines = log.read_text(encoding="utf-8").strip().splitlines() or [f"exit code {code}"]
        problem = lines[-1].removeprefix("error: ")
        return UserError(f"{self.folder.name}: {name} failed: {problem}", f"its whole output is in {log}")


def side_by_side(seeds: Iterable[Seed], at_once: int) -> None:
    """Run the works of seeds as soon as those they wait for have ended, `at_once` of them.

    Shared works come first, of all seeds, so that a reward model that no method may train against
    is known before any has trained. After a failure no more begin.

    Raises:
        UserError: the first failure.
    """
    works = [(seed, name, work) for seed in seeds for name, work in seed.works.items()]
    works.sort(key=lambda each: not is_shared(each[1]))
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


def _times(config: Config, key: str, factor: float) -> Config:
    """A configuration in which one number that is set, named `section.key`, is multiplied."""
    data = config.model_dump(exclude_unset=True)
    *sections, last = key.split(".")
    place = data
    for section in sections:
        place = place[section]
    place[last] = float(place[last]) * factor
    return Config.model_validate(data)
