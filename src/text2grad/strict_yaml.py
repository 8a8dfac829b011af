"""YAML, read strictly: no Python objects, and no key twice."""

from __future__ import annotations

from typing import Any

import yaml

from text2grad.errors import first_line


class YAMLMistakeError(ValueError):
    """A mistake in a YAML text, with its line (from 1) where that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        YAMLMistakeError: it is not YAML, gives a key twice, is nested too deeply, or needs a Python
            object.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YAMLMistakeError(str(error.problem), line) from error
    except (yaml.YAMLError, ValueError) as error:  # also the 31st of February
        raise YAMLMistakeError(first_line(error)) from error
    except RecursionError:
        raise YAMLMistakeError("nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
