"""Unit tests as a critic: run the program, say which test failed, and point at the lines to blame.

Where a reference solution exists, the blame is the smallest expression that differs from it; otherwise the
line the traceback names; otherwise the body of the program. Which evidence was used stands in the critique.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from text2grad.feedback import Critique, Example, Failure, Judgement, Label, Source, Span
from text2grad.sandbox.runner import Runner, TestResult, Verdict

_FENCE = re.compile(r"```[ \t]*(?:python3?|py3?)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_LINE = re.compile(
    r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+"
)  # as Python sees it; str.splitlines also cuts at \f and U+2028
_TOO_SMALL = (
    *(ast.Name, ast.Constant, ast.Attribute, ast.Slice),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)


@dataclass(frozen=True)
class Program:
    """The code of a response and where it starts in the response (characters)."""

    code: str
    offset: int


@dataclass(frozen=True)
class Difference:
    """A piece of the response's code, and the reference's text in its place ("" when there is none)."""

    start: int
    end: int
    wanted: str


def extract_program(response: str) -> Program:
    """The first fenced block, else the whole response."""
    fenced = _FENCE.search(response)
    return Program(fenced.group(1), fenced.start(1)) if fenced else Program(response, 0)


class ProgramCritic:
    """Judges a response by the tests in `example.meta["tests"]` and the program in `example.reference`.

    The verdict is +1 when all tests pass and -1 otherwise. With `brief`, the critique names what is wrong but
    not the inputs of the failing test: a reward model learns to predict it without running the program.
    """

    def __init__(self, runner: Runner, brief: bool = False) -> None:
        self.runner = runner
        self.brief = brief
        self.source = Source(kind="program", model="unit tests", prompt_version="1")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Run every response; a task without usable tests gives a `Failure`, not a verdict."""
        return [self._judge(example, text) for example, text in zip(examples, responses, strict=True)]

    def _judge(self, example: Example, response: str) -> Judgement:
        tests = example.meta.get("tests", "")
        if not tests:
            return Failure(kind="unsupported", message=f"{example.id}: no tests in meta['tests']")
        program = extract_program(response)
        if not program.code.strip():
            spans = _span(response, Program(response, 0), 0, len(response), -1, "no program")
            return Critique(text="There is no program.", spans=spans, score=-1.0)
        verdict = self.runner.run(program.code, tests)
        if verdict.outcome in ("bad_tests", "no_tests", "unsupported"):
            return Failure(kind="unsupported", message=f"{example.id}: {verdict.outcome}: {verdict.error}")
        if verdict.passed:
            return _praise(program, response)
        return self._blame(program, response, verdict, example.reference)

    def _blame(self, program: Program, response: str, verdict: Verdict, reference: str) -> Critique:
        tree = _parse(program.code)
        what = _failure_text(verdict, self.brief)
        if tree is None:
            return _unreadable(program, response, verdict, what)
        if reference and (expected := _parse(reference)) is not None:
            equal, different = compare(program.code, tree, reference, expected)
            if different:
                return _by_reference(program, response, equal, different, what)
        line = next((r.line for r in verdict.results if r.line), verdict.line)
        if line:
            span = _line_span(program, response, line, -1, "the traceback ends here")
            return Critique(text=f"{what} The error comes from line {line}.", spans=span, score=-1.0)
        reason = "the tests fail and nothing says which line"
        return Critique(text=what, spans=_span(response, program, 0, len(program.code), -1, reason), score=-1.0)


def _failure_text(verdict: Verdict, brief: bool) -> str:
    failed = [result for result in verdict.results if not result.passed]
    if verdict.outcome == "timeout":
        return "Does not finish in time."
    if not failed:
        return "Does not run." if brief else f"Does not run: {verdict.error}."
    if brief:
        return "Fails the tests."
    return f"Fails {len(failed)} of {len(verdict.results)} tests: {_example_text(failed[0])}."


def _example_text(result: TestResult) -> str:
    if result.call:
        return f"{result.call} gave {result.got}, expected {result.expected}"
    return f"{result.name} raised {result.error}"


def _by_reference(
    program: Program,
    response: str,
    equal: list[Difference],
    different: list[Difference],
    what: str,
) -> Critique:
    """Statement by statement against the reference, the verdict last: reasons come before the judgement."""
    spans: list[Span] = []
    notes: list[tuple[int, str]] = []
    for piece in equal:
        spans += _span(response, program, piece.start, piece.end, 1, "")
    for piece in different:
        quote = program.code[piece.start : piece.end]
        spans += _span(response, program, piece.start, piece.end, -1, "")
        wrong = f"should be `{piece.wanted}`." if piece.wanted else "should not be there."
        notes.append((piece.start, f"`{quote}` {wrong}"))
    text = " ".join([*(note for _, note in sorted(notes)), what])
    return Critique(text=text, spans=tuple(_ordered(spans)), score=-1.0)


def _unreadable(program: Program, response: str, verdict: Verdict, what: str) -> Critique:
    spans = _line_span(program, response, verdict.line or 1, -1, "not Python")
    spans = spans or _span(response, program, 0, len(program.code), -1, "not Python")
    return Critique(text=f"{what} It is not Python.", spans=spans, score=-1.0)


def _praise(program: Program, response: str) -> Critique:
    tree = _parse(program.code)
    statements = list(_body_statements(tree)) if tree is not None else []
    pieces = [Difference(*_extent(program.code, node), "") for node in statements]
    return _by_reference(program, response, pieces, [], "Passes the tests.").model_copy(update={"score": 1.0})


