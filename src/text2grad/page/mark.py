"""The annotation page: the list of answers, each with its judgements, and acts on them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from text2grad.data.files import read_located_rows
from text2grad.data.spreadsheets.tables import is_table
from text2grad.errors import UserError, exhausted_machine_as_user_error, first_error
from text2grad.feedback import Feedback, human_feedback_on, turns_of
from text2grad.json_text import from_json
from text2grad.page.answers import Item, propose_columns, read_answers
from text2grad.page.marking import Act, Conflict, Notebook
from text2grad.page.render import render_page
from text2grad.page.server import json_response, page_response
from text2grad.page.words import prompt_title

SCRIPTS = ("text.mjs", "opinion.mjs", "dom.mjs", "mark.mjs")
VERSIONS = 50
"""Versions of an opinion that the page can go back to."""


class MarkPage:
    """The annotation page for the answers of a file or a run.

    `annotator` is the name on a new page. `out` gets the marks; the default is next to the source.

    Raises:
        UserError: the source has no answers, or `out` cannot be written.
    """

    def __init__(
        self, source: Path, out: Path | None = None, annotator: str = "", suggest_first: bool = False
    ) -> None:
        default = source / "marked.jsonl" if source.is_dir() else source.with_suffix(".marked.jsonl")
        self.source, self.notebook = source, Notebook(read_answers(source), out or default)
        self.annotator, self.suggest_first = annotator, suggest_first

    def app(self) -> Starlette:
        """Return the application without its guard."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/api/items", self.items),
                Route("/api/items/{key}", self.item),
                Route("/api/acts", self.act, methods=["POST"]),
            ]
        )

    def page(self, _: Request) -> Response:
        """Return the page, which asks for the answers."""
        settings = {"annotator": self.annotator, "suggestFirst": self.suggest_first, "file": str(self.notebook.out)}
        values = {"title": self.source.resolve().name, "settings": settings, "commands": self.next_commands()}
        return page_response(render_page("mark.html.j2", SCRIPTS, live=True, **values))

    def items(self, _: Request) -> Response:
        """Return the list: the prompt and first words of each answer, and its annotators."""
        notebook = self.notebook
        with notebook.lock:
            entries = [
                {
                    "key": key,
                    "title": prompt_title(item.example.prompt, item.example.id),
                    "words": " ".join(item.response[:200].split())[:90],
                    "marked": list(notebook.opinions_on(key)),
                    "suggested": item.suggestion is not None,
                }
                for key, item in notebook.items.items()
            ]
            return json_response({"items": entries})

    def item(self, request: Request) -> Response:
        """Return one answer with its suggestion, and all versions of this annotator's opinion."""
        key, annotator = request.path_params["key"], request.query_params.get("annotator", "")
        item = self.notebook.items.get(key)
        if item is None:
            return json_response({"error": "there is no such answer"}, 404)
        return json_response(
            {
                "title": prompt_title(item.example.prompt, item.example.id),
                "messages": _messages(item),
                "response": item.response,
                "reference": item.example.reference,
                "suggestion": _suggestion(item.suggestion) if item.suggestion else None,
                "comments": _comments(item),
                **self._state(key, annotator),
            }
        )

    def _state(self, key: str, annotator: str) -> dict[str, Any]:
        with self.notebook.lock:
            history = self.notebook.history(key, annotator)
            version = self.notebook.version(key, annotator)
        return {"version": version, "history": [opinion.model_dump(mode="json") for opinion in history[-VERSIONS:]]}

    async def act(self, request: Request) -> Response:
        """Record an act; 409 has the newer version of the opinion, 507: it could not be written."""
        return await run_in_threadpool(self._act, await request.body())

    def _act(self, body: bytes) -> Response:
        with self.notebook.lock:
            try:
                act = Act.model_validate(from_json(body.decode("utf-8")))
                with exhausted_machine_as_user_error():
                    version = self.notebook.record(act)
            except Conflict:
                return json_response(self._state(act.item, act.annotator), 409)
            except KeyError:
                return json_response({"error": "there is no such answer"}, 404)
            except UserError as error:
                return json_response({"error": str(error)}, 507)
            except ValueError as error:
                return json_response({"error": first_error(error)}, 422)
            return json_response({"version": version, "marked": list(self.notebook.opinions_on(act.item))})

    def next_commands(self) -> list[tuple[str, str]]:
        """Return the next steps after marking, as titles and commands.

        Feedback of people that the source already had is trained on together with the marks.
        """
        folder = self.source if self.source.is_dir() else self.source.parent
        marks_file, joined = self.notebook.out, self.source.with_suffix(".all.jsonl")
        imports: list[str] = []
        if any(item.people for item in self.notebook.items.values()) and self.source.is_file():
            files = ([str(self.source), *self._import_options()], [str(marks_file)])
            commands = [["text2grad", "import", *words, "--out", str(joined)] for words in files]
            imports, marks_file = [*map(shlex.join, commands)], joined
        if not (folder / "config.yaml").is_file():
            return [("train on it", " && ".join([*imports, shlex.join(["text2grad", "improve", str(marks_file)])]))]
        run = ["--config", str(folder / "config.yaml")]
        new = str(folder / "answers.jsonl")
        sample = ["sample", "--prompts", "PROMPTS", *run, "--with", "offline", "--out", new]
        train = shlex.join(["text2grad", "train", "--offline", str(marks_file), *run])
        return [
            ("train on it", " && ".join([*imports, train])),
            ("sample new answers", shlex.join(["text2grad", *sample])),
            ("mark those", shlex.join(["text2grad", "mark", new])),
        ]

    def _import_options(self) -> list[str]:
        """Return the options of `import` that read the source as this page does."""
        rows = list(read_located_rows(self.source)) if is_table(self.source) else []
        if not rows or (proposal := propose_columns(self.source, rows)) is None:
            return []
        scale = ["--scale", proposal.scale] if proposal.scale else []
        return ["--map", ",".join(proposal.mapping), *scale, "--skip"]


def _messages(item: Item) -> list[dict[str, Any]]:
    """Return the conversation: the prompt, the policy's turns as offsets, messages of others."""
    messages: list[dict[str, Any]] = [message.model_dump() for message in item.example.prompt]
    for turn in turns_of(item.response):
        messages += [message.model_dump() for message in turn.messages]
        messages.append({"role": "assistant", "start": turn.start, "end": turn.end})
    return [*messages, *(message.model_dump() for message in getattr(item.response, "after", ()))]


def _comments(item: Item) -> list[dict[str, Any]]:
    """Return the comments of people in the file on an answer."""
    unnamed = human_feedback_on(item.example, item.response).strip()
    comments: list[dict[str, Any]] = [
        {"who": who, "critique": record.critique, "score": record.score}
        for who, record in item.people.items()
        if record.critique.strip()
    ]
    return [*comments, *([{"who": "", "critique": unnamed, "score": None}] if unnamed else [])]


def _suggestion(record: Feedback) -> dict[str, Any]:
    return {
        "source": " ".join(filter(None, (record.source.kind.replace("_", " "), record.source.model))),
        "critique": record.critique,
        "score": record.score,
        "spans": [span.model_dump() for span in record.spans],
        "lost": list(record.meta.get("lost", ())),
        "omissions": list(record.meta.get("omissions", ())),
    }
