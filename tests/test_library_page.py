"""docs/library.md: its snippets run one after the other, and it speaks of everything that text2grad
offers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import text2grad
from places import ROOT

PAGE = (ROOT / "docs" / "library.md").read_text("utf-8")
FOUND = list(re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL))
SNIPPETS = [(match[1], PAGE.count("\n", 0, match.start(1))) for match in FOUND]


def test_every_snippet_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for code, line in SNIPPETS:
        exec(compile("\n" * line + code, "docs/library.md", "exec"), space)
    assert len(SNIPPETS) > 8


def test_every_name_that_is_offered_is_on_the_page() -> None:
    named = set(re.findall(r"\w+", PAGE))
    assert set(text2grad.__all__) - named == set()


def test_every_name_that_is_used_is_offered() -> None:
    assert set(re.findall(r"t2g\.(\w+)", PAGE)) <= set(text2grad.__all__)
