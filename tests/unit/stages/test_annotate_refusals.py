"""`annotate` at servers that refuse: what a model does not take is left out once, and no failing
job goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from annotating import Job
from chat_server import GOOD, KEY, Reply, Script, error, last_message, ok, said
from text2grad.stages import paid

NAMES = [f"n{n}" for n in range(12)]


def only_new(body: dict[str, Any]) -> bool:
    return "max_tokens" not in body and body.get("max_completion_tokens") == 1024


def only_1(body: dict[str, Any]) -> bool:
    return body.get("temperature", 1) == 1


def only(*kinds: str | None) -> Callable[[dict[str, Any]], bool]:
    return lambda body: body.get("response_format", {}).get("type") in kinds


def unless(taken: Callable[[dict[str, Any]], bool], refusal: Reply) -> Script:
    """A server that answers requests that are `taken`, and refuses others."""
    return lambda name, turn, body: said(GOOD) if taken(body) else refusal


NOT_MAX = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
NOT_HEAT = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
)
NO_FORMAT = error(400, "", "This response_format type is unavailable now")
RAW = json.dumps({"error": {"message": NOT_MAX, "param": "max_tokens"}})
EXTRA = json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", "max_tokens"], "msg": "Extra inputs"}]})
LEFT_OUT: dict[str, tuple[Callable[[dict[str, Any]], bool], Reply, list[str]]] = {
    # what the server takes, its refusal of all else, and what is left out
    "max_tokens": (only_new, error(400, "unsupported_parameter", NOT_MAX), ["max_tokens"]),
    "openrouter": (only_new, error(400, "400", f"Provider returned error: {RAW}"), ["max_tokens"]),
    "in an answer": (only_new, ok({"error": {"message": NOT_MAX, "code": 400}}), ["max_tokens"]),
    "422": (only_new, (422, {}, EXTRA.encode()), ["max_tokens"]),
    "404": (only_new, error(404, "unsupported_parameter", NOT_MAX), ["max_tokens"]),
    "temperature": (only_1, error(400, "unsupported_value", NOT_HEAT), ["temperature"]),
    "json schemas": (only("json_object", None), NO_FORMAT, ["json_schema"]),
    "json": (only(None), NO_FORMAT, ["json_object", "json_schema"]),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_model_does_not_take_is_left_out_once_for_all_questions(job: Job, name: str) -> None:
    *refused, left_out = LEFT_OUT[name]
    server, extra = job.serve(unless(*refused)), len(left_out)
    code, summary, err = job.paid(NAMES)
    assert (code, summary["ok"], summary["left_out"], len(server.bodies)) == (0, 12, left_out, 12 + extra)
    assert len(err.splitlines()) == extra and server.url in err
    code, summary, err = job.paid([*NAMES, "more"])
    assert (code, summary["ok"], len(server.bodies), err) == (0, 13, 13 + extra, ""), "the journal remembers it"
    without = {record.meta.get("asked_without") == ["temperature"] for record in job.records().values()}
    assert without == {name == "temperature"}, "that the answers were sampled"


def test_a_refusal_is_met_once_for_each_journal_and_said_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries and records have a journal each, which knows the form from then on."""
    praise = said(GOOD.replace('["answer"]', "[]"))
    refusal = error(400, "unsupported_parameter", NOT_MAX)
    monkeypatch.setattr(paid, "MOST_MOVED", 1.0)
    server = job.serve(lambda name, turn, body: praise if only_new(body) else refusal)
    code, summary, err = job.paid(NAMES, "--canaries")
    assert code == 0 and summary["ok"] == 12 and err.count("max_tokens") == 1
    job.paid([*NAMES, "more"], "--canaries")
    assert sum("max_tokens" in body for body in server.bodies) == 2


