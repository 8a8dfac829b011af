"""Files of programs: a line `=== title` begins each section; text before the first says what the file is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"


def sections(name: str) -> Iterator[tuple[str, str]]:
    """(title, what follows) of each section of a file in `DATA`.

    Raises:
        ValueError: a title is used twice.
    """
    titles = set()
    for section in (DATA / name).read_text(encoding="utf-8").split("\n=== ")[1:]:
        title, _, body = section.partition("\n")
        if title in titles:
            raise ValueError(f"{title} is used twice")
        titles.add(title)
        yield title, body
