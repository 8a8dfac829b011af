"""The program in a response, with the position in the response of each of its characters."""

from __future__ import annotations

import ast
import keyword
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from text2grad.critics.program.source import LONGEST, Lines, parsed

_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([^\s`]*)[^\r\n`]*\r?\n")
_PYTHON = {"", "python", "python3", "py", "py3", "pycon", "{python}"}
_SENTENCE = re.compile(r"([-*>]\s+|\d+[.)]\s+)*[*_\"'(]*[A-Z][\w'’-]*[*_:,.!?)]*(\s+\S+)*\s*")
_WORDS = re.compile(r"[A-Za-z'’,-]+(\s+[A-Za-z0-9'’`,.;:!?-]+){2,}\s*")
_CODE = re.compile(r"[ \t]*[\w.\[\]]+[ \t]*[-+*/%]?=|.*[(\[{,\\]\s*$")


@dataclass(frozen=True)
class Program:
    """The code of a response; `starts[i]` is where its line i starts in the response (characters).

    `closed` is False where the fence around it never ends: the answer may have been cut off.
    """

    code: str
    starts: tuple[int, ...]
    closed: bool = True

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the response that hold the code's characters [start, end); end >
        start."""
        return self._position(start), self._position(end - 1) + 1

    def line_at(self, position: int) -> int:
        """The program's line (from 1) that holds a character of the response."""
        return bisect_right(self.starts, position)

    def _position(self, index: int) -> int:
        starts = Lines.of(self.code).starts
        line = bisect_right(starts, index) - 1
        return self.starts[line] + index - starts[line]


def extract_program(response: str, names: Sequence[str] = ()) -> Program:
    """The program in a response: of several fenced blocks the last that defines one of `names`.

    If none does, the first Python block with a definition, else the first block. Without a fence it
    is the whole response without lines of prose before and after it; if there is only prose, the
    code is "".
    """
    blocks = list(_blocks(response))
    if not blocks:
        return _bare(response)
    python = [block for block, language in blocks if language in _PYTHON] or [block for block, _ in blocks]
    for wanted in names:
        if defining := [block for block in python if defines(block.code, wanted)]:
            return defining[-1]
    with_definition = [block for block in python if names and defines(block.code, r"\w+")]
    return (with_definition or python)[0]


def defines(code: str, name: str) -> bool:
    """Whether some line of `code` defines `name` (a pattern); the code need not be Python."""
    return re.search(rf"^[ \t]*((async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*=[^=]", code, re.M) is not None


@lru_cache(maxsize=1024)
def wanted_names(tests: str, entry_point: str = "") -> tuple[str, ...]:
    """What the tests expect of a solution: the entry point, and the names they import from
    `solution`."""
    nodes = ast.walk(parsed(tests) or ast.Module([], []))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    found = [alias.name for node in imports for alias in node.names if alias.name != "*"]
    return tuple(dict.fromkeys(name for name in (entry_point, *found) if name))


def _blocks(response: str) -> Iterator[tuple[Program, str]]:
    """Every fenced block with its language; a fence may be indented, and the last one may be
    open."""
    position = 0
    while opening := _OPENING.search(response, position):
        fence, language = opening.groups()
        end, position, closed = _closing(response, opening.end(), fence)
        yield _dedented(response, opening.end(), end, closed), language.lower()


def _closing(response: str, start: int, fence: str) -> tuple[int, int, bool]:
    """Where a block ends, where to look for the next, and whether the fence is closed.

    The closing fence has nothing but white space after it; failing that, any fence will do.
    """
    pattern = rf"{re.escape(fence)}+[ \t]*(?:\r?$|\Z)"
    if closing := re.compile(pattern, re.M).search(response, start):
        return closing.start(), closing.end(), True
    place = response.find(fence, start)
    return (len(response), len(response), False) if place < 0 else (place, place + len(fence), True)


def _dedented(response: str, start: int, end: int, closed: bool) -> Program:
    """A block without the white space that all its lines begin with: a fence inside a list is
    indented."""
    block = Lines.of(response[start:end])
    margins = [line[: len(line) - len(line.lstrip())] for line in block.lines if line.strip()]
    margin = min(margins, key=len, default="")
    same = all(each.startswith(margin) for each in margins)
    cut = [len(margin) if same and line.strip() else 0 for line in block.lines]
    code = "".join(line[n:] for line, n in zip(block.lines, cut, strict=True))
    starts = tuple(start + at + n for at, n in zip(block.starts, cut, strict=False))
    return Program(code, starts or (start,), closed)


def _bare(response: str) -> Program:
    whole = Lines.of(response)
    if len(response) > LONGEST or _reads(response):
        return Program(response, whole.starts)
    kept = [number for number, line in enumerate(whole.lines) if not _is_prose(line)]
    if not kept:
        return Program("", (0,))
    first, last = kept[0], kept[-1] + 1
    return Program("".join(whole.lines[first:last]), whole.starts[first:last])


def _is_prose(line: str) -> bool:
    """Blank, or a sentence that begins at the margin: what is indented belongs to a program,
    readable or not."""
    words = line.split()
    if not words:
        return True
    if keyword.iskeyword(words[0]) or _CODE.match(line) or _reads(line.strip()):
        return False
    return bool(_SENTENCE.fullmatch(line) or _WORDS.fullmatch(line))


def _reads(text: str) -> bool:
    """Whether Python can parse it; a plain word is taken for prose, and a single name is not a
    program."""
    match parsed(text):
        case None | ast.Module([ast.Expr(ast.Name())]):
            return False
    return True
