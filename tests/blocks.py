"""What stands in the pages as code: fenced blocks, words in backticks, and the commands in both."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from places import ROOT

README = ROOT / "README.md"
FEEDBACK = ROOT / "docs" / "feedback.md"
PROGRAMS = ("text2grad", "python", "torchrun", "accelerate")
PLACEHOLDERS = {"N": "2", "KIND": "program"}
"""Words of a command that stand for a value of another kind than text."""
GAP, SHELL = "...", {"<", ">", "|", "&&"}


def fenced(page: str, *languages: str) -> list[str]:
    """The blocks of these languages, without their fences."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def in_code(page: str, pattern: str) -> list[str]:
    """Everything in backticks (fenced blocks left out) that matches as a whole, on one line, in
    order."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    found = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))
    return [code for code in found if re.fullmatch(pattern, code)]


def section(page: str, title: str) -> str:
    """What stands below a heading of the second level, up to the next."""
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE)
    return str(found)


def commands_in(block: str) -> list[list[str]]:
    """The words of every line of a block, without comments, blank lines and `$`; a backslash joins
    lines."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [shlex.split(line.strip().removeprefix("$ "), comments=True) for line in lines]
    return [words for words in found if words]


def commands_of(file: Path) -> Iterator[list[str]]:
    """Every command of a page, fenced or in backticks; of a YAML file, those in its comments; of a
    script, those that its docstring shows."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
        shown = re.findall(
            r"^ {4}((?:\w+=\S+ )*(?:python \w+/|text2grad [a-z]).*(?:\n {8}.*)*)", text, flags=re.MULTILINE
        )
        typed = [re.sub(r"\\\n|[\[\]\n]", " ", usage) for usage in shown]
    elif file.suffix == ".yaml":
        text = "\n".join(re.findall(r"# ?(.*)$", text, flags=re.MULTILINE))
        typed = [line for line in text.splitlines() if line.split()[:1] in ([name] for name in PROGRAMS)]
    elif file.name == "cli.md":
        typed = re.findall(r"^ {4}text2grad (?:.*\\\n)*.*$", "\n".join(fenced(text, "text")), flags=re.MULTILINE)
    else:
        typed = fenced(text, "bash", "console")
    for block in typed:
        yield from commands_in(block)
    for code in in_code(text, rf"(?:\w+=\S+ )*(?:{'|'.join(PROGRAMS)}) .*"):
        yield shlex.split(code)


def filled(words: Sequence[str]) -> list[str]:
    """A command that can be read: without what is the shell's and gaps (`...`, and the option whose
    value one is), with the first of `a|b`, and with values for placeholders."""
    whole: list[str] = []
    for word in takewhile(lambda word: word not in SHELL, words):
        if word != GAP:
            whole.append(PLACEHOLDERS.get(word, word.split("|")[0]))
        elif whole and whole[-1].startswith("--"):
            whole.pop()
    return whole
