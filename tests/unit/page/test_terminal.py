"""Results and judged answers on a terminal: coloured there, bracketed elsewhere, never a control
character."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from span_cases import UNREADABLE, case, critique, word_span
from text2grad.eval.critics.reward_model import reward_model_report
from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Span, Transcript
from text2grad.page.terminal import (
    PolicyAnswer,
    answer_view,
    evaluation_table,
    policy_table,
    results_table,
    show_answers,
    show_records,
    show_table,
)

TEXT = "a bad, good [red]end[/red]"
RECORD = Feedback.model_validate(
    {
        "id": "p\x1b[2J-1",
        "prompt": [{"role": "user", "content": "When?"}],
        "response": TEXT,
        "critique": "\u202eThe middle \x1b[31mis wrong.",
        "score": -0.5,
        "spans": [
            {"start": 2, "end": 5, "label": -1, "text": "bad"},
            {"start": 7, "end": 11, "label": 1, "text": "good"},
        ],
        "source": {"kind": "reward_model"},
    }
)


def printed(what: RenderableType | Feedback, width: int = 100, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, _environ={}, **options)
    if isinstance(what, Feedback):
        show_records(console, [what])
    else:
        console.print(what)
    return out.getvalue()


def test_a_file_gets_brackets_and_a_terminal_colours() -> None:
    brackets = "a [-bad-], [+good+] [red]end[/red]\nThe middle is wrong.\nscore -0.50\n\n"
    assert printed(RECORD) == f"p-1: When?\n{brackets}"
    text = printed(RECORD, force_terminal=True, color_system="standard")
    assert "\x1b[4;31mbad\x1b[0m" in text and "\x1b[1;32mgood\x1b[0m" in text
    assert "[-" not in text and "\x1b[2J" not in text and "\u202e" not in text
    text = printed(RECORD, force_terminal=True, no_color=True)
    assert "[-bad-]" in text and "[+good+]" in text and ";31m" not in text


def test_a_failed_critique_is_said_to_have_failed() -> None:
    failure = Failure(kind="truncated", message="stops early")
    failed = RECORD.model_copy(update={"error": failure, "critique": "", "score": None, "spans": ()})
    text = printed(failed)
    assert "no critique: truncated: stops early" in text and "score" not in text and "[-" not in text
    both = "one two three four"
    spans = (Span(start=0, end=7, label=1, text=both[:7]), Span(start=4, end=13, label=-1, text=both[4:13]))
    view = answer_view(PolicyAnswer("", both, Critique(text="", spans=spans)), brackets=True)
    assert printed(view).startswith("[+one +]two[- three-] four\n")


def test_answers_are_side_by_side_if_there_is_room() -> None:
    answers = [PolicyAnswer("sft", "left answer"), PolicyAnswer("text2grad", "right\x1b[2J answer")]
    for width, beside in ((100, True), (60, False)):
        out = io.StringIO()
        show_answers(Console(file=out, width=width, _environ={}), "When?", answers)
        lines = out.getvalue().splitlines()
        assert any("left answer" in line and "right answer" in line for line in lines) == beside
        assert "\x1b" not in out.getvalue() and lines[0].startswith("When?")


HEARD = Message(role="tool", content="95 km\x1b[31m" + "far " * 200)
TALK = Transcript.of([((), "I look."), ([HEARD], "90 km. Sure?")], [Message(role="user", content="And back?")])
START = TALK.index("90 km")
POOR = Span(start=START, end=START + 5, label=-1, text="90 km", reason="95")


@pytest.mark.parametrize(
    ("judgement", "first"),
    [
        (Critique(text="It is 95.", spans=(POOR,), score=-0.5, turn_scores=(1.0, None)), "turn 1 (+1.00)"),
        (None, "turn 1"),
        (Failure(kind="refused", message="no"), "turn 1"),
    ],
)
def test_several_turns_are_a_conversation(judgement: Judgement | None, first: str) -> None:
    shown = printed(answer_view(PolicyAnswer("", TALK, judgement), brackets=True), width=200)
    assert shown.startswith(f"{first}: I look.\ntool: 95 km") and "\nuser: And back?\n" in shown
    assert ("turn 2: [-90 km-]. Sure?" in shown) == isinstance(judgement, Critique)
    assert "\x1b" not in shown and len(shown) < 1_000


ODD = {f"{way}_{'x' * 30}_{n}": -0.123456 for way in ("greedy", "sampled", "best_temperature") for n in range(3)}


@pytest.mark.parametrize("terminal", [True, False])
def test_no_table_is_cut(terminal: bool) -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    results = results_table("m", {f"policy-{'y' * 40}": {"greedy": 0.123, "sampled": 0.456}})
    for table in (results, evaluation_table(reward_model_report([case(gold, gold)])), policy_table(ODD)):
        out = io.StringIO()
        console = Console(file=out, width=40, force_terminal=terminal, color_system=None, _environ={})
        show_table(console, table)
        full = printed(table, width=1000)
        letters = [sorted(re.sub(r"[^\w.]", "", page)) for page in (out.getvalue(), full)]
        assert "…" not in out.getvalue() and letters[0] == letters[1] and console.width == 40
        if not terminal:  # a row is a line, which programs may read
            assert len(out.getvalue().splitlines()) <= len(full.splitlines()) + 1


def test_tables_hold_every_figure() -> None:
    text = printed(results_table("[b]m[/b]", {"[red]x\x1b[0m": {"greedy": 0.33}, "mine": {"greedy": 0.66}}))
    assert [part for part in ("[b]m[/b]", "greedy", "[red]x", "0.330", "mine", "0.660") if part not in text] == []
    assert "\x1b" not in text
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    report = reward_model_report([case(gold, gold), case(gold, UNREADABLE)])
    (recall,) = (
        line for line in printed(evaluation_table(report), width=140).splitlines() if "good recall" in line
    )
    assert re.findall(r"[0-9.]+", recall)[:4] == ["0.500", "0.000", "1.000", "0.000"], "its interval and a baseline"


def test_a_measured_policy_has_a_row_a_measure_and_a_column_a_way() -> None:
    figures = {"prompts": 20.0, "tier": "landlock", "best_temperature": 0.5, "greedy_rouge_l": 0.5}
    figures |= {"sampled_rouge_l": 0.25, "best_temperature_rouge_l": 0.4375, "sampled_kl": 1.5}
    table = policy_table(figures)
    assert [str(column.header) for column in table.columns] == ["measure", "greedy", "sampled", "at 0.5"]
    cells = [["rouge l", "kl"], ["0.5", "–"], ["0.25", "1.5"], ["0.4375", "–"]]
    assert [list(column.cells) for column in table.columns] == cells
    assert str(table.caption) == "prompts: 20, tier: landlock"
    table = policy_table({"likelihood": 0.25, "total": 200.0})
    assert [list(column.cells) for column in table.columns] == [["likelihood", "total"], ["0.25", "200"]]
