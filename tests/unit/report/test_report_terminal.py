"""Results and samples on a terminal: coloured there, bracketed elsewhere, never a control character."""

from __future__ import annotations

import io
import random
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from span_cases import UNREADABLE, case, critique, word_span
from synthetic_run import sample, summary
from text2grad.eval.critics.reward_model import reward_model_report
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.report.folder import Sample
from text2grad.report.terminal import (
    evaluation_table,
    gate_lines,
    no_text,
    policy_table,
    results_table,
    reward_model_table,
    show_gate,
    show_samples,
    show_table,
)

ROW: dict[str, Any] = {
    "step": 3,
    "id": "p\x1b[2J-1",
    "response": "a bad, good [red]end[/red]",
    "critique": "\u202eThe middle \x1b[31mis wrong.",
    "score": -0.5,
    "tokens": ["a", " bad", ",", " good", " [red]end[/red]", "</s>"],
    "starts": [0, 1, 5, 6, 11, 26],
    "ends": [1, 5, 6, 11, 26, 26],
    "delta": [0.0, -1.0, -1.0, 1.0, 0.0, -0.5],
}


def printed(what: RenderableType | list[dict[str, Any]], **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, _environ={}, **options)
    if isinstance(what, list):
        show_samples(console, [Sample.model_validate(row) for row in what])
    else:
        console.print(what)
    return out.getvalue()


def test_a_file_gets_brackets_and_no_escape() -> None:
    assert printed([ROW]) == (
        "p-1 · step 3 · score -0.50\na[- bad,-][+ good+] [red]end[/red][-</s>-]\nThe middle is wrong.\n\n"
    )


def test_a_terminal_gets_colours_and_plain_text() -> None:
    text = printed([ROW], force_terminal=True, color_system="standard")
    assert "\x1b[4;31m bad,\x1b[0m" in text and "\x1b[1;32m good\x1b[0m" in text
    assert "[-" not in text and "\x1b[2J" not in text and "\u202e" not in text


def test_without_colour_a_terminal_gets_brackets() -> None:
    text = printed([ROW], force_terminal=True, no_color=True)
    assert "[- bad,-]" in text and "[+ good+]" in text and ";31m" not in text


def test_a_failed_critique_is_said_to_have_failed() -> None:
    failed = {
        **ROW,
        "failure": {"kind": "truncated", "message": "stops early"},
        "score": None,
        "delta": [0.0] * 6,
    }
    text = printed([failed])
    assert "no critique: truncated: stops early" in text and "score" not in text and "[-" not in text


def test_at_most_count_samples_are_shown() -> None:
    chance = random.Random(0)
    rows = [sample("text2grad", 0, index, chance) for index in range(8)]
    assert printed(rows).count(" · step 0") == 5
    assert printed([]) == ""


def test_every_character_of_a_response_is_shown_once() -> None:
    split = {"step": 0, "response": "é👍.", "tokens": ["é", "\ufffd", "\ufffd", "."], "delta": [0, 1, 1, 0]}
    assert "é[+👍+].\n" in printed([{**split, "starts": [0, 1, 1, 2], "ends": [1, 2, 2, 3]}])


def test_the_tables_hold_every_figure() -> None:
    text = printed(results_table(summary([-0.02, 0.0, 0.02])))
    for part in (
        "held-out pass@1",
        "greedy",
        "SFT",
        "0.330 ± 0.020",
        "text2grad",
        "0.660 ± 0.020",
        "over the seeds",
    ):
        assert part in text
    grid = printed(reward_model_table(summary([0.0])["reward_model"]))
    for part in ("good tokens", "0.810", "0.770", "poor tokens", "0.720", "unmatched", "0.012"):
        assert part in grid
    assert "±" not in printed(results_table(summary([0.0])))


ODD = {f"{way}_{'x' * 30}_{n}": -0.123456 for way in ("greedy", "sampled", "best_temperature") for n in range(3)}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("kind", ["results", "reward model", "evaluation", "policy"])
def test_no_table_is_cut(kind: str, width: int, terminal: bool) -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    rows = [{"name": f"policy-{'y' * 40}", "greedy": 0.123, "sampled": 0.456, "seeds": []}]
    table = {
        "results": lambda: results_table({"metric": "m", "rows": rows}),
        "reward model": lambda: reward_model_table(summary([0.0])["reward_model"]),
        "evaluation": lambda: evaluation_table(reward_model_report([case(gold, gold)])),
        "policy": lambda: policy_table(ODD),
    }[kind]()
    out, whole = io.StringIO(), io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, _environ={})
    show_table(console, table)
    Console(file=whole, width=1000, _environ={}).print(table)

    def inside(page: io.StringIO) -> list[str]:
        return sorted(re.sub(r"[^\w.]", "", page.getvalue()))

    assert "…" not in out.getvalue() and inside(out) == inside(whole)
    assert console.width == width
    if not terminal:  # a row is a line, which programs may read
        assert len(out.getvalue().splitlines()) <= len(whole.getvalue().splitlines()) + 1


def test_a_policy_called_by_markup_keeps_its_name() -> None:
    rows = [{"name": "[red]x\x1b[0m", "sampled": 0.5, "seeds": []}]
    text = printed(results_table({"metric": "[b]m[/b]", "rows": rows}))
    assert "[red]x" in text and "[b]m[/b]" in text and "\x1b" not in text


