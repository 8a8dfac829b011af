"""`import text2grad`: what it offers, that nothing loads before it is asked for, what is not
installed."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import text2grad
from absent import hiding
from places import ROOT
from text2grad.errors import EXTRAS, MissingPackageError, UserError, optional_packages
from text2grad.settings import Settings

NAMES = """
Aligned Aligner Config CreditScheme CreditSettings Critic CriticSpec Critique Example Failure Feedback
GenerationSettings HumanCritic LocalChat LoraSettings Message OpenAIChat PPOSettings Pair Policy
PolicySettings ProgramCritic PromptedCritic ReferenceCritic RunOptions Runner
ScoredTrajectory ScriptedChat ServedCritic Source Span SupervisedSettings Task TaskSettings TinyShape TokenCredit
Trajectory Transcript UserError conversation_of export find_config
import_feedback load_config load_frozen load_policy load_task
make_tiny_model parse read_prompt read_records render responses_of seed_everything
train_ppo train_supervised write_records
"""
OFFERED = NAMES.split()
NEED_TRAIN = """
LocalChat Pair Policy RunOptions load_frozen load_policy make_tiny_model seed_everything train_ppo train_supervised
"""
"""What needs the extra `train`."""
TRAINS = NEED_TRAIN.split()
SOURCE = ROOT / "src" / "text2grad"
HEAVY = {"torch", "transformers", "numpy", "pydantic", "yaml", "typer", "peft", "datasets", "openai"}


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_each_name_is_offered_and_documented() -> None:
    assert text2grad.__all__ == OFFERED
    assert set(OFFERED) <= set(dir(text2grad))
    for name in OFFERED:
        value = getattr(text2grad, name)
        assert value.__name__ == name and value.__doc__ and getattr(text2grad, name) is value


WITH_METHODS = ("Aligned", "Aligner", "Critique", "Feedback", "TokenCredit", "Transcript")
"""Classes whose methods a user calls."""


def documented() -> Iterator[tuple[str, Any]]:
    """Yield the offered names, and the public methods of `WITH_METHODS`."""
    for name in OFFERED:
        value = getattr(text2grad, name)
        yield name, value
        for part, method in vars(value).items() if name in WITH_METHODS else ():
            function = getattr(method, "__func__", method)
            if inspect.isfunction(function) and not part.startswith("_"):
                yield f"{name}.{part}", function


def missing_in_docstring(value: Any) -> list[str]:
    """Return the sections of a function, or arguments and fields of a class, that its docstring
    lacks."""
    docstring = inspect.getdoc(value) or ""
    if inspect.isclass(value):
        if issubclass(value, Settings | str | Exception) or getattr(value, "_is_protocol", False):
            return []  # fields of settings have descriptions
        names = getattr(value, "model_fields", None) or inspect.signature(value).parameters
        return [name for name in names if name not in docstring]
    signature = inspect.signature(value)
    sections = ["Args:"] if set(signature.parameters) - {"self", "cls"} else []
    sections += [] if signature.return_annotation == "None" else ["Returns:"]
    sections += ["Raises:"] if "raise " in inspect.getsource(value) else []
    return [section for section in sections if section not in docstring]


def test_docstrings_say_what_goes_in_what_comes_out_and_what_is_raised() -> None:
    missing = {name: missing_in_docstring(value) for name, value in documented()}
    assert {name: sections for name, sections in missing.items() if sections} == {}


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: str(node.module).removeprefix("text2grad.") for node in imports for alias in node.names}
    assert seen == text2grad._MODULE_OF and sorted(seen) == text2grad.__all__


def test_importing_loads_nothing_but_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian_ppo'"):
        _ = text2grad.trian_ppo
    assert not hasattr(text2grad, "trian_ppo")
    loaded = set(json.loads(run("import sys, json, text2grad\nprint(json.dumps(sorted(sys.modules)))").stdout))
    assert {name for name in loaded if name.startswith("text2grad")} == {"text2grad", "text2grad.errors"}
    assert not loaded & HEAVY


def test_what_trains_nothing_loads_without_torch() -> None:
    names = [name for name in OFFERED if name not in TRAINS]
    code = (
        "import sys, text2grad\nfor name in sys.argv[1:]: getattr(text2grad, name)\nprint('torch' in sys.modules)"
    )
    done = run(code, *names)
    assert done.stdout == "False\n", done.stderr


def test_nobody_inside_imports_from_the_door() -> None:
    offered = {*OFFERED, "__version__"}
    taken = [
        f"{file.relative_to(SOURCE)}: {alias.name}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "text2grad" and not node.level
        for alias in node.names
        if alias.name in offered
    ]
    assert taken == []


# --- what is not installed

CORE = hiding(package for package, extra in EXTRAS.items() if extra == "train")
EACH_NAME = """
import sys, text2grad
for name in sys.argv[1:]:
    try:
        getattr(text2grad, name)
    except ImportError as error:
        print(error)
"""
EACH_COMMAND = """
import sys
from text2grad import cli
for words in sys.argv[1:]:
    try:
        cli.main(words.split())
    except SystemExit as left:
        assert left.code == 1, words
"""


def test_what_needs_an_extra_names_it_in_one_line() -> None:
    done = run(CORE + EACH_NAME, *TRAINS)
    lines = done.stdout.splitlines()
    assert len(lines) == len(TRAINS), done.stderr
    packages = ("torch", "transformers", "peft", "psutil")
    needs = {f"this needs {package}: pip install 'text2grad[train]'" for package in packages}
    assert set(lines) <= needs
    commands = ["sft", "train", "train-reward", "evaluate", "demo", "merge x --out y"]
    done = run(CORE + EACH_COMMAND, *commands)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == len(commands), done.stderr
    assert {line.removeprefix("error: ") for line in done.stderr.splitlines()} <= needs


def test_only_packages_of_extras_are_explained() -> None:
    def missing(name: str) -> None:
        with optional_packages():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(UserError, match=r"\[trl\]"):
        missing("trl.trainer")
    with pytest.raises(ModuleNotFoundError) as caught:
        missing("text2grad.trian")
    assert not isinstance(caught.value, MissingPackageError)


def test_every_package_of_an_extra_is_in_it() -> None:
    import tomllib

    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for package, extra in EXTRAS.items():
        wanted = project["optional-dependencies"][extra]
        assert any(line.startswith(package) for line in wanted), f"{package} is not in {extra}"
        assert not any(line.startswith(package) for line in project["dependencies"])
