"""The layers of src, and what imports what in it, read from the source text alone: nothing is
imported.

Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, and by name
through `importlib.import_module("...")`. Each file is parsed once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "text2grad"
SANDBOX = "codeverdict"
LAB = "text2grad_lab"
TORCH = {"torch", "torchvision", "peft", "accelerate"}

# Lower floors first; a module may import from its own floor and from those below.
FLOORS = {
    "words": [
        *("errors", "signals", "settings", "named", "feedback", "json_text", "jsonl", "strict_yaml"),
        *("unicode_words", "sandbox", "wire", "align", "chat", "data", "tasks", "critics"),
    ],
    "numbers": ["rl"],
    "policy": ["policy", "durable"],
    "loops": ["train"],
    "judgement": ["eval", "page"],
    "plugins": ["plugins"],
    "engines": ["engines"],
    "face": ["", "config", "stages", "demo", "demo_muon", "demo_quick", "commands", "cli"],
}
FLOOR = {part: number for number, parts in enumerate(FLOORS.values()) for part in parts}
WORDS = FLOORS["words"]
NEVER = {
    "chat": {"critics", "tasks", "data"},
    "data": {"align", "chat", "tasks", "critics"},
    "tasks": {"critics"},
    "align": {"chat", "tasks", "critics", "data"},
    "wire": {"align", "chat", "tasks", "critics", "data"},
    "feedback": {"jsonl", "wire", "align", "chat", "tasks", "critics", "data"},
    "jsonl": {"wire", "align", "chat", "tasks", "critics", "data"},
    "policy": {"tasks", "critics", "data", "durable"},
    "durable": {"tasks", "critics", "data"},
    "train": {"critics", "chat", "data"},
    "eval": {"train"},
    "plugins": {"policy", "durable", "train", "eval", "page"},
    "engines": {"critics", "chat", "tasks", "data", "eval", "page"},
    **{face: {"engines"} for face in ("commands", "cli", "demo", "demo_muon", "demo_quick")},
}
"""What these parts never import, though it stands on their floor or below."""
ONLY = {
    "sandbox": {"sandbox", "errors", "signals"},
    "rl": {"rl"},
    "page": {"page", "eval", "data", "feedback", "json_text", "jsonl", "errors", "strict_yaml", "unicode_words"},
}
"""What these parts may import of the house at all."""
STAGES = [
    *("", "run_folder", "training", "critics", "serve", "intake", "paid", "sampling", "annotate", "evaluate"),
    *("talk", "merge", "reward_model", "sft", "train", "improve"),
]
"""The modules of the stages: each may import those before it."""


@dataclass(frozen=True)
class Import:
    """One import as it is written: the module, and the name taken from it ("" for
    `import module`)."""

    base: str
    name: str = ""


House = Mapping[str, frozenset[Import]]
"""Module name -> its imports."""


def read_house(source: Path = SOURCE) -> House:
    """The imports of every file below a folder.

    Raises:
        SyntaxError: a file cannot be parsed.
    """
    return {
        module_name(file, source): read_imports(file.read_text(encoding="utf-8"), file, source)
        for file in sorted(source.rglob("*.py"))
    }


def module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(code: str, file: Path, source: Path) -> frozenset[Import]:
    """The imports in the text of a file that stands, or would stand, below `source`."""
    package = ".".join(file.relative_to(source).parent.parts)
    return frozenset(each for node in ast.walk(ast.parse(code)) for each in imports_of(node, package))


def imports_of(node: ast.AST, package: str) -> Iterator[Import]:
    """The imports that one node of a syntax tree makes in a module of `package`."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (Import(absolute(node, package), alias.name) for alias in node.names)
    elif isinstance(node, ast.Call):
        yield from named_import(node)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module in `from ... import`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])


def named_import(node: ast.Call) -> Iterator[Import]:
    """The module in `import_module("...")` or `__import__("...")`."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        yield Import(str(node.args[0].value))


def targets(name: str, house: House) -> set[str]:
    """What a module imports, each as the most exact dotted name that is known."""
    full = {(each.base, f"{each.base}.{each.name}") for each in house[name]}
    return {exact if exact in house else base for base, exact in full}


def part_of(module: str) -> str:
    """`text2grad.rl.loss` -> `rl`; the package itself is ``."""
    return module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]


def room_of(module: str) -> str:
    """`text2grad.stages.reward_model.gate` -> `reward_model`."""
    return ".".join(module.split(".")[2:3])


def root_of(module: str) -> str:
    return module.partition(".")[0]


def violations(house: House) -> list[str]:
    """Every import that a rule of the house forbids."""
    found = []
    for name in house:
        if root_of(name) == PACKAGE and part_of(name) not in FLOOR:
            found.append(f"{name}: stands beside the layers")
            continue
        rules = broken_rules if root_of(name) == PACKAGE else broken_by_sandbox
        for target in sorted(targets(name, house)):
            found += [f"{name} imports {target}: {rule}" for rule in rules(name, target)]
    return found


def broken_by_sandbox(name: str, target: str) -> Iterator[str]:
    """The rules that an import in the sandbox breaks; numpy is there for programs that use it."""
    root, inside = root_of(target), f"{SANDBOX}.inside"
    if root == PACKAGE:
        yield f"{SANDBOX} knows nothing of {PACKAGE}"
    elif root not in (SANDBOX, "pydantic", "pytest", "_pytest", "numpy") and root not in sys.stdlib_module_names:
        yield f"{SANDBOX} needs only the standard library, pydantic and pytest"
    elif name.startswith(inside) and root in (SANDBOX, "pydantic") and not target.startswith(inside):
        yield f"{inside} runs where nothing else can be imported"


def broken_rules(name: str, target: str) -> Iterator[str]:
    """The rules that an import in the house breaks."""
    part, root = part_of(name), root_of(target)
    if root == PACKAGE:
        yield from broken_between(part, part_of(target))
        if part == part_of(target) == "stages":
            yield from broken_between_stages(room_of(name), room_of(target))
    elif root == LAB:
        yield f"nothing in src imports {LAB}"
    elif root == SANDBOX and part != "sandbox":
        yield f"only {PACKAGE}.sandbox imports {SANDBOX}"
    elif root in TORCH and part in [*WORDS, "page"]:
        yield f"{part} is torch-free"
    elif part == "rl" and root != "torch" and root not in sys.stdlib_module_names:
        yield "rl imports only torch"


def broken_between_stages(room: str, target: str) -> Iterator[str]:
    """The rules that an import from one module of the stages to another breaks."""
    if room not in STAGES:
        yield "it has no place in the order of the stages"
    elif STAGES.index(target) > STAGES.index(room):
        yield f"{room} comes before {target}"


def broken_between(part: str, target: str) -> Iterator[str]:
    """The rules that an import from one part of the house to another breaks."""
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


def cycles(house: House) -> list[list[str]]:
    """Groups of modules that import each other (mutual reach)."""
    graph = {name: {each for each in targets(name, house) if each in house} - {name} for name in house}
    reach = {name: reachable(name, graph) for name in graph}
    rings = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]}
    return sorted(sorted(ring) for ring in rings)


def reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen
