"""One small edit of a program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Put `text` in place of the characters [start, end) of a program.

    `line` is where it happens (from 1); `cost` is low for what programmers often get wrong; [low, high) is the
    smallest expression or statement around it that says something when quoted. `kind` `missing` is a new line.
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


Function = ast.FunctionDef | ast.AsyncFunctionDef


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
