"""A record of several turns is shown as a conversation: on the terminal, on the page of feedback, in a sheet."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from text2grad.chat.prices import cost_by
from text2grad.feedback import (
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Message,
    Source,
    Span,
    Transcript,
    write_records,
)
from text2grad.report.quality import report_quality
from text2grad.report.terminal import PolicyAnswer, answer_view, show_answers

PROMPT = (Message(role="user", content="How far?"),)
HEARD = Message(role="tool", content="95 km </pre><script>x</script>\x1b[31m" + "far " * 200)
TALK = Transcript.of([((), "I look."), ([HEARD], "90 km. Sure?")], [Message(role="user", content="And back?")])
START = TALK.index("90 km")
JUDGED = Critique(
    text="It is 95.",
    spans=(Span(start=START, end=START + 5, label=-1, text="90 km", reason="95"),),
    score=-0.5,
    turn_scores=(1.0, None),
)


def on_the_terminal(judgement: Judgement | None) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(answer_view(PolicyAnswer("", TALK, judgement), brackets=True))
    return out.getvalue()


def test_who_said_what_is_seen_on_a_terminal() -> None:
    shown = on_the_terminal(JUDGED)
    first, tool, *_ = shown.splitlines()
    assert first == "turn 1 (+1.00): I look." and tool.startswith("tool: 95 km ")
    assert "\nturn 2: [-90 km-]. Sure?\nuser: And back?\n" in shown
    assert "\x1b[31m" not in shown and len(shown) < 1_000, "of a long answer of a tool the beginning is enough"


@pytest.mark.parametrize("judgement", [None, Failure(kind="refused", message="no")])
def test_one_that_is_not_judged_is_shown_alike(judgement: Judgement | None) -> None:
    assert on_the_terminal(judgement).startswith("turn 1: I look.\ntool: 95 km ")


def test_answers_of_policies_side_by_side_are_conversations() -> None:
    out = io.StringIO()
    show_answers(Console(file=out, width=60), "How far?", [PolicyAnswer("a", TALK), PolicyAnswer("b", "95 km.")])
    assert "turn 2: 90 km. Sure?" in out.getvalue() and "95 km." in out.getvalue()


def test_the_page_of_feedback_shows_turns_and_escapes_what_a_tool_said(tmp_path: Path) -> None:
    record = Feedback.of(Example(id="1", prompt=PROMPT), TALK, JUDGED, Source(kind="human"))
    write_records(tmp_path / "f.jsonl", [record])
    report_quality(tmp_path / "f.jsonl", tmp_path / "q.html", None, cost_by(None), tmp_path / "none", None)
    page = (tmp_path / "q.html").read_text(encoding="utf-8")
    assert '<p class="role">turn 1 (+1.00)</p><pre class="response">\nI look.</pre>' in page
    assert '<p class="role">tool</p><pre>\n95 km &lt;/pre&gt;&lt;script&gt;' in page
    assert '<mark class="poor" title="95">90 km</mark>. Sure?</pre>' in page
    assert page.index("I look.") < page.index("95 km &lt;") < page.index(">90 km</mark>") < page.index("And back?")
