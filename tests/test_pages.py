"""The pages speak of what exists: settings, functions, logged names, files, links, commands."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from blocks import README, fenced, in_code
from places import ROOT
from text2grad.config import Config
from text2grad.feedback import Feedback, Transcript
from text2grad.formats.intake import import_feedback
from text2grad.formats.preference import read_pairs

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CHANGELOG.md", *DOCS]
BOOK = sorted((ROOT / "lab" / "book").glob("*.md"))
DATA = ROOT / "docs" / "data.md"
METHOD = (ROOT / "docs" / "method.md").read_text("utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text("utf-8")
READ = {"bash", "console", "text"}
"""Commands, which tests/test_page_commands.py reads, and what programs say."""
RUN = {
    *(("README.md", "csv"), ("README.md", "python"), ("library.md", "python"), ("data.md", "json")),
    ("plugins.md", "python"),  # tests/plugins
}
"""Blocks that are run: by tests/e2e/test_readme.py, tests/test_library_page.py, and below."""
LOGGING = {
    "train/account.py": {"describe"},
    "train/update.py": {"loss_terms"},
    "train/supervised.py": {"train_supervised", "descend"},
    "train/objectives/offline.py": {"loss_terms"},
}


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def anchors(page: str) -> set[str]:
    """The fragment of every heading, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(path: Path) -> bool:
    return path.exists()


def setting_exists(name: str) -> bool:
    """Whether a dotted name is a setting, or one key below a setting that takes a mapping."""
    model: object = Config
    for key in name.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return True
        if key not in model.model_fields:
            return False
        model = model.model_fields[key].annotation
    return True


def string_keys(function: ast.FunctionDef) -> Iterator[str]:
    """Keys of dictionary displays and of subscripts."""
    for node in ast.walk(function):
        keys = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def resolve(name: str) -> object:
    """What a dotted name below `text2grad` stands for: a module or something in one; None if nothing."""
    try:
        return importlib.import_module(f"text2grad.{name}")
    except ModuleNotFoundError:
        module, _, attribute = f"text2grad.{name}".rpartition(".")
        return getattr(importlib.import_module(module), attribute, None)


def test_every_setting_named_exists() -> None:
    sections = "|".join(Config.model_fields)
    named = in_code(METHOD + METRICS, rf"({sections})(\.[a-z_0-9]+)+(: .*)?")
    named = {name.split(":")[0] for name in named}
    assert len(named) > 25
    assert {name for name in named if not setting_exists(name)} == set()


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: page.name)
def test_every_option_of_a_command_exists(page: Path) -> None:
    sections = "|".join(Config.model_fields)
    options = set(re.findall(rf"--((?:{sections})\.[\w.]*\w)", text_of(page)))
    assert {option for option in options if not setting_exists(option)} == set()


def test_every_function_named_exists() -> None:
    named = in_code(METHOD + METRICS, r"(rl|align|wire|train|eval)(\.\w+)+")
    assert len(named) > 15
    missing = {name for name in named if resolve(name) is None}
    assert missing == set()


def test_every_logged_name_is_explained() -> None:
    logged: set[str] = set()
    for file, functions in LOGGING.items():
        tree = ast.parse((ROOT / "src" / "text2grad" / file).read_text("utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
        assert {node.name for node in found} == functions
        logged |= {key for node in found for key in string_keys(node)}
    assert {"kl", "wrong_sign_rate", "clip_fraction", "steps"} <= logged
    assert logged - set(in_code(METRICS, r"\w+")) == set()


def test_the_readme_is_short() -> None:
    assert len(text_of(README).splitlines()) < 165


@pytest.mark.parametrize("page", [*PAGES, *BOOK], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    broken = []
    for target in targets:
        path, _, fragment = target.partition("#")
        if re.match(r"https?:", target):
            continue
        linked = page.parent / path if path else page
        known = exists(linked)
        if known and fragment and linked.is_file():
            known = fragment in anchors(text_of(linked))
        if not known:
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_exists(page: Path) -> None:
    folders = "docs|benchmarks|experiments|examples|configs|tests|src"
    named = set(re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", text_of(page)))
    named |= set(re.findall(r"(?<![\w./-])((?:\w+/)+\w+\.py)\b", text_of(page)))
    homes = [ROOT, *(ROOT / "src").iterdir()]
    assert {name for name in named if not any(exists(home / name) for home in homes)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_script_of_a_command_exists(page: Path) -> None:
    commands = re.findall(r"\bpython3?\s+((?:benchmarks|experiments|examples)/[\w.]+)", text_of(page))
    assert {script for script in commands if not exists(ROOT / script)} == set()


def test_every_entry_of_the_lab_book_has_a_verdict_and_is_in_the_index() -> None:
    index = text_of(ROOT / "lab" / "book" / "README.md")
    pages = [page for page in BOOK if page.name != "README.md"]
    listed = re.findall(r"^\| \[.*\]\((\S+)\) \| \w", index, re.MULTILINE)
    assert sorted(listed) == [page.name for page in pages]
    for page in pages:
        headings = re.findall(r"^## (.*)$", text_of(page), re.MULTILINE)
        assert sorted(headings, key=lambda heading: heading[:10], reverse=True) == headings
        verdicts = re.findall(r"^## \d{4}-\d\d-\d\d: .*\?\n\n\*Verdict: ", text_of(page), re.MULTILINE)
        assert len(verdicts) == len(headings) > 0


def test_every_block_is_run_or_read_by_a_test() -> None:
    languages = {
        (page.name, each) for page in PAGES for each in re.findall(r"^```(\w+)$", text_of(page), re.MULTILINE)
    }
    assert {(page, each) for page, each in languages if each not in READ} == RUN


def test_the_ways_to_write_a_remark_are_the_same(tmp_path: Path) -> None:
    _, _, remarks = fenced(text_of(DATA), "json")
    records = []
    for line in remarks.splitlines():
        (tmp_path / "remarks.jsonl").write_text(line, "utf-8")
        records += import_feedback(tmp_path / "remarks.jsonl", "auto", None).records
    told = {(each.response, *((span.start, span.text, span.label) for span in each.spans)) for each in records}
    assert len(records) == 3 and told == {("It is due next week.", (10, "next week", -1))}
    assert all("the mail says friday" in each.critique.casefold() for each in records)


def test_the_record_of_several_turns_that_is_shown_is_one() -> None:
    record, *_ = fenced(text_of(DATA), "json")
    found = Feedback.model_validate_json(record)
    assert isinstance(found.response, Transcript) and len(found.response.turns) == 2


def test_the_pair_that_is_shown_is_read(tmp_path: Path) -> None:
    _, pair, _ = fenced(text_of(DATA), "json")
    (tmp_path / "pairs.jsonl").write_text(pair, "utf-8")
    [found] = read_pairs(str(tmp_path / "pairs.jsonl")).pairs
    assert found.id == "7"
