"""Measure the pages in a real browser: paint times, scrolling, accessibility, and safety.

    python benchmarks/page.py [--samples 5000] [--kills 50]

Needs Chromium, Playwright and axe-core: `make test-page` installs the last two. The last line of
stdout is one JSON object:

- `first_paint_ms`: first contentful paint of `text2grad view` on a run with `samples`;
  `empty_page_ms`: of an empty page of the same server; `first_paint_times_empty`: their quotient.
  Medians of five.
- `switch_ms`: from the choice of another signal to its frame, median of twenty.
- `scroll_frames`: frames of a trace in which the list of samples scrolls over 20,000 pixels in 5
  seconds; `scroll_dropped`: those dropped by Chromium; `scroll_frame_cpu_ms`: processor time of the
  longest frame on the main thread (the budget is 16.7); `..._plain`: the same on a page with only
  plain rows.
- `load`: the load of the machine before and after, which affects dropped frames and times.
- `axe_violations`: of both pages, light and dark.
- `scripts_run_by_hostile_records`: pages on which a script in a record ran.
- `kills`: of the server at random moments during marking; `marks_lost`: marks missing from or
  repeated in the records at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from browser_pages import axe_violations, chromium, hostile_run, missing, serving, until
from synthetic_run import sample, write_run
from text2grad.feedback import Feedback, Message, Source
from text2grad.jsonl import read_records, write_records
from text2grad.page.mark import MarkPage
from text2grad.page.view import ViewPage

RUNS, SWITCHES = 5, 20
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SWITCH = """async (signal) => {
  const select = document.querySelector("[name=by]");
  const began = performance.now();
  select.value = signal;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}"""


class EmptyPage:
    """A page with one word."""

    html = "<!doctype html><title>empty</title>empty"

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/", lambda _: HTMLResponse(self.html))])


class PlainPage(EmptyPage):
    """A list of plain rows, scrolled by the browser itself."""

    def __init__(self, rows: int) -> None:
        style = "#list {height: 500px; width: 260px; overflow-y: auto} #list div {height: 72px}"
        row = "<div><b>problem-1</b><br>text2grad, step 1, 25 tokens<br>1 good, 1 poor, score 1</div>"
        self.html = f"<!doctype html><title>rows</title><style>{style}</style><div id='list'>{row * rows}</div>"


def first_paint(browser: Any, make: Any) -> float:
    """Return milliseconds from the request to the first contentful paint."""
    times = []
    with serving(make) as server:
        for _ in range(RUNS):
            context = browser.new_context()
            page = context.new_page()
            page.goto(server.url)
            until(page, PAINT)
            times.append(page.evaluate(PAINT))
            context.close()
    return median(times)


def large_run(folder: Path, samples: int) -> Path:
    """Write a run with this many samples of the method text2grad."""
    run = write_run(folder, steps=40)
    chance = random.Random(0)
    rows = (sample("text2grad", number // 8, number % 8, chance) for number in range(samples))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "ppo/text2grad/samples.jsonl").write_text(lines, encoding="utf-8")
    (run / "ppo/scalar_ppo/samples.jsonl").unlink()
    return run


def switch(browser: Any, run: Path, full: str) -> float:
    """Return milliseconds until a chosen signal is displayed, with all samples in the list."""
    with serving(partial(ViewPage, run)) as server:
        page = browser.new_page()
        page.goto(server.url)
        until(page, full)
        page.locator("#sample h3").wait_for()
        times = [page.evaluate(SWITCH, ("kl", "advantage", "delta", "logp")[n % 4]) for n in range(SWITCHES)]
        page.close()
    return median(times)


def scrolled(browser: Any, make: Any, ready: str) -> tuple[int, int, float]:
    """Return the frames of a scrolling trace, dropped ones, and the longest one's CPU ms."""
    with serving(make) as server:
        page = browser.new_page()
        page.goto(server.url)
        until(page, ready)
        page.locator("#list").scroll_into_view_if_needed()
        page.wait_for_timeout(2000)
        box = page.locator("#list").bounding_box()
        gesture = {"x": box["x"] + 50, "y": box["y"] + 100, "yDistance": -20_000, "speed": 4000}
        browser.start_tracing(page=page, categories=["cc", "benchmark"])
        page.context.new_cdp_session(page).send("Input.synthesizeScrollGesture", gesture)
        events = json.loads(browser.stop_tracing())["traceEvents"]
        assert page.evaluate("document.getElementById('list').scrollTop") > 19_000
        page.close()
    reports = [event["args"].get("frame_reporter") for event in events if event["name"] == "PipelineReporter"]
    states = [report["state"] for report in reports if report and report["scroll_state"] != "SCROLL_NONE"]
    work = [event.get("tdur", 0) / 1000 for event in events if event["name"] == "ProxyMain::BeginMainFrame"]
    return len(states), states.count("STATE_DROPPED"), round(max(work), 1)


