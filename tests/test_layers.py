"""Imports go one way: the layers in layers.py, and that each of their rules can be broken."""

from __future__ import annotations

import subprocess
import sys

import pytest

import layers
from layers import PACKAGE, SANDBOX, SOURCE, House, part_of, read_house, root_of, violations


@pytest.fixture(scope="module")
def house() -> House:
    return read_house()


def test_imports_keep_to_the_layers(house: House) -> None:
    assert violations(house) == []


def test_there_are_no_import_cycles(house: House) -> None:
    assert layers.cycles(house) == []


def planted(house: House, module: str, code: str) -> House:
    """The house with one more module, or with other text in one it has."""
    return {**house, module: layers.read_imports(code, SOURCE / (module.replace(".", "/") + ".py"), SOURCE)}


PLANTED: list[tuple[str, list[str]]] = [
    ("wire", ["import torch"]),
    ("align", ["def f():\n    from torch import nn"]),
    ("feedback", ["if TYPE_CHECKING:\n    import peft"]),
    ("sandbox.planted", ["from text2grad.rl import advantage"]),
    ("sandbox", ["from text2grad.feedback import Critique"]),
    ("rl.planted", ["import numpy", "from text2grad.errors import UserError"]),
    ("tasks.planted", ["def f():\n    import text2grad.critics.program"]),
    ("tasks.planted", ["importlib.import_module('text2grad.policy.model')"]),
    ("critics.planted", ["from codeverdict import Runner", "from ..rl import loss", "from text2grad import train"]),
    ("policy.planted", ["from text2grad.tasks.base import load_task", "from text2grad.train import ppo"]),
    ("train.planted", ["def f():\n    import codeverdict.runner", "from text2grad import critics"]),
    ("train.planted", ["from text2grad.chat import Chat", "from text2grad import config"]),
    ("train.planted", ["from text2grad.page import curves"]),
    ("eval.planted", ["from text2grad.train.settings import SFTSettings"]),
    ("page.planted", ["import torch", "from text2grad.policy import settings", "from text2grad import config"]),
    ("plugins.planted", ["from text2grad.engines import settings"]),
    ("engines.planted", ["from text2grad.stages.training import prepare", "from text2grad.critics import table"]),
    ("commands.planted", ["def f():\n    from text2grad.engines import trl"]),
    ("stages", ["from text2grad.cli import app"]),
    ("stages.training", ["from text2grad.stages.critics import make_critic"]),
    ("stages.annotate", ["def f():\n    from text2grad.stages.train import run_train"]),
    ("stages.reward_model.planted", ["import text2grad.stages.train"]),
    ("stages.planted", ["from text2grad.stages.run_folder import write_json"]),
    ("stages.planted", ["def f():\n    from text2grad_lab.compare import run_compare"]),
]
PLANTED_IN_SANDBOX: list[tuple[str, list[str]]] = [
    ("runner", ["from text2grad.errors import UserError"]),
    ("planted", ["import torch"]),
    ("inside.planted", ["from codeverdict.results import Verdict", "from .. import errors", "import pydantic"]),
]


def test_a_planted_violation_is_found(house: House) -> None:
    cases = [(f"{PACKAGE}.{module}", code) for module, codes in PLANTED for code in codes]
    cases += [(f"{SANDBOX}.{module}", code) for module, codes in PLANTED_IN_SANDBOX for code in codes]
    for name, code in cases:
        found = violations(planted(house, name, code))
        assert any(line.startswith(f"{name} imports") for line in found), (name, code)
    helpers = f"{PACKAGE}.helpers"
    assert violations(planted(house, helpers, "x = 1")) == [f"{helpers}: stands beside the layers"]


def test_a_planted_cycle_is_found(house: House) -> None:
    left = planted(house, f"{PACKAGE}.rl.left", "from text2grad.rl import right")
    both = planted(left, f"{PACKAGE}.rl.right", "def f():\n    from .left import something")
    assert layers.cycles(both) == [[f"{PACKAGE}.rl.left", f"{PACKAGE}.rl.right"]]


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


def test_words_and_config_load_without_torch(house: House) -> None:
    words = [name for name in house if root_of(name) == SANDBOX or part_of(name) in layers.WORDS]
    loaded = loaded_after("\n".join(f"import {name}" for name in [*words, f"{PACKAGE}.config"]))
    assert f"{PACKAGE}.config" in loaded
    assert not loaded & layers.TORCH


def test_the_loop_loads_neither_a_client_nor_what_reads_models_from_disk() -> None:
    """What PPO needs can be read in an evening: benchmarks/house.py counts the lines."""
    loaded = loaded_after(f"import {PACKAGE}.train.ppo")
    ours = {name.removeprefix(f"{PACKAGE}.") for name in loaded if name.startswith(f"{PACKAGE}.")}
    apart = ("chat", "wire", "critics", "data", "policy.files.gguf", "policy.grounded", "policy.load", "demo_muon")
    assert "train.update" in ours
    assert not [name for name in ours if name.startswith(apart)]
