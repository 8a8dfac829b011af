"""The pages speak of what exists: settings, functions, logged names, files and links.

Of the lab book, which keeps the names of its day, only the links are read.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from blocks import README, in_code
from places import ROOT
from text2grad.config import Config

PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LAB_PAGES = sorted((ROOT / "lab").rglob("*.md"))
METRICS = (ROOT / "docs" / "metrics.md").read_text("utf-8")
DETAILED = ("method", "metrics", "reward-models", "deploy")
REFERENCE = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in DETAILED)
FOLDERS = ("src", "docs", "tests", "benchmarks", "experiments", "examples", "configs", "lab", ".ci")
LOGGING = {
    "train/report.py": {"compute_metrics"},
    "train/update.py": {"loss_terms"},
    "train/supervised.py": {"train_supervised", "train_batches"},
    "train/offline.py": {"loss_terms"},
}


def setting_exists(name: str) -> bool:
    """True if a dotted name is a setting, or one key below a setting that takes a mapping."""
    model: object = Config
    for key in name.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return True
        if key not in model.model_fields:
            return False
        model = model.model_fields[key].annotation
    return True


def resolve(name: str) -> object:
    """Import a dotted name below `text2grad`, a module or something in one; None if there is
    none."""
    try:
        return importlib.import_module(f"text2grad.{name}")
    except ModuleNotFoundError:
        module, _, attribute = f"text2grad.{name}".rpartition(".")
        return getattr(importlib.import_module(module), attribute, None)


def string_keys(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the keys of dictionary displays and of subscripts."""
    for node in ast.walk(function):
        keys = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def test_every_setting_and_function_named_exists() -> None:
    sections = "|".join(Config.model_fields)
    settings = {name.split(":")[0] for name in in_code(REFERENCE, rf"({sections})(\.[a-z_0-9]+)+(: .*)?")}
    assert len(settings) > 25 and {name for name in settings if not setting_exists(name)} == set()
    functions = in_code(REFERENCE, r"(rl|align|wire|train|eval)(\.\w+)+")
    assert len(functions) > 15 and {name for name in functions if resolve(name) is None} == set()


def test_every_logged_name_is_explained() -> None:
    logged: set[str] = set()
    for file, functions in LOGGING.items():
        tree = ast.parse((ROOT / "src" / "text2grad" / file).read_text("utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
        assert {node.name for node in nodes} == functions
        logged |= {key for node in nodes for key in string_keys(node)}
    assert {"kl", "wrong_sign_rate", "clip_fraction", "steps"} <= logged
    assert logged - set(in_code(METRICS, r"\w+")) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_and_module_named_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    options = set(re.findall(rf"--((?:{'|'.join(Config.model_fields)})\.[\w.]*\w)", text))
    assert {option for option in options if not setting_exists(option)} == set()
    modules = set(re.findall(r"(?<![\w./-])((?:\w+/)+\w+\.py)\b", text))
    homes = [ROOT, ROOT / "lab", *(ROOT / "src").iterdir()]
    assert {name for name in modules if not any((home / name).exists() for home in homes)} == set()


def test_every_file_named_in_a_page_or_in_the_code_exists() -> None:
    names = re.compile(rf"(?<![\w/.~{{-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*\w")
    read = [folder for folder in FOLDERS if folder != "tests"]
    texts = [*PAGES, *(file for folder in read for file in (ROOT / folder).rglob("*") if is_text(file))]
    missing = {
        str(file.relative_to(ROOT)): {
            name for name in names.findall(file.read_text("utf-8")) if not any(ROOT.glob(name))
        }
        for file in texts
    }
    assert len(texts) > 300 and {file: names for file, names in missing.items() if names} == {}


def is_text(file: Path) -> bool:
    """True for code, settings and pages; not for corpora, for what is generated, and for the lab
    book."""
    parts = {"__pycache__", "data", "book"} & set(file.relative_to(ROOT).parts)
    skipped = parts or ".egg-info" in str(file) or file.is_symlink()
    return file.suffix in (".py", ".md", ".yaml", ".toml", ".j2", ".js") and not skipped


@pytest.mark.parametrize("page", [*PAGES, *LAB_PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    assert [target for target in targets if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """True if a link leads to another site, or to a file, and its fragment to a heading in it."""
    path, _, fragment = target.partition("#")
    linked = page.parent / path if path else page
    if re.match(r"https?:", target) or not fragment or not linked.is_file():
        return bool(re.match(r"https?:", target)) or linked.exists()
    headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), flags=re.MULTILINE)
    return fragment in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
