"""Extension points for critics, commands and presets, which the lab uses like any user."""

from __future__ import annotations

from pathlib import Path

import pytest

from text2grad.cli import main
from text2grad.config import find_config, is_recipe, load_config
from text2grad.errors import UsageError
from text2grad.stages.critics import critic_factory

CRITIC = """
from pydantic import Field

from text2grad.critics.spec import CriticSpec
from text2grad.feedback import Critique, Source
from text2grad.settings import Settings


class LengthSettings(Settings):
    limit: int = Field(default=5, ge=1)


class LengthCritic:
    source = Source(kind="program")

    def __init__(self, limit):
        self.limit = limit

    def critique(self, examples, responses):
        return [Critique(text="", score=1.0 if len(text) < self.limit else -1.0) for text in responses]


LENGTH = CriticSpec("length", lambda settings, ready: LengthCritic(settings.limit), LengthSettings)
"""
COMMAND = """
from text2grad.commands.base import Stage, Work, option


class Shout(Stage):
    \"\"\"Say a word loudly.\"\"\"

    word: str = option("--word", "What to say.", "hello")

    def work(self):
        return Work(lambda: {"said": self.word.upper()})
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_critic_reads_its_settings_from_extra(modules: Path) -> None:
    (modules / "length_critic.py").write_text(CRITIC)
    words = ["--critic.kind", "length_critic:LENGTH", "--extra.length.limit", "3"]
    config = load_config(find_config("demo"), words)
    with critic_factory(config) as factory, factory.open() as critic:
        critiques = critic.critique([], ["ab", "abc"])
    assert [critique.score for critique in critiques] == [1.0, -1.0]
    wrong = load_config(find_config("demo"), [*words[:2], "--extra.length.limits", "3"])
    with (
        critic_factory(wrong) as factory,
        pytest.raises(UsageError, match=r"extra\.length\.limits"),
        factory.open(),
    ):
        pass


def test_a_command_is_named_as_module_and_class(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (modules / "shouting.py").write_text(COMMAND)
    with pytest.raises(SystemExit) as exit_info:
        main(["shouting:Shout", "--word", "yes", "--json"])
    assert not exit_info.value.code
    assert capsys.readouterr().out.strip() == '{"said": "YES"}'
    with pytest.raises(SystemExit) as exit_info:
        main(["pathlib:Path"])
    assert exit_info.value.code == 1


def test_a_preset_of_a_package_is_found_by_its_name(modules: Path) -> None:
    (modules / "my_lab" / "configs" / "recipes").mkdir(parents=True)
    (modules / "my_lab" / "__init__.py").touch()
    (modules / "my_lab" / "configs" / "recipes" / "short.yaml").write_text("ppo: {steps: 3}")
    (modules / "my_lab" / "configs" / "mine.yaml").write_text(
        "recipe: my_lab:short\ntask: {name: demo}\npolicy: {model: tiny}"
    )
    assert is_recipe("my_lab:short") and not is_recipe("my_lab:mine")
    assert load_config(find_config("my_lab:mine")).ppo.steps == 3
    with pytest.raises(UsageError, match="my_lab:min"):
        find_config("my_lab:min")
    with pytest.raises(UsageError, match="no_such_lab"):
        find_config("no_such_lab:mine")
