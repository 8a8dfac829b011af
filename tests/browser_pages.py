"""Pages in a real browser, for tests/browser and benchmarks/page.py: Chromium, a server that can be
killed, axe-core, and records that would do harm.

Chromium is the system's (`apt install chromium`), driven by Playwright; axe-core is the npm package
of that name, unpacked by `make test-page`.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from places import ROOT
from synthetic_run import write_run

AXE = Path(os.environ.get("AXE", ROOT / ".venv" / "axe" / "axe.min.js"))
HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'><svg onload='window.pwned=1'>"
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe><a href='javascript:window.pwned=1'>x</a>"
    "{{ 7*7 }}${window.pwned=1}\u202egnp\u2066\u0000\x1b[31m\u2028\u200b 👩‍👩‍👧‍👦 שלום عالم \ufeff"
)
PATIENCE = 180
"""Seconds in which a page on a busy machine does what it is asked; where all is well nobody waits
for them."""
SIZES = ((390, 800), (1280, 900), (2560, 1300))


def missing() -> str:
    """What is not here for tests in a browser, and what brings it; empty if all is."""
    if not browser_path():
        return "no Chromium: apt install chromium"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no Playwright: pip install playwright"
    return ""


def browser_path() -> str:
    """The system's Chromium."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # What a container has little of: /dev/shm, and a GPU, without which one process more is
        # busy for nothing.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_path(), args=flags, timeout=1000 * PATIENCE)
        yield browser
        browser.close()


def fresh_tab(browser: Any, **options: Any) -> Any:
    """A page in a context of its own, which waits for as long as a busy machine takes."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE)
    return context.new_page()


class Server:
    """A server of one page in a process of its own, on a port that stays the same from start to
    start."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make  # -> a page with `app()`
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = ""
        self._process: Any = None

    def start(self) -> str:
        """Start it; returns the address."""
        context = multiprocessing.get_context("forkserver")  # modules are imported once, for all starts
        context.set_forkserver_preload(["text2grad.page.mark", "text2grad.page.view"])
        ours, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(self.make, self.port, theirs), daemon=True)
        self._process.start()
        self.url = ours.recv()
        return self.url

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()


def _serve(make: Callable[[], Any], port: int, pipe: Any) -> None:
    from text2grad.page.server import listening, serve

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    page, listener = make(), listening(port)
    sys.stdout = _Told(pipe)
    serve(page.app(), listener, open_browser=False)


class _Told(io.TextIOBase):
    """A stdout whose lines go into a pipe."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def write(self, text: str) -> int:
        if text.strip():
            self.pipe.send(text.strip())
        return len(text)


@contextmanager
def serving(make: Callable[[], Any]) -> Iterator[Server]:
    """A server that is started, and killed at the end."""
    server = Server(make)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def axe_violations(page: Any) -> list[str]:
    """What axe-core finds wrong, a line each: the rule and the first place."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # by the debugger, which the page's policy does not bind
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]} ({len(each['nodes'])})" for each in found]


def hostile_run(folder: Path, long: int = 200_000) -> Path:
    """A run in which every text that a model, a person or a file may have written is hostile; one
    is long."""
    run = write_run(folder, steps=5)
    for file in run.rglob("*.json*"):
        rows = [json.dumps(_poisoned(json.loads(line))) for line in file.read_text(encoding="utf-8").splitlines()]
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    samples = run / "ppo/text2grad/samples.jsonl"
    first = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    words = (HOSTILE + " word" * 50 + "x" * 500 + "\n") * (long // 1000)
    bare = {
        key: []
        for key in ("spans", "tokens", "starts", "ends", "delta", "kl", "reward", "value", "advantage", "logp")
    }
    with samples.open("a", encoding="utf-8") as out:
        out.write(json.dumps({**first, **bare, "id": "long", "response": words}) + "\n")
    return run


def _poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        spans = {"start", "end"} <= value.keys()
        return {k: v if spans and k == "text" else _poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_poisoned(item, key) for item in value]
    return value + HOSTILE if isinstance(value, str) and key not in {"role", "kind", "text", "label"} else value


def until(page: Any, code: str, arg: Any = None) -> None:
    """Wait until an expression of the page is true. Playwright's own way needs `eval`, which our
    policy forbids."""
    wait_until(lambda: bool(page.evaluate(code, arg)))


def wait_until(check: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Look until it holds.

    Raises:
        TimeoutError: it does not in that time.
    """
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.1)