def violations(browser: Any, run: Path) -> int:
    """Count violations of axe-core's rules in both pages, light and dark."""
    problems: list[str] = []
    for make in (partial(ViewPage, run), partial(MarkPage, run, None, "ann", False)):
        with serving(make) as server:
            for scheme in ("light", "dark"):
                context = browser.new_context(color_scheme=scheme, bypass_csp=True)
                page = context.new_page()
                page.goto(server.url)
                until(page, "document.getElementById('sample').textContent.length > 100")
                problems += axe_violations(page)
                context.close()
    print(*problems, sep="\n", file=sys.stderr)
    return len(problems)


def scripts_run(browser: Any, run: Path) -> int:
    """Count pages on which a script in a record ran."""
    count = 0
    for make in (partial(ViewPage, run), partial(MarkPage, run, None, "ann", False)):
        with serving(make) as server:
            page = browser.new_page()
            page.goto(server.url)
            until(page, "document.getElementById('sample').textContent.length > 100")
            page.locator("#list").focus()
            for _ in range(12):
                page.keyboard.press("ArrowDown")
                page.wait_for_timeout(50)
            count += page.evaluate("window.pwned !== undefined")
            page.close()
    return count


def marks_lost(browser: Any, folder: Path, kills: int) -> int:
    """Kill the server during marking and restart it; count missing and repeated marks."""
    records = [
        Feedback(
            id=f"q-{n}",
            prompt=(Message(role="user", content="When?"),),
            response=f"It is due in week {n}.",
            source=Source(kind="llm"),
        )
        for n in range(kills)
    ]
    source, chance = folder / "answers.jsonl", random.Random(1)
    write_records(source, records)
    with serving(partial(MarkPage, source, None, "ann", False)) as server:
        page = browser.new_page()
        page.goto(server.url)
        for number in range(kills):
            page.get_by_role("heading", name=f"q-{number}", exact=True).wait_for()
            for key in ("ArrowRight", "p", *f"why {number}", "Enter", "1"):
                page.keyboard.press(key)
            time.sleep(chance.uniform(0, 0.05))
            server.kill()
            server.start()
            if number % 10 == 9:  # the page is closed, too
                page.goto(server.url)
            else:  # the old page comes in again with the new cookie, and sends what is left
                page.evaluate("(url) => fetch(url)", server.url)
            until(page, "document.getElementById('saved').textContent === 'saved'")
            page.goto(f"{server.url}")
            until(page, "document.querySelector('#heading').textContent !== ''")
        page.close()
    marked_records = read_records(source.with_suffix(".marked.jsonl"))
    expected = {f"q-{n}": [("is", -1, f"why {n}")] for n in range(kills)}
    stored = [
        (record.id, [(s.text, s.label, s.reason) for s in record.spans], record.score) for record in marked_records
    ]
    complete = sum((id, spans, -1.0) in stored for id, spans in expected.items())
    return (kills - complete) + (len(stored) - len({id for id, *_ in stored}))


def main() -> None:
    """Measure all, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=50)
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        folder = Path(place)
        large = large_run(folder / "large", arguments.samples)
        before = os.getloadavg()[0]
        full = f"document.getElementById('found').textContent.includes('of {arguments.samples}')"
        paint, empty = first_paint(browser, partial(ViewPage, large)), first_paint(browser, EmptyPage)
        frames, dropped, work = scrolled(browser, partial(ViewPage, large), full)
        plain = scrolled(browser, partial(PlainPage, arguments.samples), "true")
        figures = {
            "first_paint_ms": paint,
            "empty_page_ms": empty,
            "first_paint_times_empty": round(paint / empty, 2),
            "switch_ms": round(switch(browser, large, full), 1),
            "scroll_frames": frames,
            "scroll_frames_plain": plain[0],
            "scroll_dropped": dropped,
            "scroll_dropped_plain": plain[1],
            "scroll_frame_cpu_ms": work,
            "scroll_frame_cpu_ms_plain": plain[2],
            "samples": arguments.samples,
            "load": [round(before, 1), round(os.getloadavg()[0], 1)],
            "axe_violations": violations(browser, write_run(folder / "plain", steps=5)),
            "scripts_run_by_hostile_records": scripts_run(browser, hostile_run(folder / "hostile")),
            "kills": arguments.kills,
            "marks_lost": marks_lost(browser, folder, arguments.kills),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
