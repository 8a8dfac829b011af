"""The page of a run while one looks at it: rendered anew when its files change, samples as one asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from text2grad.errors import UserError
from text2grad.feedback import first_error, from_json, to_json
from text2grad.report.folder import Sample, method_folders, read_run
from text2grad.report.samples import entry_of, sample_view
from text2grad.report.viewer import page
from text2grad.report.visible import all_visible


@dataclass
class SampleFile:
    """The samples of one method, of which only what the list shows is held; the file is read on as it grows.

    `places` are the first and last byte of each line. Half a line at the end is read when it is whole.
    """

    path: Path
    method: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    read: int = 0

    def read_on(self) -> bool:
        """Take the lines that were written since; whether the file is another one now, read from its start.

        Raises:
            UserError: a line is damaged.
        """
        size = self.path.stat().st_size if self.path.is_file() else 0
        restarted = size < self.read
        if restarted:
            self.entries, self.texts, self.places, self.read = [], [], [], 0
        if size > self.read:
            with self.path.open("rb") as file:
                file.seek(self.read)
                for line in iter(file.readline, b""):
                    if not line.endswith(b"\n"):
                        break
                    self._take(line)
        return restarted

    def _take(self, line: bytes) -> None:
        start, self.read = self.read, self.read + len(line)
        if not line.strip():
            return
        sample = self._parsed(line, len(self.entries) + 1)
        self.entries.append(all_visible(entry_of(sample, self.method, len(self.entries))))
        words = (sample.id, *(turn.content for turn in sample.prompt), sample.response, sample.critique)
        self.texts.append("\n".join(words).lower())
        self.places.append((start, self.read))

    def _parsed(self, line: bytes, number: int) -> Sample:
        try:
            return Sample.model_validate(from_json(line.decode("utf-8")))
        except (JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
            what = first_error(error) if isinstance(error, ValidationError) else "not JSON"
            raise UserError(f"{self.path}:{number}: {what}", f"fix or remove line {number}") from error

    def view(self, number: int) -> dict[str, Any]:
        """One sample with everything; see `sample_view`."""
        start, end = self.places[number]
        with self.path.open("rb") as file:
            file.seek(start)
            sample = self._parsed(file.read(end - start), number + 1)
        view: dict[str, Any] = all_visible(sample_view(sample, self.method, number))
        return view


class ViewPage:
    """The page over the folder of a run.

    Raises:
        UserError: no run folder, nothing in it yet, or a damaged file in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, SampleFile] = {}
        self.order: list[tuple[str, int]] = []  # samples as the page has got them: method, number
        self._rendered = ("", "")  # the stamp of the files, and the page made of them
        self.read_on()
        self._page()

    def app(self) -> Starlette:
        """The application, without its guard."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/api/entries", self.entries),
                Route("/api/samples", self.sample),
                Route("/api/search", self.search),
            ]
        )

    def page(self, _: Request) -> Response:
        """The page as the files are now; a damaged one is named."""
        try:
            return HTMLResponse(self._page())
        except UserError as error:
            return PlainTextResponse(str(error), 500)

    def _page(self) -> str:
        """The page, rendered only where a file has changed."""
        if (stamp := self._stamp()) != self._rendered[0]:
            self._rendered = (stamp, page(read_run(self.folder, with_samples=False), live=True))
        return self._rendered[1]

    def read_on(self) -> bool:
        """Take the samples that were written since; whether what was there before is gone."""
        restarted = False
        for name, folder in self._methods():
            found = self.files.setdefault(name, SampleFile(folder / "samples.jsonl", name))
            restarted = found.read_on() or restarted
        if restarted:
            self.order = []
        self.order += self._not_yet_listed()
        return restarted

    def _methods(self) -> Iterator[tuple[str, Path]]:
        """The folders with samples, of each seed if there are several, by the names that the page shows."""
        for run in (self.folder, *sorted(filter(Path.is_dir, self.folder.glob("seed-*")))):
            for folder in method_folders(run):
                name = folder.resolve().name
                yield (name if run == self.folder else f"{run.name} {name}"), folder

    def _not_yet_listed(self) -> Iterator[tuple[str, int]]:
        listed = dict.fromkeys(self.files, 0)
        for method, _ in self.order:
            listed[method] += 1
        for name, file in self.files.items():
            yield from ((name, number) for number in range(listed[name], len(file.entries)))

    def entries(self, request: Request) -> Response:
        """The entries behind the first `have`, all if the run began anew; `stamp` changes with the other files."""
        try:
            restarted = self.read_on()
        except UserError as error:
            return _json({"error": str(error)}, 500)
        have = request.query_params.get("have", "0")
        known = int(have) if have.isdecimal() and not restarted else 0
        restarted = restarted or known > len(self.order)
        new = self.order[0 if restarted else known :]
        entries = [self.files[method].entries[number] for method, number in new]
        return _json({"entries": entries, "restarted": restarted, "stamp": self._stamp()})

    def sample(self, request: Request) -> Response:
        """One sample, by its key."""
        method, _, number = request.query_params.get("key", "").rpartition("/")
        file = self.files.get(method)
        if file is None or not number.isdecimal() or int(number) >= len(file.entries):
            return _json({"error": "there is no such sample"}, 404)
        return _json(file.view(int(number)))

    def search(self, request: Request) -> Response:
        """The keys of the samples with these words."""
        words = request.query_params.get("q", "").lower()
        keys = [
            file.entries[number]["key"]
            for file in self.files.values()
            for number, text in enumerate(file.texts)
            if words in text
        ]
        return _json({"keys": keys})

    def _stamp(self) -> str:
        """Sizes and times of the files that the rest of the page is made of."""
        files = (file for kind in ("*.jsonl", "*.json") for file in sorted(self.folder.rglob(kind)))
        stats = [file.stat() for file in files if file.is_file() and file.name != "samples.jsonl"]
        return str(hash(tuple((each.st_size, each.st_mtime_ns) for each in stats)))


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
