"""Parse YAML strictly: without Python objects and repeated keys."""

from __future__ import annotations

from typing import Any

import yaml

from text2grad.errors import first_line


class YAMLMistakeError(ValueError):
    """A mistake in a YAML text, with its line (from 1) if known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        YAMLMistakeError: the text is not YAML, repeats a key, is nested too deeply, or has a tag of
            a Python object.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YAMLMistakeError(str(error.problem), line) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise YAMLMistakeError(first_line(error)) from error
    except RecursionError:
        raise YAMLMistakeError("nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)
