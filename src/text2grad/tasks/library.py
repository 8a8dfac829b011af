"""Documented functions of the standard library and installed packages, read with `ast`, never
imported."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from text2grad.json_text import split_lines
from text2grad.settings import user_cache

PER_PACKAGE = 800
LONGEST_FILE = 400_000
RULES = 1
"""Version of the rules for a documented function; part of the cache's name, so raise it when they
change."""
SENTENCE = re.compile(rb'"""\s*[^\n]{10,140}\.[ \t]*\n[ \t]*\n')
"""Files without such a docstring (a first line that ends a paragraph) are not parsed."""
PASSED_OVER = {"test", "tests", "testing", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
WORDS = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True)
class DocumentedFunction:
    """A function whose docstring is one line, then more of it.

    `place` is the file and name it was read from, `summary` the first line, `rest` what follows it,
    both of them without needless white space.
    """

    package: str
    place: str
    name: str
    signature: str
    summary: str
    rest: str


def parse_module(code: str | bytes) -> ast.Module:
    """Return the syntax tree of a program; Python's warnings about invalid escapes are dropped.

    Raises:
        ValueError: Python cannot read it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"code that Python cannot read: {error.msg}") from error


def installed_functions() -> list[DocumentedFunction]:
    """The documented functions of the standard library and of the installed packages.

    Reading them takes most of a minute, so they are cached in the user's cache folder under a name
    that changes when a package is installed, removed or upgraded. An unreadable or unwritable cache
    is ignored.
    """
    roots = library_roots()
    kept = user_cache() / f"docstrings-{_installed(roots)}.jsonl"
    try:
        return [DocumentedFunction(**json.loads(line)) for line in split_lines(kept.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        found = list(documented_functions(roots))
    _keep(kept, found)
    return found


def _installed(roots: Sequence[Path]) -> str:
    """A digest of the installed packages: folder names contain names and versions."""
    names = [f"{root}/{entry.name}" for root in roots if root.is_dir() for entry in sorted(root.iterdir())]
    return hashlib.sha256("\n".join([str(RULES), sys.version, *names]).encode()).hexdigest()[:16]


def _keep(path: Path, found: Sequence[DocumentedFunction]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(each)) + "\n" for each in found]
        partial.write_text("".join(lines), encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)


def library_roots() -> list[Path]:
    """The folders of the standard library and of the installed packages."""
    paths = sysconfig.get_paths()
    return [Path(each) for each in dict.fromkeys(paths[key] for key in ("stdlib", "purelib", "platlib"))]


def documented_functions(roots: Sequence[Path], per_package: int = PER_PACKAGE) -> Iterator[DocumentedFunction]:
    """At most `per_package` functions of every top-level package, in a fixed order.

    Of two packages of one name the first counts. Files are taken in the order of a hash of their
    path, so that a large package is not its first few modules. Tests, vendored copies, and files
    that do not parse are passed over.
    """
    seen: set[str] = set()
    for root in roots:
        for package in sorted(root.iterdir() if root.is_dir() else []):
            name = package.stem if package.suffix == ".py" else package.name
            if name not in seen and name not in PASSED_OVER and (files := _files(package, root)):
                seen.add(name)
                found = (each for file in files for each in read_functions(file, name, root))
                yield from islice(found, per_package)


def _files(package: Path, root: Path) -> list[Path]:
    if package.suffix == ".py":
        return [package]
    found = [
        file
        for file in package.rglob("*.py")
        if not any(part in PASSED_OVER or "vendor" in part for part in file.relative_to(root).parts)
    ]
    return sorted(found, key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())


def read_functions(file: Path, package: str, root: Path) -> list[DocumentedFunction]:
    """The documented functions and methods of one source file; none of a file that is not
    Python."""
    source = file.read_bytes()
    if len(source) > LONGEST_FILE or not SENTENCE.search(source):
        return []
    try:
        tree = parse_module(source)
    except (ValueError, RecursionError):
        return []
    place = file.relative_to(root).as_posix()
    found = (_documented(owner, node, package, place) for owner, node in _functions(tree, ""))
    return [each for each in found if each is not None]


def _functions(tree: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and of its classes, with the class they belong to."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, node.name)


def _documented(
    owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef, package: str, place: str
) -> DocumentedFunction | None:
    parts = split_docstring(ast.get_docstring(node, clean=False) or "")
    if parts is None or node.name.startswith("__"):
        return None
    summary, rest = parts
    name = f"{owner}.{node.name}" if owner else node.name
    found = DocumentedFunction(package, f"{place}:{name}", name, _signature(node), summary, rest)
    shown = " ".join(words(f"{name} {found.signature} {rest}"))
    return None if f" {' '.join(words(summary))} " in f" {shown} " else found  # the prompt must not hold the answer


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """The first line and the rest; None unless the line is a sentence of 4 to 14 words with more
    after it."""
    first, _, after = inspect.cleandoc(docstring).partition("\n")
    lines = [line.strip() for line in split_lines(after)]
    rest = " ".join(line for line in lines if line and not line.startswith((">>>", "---", "===", "...")))
    is_paragraph = bool(lines) and not lines[0]
    is_sentence = first.isascii() and first.endswith(".") and not re.search(r"[\\`:<>{}|@]", first)
    if not (is_paragraph and is_sentence and 4 <= len(words(first)) <= 14 and len(rest) >= 20):
        return None
    return " ".join(first.split()), " ".join(rest.split())


def words(text: str) -> list[str]:
    """Letters and digits in small letters, as ROUGE counts them."""
    return [word.lower() for word in WORDS.findall(text)]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The names of the parameters, and what is returned where that is annotated."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = [each.arg for each in every if each.arg not in ("self", "cls")]
    names += [f"*{each.arg}" for each in (arguments.vararg, arguments.kwarg) if each]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({', '.join(names)}){returned}"
