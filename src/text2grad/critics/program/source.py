"""A program as text and as a tree, the character positions of its nodes and lines, and one small
edit of it."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from text2grad.tasks.library import parse_module

# As Python sees lines; str.splitlines also cuts at \f and U+2028.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEEPEST = 150
LONGEST = 200_000
"""Characters of a program that is worked on; the parser takes minutes for ten million."""
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Lines:
    """A text cut into lines as Python counts them, and the character at which each starts."""

    text: str
    lines: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Lines:
        """The lines of `text`, each with its line end."""
        lines = tuple(_LINE.findall(text))
        return cls(text, lines, tuple(accumulate((len(line) for line in lines[:-1]), initial=0)))

    def number_at(self, position: int) -> int:
        """The line (from 1) that holds the character at `position`."""
        return bisect_right(self.starts, position)

    def numbers(self, start: int, end: int) -> range:
        """The lines (from 1) that hold the characters [start, end)."""
        return range(self.number_at(start), self.number_at(end - 1) + 1)

    def line_start(self, position: int) -> int:
        """Where the line starts that holds the character at `position`."""
        return self.starts[self.number_at(position) - 1]

    def extent(self, number: int) -> tuple[int, int]:
        """Characters of a line (from 1) without the white space around it; (0, 0) if there is no
        such line."""
        if not 1 <= number <= len(self.lines):
            return 0, 0
        line, start = self.lines[number - 1], self.starts[number - 1]
        left = len(line) - len(line.lstrip())
        return start + left, start + left + len(line.strip())


@dataclass(frozen=True)
class Code(Lines):
    """A program that Python can read."""

    tree: ast.Module

    def bounds(self, node: Any) -> tuple[int, int]:
        """Character interval of a node; `ast` counts columns in UTF-8 bytes."""
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def extent_of(self, node: ast.stmt) -> tuple[int, int]:
        """Characters of a statement; of a compound one, its header up to the colon."""
        start, end = self.bounds(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            inner, _ = self.bounds(body[0])
            end = start + len(self.text[start:inner].rstrip())
        return start, end

    def quote(self, node: ast.stmt) -> str:
        """The text of `extent_of`."""
        start, end = self.extent_of(node)
        return self.text[start:end]

    def statements(self) -> Iterator[ast.stmt]:
        """All statements in source order but the `def` lines themselves, which the question
        dictates."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.stmt) and not isinstance(node, Function):
                yield node
            waiting += reversed(list(ast.iter_child_nodes(node)))


def read_code(text: str) -> Code | None:
    """`text` as a program; None if Python cannot read it, or if it is too long or too deep to be
    worked on."""
    tree = parsed(text) if len(text) <= LONGEST else None
    if tree is None or _too_deep(tree):
        return None
    lines = Lines.of(text)
    return Code(text, lines.lines, lines.starts, tree)


def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a text; None if Python cannot read it."""
    try:
        return parse_module(text)
    except (ValueError, RecursionError, MemoryError):
        return None


def _too_deep(tree: ast.AST) -> bool:
    level = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def header_fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The fields of a node without those that hold nested statements."""
    nested = _NESTED if isinstance(node, ast.stmt) else ()
    return ((name, value) for name, value in ast.iter_fields(node) if name not in nested)


def header_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes below a statement that are not part of a nested statement, outer ones first.

    Nothing inside an f-string: before Python 3.12 the positions of such nodes are wrong.
    """
    waiting: list[Any] = [value for _, value in header_fields(statement)]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, list):
            waiting[:0] = value
        elif isinstance(value, ast.AST):
            yield value
            waiting[:0] = [] if isinstance(value, ast.JoinedStr) else list(ast.iter_child_nodes(value))


@dataclass(frozen=True)
class Edit:
    """Put `text` in place of the characters [start, end) of a program.

    `line` is where it happens (from 1); `cost` is low for what programmers often get wrong; [low,
    high) is the smallest expression or statement around it that says something when quoted. `kind`
    `missing` is a new line.
    """

    start: int
    end: int
    text: str
    kind: str
    cost: float
    line: int
    low: int
    high: int

    def applied(self, code: str) -> str:
        """The program with the edit."""
        return code[: self.start] + self.text + code[self.end :]

    def wanted(self, code: str) -> str:
        """The quoted expression with the edit; of a new line, the line."""
        if self.kind == "missing":
            return self.text.strip()
        return code[self.low : self.start] + self.text + code[self.end : self.high]


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions of a program, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def variables(tree: ast.AST) -> list[str]:
    """Names that a function or module takes as arguments or assigns, in order of appearance."""
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
    return list(found)
