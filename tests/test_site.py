"""docs/zensical.toml and docs/api.md: the site shows every page and every public name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import text2grad
from places import ROOT

SITE = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text("utf-8"))["project"]


def nav_pages(entries: list[dict[str, object]]) -> Iterator[str]:
    """Yield the page of every entry of the navigation, sections included."""
    for entry in entries:
        for target in entry.values():
            if isinstance(target, list):
                yield from nav_pages(target)
            else:
                yield str(target)


def test_the_navigation_lists_every_page_once() -> None:
    listed = list(nav_pages(SITE["nav"]))
    assert sorted(listed) == sorted(set(listed)) and [page for page in listed if not (ROOT / page).is_file()] == []
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages - set(listed) == set()


def test_the_api_page_documents_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    documented = re.findall(r"^::: text2grad\.([\w.]+)\.(\w+)$", page, flags=re.MULTILINE)
    assert {name: module for module, name in documented} == text2grad._MODULE_OF
    assert len(documented) == len(text2grad.__all__)
