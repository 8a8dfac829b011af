"""YAML, read strictly: no Python objects, no key twice, nothing that grows without end."""

from __future__ import annotations

import re
from typing import Any

import yaml

DEEPEST_YAML, MOST_YAML = 50, 100_000
"""Levels, and values with every alias written out, of a YAML text that is read."""


class YAMLMistakeError(ValueError):
    """What is wrong with a YAML text, and in which line (from 1), where that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, read strictly: no Python objects, no key twice.

    `1:30` is text and `010` is ten; YAML 1.1 reads them in base 60 and base 8.

    Raises:
        YAMLMistakeError: it is not such a text, is nested deeper than `DEEPEST_YAML`, or has more than `MOST_YAML`
            values.
    """
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        _check_size(node)
        return loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YAMLMistakeError(str(error.problem), line) from error
    except yaml.YAMLError as error:
        raise YAMLMistakeError(str(error).splitlines()[0]) from error
    except RecursionError:
        raise YAMLMistakeError("nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML without Python objects, repeated keys, and numbers in base 60 or 8."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in ("int", "float")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # the 31st of February, a number of thousands of digits
            problem = f"not a value: {str(error).partition(';')[0]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    list("-+0123456789"),
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _check_size(root: yaml.Node | None) -> None:
    """Refuse what is nested too deeply, or grows without end when its aliases are written out."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > DEEPEST_YAML:
            raise YAMLMistakeError("nested too deeply")
        if count > MOST_YAML:
            raise YAMLMistakeError(f"more than {MOST_YAML:,} values")
        if isinstance(node, yaml.MappingNode):
            waiting += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(each, depth + 1) for each in node.value]
