"""Who may speak to the page's server: the person who has the address, from the page itself, and
nobody else."""

from __future__ import annotations

import errno
import html
import json
import socket
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread

import pytest
import uvicorn

from page_requests import ask
from text2grad.feedback import Feedback, Message, Source
from text2grad.jsonl import read_records, write_records
from text2grad.page.mark import MarkPage
from text2grad.page.server import MOST_BYTES, Address, Guard, listening

ADDRESS = Address(8639, "secret-token")
COOKIE = "text2grad-8639=secret-token"
HOST = "127.0.0.1:8639"
MARK = {"act": "act-00001", "item": "", "annotator": "", "base": 0, "opinion": {"critique": "Bad."}}


@pytest.fixture
def app(tmp_path: Path) -> Guard:
    record = Feedback(
        id="a", prompt=(Message(role="user", content="<script>"),), response="Friday.", source=Source(kind="llm")
    )
    write_records(tmp_path / "a.jsonl", [record])
    return Guard(MarkPage(tmp_path / "a.jsonl").app(), ADDRESS)


IN = {"host": HOST, "cookie": COOKIE}
LINK = "/?token=secret-token"
READS: list[tuple[int, str, dict[str, str]]] = [
    (200, LINK, {"host": HOST}),
    (200, LINK, {"host": HOST, "sec-fetch-site": "cross-site"}),  # a link in a notebook
    (200, "/", IN),
    (200, "/api/items", {**IN, "host": "localhost:8639"}),
    (403, "/", {"host": HOST}),
    (403, "/?token=", {"host": HOST}),
    (403, "/?token=other", {"host": HOST}),
    (403, "/", {"host": HOST, "cookie": "text2grad-8639=other"}),
    (403, "/", {"host": HOST, "cookie": "text2grad-8640=secret-token"}),
    (403, "/", {"host": HOST, "cookie": 'text2grad-8639="; bad='}),
    (403, "/api/items?token=secret-token", {"host": HOST}),  # addresses end up in logs
    (403, LINK, {"host": "evil.example"}),  # DNS rebinding
    (403, LINK, {"host": "127.0.0.1:9999"}),
    (403, LINK, {"host": ""}),
    (403, "/api/items", {**IN, "origin": "http://evil.example"}),
    (403, "/api/items", {**IN, "origin": "null"}),
    (403, "/api/items", {**IN, "origin": "http://127.0.0.1:9999"}),
    (403, "/api/items", {**IN, "sec-fetch-site": "cross-site"}),
    (403, "/api/items", {**IN, "sec-fetch-site": "same-site"}),
    (404, "/etc/passwd", IN),
    (404, "/../a.jsonl", IN),
    (404, "/api/items/../../../etc/passwd", IN),
    (404, "/api/items/%2e%2e%2fa.jsonl", IN),
]


def test_who_may_read(app: Guard) -> None:
    wrong = [case for case in READS if ask(app, case[1], case[2])[0] != case[0]]
    assert wrong == []


CHANGES: list[tuple[dict[str, str | None], int]] = [
    *(({"origin": origin}, 403) for origin in ("http://evil.example", "", None)),
    ({"content-type": "text/plain"}, 403),  # a form of another site can send this
    ({"content-type": "application/x-www-form-urlencoded"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"cookie": ""}, 403),
    ({"host": "evil.example", "origin": "http://evil.example"}, 403),
    ({"content-length": str(MOST_BYTES + 1)}, 413),
    ({"content-length": "9" * 5000}, 413),
    ({"transfer-encoding": "chunked"}, 413),  # of no known length
]
USUAL = {**IN, "origin": f"http://{HOST}", "content-type": "application/json"}


