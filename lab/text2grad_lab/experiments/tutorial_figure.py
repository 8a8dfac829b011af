"""Run docs/tutorial.md, and draw what it prints: critiques, token rewards, changed probabilities.

python -m text2grad_lab.experiments.tutorial_figure [--model smollm2|tiny] [--out FILE.svg]
"""

from __future__ import annotations

import argparse
import io
import os
import re
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
PRETRAINED = "## The same with a pretrained model"
TINY_MODEL = re.compile(r"MODEL, LEARNING_RATE = .*\n.*\n.*\n")
PRETRAINED_MODEL = re.compile(r"^MODEL, LEARNING_RATE = \"smollm2\".*\n", re.MULTILINE)
WIDTH, ROW, CHARACTER = 640, 26, 9.6
"""Pixels: the width of the figure, the height of a line, the width of a character."""


class Block(NamedTuple):
    """A code block of the page with the output on the page and the output of the run."""

    code: str
    documented: str
    printed: str
    pretrained: bool


def run_page(model: str) -> tuple[list[Block], dict[str, Any]]:
    """Run the blocks of the tutorial in order, in an empty folder.

    Args:
        model: `tiny` runs the page unchanged; `smollm2` replaces the lines given on the page.

    Returns:
        the blocks, and the variables that they leave.
    """
    page = PAGE.read_text("utf-8")
    start = page.index(PRETRAINED)
    blocks: list[Block] = []
    variables: dict[str, Any] = {}
    with TemporaryDirectory() as folder, chdir(folder):
        for match in re.finditer(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL):
            code = match[1]
            if model == "smollm2" and TINY_MODEL.search(code):
                [line] = PRETRAINED_MODEL.findall(page)
                code = TINY_MODEL.sub(line, code)
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(code, str(PAGE), "exec"), variables)
            blocks.append(Block(code, match[2] or "", output.getvalue(), match.start() > start))
    return blocks, variables


def differences(documented: str, printed: str, tolerance: float) -> list[str]:
    """Return the printed lines that differ from the documented ones beyond the tolerance."""
    pairs = zip(documented.splitlines() + [""] * 9, printed.splitlines() + [""] * 9, strict=False)
    return [actual for expected, actual in pairs if not _equal(expected, actual, tolerance)]


def _equal(documented: str, printed: str, tolerance: float) -> bool:
    number = re.compile(r"-?\d+\.\d+")
    numbers = zip(number.findall(documented), number.findall(printed), strict=False)
    same_words = number.sub("#", documented) == number.sub("#", printed)
    return same_words and all(abs(float(expected) - float(actual)) <= tolerance for expected, actual in numbers)


def draw(variables: dict[str, Any]) -> str:
    """Return an SVG: the critique of each answer, the rewards and probabilities of its tokens."""
    lines: list[str] = []
    y = 20
    probabilities = zip(
        variables["before"].logp.exp().tolist(), variables["after"].logp.exp().tolist(), strict=True
    )
    for critique, tokens, rewards, (before, after) in zip(
        variables["critiques"], variables["ids"], variables["rewards"], probabilities, strict=True
    ):
        words = [variables["tokenizer"].decode([token]) for token in tokens[:-1]]
        lines.append(f'<text x="20" y="{y}" class="said">{escape(critique.text)}</text>')
        lines += _cells(words, rewards[: len(words)], y + ROW)
        moved = [f"{100 * old:.1f} → {100 * new:.1f} %" for old, new in zip(before, after, strict=False)]
        lines += _labels(words, moved, y + 2 * ROW)
        y += int(3.8 * ROW)
    style = "text{font:16px monospace;fill:#222}.said{font:italic 15px sans-serif}.moved{font-size:11px}"
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    background = f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{background}\n{body}\n</svg>\n'


def _starts(words: Sequence[str]) -> list[tuple[float, float]]:
    """Return the left edge and the width of the cell of each token."""
    cells: list[tuple[float, float]] = []
    x = 20.0
    for word in words:
        width = max(CHARACTER * len(word.strip()) + 34, 96)
        cells.append((x, width))
        x += width + 4
    return cells


def _cells(words: Sequence[str], rewards: Sequence[float], y: float) -> list[str]:
    lines = []
    for word, reward, (x, width) in zip(words, rewards, _starts(words), strict=True):
        colour = "#b7dfc7" if reward > 0 else "#f3b8b3" if reward < 0 else "#eeeeee"
        sign = f"{reward:+.0f}" if reward else "0"
        lines.append(f'<rect x="{x}" y="{y - 18}" width="{width}" height="24" rx="3" fill="{colour}"/>')
        lines.append(f'<text x="{x + 5}" y="{y}">{escape(word.strip())}</text>')
        lines.append(f'<text x="{x + width - 4}" y="{y}" text-anchor="end" class="moved">{sign}</text>')
    return lines


def _labels(words: Sequence[str], labels: Sequence[str], y: float) -> list[str]:
    cells = zip(labels, _starts(words), strict=False)
    return [f'<text x="{x + 5}" y="{y - 4}" class="moved">{escape(label)}</text>' for label, (x, _) in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("smollm2", "tiny"), default="smollm2")
    parser.add_argument("--out", type=Path, default=PAGE.parent / "figures" / "tutorial.svg")
    options = parser.parse_args()
    blocks, variables = run_page(options.model)
    for block in blocks:
        print(block.printed, end="")
    options.out.write_text(draw(variables), "utf-8")
    print(f"figure: {os.path.relpath(options.out)}")


if __name__ == "__main__":
    main()
