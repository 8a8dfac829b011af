"""The live page of a run: rendered again when its files change, samples sent on request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from text2grad.errors import UserError
from text2grad.jsonl import parse_record
from text2grad.page.render import all_visible
from text2grad.page.report import Presets, comparison_views, render_run
from text2grad.page.runs import Sample, read_runs, sample_files
from text2grad.page.samples import SIGNALS, list_entry, sample_view
from text2grad.page.server import as_number, json_response, page_response


@dataclass
class SampleFile:
    """The samples of one method as lines, list entries and searchable texts.

    `update` reads what was appended; an incomplete last line waits for its end. If the last line
    read is no longer in its place, the file was replaced.
    """

    path: Path
    method: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    last: bytes = b""
    signals: set[str] = field(default_factory=set)

    def update(self) -> bool:
        """Read the new lines; return True if the file was replaced and read from its start.

        Raises:
            UserError: a line is damaged.
        """
        with self.path.open("rb") if self.path.is_file() else BytesIO() as file:
            file.seek(self.size - len(self.last))
            restarted = file.read(len(self.last)) != self.last
            if restarted:
                self.entries, self.texts, self.lines, self.size, self.last = [], [], [], 0, b""
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if line.strip():
                    self._take(line)
                self.size, self.last = self.size + len(line), line
        return restarted

    def _take(self, line: bytes) -> None:
        sample = parse_record(line, Sample, self.path, len(self.entries) + 1)
        self.entries.append(all_visible(list_entry(sample, self.method, len(self.entries))))
        words = (sample.id, *(turn.content for turn in sample.prompt), sample.response, sample.critique)
        self.texts.append("\n".join(words).lower())
        self.lines.append(line)
        self.signals |= {name for name in SIGNALS if getattr(sample, name)}

    def view(self, number: int) -> dict[str, Any]:
        """View one sample; see `sample_view`."""
        sample = parse_record(self.lines[number], Sample, self.path, number + 1)
        view: dict[str, Any] = all_visible(sample_view(sample, self.method, number))
        return view


class ViewPage:
    """The page over the folders of runs.

    Raises:
        UserError: a folder is missing or empty, or a file is damaged.
    """

    def __init__(self, *folders: Path, presets: Presets = ()) -> None:
        self.folders, self.presets = folders, presets
        self._reading, self._rendering = Lock(), Lock()
        self.files: dict[str, SampleFile] = {}
        self.order: list[tuple[str, int]] = []  # samples in the order sent to the page: method, number
        self._rendered = ("", "")  # the stamp of the files, and their page
        self.update()
        self._page()

    def app(self) -> Starlette:
        """Return the application without its guard."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/api/entries", self.entries),
                Route("/api/samples", self.sample),
                Route("/api/search", self.search),
                Route("/api/comparisons", self.comparisons),
            ]
        )

    def page(self, _: Request) -> Response:
        """Return the page of the current files, or an error that names a damaged file."""
        try:
            return page_response(self._page())
        except UserError as error:
            return PlainTextResponse(str(error), 500)

    def _page(self) -> str:
        """Return the page, rendered again only if a file has changed."""
        with self._rendering:
            if (stamp := self._stamp()) != self._rendered[0]:
                self._rendered = (stamp, render_run(read_runs(self.folders), True, self.presets))
            return self._rendered[1]

    def update(self) -> bool:
        """Read the new samples; return True if earlier ones are gone."""
        restarted = False
        for name, path in sample_files(self.folders):
            file = self.files.setdefault(name, SampleFile(path, name))
            restarted = file.update() or restarted
        if restarted:
            self.order = []
        listed = Counter(method for method, _ in self.order)
        for name, file in self.files.items():
            self.order += ((name, number) for number in range(listed[name], len(file.entries)))
        return restarted

    def entries(self, request: Request) -> Response:
        """Return the entries after the first `have`, or all if the run restarted.

        `stamp` changes with the other files.
        """
        try:
            with self._reading:
                return json_response(self._entries(request, self.update()))
        except UserError as error:
            return json_response({"error": str(error)}, 500)

    def _entries(self, request: Request, restarted: bool) -> dict[str, Any]:
        first = 0 if restarted else as_number(request.query_params.get("have", "0")) or 0
        restarted = restarted or first > len(self.order)
        new = self.order[0 if restarted else first :]
        entries = [self.files[method].entries[number] for method, number in new]
        signals = sorted(set().union(*(file.signals for file in self.files.values())))
        return {"entries": entries, "restarted": restarted, "stamp": self._stamp(), "signals": signals}

    def sample(self, request: Request) -> Response:
        """Return one sample by its key."""
        method, _, place = request.query_params.get("key", "").rpartition("/")
        number = as_number(place)
        with self._reading:
            file = self.files.get(method)
            if file is None or number is None or number >= len(file.entries):
                return json_response({"error": "there is no such sample"}, 404)
            return json_response(file.view(number))

    def search(self, request: Request) -> Response:
        """Return the keys of the samples with these words."""
        words = request.query_params.get("q", "").lower()
        with self._reading:
            keys = [
                file.entries[number]["key"]
                for file in self.files.values()
                for number, text in enumerate(file.texts)
                if words in text
            ]
        return json_response({"keys": keys})

    def comparisons(self, _: Request) -> Response:
        """Return the answers of all policies to held-out prompts."""
        try:
            return json_response({"items": comparison_views(read_runs(self.folders))})
        except UserError as error:
            return json_response({"error": str(error)}, 500)

    def _stamp(self) -> str:
        """Sizes and times of the files that the page shows, without the samples."""
        kinds = ("*.jsonl", "*.json", "config.yaml")
        files = (file for folder in self.folders for kind in kinds for file in sorted(folder.rglob(kind)))
        stats = [file.stat() for file in files if file.is_file() and file.name != "samples.jsonl"]
        return str(hash(tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)))
