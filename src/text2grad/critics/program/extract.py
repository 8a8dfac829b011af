"""Extract the program of a response, and map its characters to the response."""

from __future__ import annotations

import ast
import keyword
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from text2grad.critics.program.source import MAX_CHARACTERS, Lines, parse_tree

_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([^\s`]*)[^\r\n`]*\r?\n")
_PYTHON = {"", "python", "python3", "py", "py3", "pycon", "{python}"}
_SENTENCE = re.compile(r"([-*>]\s+|\d+[.)]\s+)*[*_\"'(]*[A-Z][\w'’-]*[*_:,.!?)]*(\s+\S+)*\s*")
_WORDS = re.compile(r"[A-Za-z'’,-]+(\s+[A-Za-z0-9'’`,.;:!?-]+){2,}\s*")
_CODE = re.compile(r"[ \t]*[\w.\[\]]+[ \t]*[-+*/%]?=|.*[(\[{,\\]\s*$")


@dataclass(frozen=True)
class Program:
    """The code of a response; its line i starts at character `starts[i]` of the response.

    `closed` is False if its fence is never closed: the answer may be truncated.
    """

    code: str
    starts: tuple[int, ...]
    closed: bool = True

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Map code characters [start, end), not empty, to characters of the response."""
        return self._position(start), self._position(end - 1) + 1

    def line_at(self, position: int) -> int:
        """Return the program line (from 1) at a character of the response."""
        return bisect_right(self.starts, position)

    def _position(self, index: int) -> int:
        starts = Lines.of(self.code).starts
        line = bisect_right(starts, index) - 1
        return self.starts[line] + index - starts[line]


def extract_program(response: str, names: Sequence[str] = ()) -> Program:
    """Extract the program: the last fenced block that defines one of `names`.

    Failing that, the first Python block with a definition, or else the first block. Without a
    fence, the response without the prose lines around the code; the code is empty if all is prose.
    """
    blocks = list(_blocks(response))
    if not blocks:
        return _extract_unfenced(response)
    python = [block for block, language in blocks if language in _PYTHON] or [block for block, _ in blocks]
    for name in names:
        if defining := [block for block in python if defines(block.code, name)]:
            return defining[-1]
    with_definition = [block for block in python if names and defines(block.code, r"\w+")]
    return (with_definition or python)[0]


def defines(code: str, name: str) -> bool:
    """True if a line of `code` defines `name` (a pattern); the code need not parse."""
    return re.search(rf"^[ \t]*((async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*=[^=]", code, re.M) is not None


@lru_cache(maxsize=1024)
def expected_names(tests: str, entry_point: str = "") -> tuple[str, ...]:
    """Return the entry point and the names that the tests import from `solution`."""
    nodes = ast.walk(parse_tree(tests) or ast.Module([], []))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    imported = [alias.name for node in imports for alias in node.names if alias.name != "*"]
    return tuple(dict.fromkeys(name for name in (entry_point, *imported) if name))


def _blocks(response: str) -> Iterator[tuple[Program, str]]:
    """Yield the fenced blocks and their languages; fences may be indented, the last may be open."""
    position = 0
    while opening := _OPENING.search(response, position):
        fence, language = opening.groups()
        end, position, closed = _find_closing_fence(response, opening.end(), fence)
        yield _dedent(response, opening.end(), end, closed), language.lower()


def _find_closing_fence(response: str, start: int, fence: str) -> tuple[int, int, bool]:
    """Return the end of a block, the position after its fence, and whether the fence is closed.

    Prefers a fence with only whitespace after it.
    """
    pattern = rf"{re.escape(fence)}+[ \t]*(?:\r?$|\Z)"
    if closing := re.compile(pattern, re.M).search(response, start):
        return closing.start(), closing.end(), True
    end = response.find(fence, start)
    return (len(response), len(response), False) if end < 0 else (end, end + len(fence), True)


def _dedent(response: str, start: int, end: int, closed: bool) -> Program:
    """Remove the common indentation of a block, as of a fence inside a list."""
    block = Lines.of(response[start:end])
    margins = [line[: len(line) - len(line.lstrip())] for line in block.lines if line.strip()]
    shortest = min(margins, key=len, default="")
    common = len(shortest) if all(margin.startswith(shortest) for margin in margins) else 0
    removed = [common if line.strip() else 0 for line in block.lines]
    code = "".join(line[count:] for line, count in zip(block.lines, removed, strict=True))
    starts = tuple(start + offset + count for offset, count in zip(block.starts, removed, strict=False))
    return Program(code, starts or (start,), closed)


def _extract_unfenced(response: str) -> Program:
    text = Lines.of(response)
    if len(response) > MAX_CHARACTERS or _is_program(response):
        return Program(response, text.starts)
    code_lines = [index for index, line in enumerate(text.lines) if not _is_prose(line)]
    if not code_lines:
        return Program("", (0,))
    first, last = code_lines[0], code_lines[-1] + 1
    return Program("".join(text.lines[first:last]), text.starts[first:last])


def _is_prose(line: str) -> bool:
    """True for a blank line or an unindented sentence; indented lines count as code."""
    words = line.split()
    if not words:
        return True
    if keyword.iskeyword(words[0]) or _CODE.match(line) or _is_program(line.strip()):
        return False
    return bool(_SENTENCE.fullmatch(line) or _WORDS.fullmatch(line))


def _is_program(text: str) -> bool:
    """True if a text parses as Python and is more than a single name, which may be prose."""
    match parse_tree(text):
        case None | ast.Module([ast.Expr(ast.Name())]):
            return False
    return True
