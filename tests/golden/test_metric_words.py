"""The page explains figures in the words of the documentation; `make golden` writes them into the
package."""

from __future__ import annotations

import json
import os
import re

from places import ROOT

PAGES = [ROOT / "docs" / name for name in ("metrics.md", "reward-models.md", "deploy.md")]
WORDS = ROOT / "src" / "text2grad" / "page" / "metrics.json"


def words_of(page: str) -> dict[str, list[str]]:
    """Each name in the first column of a table, with the second column as plain text, and the
    fourth where it says what to look out for; the first table counts."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) > 3 and cells[1].strip().startswith("`"):
            watch = plain(cells[4]) if len(cells) > 5 else ""
            for name in re.findall(r"`([^`]+)`", cells[1]):
                found.setdefault(name, [plain(cells[2]), "" if watch == "–" else watch])
    return found


def plain(cell: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").replace("\\|", "|").strip()


def test_the_page_explains_names_as_the_documentation_does() -> None:
    words = words_of("".join(page.read_text(encoding="utf-8") for page in PAGES))
    lines = (f"{json.dumps(name)}: {json.dumps(said, ensure_ascii=False)}" for name, said in words.items())
    now = "{\n" + ",\n".join(lines) + "\n}\n"
    if os.environ.get("WRITE_GOLDEN"):
        WORDS.write_text(now, encoding="utf-8")
    assert WORDS.read_text(encoding="utf-8") == now, "make golden, and read the diff"
