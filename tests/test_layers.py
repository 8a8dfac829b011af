"""Imports go one way: the house of DESIGN, checked from the source text alone.

Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, and by name through
`importlib.import_module("...")`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "text2grad"
TORCH = {"torch", "torchvision", "peft", "accelerate"}

# Lower floors first; a module may import from its own floor and from those below.
FLOORS = {
    "words": ["errors", "settings", "feedback", "sandbox", "wire", "align", "chat", "tasks", "critics", "formats"],
    "numbers": ["rl"],
    "policy": ["policy", "durable"],
    "loops": ["train"],
    "judgement": ["eval", "report"],
    "plugins": ["plugins"],
    "face": ["", "config", "stages", "compare", "demo", "doctor", "console", "cli"],
}
FLOOR = {part: number for number, parts in enumerate(FLOORS.values()) for part in parts}
WORDS = FLOORS["words"]
NEVER = {
    "chat": {"critics", "tasks", "formats"},
    "tasks": {"critics", "formats"},
    "align": {"chat", "tasks", "critics", "formats"},
    "wire": {"align", "chat", "tasks", "critics", "formats"},
    "feedback": {"wire", "align", "chat", "tasks", "critics", "formats"},
    "policy": {"tasks", "critics", "formats", "durable"},
    "durable": {"tasks", "critics", "formats"},
    "train": {"critics", "chat", "formats"},
    "eval": {"train"},
    "plugins": {"rl", "policy", "durable", "train", "eval", "report"},
}
"""What these parts never import, though it stands on their floor or below."""
ONLY = {
    "sandbox": {"sandbox"},
    "rl": {"rl"},
    "report": {"report", "feedback", "errors"},
}
"""What these parts may import of the house at all."""
Sources = dict[str, ast.Module]


def parse_house(source: Path = SOURCE) -> Sources:
    """Module name -> syntax tree, for every file of the package."""
    trees = {}
    for file in sorted((source / PACKAGE).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(file.read_text(encoding="utf-8"))
    return trees


def is_package(name: str, sources: Sources) -> bool:
    return any(other.startswith(name + ".") for other in sources)


def imports(name: str, sources: Sources) -> Iterator[str]:
    """Everything a module imports, as the most exact dotted name that is known."""
    for node in ast.walk(sources[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, name, is_package(name, sources))
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in sources else base
        elif isinstance(node, ast.Call):
            yield from named_import(node)


def absolute(node: ast.ImportFrom, name: str, package: bool) -> str:
    """The module in `from ... import`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parents = name.split(".")
    parents = parents[: len(parents) - node.level + package]
    return ".".join([*parents, *([node.module] if node.module else [])])


def named_import(node: ast.Call) -> Iterator[str]:
    """The module in `import_module("...")` or `__import__("...")`."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value)


def part_of(module: str) -> str:
    """`text2grad.rl.loss` -> `rl`; the package itself is ``."""
    return module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]


def inside(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def violations(sources: Sources) -> list[str]:
    """Every import that a rule of the house forbids."""
    found = []
    for name in sources:
        part = part_of(name)
        if part not in FLOOR:
            found.append(f"{name}: stands beside the layers")
            continue
        for target in sorted(set(imports(name, sources))):
            if inside(target):
                found += [f"{name} imports {target}: {rule}" for rule in broken_rules(part, part_of(target))]
            elif target.partition(".")[0] in TORCH and part in [*WORDS, "report"]:
                found.append(f"{name} imports {target}: {part or 'the package'} is torch-free")
            elif part == "rl" and not allowed_in_rl(target):
                found.append(f"{name} imports {target}: rl imports only torch")
    return found


def broken_rules(part: str, target: str) -> Iterator[str]:
    """The rules that an import from `part` to `target` breaks."""
    if target == "cli" and part != "cli":
        yield "nobody imports cli"
    if target not in FLOOR:
        yield f"there is no {target}"
    elif FLOOR[target] > FLOOR[part]:
        yield "imports go from the top down only"
    if target in NEVER.get(part, ()):
        yield f"{part} never imports {target}"
    if part in ONLY and target not in ONLY[part]:
        yield f"{part} imports only {', '.join(sorted(filter(None, ONLY[part])))}"


def allowed_in_rl(target: str) -> bool:
    root = target.partition(".")[0]
    return root == "torch" or root in sys.stdlib_module_names


def cycles(sources: Sources) -> list[list[str]]:
    """Groups of modules that import each other (strongly connected, by mutual reach)."""
    graph = {name: {each for each in imports(name, sources) if each in sources} - {name} for name in sources}
    reach = {name: reachable(name, graph) for name in graph}
    rings = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]}
    return sorted(sorted(ring) for ring in rings)


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def test_imports_keep_to_the_layers() -> None:
    assert violations(parse_house()) == []


def test_there_are_no_import_cycles() -> None:
    assert cycles(parse_house()) == []


def planted(module: str, line: str) -> Sources:
    sources = parse_house()
    sources[f"{PACKAGE}.{module}"] = ast.parse(line)
    return sources


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("wire", "import torch"),
        ("align", "def f():\n    from torch import nn"),
        ("feedback", "if TYPE_CHECKING:\n    import peft"),
        ("sandbox.planted", "from text2grad.rl import advantage"),
        ("rl.planted", "import numpy"),
        ("rl.planted", "from text2grad.errors import UserError"),
        ("tasks.planted", "def f():\n    import text2grad.critics.program"),
        ("tasks.planted", "importlib.import_module('text2grad.policy.model')"),
        ("critics.planted", "from ..rl import loss"),
        ("critics.planted", "from text2grad import train"),
        ("policy.planted", "from text2grad.tasks.base import load_task"),
        ("policy.planted", "from text2grad.train import ppo"),
        ("train.planted", "from text2grad import critics"),
        ("train.planted", "from text2grad.chat import Chat"),
        ("train.planted", "from text2grad import config"),
        ("train.planted", "from text2grad.report import curves"),
        ("eval.planted", "from text2grad.train.settings import PPOSettings"),
        ("report.planted", "import torch"),
        ("report.planted", "from text2grad.policy import settings"),
        ("report.planted", "from text2grad import config"),
        ("stages", "from text2grad.cli import app"),
        ("helpers", "x = 1"),
    ],
)
def test_a_planted_violation_is_found(module: str, line: str) -> None:
    found = violations(planted(module, line))
    assert any(each.startswith(f"{PACKAGE}.{module}") for each in found), found


def test_a_planted_cycle_is_found() -> None:
    sources = planted("rl.left", "from text2grad.rl import right")
    sources[f"{PACKAGE}.rl.right"] = ast.parse("def f():\n    from .left import something")
    assert cycles(sources) == [[f"{PACKAGE}.rl.left", f"{PACKAGE}.rl.right"]]


def loaded_after(code: str) -> set[str]:
    """Which modules a fresh Python has loaded after running `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_no_torch() -> None:
    loaded = loaded_after(
        "from text2grad import cli\n"
        "try:\n    cli.main(['train', '--help'])\nexcept SystemExit as error:\n    assert error.code == 0"
    )
    assert f"{PACKAGE}.cli" in loaded
    assert not loaded & {"torch", "transformers", "numpy", f"{PACKAGE}.config"}


def test_words_and_config_load_without_torch() -> None:
    words = [name for name in parse_house() if part_of(name) in WORDS]
    loaded = loaded_after("\n".join(f"import {name}" for name in [*words, f"{PACKAGE}.config"]))
    assert f"{PACKAGE}.config" in loaded
    assert not loaded & TORCH
