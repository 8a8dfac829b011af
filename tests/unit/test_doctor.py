"""`text2grad doctor`: it finds what is wrong with a machine or a model folder, and shows no key."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from text2grad import doctor
from text2grad.cli import main
from text2grad.policy.tiny import TinyShape, make_tiny_model

SMALL = TinyShape(hidden=16, layers=1, heads=2, feed_forward=16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    make_tiny_model(folder, ["some text"], 280, 32, SMALL)
    return folder


def failed(checks: list[doctor.Check]) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks if not check.ok}


def test_this_machine_can_run_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor"])
    out = capsys.readouterr().out
    assert left.value.code == 0, out
    assert "will run: text2grad demo" in out


def test_a_good_model_folder_passes(model: Path) -> None:
    checks = doctor.check_model(model)
    assert failed(checks) == {}
    assert [check.name for check in checks] == ["model config", "tokenizer", "chat template", "weights"]


def spoil_json(path: Path, key: str, value: object) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    data[key] = value
    path.write_text(json.dumps(data), encoding="utf-8")


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names] and None


@pytest.mark.parametrize(
    ("spoil", "name", "cure"),
    [
        (remove("config.json"), "model config", "name the folder of a whole model"),
        (lambda folder: (folder / "config.json").write_text("["), "model config", "download the model again"),
        (
            lambda folder: spoil_json(folder / "config.json", "model_type", "vit"),
            "model config",
            "use another model",
        ),
        (remove("tokenizer.json", "tokenizer_config.json"), "tokenizer", "copy tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("["), "tokenizer", "copy tokenizer.json"),
        (
            lambda folder: (folder / "tokenizer.json").write_text('{"a": 1}'),
            "tokenizer",
            "copy tokenizer.json",
        ),
        (remove("chat_template.jinja"), "chat template", "--policy.chat_template FILE"),
        (remove("model.safetensors"), "weights", "get the model as safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 100), "weights", "download the file again"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "b.safetensors"}}'
            ),
            "weights",
            "download the file again",
        ),
        (lambda folder: (folder / "extra.bin").write_bytes(b""), "no pickles", "delete extra.bin"),
    ],
)
def test_each_fault_of_a_model_folder_names_its_cure(
    model: Path, spoil: Callable[[Path], None], name: str, cure: str
) -> None:
    spoil(model)
    problems = failed(doctor.check_model(model))
    assert next(iter(problems)) == name
    assert cure in problems[name].cure


def test_a_pickle_is_named_and_never_executed(model: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return os.mkdir, (str(proof),)

    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    problems = failed(doctor.check_model(model))
    assert "pytorch_model.bin" in problems["weights"].detail
    assert not proof.exists()


def test_a_missing_folder_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--model", str(tmp_path / "none"), "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (left.value.code, found["ok"]) == (1, False)
    [problem] = [check for check in found["checks"] if not check["ok"]]
    assert problem["detail"] == f"no folder {tmp_path / 'none'}" and problem["cure"]


def test_no_key_is_ever_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in doctor.KEYS:
        monkeypatch.setenv(name, "sk-planted")
    for words in (["doctor"], ["doctor", "--json"]):
        with pytest.raises(SystemExit):
            main(words)
    shown = capsys.readouterr()
    assert "sk-planted" not in shown.out + shown.err
    assert shown.out.count("OPENAI_API_KEY") == 2


def test_an_old_or_missing_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [
        "numpy>=99",
        "torch>=99; extra == 'train'",
        "none-such>=1; extra == 'train'",
        "ruff>=99; extra == 'dev'",
    ]
    monkeypatch.setattr(doctor, "requires", lambda _: needed)
    *old, missing = doctor.check_packages()
    assert [(check.ok, check.cure) for check in old] == [
        (False, "pip install 'numpy>=99'"),
        (False, "pip install 'torch>=99'"),
    ]
    assert (missing.ok, missing.detail, missing.cure) == (False, "not installed", "pip install 'text2grad[train]'")
    checks = doctor.examine()
    assert not failed(checks)["demo"].ok


def test_a_checkout_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", missing)
    (check,) = doctor.check_packages()
    assert (check.name, check.ok, check.cure) == ("text2grad", False, "pip install -e '.[train]'")


def test_the_demo_needs_memory_and_a_folder_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_demo(packages_fit=True).ok
    monkeypatch.setattr(doctor, "_memory_gb", lambda: 1.0)
    assert "memory" in doctor.check_demo(packages_fit=True).detail
    monkeypatch.setattr(doctor, "_memory_gb", lambda: 16.0)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "cannot write" in doctor.check_demo(packages_fit=True).detail
