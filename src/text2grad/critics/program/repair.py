"""Small edits of a program, likely ones first: if one makes every test pass, its place is where the fault is.

The tests decide; an edit is never shown as more than "with this instead, all tests pass".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from text2grad.critics.program.edit import Edit
from text2grad.critics.program.expressions import expression_edits
from text2grad.critics.program.source import Code
from text2grad.critics.program.statements import definition_edits, statement_edits, undefined_name


def edits(code: Code, errors: Sequence[str] = ()) -> Iterator[Edit]:
    """All edits of a program; `errors` are those of its failing tests ("NameError: name 'x' ...")."""
    yield from expression_edits(code)
    yield from statement_edits(code)
    for name in dict.fromkeys(undefined_name(error) for error in errors):
        if name:
            yield from definition_edits(code, name)
