"""The lab book: an index of all pages; entries with a date, a question and a verdict."""

from __future__ import annotations

import re
from pathlib import Path

BOOK = Path(__file__).parents[1] / "book"


def test_every_page_is_in_the_index_and_every_entry_has_a_verdict() -> None:
    pages = sorted(page for page in BOOK.glob("*.md") if page.name != "README.md")
    listed = re.findall(r"^\| \[.*\]\((\S+)\) \| \w", (BOOK / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in pages]
    for page in pages:
        text = page.read_text("utf-8")
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert sorted(headings, key=lambda heading: heading[:10], reverse=True) == headings
        entries = re.findall(r"^## \d{4}-\d\d-\d\d: .*\?\n\n\*\*Verdict\.\*\* ", text, re.MULTILINE)
        assert len(entries) == len(headings) > 0