def test_a_model_that_takes_neither_is_asked_with_neither(job: Job) -> None:
    """One refusal after the other, and the form of the answer on top; a fresh sample cannot be
    asked for."""

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        if not only_new(body):
            return error(400, "unsupported_parameter", NOT_MAX)
        if not only_1(body):
            return error(400, "unsupported_value", NOT_HEAT)
        if not only("json_object", None)(body):
            return NO_FORMAT
        return said("" if name == "n3" else GOOD)

    server = job.serve(answer)
    code, summary, _ = job.paid(NAMES)
    assert (code, summary["ok"], summary["invalid"]) == (3, 11, 1)
    assert summary["left_out"] == ["json_schema", "max_tokens", "temperature"]
    assert len(server.bodies) == 3 + 12 + 1
    assert all("temperature" not in body for body in server.bodies[3:])


def test_a_form_that_was_taken_is_left_again_where_the_server_is_another(job: Job) -> None:
    new = [True]

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        if new[0] == only_new(body):
            return said(GOOD)
        return error(400, "", NOT_MAX if new[0] else "property 'max_completion_tokens' is unsupported")

    server = job.serve(answer)
    assert job.paid(NAMES[:4]).code == 0
    new[0] = False
    code, summary, err = job.paid(NAMES)
    assert (code, summary["ok"]) == (0, 12) and len(server.bodies) <= 5 + 8 + 4, "of each that was open once"
    assert "max_completion_tokens" in err


def test_what_was_never_sent_cannot_be_left_out(job: Job) -> None:
    server = job.serve(error(400, "", NOT_HEAT))
    code, _, err = job.paid(NAMES, "--critic.prompted.temperature", "null")
    assert code == 1 and NOT_HEAT[:20] in err and len(server.bodies) <= 3


def test_a_limit_by_no_name_at_all_is_never_left_out(job: Job) -> None:
    """Without one an answer has no bound to its price."""
    names = {"max_tokens", "max_completion_tokens"}

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        return error(400, "", f"Unsupported parameter: {next(iter(names & body.keys()))}")

    server = job.serve(answer)
    assert job.paid(NAMES).code == 1
    assert len(server.bodies) <= 6 and all(names & body.keys() for body in server.bodies)


AWAY = f"https://example.org/{KEY}/v2/chat/completions?key={KEY}"
EVERY_REQUEST: dict[str, tuple[Reply, str, int]] = {
    # the server's reply to all, what is shown of it, and how often it may be asked
    "an odd request": (error(400, "", "Bad request: the moon is full"), "Bad request: the moon is full", 3),
    "unprocessable": (error(422, "", "field foo is missing"), "field foo is missing", 3),
    "a value": (error(400, "", "max_tokens is too large: 1024. At most 512."), "too large: 1024", 3),
    "a path": (error(404, "", "Not Found: /chat"), "Not Found: /chat", 1),
    "a model": (error(400, "", "Invalid model: gpt-4o"), "Invalid model: gpt-4o", 1),
    "no such model": (error(404, "model_not_found"), "no such model", 1),
    "a key": (error(400, "", "API key not valid."), "API key not valid.", 1),
    "a wrong key": (error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "refused the key", 1),
    "no quota": (error(429, "insufficient_quota", "You exceeded your current quota"), "current quota", 1),
    "no credit": (error(402, "", "You can only afford 12 tokens"), "You can only afford 12 tokens", 1),
    "a bare text": (error(403, "", "Country not supported"), "Country not supported", 1),
    "an error as an answer": (ok({"error": {"message": "No endpoints", "code": 404}}), "No endpoints", 1),
    "an odd error as an answer": (ok({"error": "the moon is full"}), "the moon is full", 3),
    "a provider is down": (ok({"error": {"message": "Provider is down", "code": 502}}), "Provider is down", 8),
    "busy": (ok({"error": {"message": "Slow down", "code": 429}}), "Slow down", 8),
    "a redirection": ((302, {"Location": AWAY}, b""), "https://example.org/[key]/v2)", 1),
}


@pytest.mark.parametrize("name", EVERY_REQUEST)
def test_what_every_request_would_get_stops_at_once_in_the_words_of_the_server(job: Job, name: str) -> None:
    reply, words, most = EVERY_REQUEST[name]
    server = job.serve(reply)
    code, summary, err = job.paid(NAMES)
    assert code == 1 and not summary and words in err and len(err.splitlines()) == 1, err
    assert len(server.bodies) <= most
    job.serve(said(GOOD))
    assert job.paid(NAMES).counts == (12, 12, 0, 0, 0), "no question was settled by it"


