"""docs/method.md and docs/metrics.md speak of what exists: their functions, settings and logged names."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

from pydantic import BaseModel

from places import ROOT
from text2grad.config import Config

METHOD = (ROOT / "docs" / "method.md").read_text("utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text("utf-8")
LOGGING = {
    "train/account.py": {"describe"},
    "train/update.py": {"loss_terms"},
    "train/supervised.py": {"train_supervised"},
}


def in_code(page: str, pattern: str) -> set[str]:
    """Everything in backticks (fenced blocks left out) that matches as a whole."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return {code for code in re.findall(r"`([^`]+)`", prose) if re.fullmatch(pattern, code)}


def setting_exists(name: str) -> bool:
    section, key = name.split(".")
    annotation = Config.model_fields[section].annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel) and key in annotation.model_fields


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
    named = in_code(METHOD + METRICS, rf"({sections})\.\w+(: .*)?")
    named = {name.split(":")[0] for name in named}
    assert len(named) > 25
    assert {name for name in named if not setting_exists(name)} == set()


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
    assert {"kl", "wrong_sign_rate", "clip_fraction", "heldout_loss"} <= logged
    assert logged - in_code(METRICS, r"\w+") == set()
