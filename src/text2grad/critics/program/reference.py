"""The difference to a reference solution, statement by statement and then down to the smallest
expression."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from text2grad.critics.program.source import Code, header_fields

_WORDS = ast.Name | ast.Constant | ast.Attribute | ast.Slice
TOO_SMALL = _WORDS | ast.operator | ast.unaryop | ast.cmpop | ast.boolop
"""Nodes that say too little to be quoted alone."""


class Difference(NamedTuple):
    """A piece of a program (characters), and the corresponding text of the reference ("" if
    missing).

    Where the piece is right but the statement before or after it is missing, `before` or `after` is
    that statement.
    """

    start: int
    end: int
    wanted: str
    before: str = ""
    after: str = ""


def compare(code: Code, reference: Code) -> tuple[list[Difference], list[Difference]]:
    """Statements of `code` that the reference has too, and the smallest pieces that differ, both in
    order."""
    mine, theirs = list(code.statements()), list(reference.statements())
    matcher = SequenceMatcher(None, list(map(_shape, mine)), list(map(_shape, theirs)), autojunk=False)
    equal: list[Difference] = []
    different: list[Difference] = []
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            equal += [Difference(*code.extent_of(node), "") for node in mine[a0:a1]]
        elif tag == "insert":
            missing = " ".join(map(reference.quote, theirs[b0:b1]))
            different += [_insertion(code, mine, a0, missing)] if mine else []
        else:
            same = min(a1 - a0, b1 - b0)
            pairs = zip(mine[a0 : a0 + same], theirs[b0 : b0 + same], strict=True)
            different += [_smallest(code, node, reference, other) for node, other in pairs]
            different += [Difference(*code.extent_of(node), "") for node in mine[a0 + same : a1]]
    return equal, sorted(different, key=lambda piece: piece.start)


def _insertion(code: Code, mine: list[ast.stmt], index: int, missing: str) -> Difference:
    """What is missing cannot be quoted: blame the statement at its place."""
    at_end = index >= len(mine)
    there = mine[-1] if at_end else mine[index]
    wanted = f"{missing} {code.quote(there)}"
    return Difference(*code.extent_of(there), wanted, "" if at_end else missing, missing if at_end else "")


def _shape(node: ast.stmt) -> str:
    """A statement without its nested statements, for comparison."""
    return type(node).__name__ + "".join(_dump(value) for _, value in header_fields(node))


def _dump(value: Any) -> str:
    if isinstance(value, ast.AST):
        return ast.dump(value)
    return "[" + ",".join(map(_dump, value)) + "]" if isinstance(value, list) else repr(value)


def _smallest(code: Code, mine: ast.stmt, reference: Code, theirs: ast.stmt) -> Difference:
    """Descend while exactly one child differs; stop before a bare name or number (a quote must say
    something)."""
    a: ast.AST = mine
    b: ast.AST = theirs
    while type(a) is type(b) and not isinstance(a, ast.JoinedStr):
        pairs = _children(a, b)
        small = any(isinstance(child, TOO_SMALL) for pair in pairs for child in pair)
        if len(pairs) != 1 or small or not hasattr(pairs[0][0], "lineno"):
            break
        a, b = pairs[0]
    if isinstance(a, ast.stmt) and isinstance(b, ast.stmt):
        return Difference(*code.extent_of(a), reference.quote(b))
    start, end = code.bounds(a)
    low, high = reference.bounds(b)
    return Difference(start, end, reference.text[low:high])


def _children(a: ast.AST, b: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Pairs of children in which two nodes of one type differ; a difference elsewhere is a pair of
    its own."""
    elsewhere = [(ast.Load(), ast.Load())]
    found: list[tuple[ast.AST, ast.AST]] = []
    for name, left in header_fields(a):
        lefts, rights = ([value] if not isinstance(value, list) else value for value in (left, getattr(b, name)))
        if len(lefts) != len(rights):
            found += elsewhere
            continue
        for one, other in zip(lefts, rights, strict=True):
            if _dump(one) == _dump(other):
                continue
            if isinstance(one, ast.comprehension) and isinstance(other, ast.comprehension):
                found += _children(one, other)
            else:
                found += [(one, other)] if isinstance(one, ast.AST) and isinstance(other, ast.AST) else elsewhere
    return found
