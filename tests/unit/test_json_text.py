"""Lines end at line feeds alone."""

from __future__ import annotations

from pathlib import Path

from text2grad.json_text import split_lines

SOURCE = Path(__file__).parents[2] / "src" / "text2grad"


def test_only_line_feeds_end_a_line() -> None:
    inside = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    for text, lines in {"": [], "\n": [""], f"{inside}\r\n\ng\n": [inside, "", "g"], "a\nb": ["a", "b"]}.items():
        assert split_lines(text) == lines


def test_no_other_code_splits_lines_of_users() -> None:
    assert [path.name for path in SOURCE.rglob("*.py") if ".splitlines(" in path.read_text(encoding="utf-8")] == []
