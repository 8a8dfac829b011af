"""A run folder of a stranger: its servers are not contacted and its modules not imported without
consent."""

from __future__ import annotations

from pathlib import Path

import pytest

from text2grad.cli import main
from text2grad.commands.base import ConfiguredAsRun
from text2grad.config import Config, dump_config, find_config, load_config, preset_names
from text2grad.config.trust import SIGNED, sign
from text2grad.errors import EXIT_FAILED, UserError
from text2grad.settings import user_state
from text2grad.stages.training import write_settings

HARMFUL = {
    "critic.prompted.base_url": "http://203.0.113.5/v1",
    "evaluate.judge_url": "https://example.org/v1",
    "critic.kind": "stranger:Critic",
    "annotate.critic": "http://203.0.113.5:8640",
    "task.name": "stranger:Task",
    "credit.scheme": "stranger:scheme",
    "critic.prompted.prompt": "stranger:PROMPT",
}


def configured(run: Path, key: str = "run.seed", value: str = "1") -> Config:
    return load_config(find_config("own"), ["--run.folder", str(run), f"--{key}", value])


def read(run: Path, *words: str, trust: bool = False) -> Config:
    command = ConfiguredAsRun(config=[], trust=trust)
    command.overrides = ["--run.folder", str(run), *words]
    return command.configuration()


@pytest.mark.parametrize(("key", "value"), HARMFUL.items())
def test_foreign_names_need_consent(key: str, value: str, tmp_path: Path) -> None:
    config = configured(tmp_path, key, value)
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read(tmp_path)
    assert key in refused.value.problem and value in refused.value.problem and "--trust" in refused.value.cure
    assert read(tmp_path, trust=True) == read(tmp_path, f"--{key}", value) == config
    write_settings(config, tmp_path)
    assert read(tmp_path) == config, "what this user wrote needs none"


def test_a_section_on_the_command_line_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        dump_config(configured(tmp_path, "task.name", "my:Task")), encoding="utf-8"
    )
    assert read(tmp_path, "--task", '{"name": "my:Task"}').task.name == "my:Task"
    with pytest.raises(UserError):
        read(tmp_path, "--task.data", "x")


def test_a_signature_covers_one_text_and_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, value = "critic.kind", "my:Critic"
    text = sign(dump_config(configured(tmp_path, key, value)))
    assert text.count(SIGNED) == 1
    others = [text.replace("my:Critic", "your:Critic"), text.replace(SIGNED, f"critic: {{kind: a:B}}\n{SIGNED}")]
    for forged in [*others, text.partition(SIGNED)[0], f"{text}x", text.replace(SIGNED, f"{SIGNED}0")]:
        (tmp_path / "config.yaml").write_text(forged, encoding="utf-8")
        with pytest.raises(UserError):
            read(tmp_path)
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert read(tmp_path).critic.kind == value
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another_user"))
    with pytest.raises(UserError):
        read(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert SIGNED not in sign("a: 1\n"), "where no key can be kept nothing is signed, and a run can be written"


def test_only_the_user_can_read_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sign("")
    assert [file.stat().st_mode & 0o077 for file in user_state().iterdir()] == [0]


@pytest.mark.parametrize("name", preset_names())
def test_presets_need_no_consent(name: str, tmp_path: Path) -> None:
    config = load_config(find_config(name), ["--run.folder", str(tmp_path)])
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert read(tmp_path) == config


@pytest.mark.parametrize(
    "command",
    ["sample hello --critique", "try", "evaluate --answers a.jsonl", "evaluate --task qa", "merge sft --out out"],
)
def test_no_command_imports_a_foreign_module(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stranger.py").write_text('open("imported", "w").close()\n', encoding="utf-8")
    config = configured(Path("run"), "critic.kind", "stranger:Critic")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--run.folder", "run"])
    error = capsys.readouterr().err
    assert left.value.code == EXIT_FAILED and "critic.kind stranger:Critic" in error and error.count("\n") == 1
    assert not (tmp_path / "imported").exists()