def _parse(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid decimal literal": of the program, not of ours
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def compare(
    code: str, tree: ast.Module, reference: str, expected: ast.Module
) -> tuple[list[Difference], list[Difference]]:
    """Statements of `code` that the reference has too, and the smallest pieces that it has otherwise."""
    mine, theirs = list(_body_statements(tree)), list(_body_statements(expected))
    matcher = SequenceMatcher(
        a=[_shape(node) for node in mine], b=[_shape(node) for node in theirs], autojunk=False
    )
    equal: list[Difference] = []
    different: list[Difference] = []
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            equal += [Difference(*_extent(code, node), "") for node in mine[a0:a1]]
        elif tag == "replace":
            same = min(a1 - a0, b1 - b0)
            pairs = zip(mine[a0 : a0 + same], theirs[b0 : b0 + same], strict=True)
            different += [_smallest(code, node, reference, other) for node, other in pairs]
            different += [Difference(*_extent(code, node), "") for node in mine[a0 + same : a1]]
        elif tag == "delete":
            different += [Difference(*_extent(code, node), "") for node in mine[a0:a1]]
        else:
            different += _insertion(code, mine, a0, reference, theirs[b0:b1])
    return equal, different


def _insertion(
    code: str, mine: list[ast.stmt], index: int, reference: str, missing: list[ast.stmt]
) -> list[Difference]:
    """What is missing cannot be quoted: blame the statement where it should stand."""
    if not mine:
        return []
    place = mine[min(index, len(mine) - 1)]
    start, end = _extent(code, place)
    lost = " ".join(_header(reference, node) for node in missing)
    return [Difference(start, end, f"{lost} {code[start:end]}")]


def _body_statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements in source order but the `def` line itself, which the question dictates."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt) and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        yield from _body_statements(child)


def _shape(node: ast.stmt) -> str:
    """A statement without its nested statements, for comparison."""
    nested = ("body", "orelse", "finalbody", "handlers", "cases")
    return type(node).__name__ + "".join(
        _dump(value) for name, value in ast.iter_fields(node) if name not in nested
    )


def _dump(value: Any) -> str:
    if isinstance(value, ast.AST):
        return ast.dump(value)
    return "[" + ",".join(map(_dump, value)) + "]" if isinstance(value, list) else repr(value)


def _smallest(code: str, mine: ast.stmt, reference: str, theirs: ast.stmt) -> Difference:
    """Descend while exactly one child differs; stop before a bare name or number (a quote must say something)."""
    a: ast.AST = mine
    b: ast.AST = theirs
    while type(a) is type(b):
        pairs = list(_children(a, b))
        if len(pairs) != 1 or isinstance(pairs[0][0], _TOO_SMALL) or not hasattr(pairs[0][0], "lineno"):
            break
        if isinstance(pairs[0][1], _TOO_SMALL):
            break
        a, b = pairs[0]
    if isinstance(a, ast.stmt) and isinstance(b, ast.stmt):
        return Difference(*_extent(code, a), _header(reference, b))
    start, end = _bounds(code, a)
    low, high = _bounds(reference, b)
    return Difference(start, end, reference[low:high])


def _children(a: ast.AST, b: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Pairs of children in which two nodes of one type differ; a difference elsewhere gives a dead end."""
    nested = ("body", "orelse", "finalbody", "handlers", "cases") if isinstance(a, ast.stmt) else ()
    for name, left in ast.iter_fields(a):
        right = getattr(b, name)
        if name in nested or _dump(left) == _dump(right):
            continue
        lefts = left if isinstance(left, list) else [left]
        rights = right if isinstance(right, list) else [right]
        if len(lefts) != len(rights):
            yield ast.Load(), ast.Load()
            continue
        for one, other in zip(lefts, rights, strict=True):
            if _dump(one) == _dump(other):
                continue
            if isinstance(one, ast.comprehension) and isinstance(other, ast.comprehension):
                yield from _children(one, other)
            elif isinstance(one, ast.AST) and isinstance(other, ast.AST):
                yield one, other
            else:
                yield ast.Load(), ast.Load()


def _header(code: str, node: ast.stmt) -> str:
    start, end = _extent(code, node)
    return code[start:end]


def _extent(code: str, node: ast.stmt) -> tuple[int, int]:
    """Characters of a statement; of a compound one, its header up to the colon."""
    start, end = _bounds(code, node)
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        inner, _ = _bounds(code, body[0])
        end = start + len(code[start:inner].rstrip())
    return start, end


def _bounds(code: str, node: Any) -> tuple[int, int]:
    """Character interval of a node; `ast` counts columns in UTF-8 bytes."""
    lines = _LINE.findall(code)

    def position(line: int, column: int) -> int:
        before = sum(len(text) for text in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    return position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)


def _span(response: str, program: Program, start: int, end: int, label: Label, reason: str) -> tuple[Span, ...]:
    """The span of code characters [start, end) in the response, trimmed of white space; none if nothing is left."""
    text = program.code[start:end]
    left = program.offset + start + len(text) - len(text.lstrip())
    right = left + len(text.strip())
    if right <= left:
        return ()
    return (Span(start=left, end=right, label=label, text=response[left:right], reason=reason),)


def _line_span(program: Program, response: str, line: int, label: Label, reason: str) -> tuple[Span, ...]:
    lines = _LINE.findall(program.code)
    if not 1 <= line <= len(lines):
        return ()
    start = sum(len(text) for text in lines[: line - 1])
    return _span(response, program, start, start + len(lines[line - 1]), label, reason)


def _ordered(spans: list[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end, -span.label))
