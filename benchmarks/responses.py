"""Responses and random spans for the benchmarks, from local data sets or the standard library."""

from __future__ import annotations

import ast
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from text2grad.feedback import Label, Span

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SHORTEST, LONGEST = 80, 900
"""Characters of a response."""


def prose(count: int) -> list[str]:
    """Return English answers: human-judged summaries of SQuALITY, else docstrings."""
    return _first(count, _summaries() if (DATA / "squality_human_eval").is_dir() else _docstrings())


def code(count: int) -> list[str]:
    """Return Python programs: solutions of MBPP, else functions of the standard library."""
    return _first(count, _solutions() if (DATA / "mbpp").is_dir() else _functions())


def _first(count: int, texts: Iterator[str]) -> list[str]:
    fitting: dict[str, None] = {}
    for text in texts:
        if len(text) >= SHORTEST:
            fitting[text[:LONGEST]] = None
        if len(fitting) == count:
            return list(fitting)
    raise SystemExit(f"only {len(fitting)} of {count} texts found")


def _summaries() -> Iterator[str]:
    for line in (DATA / "squality_human_eval" / "all-responses.jsonl").open(encoding="utf-8"):
        for answers in json.loads(line)["questions"].values():
            yield from (answer["response"] for answer in answers.values() if "response" in answer)


def _solutions() -> Iterator[str]:
    for line in (DATA / "mbpp" / "mbpp.jsonl").open(encoding="utf-8"):
        yield json.loads(line)["code"]


def _docstrings() -> Iterator[str]:
    return _definitions(lambda node, source: ast.get_docstring(node) or "")


def _functions() -> Iterator[str]:
    return _definitions(lambda node, source: ast.get_source_segment(source, node) or "")


def _definitions(read: Callable[[ast.FunctionDef, str], str]) -> Iterator[str]:
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = file.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                yield read(node, source)


def unique_spans(text: str, count: int, dice: random.Random) -> tuple[Span, ...]:
    """Up to `count` random labelled spans whose words occur once in `text`, sorted as `parse`
    returns them."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    spans: dict[tuple[int, int], Span] = {}
    for _ in range(4 * count):
        first = dice.randrange(len(words))
        start, end = words[first][0], words[min(first + dice.randrange(8), len(words) - 1)][1]
        if dice.random() < 0.2:  # anywhere, inside a word as well
            start, end = start + dice.randrange(2), max(start + 2, end - dice.randrange(2))
        quote = text[start:end]
        if quote.strip() and text.find(quote) == text.rfind(quote):
            label: Label = dice.choice((1, -1))
            spans[start, end] = Span(start=start, end=end, label=label, text=quote)
        if len(spans) == count:
            break
    return tuple(spans[place] for place in sorted(spans))
