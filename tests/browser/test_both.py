"""Both pages: hostile records run nothing, no rule of accessibility is broken, nothing is wider
than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser_pages import AXE, HOSTILE, SIZES, Server, axe_violations, fresh_tab, hostile_run, until
from synthetic_run import write_run
from text2grad.page.mark import MarkPage
from text2grad.page.view import ViewPage

PAGES = ("view", "mark")
SETTLED = """
  document.querySelector("#list [role=option]") && document.getElementById("sample").textContent.length > 100
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("both")
    return {"hostile": hostile_run(folder / "hostile"), "plain": write_run(folder / "plain", steps=5)}


@pytest.fixture(scope="module")
def servers(runs: dict[str, Path]) -> Iterator[dict[tuple[str, str], Server]]:
    made = {}
    for kind, run in runs.items():
        made["view", kind] = Server(partial(ViewPage, run))
        made["mark", kind] = Server(partial(MarkPage, run, None, "ann", False))
    for server in made.values():
        server.start()
    yield made
    for server in made.values():
        server.kill()


def opened(tab: Any, server: Server) -> Any:
    tab.goto(server.url)
    until(tab, SETTLED)
    return tab


@pytest.mark.parametrize("name", PAGES)
def test_hostile_records_run_no_script_and_break_no_layout(
    tab: Any, servers: dict[tuple[str, str], Server], name: str
) -> None:
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("dialog", lambda dialog: dialog.dismiss())
    server = servers[name, "hostile"]
    opened(tab, server)
    entries = tab.evaluate("document.querySelector('#list [role=option]').getAttribute('aria-setsize')")
    tab.locator("#list").focus()
    for key in ("Home", "End", *["ArrowUp"] * 4):  # the long one among them
        tab.keyboard.press(key)
        tab.wait_for_timeout(200)
    assert int(entries) > 10
    assert tab.evaluate("window.pwned === undefined && !document.querySelector('iframe, img, script[src]')")
    assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in requests)
    text = tab.locator("body").inner_text()
    assert "window.pwned=1" in text and not set(text) & set("\u202e\x1b\u2028\u0000\u200b")
    assert HOSTILE[:20] in text
    for width, height in SIZES[:2]:
        tab.set_viewport_size({"width": width, "height": height})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: make test-page fetches it from npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_no_rule_of_accessibility_is_broken(
    browser: Any, servers: dict[tuple[str, str], Server], name: str, scheme: str
) -> None:
    tab = opened(fresh_tab(browser, color_scheme=scheme, bypass_csp=True), servers[name, "plain"])
    if name == "mark":
        for key in ("ArrowRight", "g", "Enter", "s"):
            tab.keyboard.press(key)
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    assert axe_violations(tab) == []
    tab.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_screen(
    browser: Any, servers: dict[tuple[str, str], Server], name: str, scheme: str, tmp_path: Path
) -> None:
    for width, height in SIZES:
        screen = {"width": width, "height": height}
        tab = opened(fresh_tab(browser, color_scheme=scheme, viewport=screen), servers[name, "plain"])
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        tab.context.close()