def test_the_evaluation_stands_beside_its_baselines() -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    report = reward_model_report([case(gold, gold), case(gold, UNREADABLE)])
    page = io.StringIO()
    Console(file=page, width=140).print(evaluation_table(report))
    lines = page.getvalue().splitlines()
    assert "Reward model against 2 held-out critiques" in lines[0]
    (recall,) = (line for line in lines if "good recall" in line)
    assert re.findall(r"[0-9.]+", recall)[:4] == ["0.500", "0.000", "1.000", "0.000"]
    (unreadable,) = (line for line in lines if "unreadable" in line)
    assert re.findall(r"[0-9.]+", unreadable) == [
        "0.500",
        "0.000",
        "1.000",
        *["0.000"] * 4,
    ]  # four that know nothing


def test_a_measured_policy_is_a_row_a_measure_and_a_column_a_way() -> None:
    figures = {"prompts": 20.0, "tier": "landlock", "best_temperature": 0.5, "validation_at_0.5": 0.25}
    figures |= {
        "greedy_rouge_l": 0.5,
        "sampled_rouge_l": 0.25,
        "best_temperature_rouge_l": 0.4375,
        "sampled_kl": 1.5,
    }
    table = policy_table(figures)
    assert [str(column.header) for column in table.columns] == ["measure", "greedy", "sampled", "at 0.5"]
    assert [list(column.cells) for column in table.columns] == [
        ["rouge l", "kl"],
        ["0.5", "–"],
        ["0.25", "1.5"],
        ["0.4375", "–"],
    ]
    assert str(table.caption) == "prompts: 20, tier: landlock, validation at 0.5: 0.25"


def test_a_policy_that_only_chose_has_one_column() -> None:
    table = policy_table({"likelihood": 0.25, "total": 200.0})
    assert [list(column.cells) for column in table.columns] == [["likelihood", "total"], ["0.25", "200"]]


def test_the_verdict_on_a_reward_model_in_words() -> None:
    figures = {
        **{"f1": 0.713, "f1_low": 0.6, "f1_high": 0.8, "heldout": 9, "random_f1": 0.21, "neutral_f1": 0.0},
        **{"fresh": 16, "fresh_paid": 0.5, "spoiled": 15, "spoiled_paid": 0.8},
    }
    verdict: dict[str, Any] = {"fit": False, "reasons": ["it praises"], "cautions": ["few"], "figures": figures}
    assert gate_lines(verdict) == [
        "F1 0.71 (0.60 to 0.80) on 9 held-out critiques; random spans 0.21, always neutral 0.00",
        "it rewards 50 % of 16 fresh answers, and 80 % of 15 made unreadable",
        "Not fit to train against:",
        "- it praises",
        "Note: few",
    ]
    unmeasured = {**verdict, "fit": True, "cautions": [], "figures": {**figures, "f1": None}}
    assert gate_lines(unmeasured)[1:] == ["Fit to train against."]


def test_the_verdict_stands_below_five_critiques() -> None:
    said = Feedback(
        id="m1",
        prompt=(Message(role="user", content="When?"),),
        response="a \x1b[31mbad answer",
        critique="no",
        spans=(Span(start=7, end=10, label=-1, text="bad"),),
        source=Source(kind="reward_model"),
    )
    figures = {"f1": None, "fresh": 6, "fresh_paid": 0.0, "spoiled": 0, "spoiled_paid": 0.0}
    out = io.StringIO()
    verdict = {"fit": True, "reasons": [], "cautions": [], "figures": figures}
    show_gate(Console(file=out, width=100, _environ={}), [said] * 6, verdict)
    assert out.getvalue().count("m1: When?\na [-bad-] answer\n") == 5
    assert out.getvalue().endswith("Fit to train against.\n")


BROKEN = "s\ufffdY, \ufffdcos\ufffd due or\ufffd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BROKEN, True),
        ("A name: \ufffd\ufffd", False),  # too few: an answer cut within an emoji
        ("\ufffd\ufffd\ufffd" + "A long answer that quotes a broken page. " * 20, False),
        ("", False),
        ("日本語。", False),
    ],
)
def test_bytes_that_are_no_characters_are_no_text(text: str, expected: bool) -> None:
    assert no_text(text) is expected


def test_what_a_model_cannot_write_yet_is_not_shown() -> None:
    """Of answers one line says why, of a critique in its place; a page of broken bytes says nothing."""
    prompt = (Message(role="user", content="When?"),)
    said = Feedback(id="m1", prompt=prompt, response=BROKEN, source=Source(kind="reward_model"))
    figures = {"f1": None, "fresh": 6, "fresh_paid": 0.0, "spoiled": 0, "spoiled_paid": 0.0}
    verdict = {"fit": True, "reasons": [], "cautions": [], "figures": figures}
    shown = []
    for records in ([said] * 6, [said, said.model_copy(update={"response": "Fine.", "critique": BROKEN})]):
        out = io.StringIO()
        show_gate(Console(file=out, width=100, _environ={}), records, verdict)
        shown.append(" ".join(out.getvalue().split()))
        assert "\ufffd" not in shown[-1]
    assert shown[0].startswith("5 answers are not shown: no text yet") and "m1" not in shown[0]
    assert "(18 characters: no text yet" in shown[1] and "Fine. (a critique that is no text yet" in shown[1]
