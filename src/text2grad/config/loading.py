"""YAML presets and files, and `--section.key value` on top, as one configuration.

Read strictly: an unknown key, a key given twice, a wrong type or a Python tag is an error of one
line that names the key.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from pydantic import ValidationError

from text2grad.config.reference import accepts, explain, section_at, suggestion
from text2grad.config.sections import Config
from text2grad.errors import UsageError, UserError
from text2grad.settings import S
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

PRESETS = Path(__file__).parents[1] / "configs"
RECIPES = PRESETS / "recipes"
BY_TASK = "by_task"
"""The section of a recipe with what it says to one task, by `task.name`."""
RECIPE = "recipe"
"""The key of a configuration that names the recipe it is laid over."""


def preset_names() -> list[str]:
    """The presets that come with the package, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def recipe_names() -> list[str]:
    """The recipes that come with the package, sorted: settings to lay over a configuration."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_config(name: str) -> Path:
    """Return the file that `--config` names.

    Args:
        name: a preset or recipe (`demo`), a path, or `package:name`, which is the file `name.yaml`
            in the folder `configs`, or its `recipes`, of that Python package.

    Returns:
        The path of the file.

    Raises:
        UsageError: there is no such preset or package.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    package, _, stem = name.rpartition(":")
    presets = _presets_of(package) if package else PRESETS
    folders = (presets, presets / RECIPES.name)
    file = next((file for folder in folders if (file := folder / f"{stem}.yaml").is_file()), None)
    if file is None:
        names = sorted(file.stem for folder in folders for file in folder.glob("*.yaml"))
        raise UsageError(f"no preset {name!r}", suggestion(stem, names) or "presets: " + ", ".join(names))
    return file


def is_recipe(name: str) -> bool:
    """True if `--config NAME` is a recipe: settings to lay over a configuration, not a whole
    one."""
    return (":" in name and find_config(name).parent.name == RECIPES.name) or name in recipe_names()


def _presets_of(package: str) -> Path:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"no package {package!r} with presets", "write --config package:name, or a path")
    return Path(spec.submodule_search_locations[0]) / PRESETS.name


def load_config(path: Path | Sequence[Path] | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Args:
        path: the file, or several, each laid over those before; None: the defaults.
        overrides: command-line words, laid over in their order: `--ppo.lr 1e-4` as two of them, or
            `--ppo.lr=1e-4` as one. Values are YAML (`--policy.lora null`,
            `--policy.lora.targets [q_proj]`).

    Returns:
        The configuration.

    Raises:
        UserError: the file cannot be read.
        UsageError: not YAML, an unknown key, a key given twice or missing, a value of the wrong
            type.
    """
    data: dict[str, Any] = {}
    for each in [path] if isinstance(path, Path) else path or ():
        _lay_over(data, _for_task(_on_its_recipe(_read(each)), data))
    for key, text in pairs_of(overrides):
        _assign(data, key, _value(key, text))
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise explain(error) from error


def laid_over(config: Config, name: str, overrides: Sequence[str] = ()) -> Config:
    """A configuration overridden by a recipe and by command-line words, as with
    `--config mine.yaml --config NAME`.

    Raises:
        UsageError: there is no such recipe.
    """
    data = config.model_dump(exclude_unset=True)
    if name:
        _lay_over(data, _for_task(_read(find_config(name)), data))
    for key, text in pairs_of(overrides):
        _assign(data, key, _value(key, text))
    return Config.model_validate(data)


def extra_settings(config: Config, name: str, model: type[S]) -> S:
    """Return the settings in `extra.<name>`, validated by the class that declares them.

    Raises:
        UsageError: an unknown key or a value of the wrong type; names the first one.
    """
    try:
        return model.model_validate(config.extra.get(name, {}))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(["extra", name, *map(str, problem["loc"])])
        known = ", ".join(model.model_fields)
        raise UsageError(f"{key}: {problem['msg']}", f"extra.{name} has {known}") from error


def dump_config(config: Config, only_set: bool = False) -> str:
    """The configuration as YAML; `load_config` reads it back equal.

    With `only_set`, unset settings are left out, so that a command that reads the file can still
    derive them.
    """
    data = config.model_dump(mode="json", exclude_unset=only_set)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read the configuration {path}: {error.strerror}",
            f"check the path, or take a preset: {', '.join(preset_names())}",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error
    data = _parse_yaml(text, str(path))
    if not isinstance(data, dict | None):
        raise UsageError(f"{path}: sections are expected, found {data!r:.60}", "write section: {key: value}")
    return data or {}


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except YAMLMistakeError as error:
        line = f":{error.line}" if error.line else ""
        raise UsageError(f"{where}{line}: {error}", "mend the YAML") from error


def pairs_of(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of command-line words by `section.key`, each with its text.

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


def _value(key: str, text: str) -> Any:
    section, _, last = key.rpartition(".")
    model = section_at(section)
    kinds = accepts(model.model_fields[last].annotation) if model and last in model.model_fields else set()
    if kinds and kinds <= {str, Path} | ({NoneType} if text not in ("null", "~") else set()):
        return text  # a folder called 2026 is not a number
    return _parse_yaml(text, f"--{key}")


def _on_its_recipe(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, over those of the recipe it names."""
    if RECIPE not in data:
        return data
    name = data.pop(RECIPE)
    if not (isinstance(name, str) and is_recipe(name)):
        raise UsageError(f"{RECIPE}: {name!r} is not a recipe", f"one of {', '.join(recipe_names())}")
    whole = _for_task(_read(find_config(name)), data)
    _lay_over(whole, data)
    return whole


def _for_task(recipe: dict[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe for a task: those for all tasks, overridden by its `by_task`
    section."""
    if BY_TASK not in recipe:
        return recipe
    settings = {name: value for name, value in recipe.items() if name != BY_TASK}
    task = recipe.get("task") or under.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    sections = recipe[BY_TASK]
    if not isinstance(sections, Mapping) or not all(isinstance(own, Mapping) for own in sections.values()):
        raise UsageError(f"{BY_TASK}: a section for each task is expected", "write by_task: {code: {ppo: ...}}")
    _lay_over(settings, sections.get(name, {}))
    return settings


def _lay_over(data: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Settings of `other` replace those of `data`; sections are merged."""
    for key, value in other.items():
        here = data.get(key)
        if isinstance(here, dict) and isinstance(value, Mapping):
            _lay_over(here, value)
        else:
            data[key] = value


def _assign(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section)
        data[section] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[section]
    data[last] = value
