"""Documented functions of the standard library and installed packages, parsed but not imported."""

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
MAX_FILE_BYTES = 400_000
RULES = 2
"""Version of the rules for a documented function, part of the cache's name; raise it with them."""
SENTENCE = re.compile(rb'"""\s*[^\n]{10,140}\.[ \t]*\n[ \t]*\n')
"""A docstring whose first line ends a paragraph; files without one are not parsed."""
SKIPPED_FOLDERS = {"test", "tests", "testing", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
WORDS = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True)
class DocumentedFunction:
    """A function whose docstring has a one-line summary and a body, both with single spaces.

    `place` is the file and the qualified name.
    """

    package: str
    place: str
    name: str
    signature: str
    summary: str
    body: str


def parse_module(code: str | bytes) -> ast.Module:
    """Parse a program, without Python's warnings about invalid escapes.

    Raises:
        ValueError: a syntax error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"code that Python cannot read: {error.msg}") from error


def installed_functions() -> list[DocumentedFunction]:
    """Return the documented functions of the standard library and the installed packages.

    Reading them takes most of a minute, so they are cached in the user's cache folder. The name of
    the cache file changes when a package is installed, removed or upgraded. An unreadable or
    unwritable cache is ignored.
    """
    roots = library_roots()
    # Names of package folders contain versions.
    names = [f"{root}/{entry.name}" for root in roots if root.is_dir() for entry in sorted(root.iterdir())]
    key = hashlib.sha256("\n".join([str(RULES), sys.version, *names]).encode()).hexdigest()[:16]
    cache = user_cache() / f"docstrings-{key}.jsonl"
    try:
        return [DocumentedFunction(**json.loads(line)) for line in split_lines(cache.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        functions = list(documented_functions(roots))
    _write_cache(cache, functions)
    return functions


def _write_cache(path: Path, functions: Sequence[DocumentedFunction]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(function)) + "\n" for function in functions]
        partial.write_text("".join(lines), encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)


def library_roots() -> list[Path]:
    """Return the folders of the standard library and the installed packages."""
    paths = sysconfig.get_paths()
    return [Path(folder) for folder in dict.fromkeys(paths[key] for key in ("stdlib", "purelib", "platlib"))]


def documented_functions(roots: Sequence[Path], per_package: int = PER_PACKAGE) -> Iterator[DocumentedFunction]:
    """Yield at most `per_package` functions of every top-level package, in a fixed order.

    The first of several packages with one name counts. Files are read in hash order, so that a
    large package is not represented by its first few modules. Tests, vendored copies, and files
    that do not parse are skipped.
    """
    names: set[str] = set()
    for root in roots:
        for package in sorted(root.iterdir() if root.is_dir() else []):
            name = package.stem if package.suffix == ".py" else package.name
            if name not in names and name not in SKIPPED_FOLDERS and (files := _source_files(package, root)):
                names.add(name)
                functions = (function for file in files for function in read_functions(file, name, root))
                yield from islice(functions, per_package)


def _source_files(package: Path, root: Path) -> list[Path]:
    if package.suffix == ".py":
        return [package]
    files = [
        file
        for file in package.rglob("*.py")
        if not any(part in SKIPPED_FOLDERS or "vendor" in part for part in file.relative_to(root).parts)
    ]
    return sorted(files, key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())


def read_functions(file: Path, package: str, root: Path) -> list[DocumentedFunction]:
    """Return the documented functions and methods of a file; none if it does not parse."""
    source = file.read_bytes()
    if len(source) > MAX_FILE_BYTES or not SENTENCE.search(source):
        return []
    try:
        tree = parse_module(source)
    except (ValueError, RecursionError):
        return []
    place = file.relative_to(root).as_posix()
    functions = (_documented(owner, node, package, place) for owner, node in _functions(tree, ""))
    return [function for function in functions if function is not None]


def _functions(tree: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module and its classes, with the name of their class."""
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
    summary, body = parts
    name = f"{owner}.{node.name}" if owner else node.name
    function = DocumentedFunction(package, f"{place}:{name}", name, _signature(node), summary, body)
    prompt = " ".join(words(f"{name} {function.signature} {body}"))
    # The prompt must not contain the answer.
    return None if f" {' '.join(words(summary))} " in f" {prompt} " else function


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """Return the first line and the body; None unless the line is a sentence of 4 to 14 words."""
    first, _, after = inspect.cleandoc(docstring).partition("\n")
    lines = [line.strip() for line in split_lines(after)]
    body = " ".join(line for line in lines if line and not line.startswith((">>>", "---", "===", "...")))
    is_paragraph = bool(lines) and not lines[0]
    is_sentence = first.isascii() and first.endswith(".") and not re.search(r"[\\`:<>{}|@]", first)
    if not (is_paragraph and is_sentence and 4 <= len(words(first)) <= 14 and len(body) >= 20):
        return None
    return " ".join(first.split()), " ".join(body.split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, as ROUGE counts them."""
    return [word.lower() for word in WORDS.findall(text)]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the names of the parameters, and the return annotation if there is one."""
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = [parameter.arg for parameter in parameters if parameter.arg not in ("self", "cls")]
    names += [f"*{parameter.arg}" for parameter in (arguments.vararg, arguments.kwarg) if parameter]
    annotation = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({', '.join(names)}){annotation}"
