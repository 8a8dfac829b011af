"""What finished work was made with, so that another recipe under the same name is not read for it."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

from text2grad.config import Config

LATER = frozenset({"ppo", "offline", "credit", "critic", "extra", "evaluate"})
"""Sections that the SFT policy and the reward model do not depend on (`annotate.critic` judges what it learns)."""


def recipe_of(config: Config, without: frozenset[str] = frozenset()) -> str:
    """A digest of all settings but some sections, where the run lies and how many threads it has."""
    fields = config.model_dump_json(exclude={"run": {"folder", "threads"}, **dict.fromkeys(without, True)})
    return hashlib.sha256(f"{version('text2grad')} {fields}".encode()).hexdigest()[:16]


def refuse_other_recipe(config: Config) -> None:
    """Note what the models in the run folder are made with; refuse a folder whose models were made with another.

    Raises:
        SystemExit: they were.
    """
    note, recipe = config.run.folder / "recipe.txt", recipe_of(config, LATER)
    before = note.read_text(encoding="utf-8") if note.is_file() else recipe
    if before != recipe:
        raise SystemExit(f"the models in {note.parent} were made with other settings: take another --out")
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(recipe, encoding="utf-8")
