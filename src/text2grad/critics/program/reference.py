"""Compare a program with a reference, by statement and then down to the smallest expression."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from text2grad.critics.program.source import Code, header_fields

_WORDS = ast.Name | ast.Constant | ast.Attribute | ast.Slice
TOO_SMALL = _WORDS | ast.operator | ast.unaryop | ast.cmpop | ast.boolop
"""Nodes that are too short to quote alone."""


class Difference(NamedTuple):
    """Characters [start, end) of a program, and the corresponding text of the reference, if any.

    If the piece itself is right, `before` or `after` is the statement that is missing next to it.
    """

    start: int
    end: int
    expected: str
    before: str = ""
    after: str = ""


def compare(code: Code, reference: Code) -> tuple[list[Difference], list[Difference]]:
    """Return the statements shared with the reference, and the smallest differences, in order."""
    statements, expected = list(code.statements()), list(reference.statements())
    headers, expected_headers = list(map(_dump_header, statements)), list(map(_dump_header, expected))
    matcher = SequenceMatcher(None, headers, expected_headers, autojunk=False)
    equal: list[Difference] = []
    different: list[Difference] = []
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            equal += [Difference(*code.extent_of(node), "") for node in statements[a0:a1]]
        elif tag == "insert":
            missing = " ".join(map(reference.quote, expected[b0:b1]))
            different += [_insertion(code, statements, a0, missing)] if statements else []
        else:
            count = min(a1 - a0, b1 - b0)
            pairs = zip(statements[a0 : a0 + count], expected[b0 : b0 + count], strict=True)
            different += [_smallest_difference(code, node, reference, other) for node, other in pairs]
            different += [Difference(*code.extent_of(node), "") for node in statements[a0 + count : a1]]
    return equal, sorted(different, key=lambda piece: piece.start)


def _insertion(code: Code, statements: list[ast.stmt], index: int, missing: str) -> Difference:
    """Blame the statement at the place of a missing one, which cannot be quoted."""
    at_end = index >= len(statements)
    neighbour = statements[-1] if at_end else statements[index]
    expected = f"{missing} {code.quote(neighbour)}"
    before, after = ("", missing) if at_end else (missing, "")
    return Difference(*code.extent_of(neighbour), expected, before, after)


def _dump_header(node: ast.stmt) -> str:
    """Dump a statement without its nested statements, for comparison."""
    return type(node).__name__ + "".join(_dump(value) for _, value in header_fields(node))


def _dump(value: Any) -> str:
    if isinstance(value, ast.AST):
        return ast.dump(value)
    return "[" + ",".join(map(_dump, value)) + "]" if isinstance(value, list) else repr(value)


def _smallest_difference(code: Code, statement: ast.stmt, reference: Code, expected: ast.stmt) -> Difference:
    """Descend while exactly one child differs; stop before nodes that are `TOO_SMALL` to quote."""
    a: ast.AST = statement
    b: ast.AST = expected
    while type(a) is type(b) and not isinstance(a, ast.JoinedStr):
        pairs = _differing_children(a, b)
        small = any(isinstance(child, TOO_SMALL) for pair in pairs for child in pair)
        if len(pairs) != 1 or small or not hasattr(pairs[0][0], "lineno"):
            break
        a, b = pairs[0]
    if isinstance(a, ast.stmt) and isinstance(b, ast.stmt):
        return Difference(*code.extent_of(a), reference.quote(b))
    start, end = code.bounds(a)
    low, high = reference.bounds(b)
    return Difference(start, end, reference.text[low:high])


def _differing_children(a: ast.AST, b: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Return the pairs of differing children of two nodes of one type.

    A difference that is not between two nodes is represented by a pair of `ast.Load`.
    """
    not_nodes = [(ast.Load(), ast.Load())]
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for name, value in header_fields(a):
        lefts, rights = (item if isinstance(item, list) else [item] for item in (value, getattr(b, name)))
        if len(lefts) != len(rights):
            pairs += not_nodes
            continue
        for left, right in zip(lefts, rights, strict=True):
            if _dump(left) == _dump(right):
                continue
            if isinstance(left, ast.comprehension) and isinstance(right, ast.comprehension):
                pairs += _differing_children(left, right)
            else:
                is_pair = isinstance(left, ast.AST) and isinstance(right, ast.AST)
                pairs += [(left, right)] if is_pair else not_nodes
    return pairs
