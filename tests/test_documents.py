"""No page, docstring, comment or help text names a document, a script or a file that is not in the repository."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT

FOLDERS = ("src", "docs", "tests", "benchmarks", "experiments", "examples", "configs", "lab", ".ci")
ENDINGS = (".py", ".md", ".yaml", ".toml", ".j2", ".js", ".css", ".txt")
HELPERS = "design method reliability scale style baselines".upper().split()
"""Names of documents that never belonged to this repository; in capitals they are no ordinary words."""
MADE_LATER = {"table.md", "compare.md", "card.md.j2"}
"""What a script writes into its own folder, or what only looks like a page."""
PAGE = re.compile(r"(?<![\w/.~-])(?:[\w.-]+/)*[\w-]+\.md\b(?!\.j2)")
PLACE = re.compile(rf"(?<![\w/.~-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*\w")
HISTORY = {Path("CHANGELOG.md")}
"""It may name a file that has moved since, like the lab book; the pages they name must be there."""
BOOK = Path("lab/book")


def texts() -> Iterator[Path]:
    """Every text file of the repository that people write, the corpora of programs apart."""
    for folder in FOLDERS:
        yield from (file for file in (ROOT / folder).rglob("*") if file.suffix in ENDINGS and is_ours(file))
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run"))


def is_ours(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    made = {"__pycache__", "data"} & set(parts) or any(part.endswith(".egg-info") for part in parts)
    return not made and not file.is_symlink()


def current(written: dict[Path, str]) -> dict[Path, str]:
    return {path: text for path, text in written.items() if path not in HISTORY and BOOK not in path.parents}


def named_documents(text: str, python: bool) -> set[str]:
    """Helper documents that a text names; of a Python file only its strings and comments speak."""
    wanted = re.compile(rf"\b(?:{'|'.join(HELPERS)})\b")
    if not wanted.search(text):
        return set()
    if python:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        text = "\n".join(token.string for token in tokens if token.type not in (tokenize.NAME, tokenize.OP))
    return set(wanted.findall(text))


def missing_pages(text: str, folder: Path) -> set[str]:
    """Pages that a text in `folder` names and that are neither there, nor in docs, nor at the top."""
    named = set(PAGE.findall(text)) - MADE_LATER
    return {name for name in named if not any((place / name).is_file() for place in (ROOT, ROOT / "docs", folder))}


def missing_places(text: str) -> set[str]:
    """Files and folders below those of the repository that a text names and that are not there."""
    return {name for name in PLACE.findall(text) if not any(ROOT.glob(name))}


@pytest.fixture(scope="module")
def written() -> dict[Path, str]:
    """Path from the top -> text."""
    found = {file.relative_to(ROOT): file.read_text(encoding="utf-8") for file in texts()}
    return {path: text for path, text in found.items() if path != Path("tests/test_documents.py")}


def test_no_document_is_named_that_is_not_in_the_repository(written: dict[Path, str]) -> None:
    assert len(written) > 300
    found = {path: named_documents(text, path.suffix == ".py") for path, text in written.items()}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_every_page_that_is_named_is_there(written: dict[Path, str]) -> None:
    found = {path: missing_pages(text, (ROOT / path).parent) for path, text in written.items()}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_every_file_that_is_named_is_there(written: dict[Path, str]) -> None:
    found = {path: missing_places(text) for path, text in current(written).items()}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_what_is_not_there_is_found() -> None:
    document = HELPERS[1]
    assert named_documents(f'"""As {document} says."""\n', True) == {document}
    assert named_documents(f"x = 1  # {document}\n", True) == {document}
    assert named_documents(f"{document} = 1\n", True) == set()
    assert named_documents(f"As {document} says.\n", False) == {document}
    assert named_documents("a method, Methods\n", False) == set()
    assert missing_pages(
        "see docs/no_such.md, docs/method.md and [that](lab/book/README.md) or no_such.md.", ROOT
    ) == {
        "docs/no_such.md",
        "no_such.md",
    }
    assert missing_places("run benchmarks/no_such.py, then `tests/unit/` and configs/*.yaml.") == {
        "benchmarks/no_such.py"
    }


@pytest.mark.parametrize("folder", ["benchmarks", "experiments"])
def test_every_script_is_in_the_index_of_its_folder(folder: str) -> None:
    index = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    scripts = {file.name for file in (ROOT / folder).glob("*.py")}
    rows = [line.split(" | ") for line in index.splitlines() if line.startswith("| `")]
    commands = {name for row in rows for name in re.findall(rf"python {folder}/([\w.]+)", row[2])}
    assert set(re.findall(r"`(\w+\.py)`", index)) == scripts
    assert commands == {
        name for name in scripts if "def main()" in (ROOT / folder / name).read_text(encoding="utf-8")
    }
    assert all(len(row) == 5 and row[3] and re.fullmatch(r"\d{4}-\d\d-\d\d \|", row[4]) for row in rows)
