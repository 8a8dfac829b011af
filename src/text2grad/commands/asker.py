"""`text2grad try` for a page: the policies of a run answer in a process of their own. No torch in this one.

The process starts at the first question, anew for another policy and after an error. If it ends, the server stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any

from text2grad.errors import UserError

Row = dict[str, Any]
SFT, BASE = "sft", "base"
"""Policies that others start from."""


def policies_in(folders: Sequence[Path]) -> Iterator[tuple[str, Path, str]]:
    """Yield the policies of run folders: the name to show, the run, and the name in the run."""
    for run in folders:
        title = f"{run.resolve().name} " * (len(folders) > 1)
        places = [run / SFT, *sorted(run.glob("ppo/*"))] if (run / "config.yaml").is_file() else []
        for place in places:
            if (place / "policy" / "tokenizer_config.json").is_file():
                yield f"{title}{place.name}", run, place.name


class Asker:
    """Asks the policies of some runs, one question after another; see `page.view.Asker`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._lock = Lock()
        self._asked: tuple[Path, str, bool] | None = None  # whom the process loads
        self._pipe: Connection
        self._process: BaseProcess | None = None

    @property
    def policies(self) -> list[str]:
        """The policies that can be asked now."""
        return [title for title, _, _ in policies_in(self.folders)]

    def ask(self, prompt: str, policy: str, critique: bool) -> list[Row]:
        """The answers of the policy that this one started from, and of itself, to a prompt.

        Raises:
            UserError: there is no such policy, it cannot answer, or its process ended.
        """
        found = next(((run, name) for title, run, name in policies_in(self.folders) if title == policy), None)
        if found is None:
            raise UserError(f"there is no policy {policy!r}", "reload the page")
        with self._lock:
            self._start((*found, critique))
            try:
                self._pipe.send(prompt)
                answers: list[Row] | str = self._pipe.recv()
            except (EOFError, OSError) as error:
                code = self.end()
                raise UserError(f"the policy's process ended ({code})", "the terminal says why") from error
            if isinstance(answers, str):
                self.end()
                raise UserError(answers)
            return answers

    def _start(self, asked: tuple[Path, str, bool]) -> None:
        if asked == self._asked:
            return
        self.end()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs, *asked), daemon=True)
        self._process.start()
        theirs.close()
        self._asked = asked

    def end(self) -> int | None:
        """End the process, if there is one; its exit code."""
        process, self._process, self._asked = self._process, None, None
        if process is None:
            return None
        self._pipe.close()
        process.join(1)
        process.kill()
        process.join()
        return process.exitcode


def answer(pipe: Connection, run: Path, name: str, critique: bool) -> None:
    """Answer what comes through a pipe until it closes: a list of samples; or last a line that says why not."""
    from text2grad.config import load_config
    from text2grad.stages.talk import conversations

    with pipe:
        try:
            config = load_config(run / "config.yaml", ["--run.folder", str(run)])
            start = SFT if (run / SFT / "policy").is_dir() else BASE
            with conversations(config, list(dict.fromkeys((start, name))), keep=False, critique=critique) as talk:
                while True:
                    pipe.send(_samples(talk.ask(pipe.recv()).as_row()))
        except UserError as error:
            pipe.send(str(error))
        except (EOFError, KeyboardInterrupt):
            sys.exit()


def _samples(row: Row) -> list[Row]:
    """The answers of `Asked.as_row` as `page.runs.Sample` has them."""
    known = ("response", "critique", "spans", "score")
    return [
        {"step": 0, "id": each["name"], "failure": each.get("error")}
        | {key: each[key] for key in known if key in each}
        for each in row["answers"]
    ]
