"""Who may speak to the page's server: the person who has the address, from the page itself, and nobody else."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread

import pytest
import uvicorn

from page_requests import ask
from text2grad.feedback import Feedback, Message, Source
from text2grad.jsonl import read_records, write_records
from text2grad.page.mark import mark_page
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
    return Guard(mark_page(tmp_path / "a.jsonl", None, "", False).app(), ADDRESS)


IN = {"host": HOST, "cookie": COOKIE}
READS: list[tuple[str, dict[str, str], int]] = [
    ("/?token=secret-token", {"host": HOST}, 200),
    ("/?token=secret-token", {"host": HOST, "sec-fetch-site": "cross-site"}, 200),  # a link in a notebook
    ("/", IN, 200),
    ("/api/items", {**IN, "host": "localhost:8639"}, 200),
    *((path, {"host": HOST}, 403) for path in ("/", "/?token=", "/?token=other")),
    *(
        ("/", {"host": HOST, "cookie": cookie}, 403)
        for cookie in ("text2grad-8639=other", "text2grad-8640=secret-token", 'text2grad-8639="; bad=')
    ),
    ("/api/items?token=secret-token", {"host": HOST}, 403),  # addresses end up in logs
    *(
        ("/?token=secret-token", {"host": host}, 403)
        for host in ("evil.example", "127.0.0.1:9999", "127.0.0.1", "")  # DNS rebinding
    ),
    *(
        ("/api/items", {**IN, "origin": origin}, 403)
        for origin in ("http://evil.example", "null", "http://127.0.0.1:9999")
    ),
    *(("/api/items", {**IN, "sec-fetch-site": site}, 403) for site in ("cross-site", "same-site")),
    *(
        (path, IN, 404)
        for path in ("/etc/passwd", "/../a.jsonl", "/api/items/../../../etc/passwd", "/api/items/%2e%2e%2fa.jsonl")
    ),
]


def test_who_may_read(app: Guard) -> None:
    wrong = [(path, given, code) for path, given, code in READS if ask(app, path, given)[0] != code]
    assert wrong == []


CHANGES: list[tuple[dict[str, str | None], int]] = [
    *(({"origin": origin}, 403) for origin in ("http://evil.example", "", None)),
    ({"content-type": "text/plain"}, 403),  # a form of another site can send this
    ({"content-type": "application/x-www-form-urlencoded"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"cookie": ""}, 403),
    ({"host": "evil.example", "origin": "http://evil.example"}, 403),
    ({"content-length": str(MOST_BYTES + 1)}, 413),
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


def test_an_act_that_is_none_is_refused(app: Guard) -> None:
    bodies = [b"{", b"[]", b"\xff", b"[" * 2000]
    changes = [({"more": 1}, 422), ({"opinion": {"score": 2}}, 422), ({"item": "unknown"}, 404)]
    cases = [(body, 422) for body in bodies]
    cases += [(json.dumps({**MARK, **change}).encode(), status) for change, status in changes]
    for body, status in cases:
        code, _, answer = ask(app, "/api/acts", USUAL, "POST", body)
        assert code == status and json.loads(answer)["error"], body


def test_two_tabs_get_a_conflict_with_what_is_there(app: Guard) -> None:
    [item] = json.loads(ask(app, "/api/items", USUAL)[2])["items"]
    for act, status in (("act-00001", 200), ("act-00002", 409)):
        body = json.dumps({**MARK, "act": act, "item": item["key"]}).encode()
        code, _, answer = ask(app, "/api/acts", USUAL, "POST", body)
        assert code == status
    assert json.loads(answer)["version"] == 1
    assert [each["critique"] for each in json.loads(answer)["history"]] == ["", "Bad."]


def test_the_page_loads_nothing_and_its_token_is_kept_out_of_sight(app: Guard) -> None:
    status, headers, body = ask(app, "/?token=secret-token", {"host": HOST})
    page = body.decode()
    assert status == 200 and "secret-token" not in page
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#39;none&#39;") and "unsafe" not in policy
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
    assert capsys.readouterr().err == f"port {port} is in use: taking {number}\n"


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], Line]]:
    """Connections to a page on a real socket."""
    record = Feedback(
        id="a", prompt=(Message(role="user", content="When?"),), response="Friday.", source=Source(kind="llm")
    )
    write_records(tmp_path / "b.jsonl", [record])
    app = mark_page(tmp_path / "b.jsonl", None, "", False).app()
    with listening(None) as listener:
        port = listener.getsockname()[1]
        guarded = Guard(app, Address(port, "secret-token"))
        config = uvicorn.Config(guarded, log_config=None, log_level="warning", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        lines: list[Line] = []
        yield lambda: lines.append(Line(port)) or lines[-1]  # type: ignore[func-returns-value]
        for line in lines:
            line.http.close()
        server.should_exit = True
        thread.join()


class Line:
    """One connection to a page, as the page itself uses it."""

    def __init__(self, port: int) -> None:
        self.http, self.host = HTTPConnection("127.0.0.1", port, timeout=30), f"127.0.0.1:{port}"
        self.cookie = f"text2grad-{port}=secret-token"
        self.http.connect()
        self.socket = self.http.sock

    def get(self, path: str) -> tuple[int, bytes]:
        return self._answer("GET", path, None, {"Cookie": self.cookie})

    def post(self, path: str, body: str, origin: str = "") -> tuple[int, bytes]:
        origin = origin or f"http://{self.host}"
        headers = {"Cookie": self.cookie, "Origin": origin, "Content-Type": "application/json"}
        return self._answer("POST", path, body, headers)

    def _answer(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        self.http.request(method, path, body, headers)
        answer = self.http.getresponse()
        assert self.http.sock is self.socket, "another connection"
        return answer.status, answer.read()


def test_one_connection_gets_the_answer_of_each_request_in_its_order(connect: Callable[[], Line]) -> None:
    """Also after a request that was refused before its body was read."""
    line = connect()
    first = line.get("/api/items")
    assert line.post("/api/acts", "x" * 100_000, "http://evil.example")[0] == 403
    assert line.post("/api/acts", json.dumps({**MARK, "item": "unknown"})) == (
        404,
        b'{"error": "there is no such answer"}',
    )
    assert line.get("/nowhere")[0] == 404
    assert line.get("/api/items") == first and first[0] == 200


def test_a_slow_request_does_not_hold_up_others(
    connect: Callable[[], Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    [item] = json.loads(connect().get("/api/items")[1])["items"]
    act = json.dumps({**MARK, "item": item["key"]})
    begun, go_on = Event(), Event()

    def slow(*_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr("text2grad.page.marking.os.fsync", slow)
    half, other = connect(), connect()
    half.socket.sendall(b"GET / HTTP/1.1\r\nHost: ")  # never ends
    with ThreadPoolExecutor() as pool:
        written = pool.submit(connect().post, "/api/acts", act)
        assert begun.wait(30)
        assert other.get("/")[0] == 200 and not written.done()
        go_on.set()
        assert written.result()[0] == 200
