"""Load a configuration from YAML presets and files and from `--section.key value` options.

Reading is strict: an unknown key, a repeated key, a wrong type or a Python tag is a one-line error
that names the key.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from pydantic import ValidationError

from text2grad.config.reference import explain, section_at, union_members
from text2grad.config.sections import Config
from text2grad.errors import UsageError, UserError, suggestion
from text2grad.settings import S
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

PRESETS = Path(__file__).parents[1] / "configs"
RECIPES = PRESETS / "recipes"
BY_TASK = "by_task"
"""The section of a recipe with settings for single tasks, by `task.name`."""
RECIPE = "recipe"
"""The key of a configuration that names the recipe it extends."""


def preset_names() -> list[str]:
    """Return the names of the presets in the package, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package, sorted.

    A recipe is a set of settings that overrides those of a configuration.
    """
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def preset_settings() -> list[dict[str, Any]]:
    """Return the full settings of each preset."""
    return [load_config(find_config(name)).model_dump(mode="json") for name in preset_names()]


def find_config(name: str) -> Path:
    """Return the file that `--config` names.

    Args:
        name: a preset or recipe (`demo`), a path, or `package:name` for the file `name.yaml` in the
            folder `configs` or `configs/recipes` of that Python package.

    Returns:
        The path of the YAML file.

    Raises:
        UsageError: there is no such preset or package.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    package, _, stem = name.rpartition(":")
    presets = PRESETS
    if package:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise UsageError(f"no package {package!r} with presets", "write --config package:name, or a path")
        presets = Path(spec.submodule_search_locations[0]) / PRESETS.name
    folders = (presets, presets / RECIPES.name)
    file = next((file for folder in folders if (file := folder / f"{stem}.yaml").is_file()), None)
    if file is None:
        names = sorted(file.stem for folder in folders for file in folder.glob("*.yaml"))
        raise UsageError(f"no preset {name!r}", suggestion(stem, names) or "presets: " + ", ".join(names))
    return file


def is_recipe(name: str) -> bool:
    """Return True if `--config NAME` is a recipe and not a complete configuration."""
    return (":" in name and find_config(name).parent.name == RECIPES.name) or name in recipe_names()


def load_config(path: Path | Sequence[Path] | None, overrides: Sequence[str] = ()) -> Config:
    """Load a configuration.

    Args:
        path: the file, or several, where later ones override earlier ones; None: the defaults.
        overrides: command-line words, applied last and in order: `--ppo.lr 1e-4` as two words or
            `--ppo.lr=1e-4` as one. Values are YAML (`--policy.lora null`,
            `--policy.lora.targets [q_proj]`).

    Returns:
        The validated configuration.

    Raises:
        UserError: a file cannot be read.
        UsageError: invalid YAML, an unknown, repeated or missing key, or a value of the wrong type.
    """
    data: dict[str, Any] = {}
    for file in [path] if isinstance(path, Path) else path or ():
        _merge_into(data, _apply_task_section(_merge_recipe(_read_sections(file)), data))
    for key, text in parse_overrides(overrides):
        _assign(data, key, _parse_value(key, text))
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise explain(error) from error


def with_recipe(config: Config, name: str, overrides: Sequence[str] = ()) -> Config:
    """Return a configuration overridden by a recipe and by command-line words.

    Equal to `--config mine.yaml --config NAME`. An empty `name` applies no recipe.

    Raises:
        UsageError: there is no such recipe.
    """
    data = config.model_dump(exclude_unset=True)
    if name:
        _merge_into(data, _apply_task_section(_read_sections(find_config(name)), data))
    for key, text in parse_overrides(overrides):
        _assign(data, key, _parse_value(key, text))
    return Config.model_validate(data)


def extra_settings(config: Config, name: str, model: type[S]) -> S:
    """Return the settings in `extra.<name>`, validated by the class that declares them.

    Raises:
        UsageError: an unknown key or a value of the wrong type.
    """
    try:
        return model.model_validate(config.extra.get(name, {}))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(["extra", name, *map(str, problem["loc"])])
        raise UsageError(f"{key}: {problem['msg']}", f"extra.{name} has {', '.join(model.model_fields)}") from error


def dump_config(config: Config, only_set: bool = False) -> str:
    """Return the configuration as YAML that `load_config` reads back unchanged.

    `only_set` omits unset settings, so that a command that reads the file can still derive them.
    """
    data = config.model_dump(mode="json", exclude_unset=only_set)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _read_sections(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read the configuration {path}: {error.strerror}",
            f"check the path, or use a preset: {', '.join(preset_names())}",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error
    data = _parse_yaml(text, str(path))
    if not isinstance(data, dict | None):
        raise UsageError(f"{path}: expected sections, got {data!r:.60}", "write section: {key: value}")
    return data or {}


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except YAMLMistakeError as error:
        line = f":{error.line}" if error.line else ""
        raise UsageError(f"{where}{line}: {error}", "fix the YAML") from error


def parse_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (`section.key`, text) for the settings among command-line words.

    Raises:
        UsageError: a word is not a setting, or has no value.
    """
    words = iter(overrides)
    for word in words:
        key, equals, value = word.partition("=")
        if not key.startswith("--") or not key[2:]:
            raise UsageError(f"{word!r} is not a setting", "write --section.key value")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"{key} needs a value", f"write {key} VALUE or {key}=VALUE")
        yield key[2:], value


def _parse_value(key: str, text: str) -> Any:
    section, _, last = key.rpartition(".")
    model = section_at(section)
    kinds = union_members(model.model_fields[last].annotation) if model and last in model.model_fields else set()
    if kinds and kinds <= {str, Path} | ({NoneType} if text not in ("null", "~") else set()):
        return text  # a folder called 2026 is not a number
    return _parse_yaml(text, f"--{key}")


def _merge_recipe(data: dict[str, Any]) -> dict[str, Any]:
    """Apply the settings of a file on top of the recipe it names."""
    if RECIPE not in data:
        return data
    name = data.pop(RECIPE)
    if not (isinstance(name, str) and is_recipe(name)):
        raise UsageError(f"{RECIPE}: {name!r} is not a recipe", f"one of {', '.join(recipe_names())}")
    merged = _apply_task_section(_read_sections(find_config(name)), data)
    _merge_into(merged, data)
    return merged


def _apply_task_section(recipe: dict[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with the `by_task` section of the task merged into its other settings.

    The task is that of the recipe, else that of `under`, the settings the recipe overrides.
    """
    if BY_TASK not in recipe:
        return recipe
    settings = {name: value for name, value in recipe.items() if name != BY_TASK}
    task = recipe.get("task") or under.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    sections = recipe[BY_TASK]
    if not isinstance(sections, Mapping) or not all(isinstance(part, Mapping) for part in sections.values()):
        raise UsageError(f"{BY_TASK}: expected a section for each task", "write by_task: {code: {ppo: ...}}")
    _merge_into(settings, sections.get(name, {}))
    return settings


def _merge_into(data: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Override settings of `data` with those of `other`, section by section."""
    for key, value in other.items():
        section = data.get(key)
        if isinstance(section, dict) and isinstance(value, Mapping):
            _merge_into(section, value)
        else:
            data[key] = value


def _assign(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section)
        data[section] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[section]
    data[last] = value
