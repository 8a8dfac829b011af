"""A program as text and tree, the positions of its nodes and lines, and edits of it."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from text2grad.tasks.library import parse_module

# Python's own line ends; str.splitlines also splits at \f and U+2028.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_DEPTH = 150
MAX_CHARACTERS = 200_000
"""Longest program to analyse; the parser takes minutes for ten million characters."""
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Lines:
    """A text split into lines as Python counts them; line i starts at character `starts[i]`."""

    text: str
    lines: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Lines:
        """Split `text` into lines, which keep their line ends."""
        lines = tuple(_LINE.findall(text))
        return cls(text, lines, tuple(accumulate((len(line) for line in lines[:-1]), initial=0)))

    def number_at(self, position: int) -> int:
        """Return the line number (from 1) at a character."""
        return bisect_right(self.starts, position)

    def numbers(self, start: int, end: int) -> range:
        """Return the line numbers (from 1) of the characters [start, end)."""
        return range(self.number_at(start), self.number_at(end - 1) + 1)

    def line_start(self, position: int) -> int:
        """Return the start of the line at a character."""
        return self.starts[self.number_at(position) - 1]

    def extent(self, number: int) -> tuple[int, int]:
        """Return the characters of a stripped line (from 1); (0, 0) if there is no such line."""
        if not 1 <= number <= len(self.lines):
            return 0, 0
        line = self.lines[number - 1]
        start = self.starts[number - 1] + len(line) - len(line.lstrip())
        return start, start + len(line.strip())


@dataclass(frozen=True)
class Code(Lines):
    """A program that parses."""

    tree: ast.Module

    def bounds(self, node: Any) -> tuple[int, int]:
        """Return the characters of a node; `ast` counts columns in UTF-8 bytes."""
        return self._index(node.lineno, node.col_offset), self._index(node.end_lineno, node.end_col_offset)

    def _index(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def extent_of(self, node: ast.stmt) -> tuple[int, int]:
        """Return the characters of a statement; for a compound one, its header up to the colon."""
        start, end = self.bounds(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            inner, _ = self.bounds(body[0])
            end = start + len(self.text[start:inner].rstrip())
        return start, end

    def quote(self, node: ast.stmt) -> str:
        """Return the text of `extent_of`."""
        start, end = self.extent_of(node)
        return self.text[start:end]

    def statements(self) -> Iterator[ast.stmt]:
        """Yield the statements in source order, except `def` lines, which the question dictates."""
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.stmt) and not isinstance(node, Function):
                yield node
            stack += reversed(list(ast.iter_child_nodes(node)))


def parse_code(text: str) -> Code | None:
    """Parse a program; None if it is invalid, too long or too deeply nested."""
    tree = parse_tree(text) if len(text) <= MAX_CHARACTERS else None
    if tree is None or _too_deep(tree):
        return None
    lines = Lines.of(text)
    return Code(text, lines.lines, lines.starts, tree)


def parse_tree(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it does not parse."""
    try:
        return parse_module(text)
    except (ValueError, RecursionError, MemoryError):
        return None


def _too_deep(tree: ast.AST) -> bool:
    level = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def header_fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Return the fields of a node, except those with nested statements."""
    nested = _NESTED if isinstance(node, ast.stmt) else ()
    return ((name, value) for name, value in ast.iter_fields(node) if name not in nested)


def header_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes below a statement but outside nested statements, outer nodes first.

    Nodes inside f-strings are skipped: before Python 3.12 their positions are wrong.
    """
    stack: list[Any] = [value for _, value in header_fields(statement)]
    while stack:
        value = stack.pop(0)
        if isinstance(value, list):
            stack[:0] = value
        elif isinstance(value, ast.AST):
            yield value
            stack[:0] = [] if isinstance(value, ast.JoinedStr) else list(ast.iter_child_nodes(value))


@dataclass(frozen=True)
class Edit:
    """Replacement of the characters [start, end) of a program by `text`.

    `kind` is the kind of mistake (`missing` inserts a line); `cost` is low for common mistakes.
    `line` counts from 1. [low, high) is the smallest expression or statement around the edit that
    is worth quoting.
    """

    start: int
    end: int
    text: str
    kind: str
    cost: float
    line: int
    low: int
    high: int

    def apply(self, code: str) -> str:
        """Return the edited program."""
        return code[: self.start] + self.text + code[self.end :]

    def quote(self, code: str) -> str:
        """Return the edited expression or the inserted line."""
        if self.kind == "missing":
            return self.text.strip()
        return code[self.low : self.start] + self.text + code[self.end : self.high]


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions of a program, including nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def variables(tree: ast.AST) -> list[str]:
    """Return the arguments and assigned names of a function or module, in order of appearance."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
    return list(names)