def test_who_may_change(app: Guard, tmp_path: Path) -> None:
    [item] = json.loads(ask(app, "/api/items", IN)[2])["items"]
    body = json.dumps({**MARK, "item": item["key"]}).encode()
    for headers, status in CHANGES:
        given = {name: value for name, value in {**USUAL, **headers}.items() if value is not None}
        assert ask(app, "/api/acts", given, "POST", body)[0] == status, headers
    assert read_records(tmp_path / "a.marked.jsonl") == []
    assert ask(app, "/api/acts", USUAL, "POST", body)[0] == 200
    assert len(read_records(tmp_path / "a.marked.jsonl")) == 1


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_act_that_cannot_be_stored_is_answered_507(
    app: Guard, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    [item] = json.loads(ask(app, "/api/items", USUAL)[2])["items"]
    monkeypatch.setattr("text2grad.page.marking.os.fsync", fail)
    code, _, answer = ask(app, "/api/acts", USUAL, "POST", json.dumps({**MARK, "item": item["key"]}).encode())
    assert code == 507 and json.loads(answer)["error"]


def test_an_act_that_is_none_is_refused_and_two_tabs_get_a_conflict(app: Guard) -> None:
    [item] = json.loads(ask(app, "/api/items", USUAL)[2])["items"]
    changes = [({"more": 1}, 422), ({"opinion": {"score": 2}}, 422), ({"item": "unknown"}, 404)]
    cases = [(body, 422) for body in (b"{", b"[]", b"\xff", b"[" * 2000)]
    cases += [(json.dumps({**MARK, **change}).encode(), code) for change, code in changes]
    for act, status in (("act-00001", 200), ("act-00002", 409)):
        cases.append((json.dumps({**MARK, "act": act, "item": item["key"]}).encode(), status))
    for body, status in cases:
        code, _, answer = ask(app, "/api/acts", USUAL, "POST", body)
        assert code == status and (status in (200, 409) or json.loads(answer)["error"]), body
    assert json.loads(answer)["version"] == 1
    assert [each["critique"] for each in json.loads(answer)["history"]] == ["", "Bad."]


def test_the_page_loads_nothing_and_its_token_is_kept_out_of_sight(app: Guard) -> None:
    status, headers, body = ask(app, "/?token=secret-token", {"host": HOST})
    page = body.decode()
    assert status == 200 and "secret-token" not in page
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#39;none&#39;") and "unsafe" not in policy
    assert headers["content-security-policy"] == f"{html.unescape(policy)}; frame-ancestors 'none'"
    assert ask(app, "/api/items", IN)[1]["content-security-policy"].startswith("default-src 'none'")
    assert not any(word in page for word in ("http://", "https://", "@import", "url("))
    assert headers["set-cookie"] == f"{COOKIE}; Path=/; HttpOnly; SameSite=Strict"
    assert headers["x-frame-options"] == "DENY" and headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store" and "access-control-allow-origin" not in headers


def test_the_next_port_is_taken_where_one_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listening(port) as found:
            host, number = found.getsockname()
    assert host == "127.0.0.1" and number > port
    assert capsys.readouterr().err == f"port {port} is in use, using {number}\n"


def test_a_slow_act_does_not_hold_up_others(app: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [item] = json.loads(ask(app, "/api/items", IN)[2])["items"]
    written, go_on = Event(), Event()

    def slow(*_: object) -> None:
        written.set()
        assert go_on.wait(30)

    monkeypatch.setattr("text2grad.page.marking.os.fsync", slow)
    with listening(None) as listener:
        port = listener.getsockname()[1]
        guarded = Guard(app.app, Address(port, "secret-token"))
        server = uvicorn.Server(uvicorn.Config(guarded, log_config=None, lifespan="off", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        headers = {"Cookie": f"text2grad-{port}=secret-token", "Content-Type": "application/json"}
        headers["Origin"] = f"http://127.0.0.1:{port}"
        half, first, other = (HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(3))
        half.connect()
        half.sock.sendall(b"GET / HTTP/1.1\r\nHost: ")  # never ends
        first.request("POST", "/api/acts", json.dumps({**MARK, "item": item["key"]}), headers)
        assert written.wait(30)
        other.request("GET", "/", headers=headers)
        assert other.getresponse().status == 200
        go_on.set()
        assert first.getresponse().status == 200
        for connection in (half, first, other):
            connection.close()
        server.should_exit = True
        thread.join()
