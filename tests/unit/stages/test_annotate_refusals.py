"""`annotate` at servers that refuse: what a model does not take is left out once, and no failing job goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_server import (
    GOOD,
    KEY,
    ChatServer,
    Reply,
    Script,
    error,
    ok,
    responses_file,
    said,
    servers_of,
)
from text2grad.chat import asking
from text2grad.cli import main
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages import paid

Annotate = Callable[..., tuple[int, dict[str, Any], str]]
NAMES = [f"n{n}" for n in range(12)]
Z = json.loads(GOOD)


@pytest.fixture
def judge() -> Iterator[Callable[[Script], ChatServer]]:
    with servers_of(ChatServer) as start:
        yield start


@pytest.fixture
def annotate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Annotate:
    """`annotate(server, names, ...)`: exit code, summary, stderr; the records go to `tmp_path/feedback.jsonl`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(asking, "RETRIES", 2)

    def call(server: ChatServer, names: list[str], *words: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        file, out = responses_file(tmp_path / "r.jsonl", names), str(tmp_path / "feedback.jsonl")
        fixed = ["--responses", str(file), "--out", out, "--task.name", "qa", "--critic.kind", "prompted"]
        asked = ["--critic.prompted.base_url", server.url, "--critic.prompted.model", "gpt-4o"]
        calm = ["--critic.prompted.concurrency", "4", "--no-canaries", "--json"]
        with pytest.raises(SystemExit) as left:
            main(["annotate", *fixed, *asked, *calm, *words])
        printed, err = capsys.readouterr()
        assert KEY not in printed + err
        return int(left.value.code or 0), json.loads(printed.splitlines()[-1]) if printed else {}, err

    return call


def records(tmp_path: Path) -> list[Feedback]:
    return list(read_jsonl(tmp_path / "feedback.jsonl", Feedback))


def unless(taken: Callable[[dict[str, Any]], bool], refusal: Reply) -> Script:
    """A server that answers requests that are `taken`, and refuses others."""
    return lambda name, turn, body: said(GOOD) if taken(body) else refusal


def only_new(body: dict[str, Any]) -> bool:
    return "max_tokens" not in body and body.get("max_completion_tokens") == 1024


def only_1(body: dict[str, Any]) -> bool:
    return body.get("temperature", 1) == 1


NOT_MAX = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
NOT_HEAT = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
)
RAW = json.dumps({"error": {"message": NOT_MAX, "param": "max_tokens"}})
EXTRA = json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", "max_tokens"], "msg": "Extra inputs"}]})
REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], bool], Reply]] = {
    "max_tokens": (only_new, error(400, "unsupported_parameter", NOT_MAX)),
    "openrouter": (only_new, error(400, "400", f"Provider returned error: {RAW}")),
    "in an answer": (only_new, ok({"error": {"message": NOT_MAX, "code": 400}})),
    "422": (only_new, (422, {}, EXTRA.encode())),
    "404": (only_new, error(404, "unsupported_parameter", NOT_MAX)),
    "temperature": (only_1, error(400, "unsupported_value", NOT_HEAT)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_model_does_not_take_is_left_out_once_for_the_whole_job(
    judge: Any, annotate: Annotate, tmp_path: Path, name: str
) -> None:
    server = judge(unless(*REFUSALS[name]))
    code, summary, err = annotate(server, NAMES)
    assert (code, summary["ok"], len(server.bodies)) == (0, 12, 13)
    assert len(err.splitlines()) == 1 and "takes" in err and server.url in err
    code, summary, err = annotate(server, [*NAMES, "more"])
    assert (code, summary["ok"], len(server.bodies), err) == (0, 13, 14, ""), "the journal remembers it"
    sampled = name == "temperature"
    assert {record.meta.get("asked_without") == ["temperature"] for record in records(tmp_path)} == {sampled}


def test_a_refusal_is_met_once_for_each_journal_and_said_once(
    judge: Any, annotate: Annotate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canaries and records have a journal each, which knows the form from then on."""

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        if not only_new(body):
            return error(400, "unsupported_parameter", NOT_MAX)
        return said(json.dumps({**Z, "good_spans": []}))

    monkeypatch.setattr(paid, "MOST_MOVED", 1.0)
    server = judge(answer)
    code, summary, err = annotate(server, NAMES, "--canaries")
    assert code == 0 and summary["ok"] == 12 and err.count("takes no max_tokens") == 1
    assert sum("max_tokens" in body for body in server.bodies) == 2
    annotate(server, [*NAMES, "more"], "--canaries")
    assert sum("max_tokens" in body for body in server.bodies) == 2


def test_a_model_that_takes_neither_is_asked_with_neither(judge: Any, annotate: Annotate) -> None:
    """One refusal after the other, and the form of the answer on top; a fresh sample cannot be asked for."""

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        if not only_new(body):
            return error(400, "unsupported_parameter", NOT_MAX)
        if not only_1(body):
            return error(400, "unsupported_value", NOT_HEAT)
        if body.get("response_format", {}).get("type") == "json_schema":
            return error(400, "", "This response_format type is unavailable now")
        return said("" if name == "n3" and "again" not in server.turns else GOOD)

    server = judge(answer)
    code, summary, err = annotate(server, NAMES)
    assert (code, summary["ok"], summary["invalid"], summary["left_out"]) == (
        3,
        11,
        1,
        ["json_schema", "max_tokens", "temperature"],
    )
    assert len(server.bodies) == 3 + 12 + 1 and len(err.splitlines()) == 3
    assert all("temperature" not in body for body in server.bodies[3:])


def test_a_form_that_was_found_is_left_again_where_the_server_is_another(judge: Any, annotate: Annotate) -> None:
    new = [True]

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        if new[0] == only_new(body):
            return said(GOOD)
        return error(400, "", NOT_MAX if new[0] else "property 'max_completion_tokens' is unsupported")

    server = judge(answer)
    assert annotate(server, NAMES[:4])[0] == 0
    new[0] = False
    code, summary, err = annotate(server, NAMES)
    assert (code, summary["ok"]) == (0, 12) and len(server.bodies) <= 5 + 8 + 4, "of each that was open once"
    assert "takes no max_completion_tokens" in err


def test_what_was_never_sent_cannot_be_left_out(judge: Any, annotate: Annotate) -> None:
    server = judge(lambda *_: error(400, "", NOT_HEAT))
    code, _, err = annotate(server, NAMES, "--critic.prompted.temperature", "null")
    assert code == 1 and "takes no temperature" not in err and NOT_HEAT[:20] in err and len(server.bodies) <= 3


def test_a_limit_by_no_name_at_all_is_never_left_out(judge: Any, annotate: Annotate) -> None:
    """Without one an answer has no bound to its price."""
    refused = "Unsupported parameter: {}"

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        return error(400, "", refused.format("max_tokens" if "max_tokens" in body else "max_completion_tokens"))

    server = judge(answer)
    code, _, err = annotate(server, NAMES)
    assert code == 1 and refused.format("max_tokens") in err and len(server.bodies) <= 6
    assert all({"max_tokens", "max_completion_tokens"} & body.keys() for body in server.bodies)


EVERY_REQUEST: dict[str, tuple[Reply, str, int]] = {
    # what the server says to all, what is shown of it, and how often it may be asked
    "an odd request": (error(400, "", "Bad request: the moon is full"), "Bad request: the moon is full", 3),
    "unprocessable": (error(422, "", "field foo is missing"), "field foo is missing", 3),
    "a value": (error(400, "", "max_tokens is too large: 1024. At most 512."), "too large: 1024", 3),
    "a path": (error(404, "", "Not Found: /chat"), "Not Found: /chat", 1),
    "a model": (error(400, "", "Invalid model: gpt-4o"), "Invalid model: gpt-4o", 1),
    "a key": (error(400, "", "API key not valid."), "API key not valid.", 1),
    "no credit": (error(402, "", "You can only afford 12 tokens"), "You can only afford 12 tokens", 1),
    "a bare text": (error(403, "", "Country not supported"), "Country not supported", 1),
    "an error as an answer": (
        ok({"error": {"message": "No endpoints found", "code": 404}}),
        "No endpoints found",
        1,
    ),
    "an odd error as an answer": (ok({"error": "the moon is full"}), "the moon is full", 3),
    "a provider is down": (ok({"error": {"message": "Provider is down", "code": 502}}), "Provider is down", 6),
    "busy": (ok({"error": {"message": "Slow down", "code": 429}}), "Slow down", 6),
}


@pytest.mark.parametrize("name", EVERY_REQUEST)
def test_what_every_request_would_get_stops_at_once_in_the_words_of_the_server(
    judge: Any, annotate: Annotate, tmp_path: Path, name: str
) -> None:
    reply, words, most = EVERY_REQUEST[name]
    server = judge(lambda *_: reply)
    code, _, err = annotate(server, NAMES)
    assert code == 1 and words in err and len(err.splitlines()) == 1 and err.rstrip().endswith(")")
    assert len(server.bodies) <= most
    right = judge(lambda *_: said(GOOD))
    code, summary, _ = annotate(right, NAMES)
    assert (code, summary["ok"]) == (0, 12), "no question was settled by it"


@pytest.mark.parametrize("name", ["an odd request", "unprocessable", "a model", "a path"])
def test_a_server_that_begins_to_refuse_everything_settles_nothing(
    judge: Any, annotate: Annotate, tmp_path: Path, name: str
) -> None:
    reply, words, _ = EVERY_REQUEST[name]
    up = [True]
    server = judge(lambda *_: said(GOOD) if up[0] else reply)
    assert annotate(server, NAMES[:3])[0] == 0
    up[0] = False
    code, _, err = annotate(server, NAMES)
    assert (code, len(server.bodies), len(records(tmp_path))) == (1, 4, 3) and words in err
    up[0] = True
    assert annotate(server, NAMES)[1]["ok"] == 12


def test_what_is_wrong_with_one_request_ends_that_one_alone(judge: Any, annotate: Annotate, tmp_path: Path) -> None:
    long = error(400, "", "This model's maximum context length is 2048 tokens. Please reduce the length")
    flagged = error(403, "", "Your chosen model requires moderation and your input was flagged")
    odd = error(400, "", "a control character at 7")
    answers = {"n0": long, "n1": flagged, "n5": odd}
    server = judge(lambda name, *_: answers.get(name, said(GOOD)))
    code, summary, _ = annotate(server, NAMES)
    assert (code, summary["ok"], summary["refused"], summary["invalid"]) == (3, 9, 1, 2)
    errors = {record.response.split()[0]: record.error for record in records(tmp_path) if record.error}
    assert {name: error.kind for name, error in errors.items()} == {
        "n0": "unsupported",
        "n1": "refused",
        "n5": "unsupported",
    }
    assert "a control character at 7" in errors["n5"].message and "flagged" in errors["n1"].message
    answers.pop("n5")
    server.turns.clear()
    assert annotate(server, NAMES)[1]["ok"] == 9 and not server.turns, "what was refused is not asked again"
    assert annotate(server, NAMES, "--again")[1]["ok"] == 10 and set(server.turns) == {"n0", "n1", "n5"}


@pytest.mark.parametrize(
    ("reply", "words", "cure"),
    [
        (said("I think it is quite good."), "I think it is quite good.", "another model or prompt"),
        (said(""), "''", "another model or prompt"),
        (said(GOOD[:40], "length"), "cut at 1024 tokens", "raise critic.prompted.max_tokens"),
        (said(None, refusal="I would rather not"), "I would rather not", "another model"),
        (error(400, "content_filter", "filtered"), "filtered", "another model"),
    ],
)
def test_a_job_whose_answers_all_fail_ends_and_keeps_what_was_paid(
    judge: Any, annotate: Annotate, tmp_path: Path, reply: Reply, words: str, cure: str
) -> None:
    names = [f"n{n:02}" for n in range(100)]
    server = judge(lambda name, *_: said(GOOD) if name == "n00" else reply)
    code, _, err = annotate(server, names)
    assert code == 1 and len(err.splitlines()) == 1 and words in err and cure in err
    good = 1  # asked alone, before the others: a later one would start the count of failures again
    assert len(server.bodies) <= good + 2 * (20 + 8), "twenty failures, and what was open then"
    kept = records(tmp_path)
    assert sum(record.error is None for record in kept) == good and 20 <= len(kept) - good <= 28
    assert len(server.bodies) <= good + 2 * (20 + 8)
    while (code := annotate(server, names)[0]) == 1:
        pass
    assert code == 3 and len(records(tmp_path)) == 100, "run again, it asks the next"


def test_a_batch_that_a_model_does_not_take_is_written_again_as_it_does(
    judge: Any, annotate: Annotate, tmp_path: Path
) -> None:
    server, requests, answers = judge(unless(only_new, error(400))), tmp_path / "q.jsonl", tmp_path / "a.jsonl"
    annotate(server, NAMES, "--write-requests", str(requests))
    asked = [json.loads(line) for line in requests.read_text().splitlines()]
    body = {"error": {"message": NOT_MAX, "param": "max_tokens", "code": "unsupported_parameter"}}
    rows = [{"custom_id": row["custom_id"], "response": {"status_code": 400, "body": body}} for row in asked]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, summary, err = annotate(server, NAMES, "--read-answers", str(answers))
    assert (code, summary["exhausted"]) == (3, 12) and "takes no max_tokens" in err
    annotate(server, NAMES, "--write-requests", str(requests))
    again = [json.loads(line) for line in requests.read_text().splitlines()]
    assert [row["custom_id"] for row in again] == [row["custom_id"] for row in asked]
    assert all(only_new(row["body"]) for row in again)


def test_the_batch_service_is_heard_too(judge: Any, annotate: Annotate, monkeypatch: pytest.MonkeyPatch) -> None:
    server = judge(lambda *_: said(GOOD))
    refusal = error(400, "invalid_model", f"gpt-4o takes no batches, {KEY}")
    monkeypatch.setattr(server, "service", lambda path, data: refusal)
    code, _, err = annotate(server, NAMES, "--batch")
    assert code == 1 and "gpt-4o takes no batches, [key]" in err
