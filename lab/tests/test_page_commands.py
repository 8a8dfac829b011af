"""Documented commands are accepted by their programs: options, values, presets, settings.

lab/book is excluded: its commands belong to the commits that it names.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from blocks import commands_of, filled
from places import CONFIGS, ROOT
from text2grad import cli
from text2grad.config import find_config
from text2grad.data.export import WRITERS
from text2grad.data.records import KINDS
from text2grad.named import is_import_path
from text2grad_lab.__main__ import repeat_listed
from text2grad_lab.compare.methods import METHODS
from text2grad_lab.questions.cells import cells

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "lab", "lab/text2grad_lab/experiments")),
    *sorted(CONFIGS.rglob("*.yaml")),
    *(
        script
        for folder in ("examples", "benchmarks", "lab/text2grad_lab/experiments")
        for script in sorted((ROOT / folder).glob("*.py"))
    ),
]
NOT_CHECKED = {
    "make": "CI runs install, test and check; tests/e2e/test_demo.py runs the demo at a smaller size",
    "pip": "CI installs the package; tests/test_core_only.py runs without the extras",
    "source": "the tests run in their own environment",
    "cp": "not ours",
    "export": "a variable of the shell",
    "python3": "makes environments",
    "vllm": "not ours, and needs a GPU",
    "transformers": "not ours, and serves until it is stopped",
    "/shared/verl/bin/pip": "not ours",
    "/shared/verl/bin/ray": "not ours",
    "torchrun": "not ours; the launched command is checked",
    "accelerate": "not ours; the launched command is checked",
}
"""Programs whose commands are not checked, with the reason."""
LISTED = {"--kind": KINDS, "--as": WRITERS}
"""Options whose values are validated only after a stage has started."""

Complaint = Callable[[Sequence[str]], str]


class CommandParsed(Exception):
    """Raised instead of starting a program whose command line was accepted."""


def begin(*_: object, **__: object) -> None:
    raise CommandParsed


@pytest.fixture
def complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complaint:
    """A function that returns a command's error line, "" if the program accepts it.

    The current folder has the `mine.yaml` and `runs/mine` of the pages; stdin is a terminal.
    """
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for file in ("mine.yaml", "runs/mine/config.yaml"):
        (tmp_path / file).write_text(find_config("demo").read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("text2grad.commands.base.run_stage", begin)
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_begin(*arguments: object) -> None:
        parse_args(*arguments)  # type: ignore[call-overload]
        raise CommandParsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_begin)

    def call(words: Sequence[str]) -> str:
        words = [word for word in filled(words) if not re.match(r"[A-Z_]+=", word)]
        if re.match(r"\w+=", words[0]):  # an assignment
            return ""
        if "text2grad.cli" in words:  # after torchrun or accelerate launch
            words = ["text2grad", *words[words.index("text2grad.cli") + 1 :]]
        if words[0] in NOT_CHECKED or is_import_path(words[1]):
            return ""
        output = io.StringIO()
        try:
            with (
                contextlib.redirect_stderr(output),
                contextlib.redirect_stdout(output),
                monkeypatch.context() as patch,
            ):
                if words[:3] == ["python", "-m", "text2grad_lab"]:
                    words = ["text2grad", *words[3:]]
                if words[0] == "text2grad":
                    words = repeat_listed(words)
                    if unknown := unlisted(words):
                        return unknown
                    cli.main(words[1:] if len(words) > 2 else [*words[1:], "--help"])  # a command without options
                elif words[:2] == ["python", "-m"]:
                    patch.setattr(sys, "argv", words[2:])
                    spec = importlib.util.find_spec(words[2])
                    assert spec is not None and spec.origin is not None, words[2]
                    runpy.run_path(spec.origin, run_name="__main__")
                elif words[0] == "python":
                    patch.setattr(sys, "argv", [str(ROOT / words[1]), *words[2:]])
                    patch.syspath_prepend(str((ROOT / words[1]).parent))
                    run_script(*words[1:])
        except CommandParsed:
            return ""
        except SystemExit as left:
            return (output.getvalue() or str(left)).splitlines()[-1] if left.code else ""
        return f"unknown program {words[0]}"

    return call


def unlisted(words: Sequence[str]) -> str:
    """Return a complaint about the first invalid method or value of an option in `LISTED`."""
    methods = [value for option, value in pairwise(words) if option == "--methods"]
    if odd_method := next((value for value in methods if value.partition("+")[0] not in METHODS), None):
        return f"no {odd_method} for --methods"
    pairs = [(option, value) for option, value in pairwise(words) if option in LISTED]
    odd = ((option, value) for option, value in pairs if value not in LISTED[option] and not is_import_path(value))
    return next((f"no {value} for {option}" for option, value in odd), "")


def run_script(script: str, *options: str) -> None:
    """Run a script up to the parsing of its options; scripts without options are not run."""
    if not (ROOT / script).is_file():
        raise SystemExit(f"no script {script}")
    if "parse_args" in (ROOT / script).read_text("utf-8"):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    elif options:
        raise SystemExit(f"{script} takes no options")
    raise CommandParsed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_is_accepted(page: Path, complaint: Complaint) -> None:
    problems = {" ".join(words): complaint(words) for words in commands_of(page)}
    assert {words: why for words, why in problems.items() if why} == {}


def test_every_command_of_a_question_is_accepted(complaint: Complaint) -> None:
    lines = {line for cell in cells() for line in cell.command_lines()}
    problems = {line: complaint(shlex.split(line)) for line in sorted(lines)}
    assert {line: why for line, why in problems.items() if why} == {} and len(problems) > 40
    for module, name in re.findall(r"(text2grad_lab\.[\w.]+):(\w+)", " ".join(lines)):
        assert getattr(importlib.import_module(module), name), f"{module}:{name}"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("text2grad trian --config slf5k", "trian"),
        ("text2grad train --config slf5k \\\n    --ppo.stepss 3", "ppo.stepss"),
        ("text2grad train --config no_such_preset", "no_such_preset"),
        ("text2grad export a.jsonl --out b.jsonl --as no_such_shape", "no_such_shape"),
        ("python -m text2grad_lab compare --seeds N --methods sft no_such_method", "no_such_method"),
        ("torchrun --nproc_per_node N -m text2grad.cli train --config no_such_preset", "no_such_preset"),
        ("python -m text2grad_lab.experiments.annotation --sedes 3", "--sedes"),
        ("git push --force", "git"),
    ],
)
def test_a_wrong_command_is_detected(wrong: str, why: str, complaint: Complaint, tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_text(f"# A page\n\n```bash\n{wrong}\n```\n\nand more\n", "utf-8")
    [words] = commands_of(page)
    assert why in complaint(words)


def test_targets_of_make_and_extras_of_pip_exist() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in PAGES if page.suffix == ".md")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    assert {words[1] for page in PAGES for words in commands_of(page) if words[0] == "make"} <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"text2grad\[(\w+)\]", pages)) <= set(extras)