def test_every_redirection_stops_and_asks_for_another_address(job: Job) -> None:
    nowhere = ("", "/v2", "http://[::1", "file:///etc", "https://me:pw@host/v1", "\x1b[31mx")
    cases = [(status, AWAY, "https://example.org/[key]/v2)") for status in (300, 301, 303, 307, 308)]
    for status, place, words in [*cases, *((302, place, "set critic.prompted.base_url") for place in nowhere)]:
        server = job.serve((status, {"Location": place}, b""))
        code, _, err = job.paid(["a", "b", "c"])
        assert code == 1 and words in err and len(err.splitlines()) == len(server.bodies) == 1, (status, place)
        assert "\x1b" not in err and "pw" not in err


@pytest.mark.parametrize("name", ["an odd request", "unprocessable", "a model", "a path"])
def test_a_server_that_begins_to_refuse_everything_settles_nothing(job: Job, name: str) -> None:
    reply, words, _ = EVERY_REQUEST[name]
    up = [True]
    server = job.serve(lambda *_: said(GOOD) if up[0] else reply)
    assert job.paid(NAMES[:3]).code == 0
    up[0] = False
    code, _, err = job.paid(NAMES)
    assert (code, len(server.bodies), len(job.records())) == (1, 4, 3) and words in err
    up[0] = True
    assert job.paid(NAMES).summary["ok"] == 12


def test_what_is_wrong_with_one_request_ends_that_one_alone(job: Job) -> None:
    long = error(400, "", "This model's maximum context length is 2048 tokens. Please reduce the length")
    flagged = error(403, "", "Your chosen model requires moderation and your input was flagged")
    odd = error(400, "", "a control character at 7")
    answers = {"n0": long, "n1": flagged, "n5": odd}
    server = job.serve(lambda name, *_: answers.get(name, said(GOOD)))
    ended = job.paid(NAMES)
    assert (ended.code, ended.counts) == (3, (12, 9, 1, 2, 0))
    errors = {name: record.error for name, record in job.records().items() if record.error}
    kinds = {name: error.kind for name, error in errors.items()}
    assert kinds == {"n0": "unsupported", "n1": "refused", "n5": "unsupported"}
    assert "a control character at 7" in errors["n5"].message and "flagged" in errors["n1"].message
    answers.pop("n5")
    server.turns.clear()
    assert job.paid(NAMES).summary["ok"] == 9 and not server.turns, "what was refused is not asked again"
    assert job.paid(NAMES, "--again").summary["ok"] == 10 and set(server.turns) == {"n0", "n1", "n5"}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (said("I think it is quite good."), "I think it is quite good."),
        (said(""), "''"),
        (said(GOOD[:40], "length"), "raise critic.prompted.max_tokens"),
        (said(None, refusal="I would rather not"), "I would rather not"),
        (error(400, "content_filter", "filtered"), "filtered"),
    ],
)
def test_a_job_whose_answers_all_fail_ends_and_keeps_what_was_paid(job: Job, reply: Reply, words: str) -> None:
    names = [f"n{n:02}" for n in range(100)]
    server = job.serve(lambda name, *_: said(GOOD) if name == "n00" else reply)
    code, _, err = job.paid(names)
    assert code == 1 and len(err.splitlines()) == 1 and words in err
    good = 1  # asked alone, before the others: a later one would start the count of failures again
    assert len(server.bodies) <= good + 2 * (20 + 8), "twenty failures, and what was open then"
    records = job.records().values()
    assert sum(record.error is None for record in records) == good and 20 <= len(records) - good <= 28
    while (code := job.paid(names).code) == 1:
        pass
    assert code == 3 and len(job.records()) == 100, "run again, it asks the next"


def test_half_a_surrogate_pair_is_sent_as_a_question_mark(job: Job) -> None:
    server = job.serve(said(GOOD))
    assert job.paid(["half \ud83d a pair: an answer"]).code == 0
    assert "half ? a pair" in last_message(server.bodies[0])
