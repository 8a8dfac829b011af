"""The doctor: a problem of this machine or of a model folder comes with its cure, and changes the
exit code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from text2grad.cli import main
from text2grad.commands import doctor
from text2grad.policy.tiny import TinyShape, make_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    make_tiny_model(folder, ["some text"], 280, 32, TinyShape(hidden=16, layers=1, heads=2, feed_forward=16))
    return folder


def test_this_machine_and_a_model_pass(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--model", str(model)])
    assert left.value.code == 0, capsys.readouterr().out


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_gpu_without_bfloat16_trains_in_float32(monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool) -> None:
    assert "float16, which needs loss scaling" in doctor.check_precision().detail
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: has_bfloat16)
    check = doctor.check_precision()
    assert check.ok is has_bfloat16 and ("float32" in check.cure) is not has_bfloat16


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names] and None


FAULTS: dict[str, Callable[[Path], object]] = {
    "no configuration": remove("config.json"),
    "no JSON": lambda folder: (folder / "config.json").write_text("["),
    "another model": lambda folder: (folder / "config.json").write_text('{"model_type": "vit"}'),
    "no tokenizer": remove("tokenizer.json", "tokenizer_config.json"),
    "no template": remove("chat_template.jinja"),
    "no weights": remove("model.safetensors"),
    "half of the weights": lambda folder: os.truncate(folder / "model.safetensors", 100),
}


def test_a_fault_of_a_model_folder_has_a_cure(model: Path, tmp_path: Path) -> None:
    checks = {}
    for name, fault in FAULTS.items():
        folder = tmp_path / name
        shutil.copytree(model, folder)
        fault(folder)
        checks[name] = doctor.check_model(folder)
    assert doctor.check_model(model).ok
    assert [name for name, check in checks.items() if check.ok or not check.cure] == []


def test_a_pickle_is_never_executed(model: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return os.mkdir, (str(proof),)

    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    assert not doctor.check_model(model).ok and not proof.exists()


def test_a_missing_folder_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--model", str(tmp_path / "none"), "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (left.value.code, report["ok"]) == (1, False)
    [problem] = [check for check in report["checks"] if not check["ok"]]
    assert str(tmp_path / "none") in problem["detail"] and problem["cure"]


def test_a_machine_that_is_too_small_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.check_python().ok and doctor.check_memory().ok and doctor.check_disk(tmp_path).ok
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "total_memory", lambda: 10**9)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    for check in (doctor.check_python(), doctor.check_memory(), doctor.check_disk(tmp_path)):
        assert not check.ok and check.cure
