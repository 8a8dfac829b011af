"""The page of a run while one looks at it: rendered anew when its files change, samples as one asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from json import JSONDecodeError
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from text2grad.errors import UserError
from text2grad.feedback import Record, first_error, from_json, to_json
from text2grad.report.folder import Sample
from text2grad.report.samples import SIGNALS, entry_of, sample_view
from text2grad.report.together import read_together, sample_folders
from text2grad.report.viewer import comparisons_of, page
from text2grad.report.visible import all_visible, visible


@dataclass
class SampleFile:
    """The samples of one method, of which only what the list shows is held; the file is read on as it grows.

    `places` are the first and last byte of each line. Half a line at the end is read when it is whole. Where
    the line read last is no longer in its place, the file is another one.
    """

    path: Path
    method: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    read: int = 0
    last: bytes = b""
    signals: set[str] = field(default_factory=set)

    def read_on(self) -> bool:
        """Take the lines that were written since; whether the file is another one now, read from its start.

        Raises:
            UserError: a line is damaged.
        """
        with self.path.open("rb") if self.path.is_file() else BytesIO() as file:
            file.seek(self.read - len(self.last))
            restarted = file.read(len(self.last)) != self.last
            if restarted:
                self.entries, self.texts, self.places, self.read, self.last = [], [], [], 0, b""
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._take(line)
        return restarted

    def _take(self, line: bytes) -> None:
        sample = self._parsed(line, len(self.entries) + 1) if line.strip() else None
        start, self.read, self.last = self.read, self.read + len(line), line
        if sample is None:
            return
        self.entries.append(all_visible(entry_of(sample, self.method, len(self.entries))))
        words = (sample.id, *(turn.content for turn in sample.prompt), sample.response, sample.critique)
        self.texts.append("\n".join(words).lower())
        self.places.append((start, self.read))
        self.signals |= {name for name in SIGNALS if getattr(sample, name)}

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


class Question(Record):
    """A prompt of one's own, for a policy by its name, and whether the run's critic judges the answers."""

    prompt: str = Field(max_length=100_000, pattern=r"\S")
    policy: str
    critique: bool = False


class Asker(Protocol):
    """Has policies answer a prompt of one's own."""

    @property
    def policies(self) -> Sequence[str]:
        """The names of those that can be asked now."""

    def ask(self, prompt: str, policy: str, critique: bool) -> list[dict[str, Any]]:
        """The answers of the policy that this one started from, and of itself.

        Each is a `report.folder.Sample` as data, with the name of the policy for an `id`.

        Raises:
            UserError: there is no such policy, or it cannot answer.
        """


class ViewPage:
    """The page over the folder of a run, or of several. `settings` tells how those of a run differ from a preset.

    Raises:
        UserError: no run folder, nothing in it yet, or a damaged file in it.
    """

    def __init__(self, *folders: Path, settings: Callable[[], str] = str, asker: Asker | None = None) -> None:
        self.folders, self.settings, self.asker = folders, settings, asker
        self._reading, self._rendering = Lock(), Lock()
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
                Route("/api/comparisons", self.comparisons),
                Route("/api/try", self.ask, methods=["POST"]),
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
        with self._rendering:
            if (stamp := self._stamp()) != self._rendered[0]:
                run = read_together(self.folders, with_samples=False)
                policies = self.asker.policies if self.asker else ()
                self._rendered = (stamp, page(run, live=True, settings=self.settings(), policies=policies))
            return self._rendered[1]

    def read_on(self) -> bool:
        """Take the samples that were written since; whether what was there before is gone."""
        restarted = False
        for name, folder in sample_folders(self.folders):
            found = self.files.setdefault(name, SampleFile(folder / "samples.jsonl", name))
            restarted = found.read_on() or restarted
        if restarted:
            self.order = []
        self.order += self._not_yet_listed()
        return restarted

    def _not_yet_listed(self) -> Iterator[tuple[str, int]]:
        listed = dict.fromkeys(self.files, 0)
        for method, _ in self.order:
            listed[method] += 1
        for name, file in self.files.items():
            yield from ((name, number) for number in range(listed[name], len(file.entries)))

    def entries(self, request: Request) -> Response:
        """The entries behind the first `have`, all if the run began anew; `stamp` changes with the other files."""
        try:
            with self._reading:
                return _json(self._entries(request, self.read_on()))
        except UserError as error:
            return _json({"error": str(error)}, 500)

    def _entries(self, request: Request, restarted: bool) -> dict[str, Any]:
        have = request.query_params.get("have", "0")
        known = int(have) if have.isdecimal() and not restarted else 0
        restarted = restarted or known > len(self.order)
        new = self.order[0 if restarted else known :]
        entries = [self.files[method].entries[number] for method, number in new]
        signals = sorted(set().union(*(file.signals for file in self.files.values())))
        return {"entries": entries, "restarted": restarted, "stamp": self._stamp(), "signals": signals}

    def sample(self, request: Request) -> Response:
        """One sample, by its key."""
        method, _, number = request.query_params.get("key", "").rpartition("/")
        with self._reading:
            file = self.files.get(method)
            if file is None or not number.isdecimal() or int(number) >= len(file.entries):
                return _json({"error": "there is no such sample"}, 404)
            return _json(file.view(int(number)))

    def search(self, request: Request) -> Response:
        """The keys of the samples with these words."""
        words = request.query_params.get("q", "").lower()
        with self._reading:
            keys = [
                file.entries[number]["key"]
                for file in self.files.values()
                for number, text in enumerate(file.texts)
                if words in text
            ]
        return _json({"keys": keys})

    def comparisons(self, _: Request) -> Response:
        """The answers of all policies to held-out prompts."""
        try:
            return _json({"items": comparisons_of(read_together(self.folders, with_samples=False))})
        except UserError as error:
            return _json({"error": str(error)}, 500)

    async def ask(self, request: Request) -> Response:
        """The answers of a policy, and of the one it started from, to a prompt of one's own."""
        return await run_in_threadpool(self._ask, await request.body())

    def _ask(self, body: bytes) -> Response:
        try:
            question = Question.model_validate(from_json(body.decode("utf-8")))
            if self.asker is None:
                raise UserError("there is no policy in this run yet", "text2grad train makes one")
            answers = self.asker.ask(question.prompt, question.policy, question.critique)
        except UserError as error:
            return _json({"error": visible(str(error))}, 400)
        except ValidationError as error:
            return _json({"error": first_error(error)}, 422)
        except ValueError as error:
            return _json({"error": str(error)}, 422)
        views = [sample_view(Sample.model_validate(answer, strict=False), "") for answer in answers]
        return _json({"answers": all_visible(views)})

    def _stamp(self) -> str:
        """Sizes and times of the files that the rest of the page is made of."""
        kinds = ("*.jsonl", "*.json", "config.yaml")
        files = (file for folder in self.folders for kind in kinds for file in sorted(folder.rglob(kind)))
        stats = [file.stat() for file in files if file.is_file() and file.name != "samples.jsonl"]
        return str(hash(tuple((each.st_size, each.st_mtime_ns) for each in stats)))


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
