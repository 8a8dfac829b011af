"""The annotation page in a real browser: by keyboard alone, through a kill of the server, in two
tabs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser_pages import Server, serving, until, wait_until
from places import ROOT
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.jsonl import read_records, write_records
from text2grad.page.mark import MarkPage

ANSWERS = 20
TEXT = "It is due next week. Ask {n} again."


@pytest.fixture
def source(tmp_path: Path) -> Path:
    span = Span(start=0, end=5, label=1, text="It is", reason="short")
    records = [
        Feedback(
            id=f"q-{n}",
            prompt=(Message(role="user", content="When is it due?"),),
            response=TEXT.format(n=n),
            critique="Vague.",
            spans=(span,),
            score=-0.5,
            source=Source(kind="llm", model="judge"),
        )
        for n in range(ANSWERS)
    ]
    write_records(tmp_path / "answers.jsonl", records)
    return tmp_path / "answers.jsonl"


@pytest.fixture
def server(source: Path) -> Iterator[Server]:
    """Asked for before `tab`, so that a page is closed before its server is killed: what it still
    sends arrives."""
    with serving(partial(MarkPage, source, None, "ann", False)) as started:
        yield started


def marked(source: Path) -> list[Feedback]:
    return read_records(source.with_suffix(".marked.jsonl"))


def heading(tab: Any, number: int, total: int = ANSWERS) -> Any:
    return tab.get_by_role("heading", name=f"{number} of {total} · When is it due?", exact=True)


def opened(tab: Any, server: Server, total: int = ANSWERS) -> None:
    tab.goto(server.url)
    heading(tab, 1, total).wait_for()


def saved(tab: Any) -> None:
    until(tab, "document.getElementById('saved').textContent === 'saved'")


def mark_by_keys(tab: Any) -> None:
    """Two spans, a verdict and what is missing, without a pointer."""
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Shift+ArrowRight", "p"):
        tab.keyboard.press(key)
    tab.keyboard.type("wrong week")
    tab.keyboard.press("Enter")
    for key in ("Home", "Shift+ArrowRight", "g"):
        tab.keyboard.press(key)
    tab.keyboard.type("clear")
    tab.keyboard.press("Enter")
    tab.keyboard.press("2")
    tab.keyboard.press("m")
    tab.keyboard.type("the day")
    tab.keyboard.press("Escape")


WANTED = [("It is", 1, "clear"), ("next week", -1, "wrong week")]


def test_twenty_answers_by_keyboard_alone_through_a_kill(server: Server, tab: Any, source: Path) -> None:
    opened(tab, server)
    for number in range(ANSWERS):
        heading(tab, number + 1).wait_for()
        if number == 7:
            server.kill()
        mark_by_keys(tab)
        if number == 7:
            tab.get_by_text("Not saved yet").wait_for()
            place = tab.evaluate("location.hash")
            tab.goto(server.start() + place)
            heading(tab, 8).wait_for()
            tab.locator("#talk").focus()
        saved(tab)
        if number < ANSWERS - 1:
            tab.keyboard.press("Enter")
    assert tab.locator("#finished").is_visible()
    assert "text2grad improve" in tab.locator("#finished pre").inner_text()
    records = marked(source)
    assert sorted(each.id for each in records) == sorted(f"q-{n}" for n in range(ANSWERS))
    for each in records:
        assert [(span.text, span.label, span.reason) for span in each.spans] == WANTED
        assert (each.score, each.meta) == (-0.5, {"annotator": "ann", "omissions": ["the day"]})


def test_two_tabs_show_a_conflict_and_neither_is_lost(server: Server, tab: Any, source: Path) -> None:
    opened(tab, server)
    other = tab.context.new_page()
    opened(other, server)
    for each, words in ((tab, "One."), (other, "Two.")):
        each.keyboard.press("c")
        each.keyboard.type(words)
        each.keyboard.press("Escape")
    conflict = other.get_by_role("alert").filter(has_text="changed in another tab")
    conflict.wait_for()
    assert "One." in conflict.inner_text() and "Two." in conflict.inner_text()
    assert [each.critique for each in marked(source)] == ["One."]
    other.get_by_role("button", name="keep mine").click()
    wait_until(lambda: [each.critique for each in marked(source)] == ["Two."])


def test_a_drag_marks_whole_words_and_undo_takes_it_back(server: Server, tab: Any, source: Path) -> None:
    opened(tab, server)
    box = tab.locator("#talk .response").bounding_box()
    tab.evaluate(
        """() => {
          const pieces = [...document.querySelectorAll("#talk [data-start]")];
          const text = pieces.find((each) => each.textContent.includes("next"));
          const at = text.firstChild.data.indexOf("ext");
          getSelection().setBaseAndExtent(text.firstChild, at, text.firstChild, at + 6);
        }"""
    )
    tab.locator("#talk .response").dispatch_event("pointerup")
    tab.get_by_text("“next week”").wait_for()
    tab.get_by_role("button", name="g good").click()
    tab.keyboard.press("Escape")
    wait_until(lambda: [span.text for each in marked(source) for span in each.spans] == ["next week"])
    tab.keyboard.press("u")
    wait_until(lambda: marked(source) == [])
    assert box["width"] > 0


def test_a_suggestion_is_checked_and_taken_over(server: Server, tab: Any, source: Path) -> None:
    opened(tab, server)
    assert "Vague." not in tab.locator("main").inner_text()
    tab.keyboard.press("s")
    tab.get_by_role("button", name="right").click()
    tab.get_by_role("button", name="mark it").click()
    wait_until(lambda: [span.reason for each in marked(source) for span in each.spans] == ["short"])
    assert marked(source)[0].meta["shown"] == "first"
    checks = source.with_suffix(".marked.checks.jsonl")
    wait_until(checks.is_file)
    assert '"correct":true' in checks.read_text(encoding="utf-8").replace(" ", "")


def test_a_comment_of_the_file_is_shown_whole_and_a_better_answer_is_taken(tab: Any, tmp_path: Path) -> None:
    comment = "The day is wrong, and nobody is told the hour. " * 6
    turn, zoe = Message(role="user", content="When is it due?"), {"annotator": "zoe"}
    said = {"id": "q-0", "prompt": (turn,), "response": TEXT.format(n=0), "critique": comment, "meta": zoe}
    write_records(tmp_path / "said.jsonl", [Feedback(**said, source=Source(kind="human"))])
    with serving(partial(MarkPage, tmp_path / "said.jsonl", None, "ann", False)) as server:
        opened(tab, server, 1)
        assert comment.strip() in tab.locator("#comments").inner_text()
        tab.keyboard.press("b")
        tab.keyboard.type("It is due on Friday.")
        tab.keyboard.press("Escape")
        wait_until(lambda: [each.meta.get("corrected") for each in marked(tmp_path / "said.jsonl")] != [])
        saved(tab)
    assert [each.meta["corrected"] for each in marked(tmp_path / "said.jsonl")] == ["It is due on Friday."]


def test_two_people_mark_the_same_answer(server: Server, tab: Any, source: Path) -> None:
    opened(tab, server)
    mark_by_keys(tab)
    saved(tab)
    tab.locator("#annotator").fill("bob")
    tab.keyboard.press("Tab")
    until(tab, "document.querySelectorAll('#marks li').length === 0")
    tab.locator("#talk").focus()
    mark_by_keys(tab)
    wait_until(lambda: {each.meta["annotator"] for each in marked(source)} == {"ann", "bob"})


def test_a_person_who_only_rates_sees_the_rating_first_and_the_progress(
    server: Server, tab: Any, source: Path
) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    opened(tab, server)
    rating = tab.locator("#verdict").bounding_box()
    assert rating["y"] + rating["height"] < 800
    assert rating["y"] < tab.get_by_role("button", name="g good").bounding_box()["y"]
    assert not tab.locator("#list").is_visible() and not tab.locator("#critique").is_visible()
    tab.get_by_label("5 best").check()
    until(tab, "document.getElementById('progress').textContent === '1 of 20 marked'")
    assert tab.locator("#bar").evaluate("bar => bar.value") == 1 / ANSWERS
    wait_until(lambda: [record.score for record in marked(source)] == [1.0])
    assert not tab.locator("#finished").is_visible()
    tab.get_by_text("All answers", exact=True).click()
    row = tab.locator("#list [role=option]").first.inner_text().splitlines()
    assert row == ["When is it due?", TEXT.format(n=0), "✓ marked by me"]


def test_the_spreadsheet_of_improve_is_marked(tab: Any, tmp_path: Path) -> None:
    source = tmp_path / "feedback.xlsx"
    shutil.copy(ROOT / "examples" / "feedback.xlsx", source)
    with serving(partial(MarkPage, source, None, "zoe", False)) as server:
        tab.goto(server.url)
        tab.get_by_role("heading", name="1 of 60 · … desk lamp.").wait_for()
        assert "Ann wrote" in tab.locator("#comments").inner_text()
        tab.keyboard.press("1")
        wait_until(lambda: [record.score for record in marked(source)] == [-1.0])
        command = tab.locator(".loop code").all_text_contents()[0]
    assert "--map 'prompt=Question,response=Answer of the bot" in command and "--scale 1..5" in command
    assert command.endswith(f"text2grad improve {tmp_path}/feedback.all.jsonl")
