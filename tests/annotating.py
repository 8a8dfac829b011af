"""`annotate` as a user types it, before a scripted server: what the tests of annotation share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chat_server import KEY, ChatServer, Reply, Script, completion, responses_file, servers_of
from text2grad.chat import asking, endpoint
from text2grad.cli import main
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl


class Ended(NamedTuple):
    """The exit code of a command, the summary that it printed, and its stderr."""

    code: int
    summary: dict[str, Any]
    err: str

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of requests, and of those that ended ok, refused, invalid and exhausted."""
        counts = tuple(self.summary[name] for name in ("requested", "ok", "refused", "invalid", "exhausted"))
        assert counts[0] == sum(counts[1:]), "requested = ok + refused + invalid + exhausted"
        return counts


class Job:
    """`annotate` in a folder of its own; `paid` asks the server that was started last."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], start: Callable[..., ChatServer]) -> None:
        self.folder, self.out = folder, folder / "feedback.jsonl"
        self.journal = folder / "feedback.jsonl.journal"
        self._capsys, self._start = capsys, start
        self._url: tuple[str, ...] = ()

    def serve(self, answer: Script | Reply) -> ChatServer:
        """Start a server that answers by a script, or always alike."""
        server = self._start(answer if callable(answer) else lambda *_: answer)
        self._url = ("--critic.prompted.base_url", server.url)
        return server

    def annotate(self, *words: str) -> Ended:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["annotate", *words, "--json"])
        printed, err = self._capsys.readouterr()
        assert KEY not in printed + err
        return Ended(int(left.value.code or 0), json.loads(printed.splitlines()[-1]) if printed else {}, err)

    def command(self, responses: Path | Sequence[str]) -> list[str]:
        """The words after `annotate` that have a chat model judge a file, or one response per
        name."""
        file = responses if isinstance(responses, Path) else responses_file(self.folder / "r.jsonl", [*responses])
        judge = ("--critic.kind", "prompted", "--critic.prompted.model", "gpt-4o", *self._url)
        fixed = ("--task.name", "qa", "--critic.prompted.concurrency", "4", "--no-canaries")
        return ["--responses", str(file), "--out", str(self.out), *judge, *fixed]

    def paid(self, responses: Path | Sequence[str], *words: str) -> Ended:
        return self.annotate(*self.command(responses), *words)

    def write_requests(self, responses: Path | Sequence[str]) -> list[dict[str, Any]]:
        """The requests that `--write-requests` writes."""
        place = self.folder / "requests.jsonl"
        assert self.paid(responses, "--write-requests", str(place)).code == 75
        return [json.loads(line) for line in place.read_text().splitlines()]

    def read_answers(self, responses: Path | Sequence[str], *lines: str) -> Ended:
        place = self.folder / "answers.jsonl"
        place.write_text("\n".join(lines))
        return self.paid(responses, "--read-answers", str(place))

    def records(self) -> dict[str, Feedback]:
        """The records that were written, by the first word of their response."""
        records = list(read_jsonl(self.out, Feedback))
        assert len({record.id for record in records}) == len(records)
        return {record.response.split()[0]: record for record in records}


@contextmanager
def job_in(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job with a planted key and few retries, whose servers are closed at the end."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(asking, "RETRIES", 3)
    monkeypatch.setattr(endpoint, "TIMEOUT", 10.0)  # a busy machine lets the scripted server wait
    for name in ("OPENAI_BASE_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with servers_of(ChatServer) as start:
        yield Job(folder, capsys, start)


def batch_line(id: str, text: str, status: int = 200, **more: Any) -> str:
    """The answer of a batch to one request; `more` changes its body."""
    body = {**completion(text), **more}
    return json.dumps({"custom_id": id, "response": {"status_code": status, "body": body}}, ensure_ascii=False)


def decoded(text: str) -> str:
    """A text with its escapes decoded, and decoded once more, beside it."""
    once = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text.replace("\\\\", "\\"))
    return text + once + once.replace("\\", "")
