"""The same training in two real processes: equal to one, exact after a stop, and never stuck."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scenes
import torch
from processes import run_in
from safetensors.torch import load_file
from scenes import COUNT, KINDS, SETTINGS, compare, train, train_in_halves, train_with_adapters

from text2grad.policy.files.save import write_policy
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from tiny_runs import tiny_model

BOTH = pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def straight(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Uninterrupted runs of two processes: whole weights, split weights."""
    made = {}
    for sharded in (False, True):
        folder = tmp_path_factory.mktemp("straight")
        assert run_in(2, train, folder, model, folder / "run", sharded) == ["done", "done"]
        made[sharded] = folder / "run"
    return made


@BOTH
def test_rollout_and_gradient_are_those_of_one_process(model: Path, tmp_path: Path, sharded: bool) -> None:
    both = run_in(2, compare, tmp_path, model, sharded)
    assert [(facts["world"], facts["backend"], facts["rank"]) for facts in both] == [(2, "gloo", 0), (2, "gloo", 1)]
    for facts in both:
        assert facts["kinds"].keys() == KINDS.keys()
        for kind, found in facts["kinds"].items():
            assert found["same names"] and found["same responses"], kind
            assert found["rollout"] < 1e-5, (kind, found)
            assert found["size"] > 1e-2 and found["value size"] > 1e-4, (kind, found)
            assert found["gradient"] < 1e-6 + 1e-5 * found["size"], (kind, found)
            assert found["terms"] < 1e-5, (kind, found)
        assert facts["supervised"]["size"] > 1e-2
        assert facts["supervised"]["loss"] < 1e-5 and facts["supervised"]["gradient"] < 1e-5
    for kind in KINDS:
        check_parts([facts["kinds"][kind]["parts"] for facts in both], sharded)


def check_parts(held: list[dict[str, tuple[int, int]]], sharded: bool) -> None:
    """With split weights each process has half of the rows, of the value head and the adapters too."""
    for name, (_, rows) in held[0].items():
        parts = [each[name][0] for each in held]
        assert parts == ([(rows + 1) // 2, rows // 2] if sharded else [rows, rows]), name


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in lines]


def responses(folder: Path) -> list[Any]:
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["response"] for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted((folder / "policy").glob("*.safetensors"))
    return {f"{path.name} {name}": t for path in files for name, t in load_file(path).items()}


def assert_same(one: Path, other: Path) -> None:
    """Equal to the bit: logs, samples, weights."""
    assert logged(one) == logged(other)
    assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    for path in (one / "policy").glob("*.safetensors"):
        assert path.read_bytes() == (other / "policy" / path.name).read_bytes(), path.name


@BOTH
def test_a_run_of_two_processes_is_that_of_one(
    model: Path, tmp_path: Path, straight: dict[bool, Path], sharded: bool
) -> None:
    alone = tmp_path / "alone"
    assert run_in(1, train, tmp_path, model, alone, False) == ["done"]
    rows, others = logged(alone), logged(straight[sharded])
    assert len(rows) == len(others) == SETTINGS.steps
    for row, other in zip(rows, others, strict=True):
        assert other == pytest.approx(row, rel=2e-3, abs=2e-4)
    said = responses(alone)
    assert said == responses(straight[sharded]) and len(said) == 2 * COUNT  # of the first and the last step
    mine, theirs = weights(alone), weights(straight[sharded])
    assert mine.keys() == theirs.keys()
    began = load_policy(PolicySettings(model=str(model))).model.state_dict()
    moved = max(float((t - began[name.split()[1]]).abs().max()) for name, t in mine.items() if "value" not in name)
    assert moved > 1e-3
    # Adam divides by the gradient's size: where that is nothing but rounding, so is the step.
    off = torch.cat([(mine[name] - theirs[name]).abs().flatten() for name in mine])
    assert float(off.mean()) < 1e-2 * moved
    assert sorted(path.name for path in straight[sharded].iterdir()) == ["metrics.jsonl", "policy", "samples.jsonl"]


def train_beside(model: Path, folder: Path, sharded: bool, stop: tuple[int, int, str] = (0, 0, "")) -> str:
    scenes.Stops.overlap = "helps"
    return train(model, folder, sharded, stop)


ENDED = {
    "fail": [
        ("UserError", "process 1 of 2: Stops.critique"),
        ("UserError", "ValueError: no answer from the judge"),
    ],
    "terminate": [("SystemExit", "143"), ("SystemExit", "143")],
}


@pytest.mark.parametrize(("sharded", "what"), [(False, "fail"), (False, "terminate"), (True, "terminate")])
def test_what_stops_one_process_stops_both_and_they_go_on_exactly(
    model: Path, tmp_path: Path, straight: dict[bool, Path], sharded: bool, what: str
) -> None:
    place = tmp_path / "run"
    begin = train_beside if what == "fail" else train  # a critic that fails does so in a thread beside the scoring
    ends = run_in(2, begin, tmp_path, model, place, sharded, (1, 3, what))
    for (kind, message), (expected_kind, words) in zip(ends, ENDED[what], strict=True):
        assert kind == expected_kind and words in message
    names = [path.name for path in sorted((place / "checkpoints").iterdir())]
    assert names[-1] == "checkpoint-2" and not (place / "policy").exists()
    ((_, problem),) = run_in(1, train, tmp_path, model, place, False)
    assert problem.startswith(f"the unfinished run in {place} began with other settings or inputs: run.processes 2")
    assert run_in(2, begin, tmp_path, model, place, sharded) == ["done", "done"]
    assert_same(straight[sharded], place)


@BOTH
def test_a_process_that_dies_is_noticed(model: Path, tmp_path: Path, sharded: bool) -> None:
    """The other one ends with a line; the run resumes from the last checkpoint."""
    first, second = run_in(2, train, tmp_path, model, tmp_path / "run", sharded, (1, 3, "die"))
    assert second is None
    assert first[0] == "PeerLost" and "another process of this run has ended" in first[1]
    assert "resumes from the last checkpoint" in first[1]
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-2").is_dir()


def test_failed_critiques_count_over_all_processes(model: Path, tmp_path: Path) -> None:
    """4 of 7 fail, all in one process: both stop, or neither if so many are allowed."""
    ended = run_in(2, train, tmp_path, model, tmp_path / "a", False, (1, 2, "down"))
    words = "4 of 7 critiques failed, the first: exhausted: the endpoint is down"
    assert [kind for kind, _ in ended] == ["CritiquesFailed", "CritiquesFailed"]
    assert all(told.startswith(words) for _, told in ended)
    run_in(2, train_allowing, tmp_path, model, tmp_path / "a")
    assert logged(tmp_path / "a")[1]["critic_failed"] == pytest.approx(4 / 7)


def train_allowing(model: Path, folder: Path) -> str:
    return train(model, folder, False, (1, 1, "down"), max_failed=0.9)


def test_adapters_and_other_data_in_one_process(model: Path, tmp_path: Path) -> None:
    """Split adapters are written as adapters; processes that see different data are refused."""
    ended = run_in(2, train_with_adapters, tmp_path, model, tmp_path, True)
    words = "process 1 has other settings or inputs than process 0: the prompts"
    assert [(kind, told.startswith(words)) for kind, told in ended] == [("UserError", True)] * 2
    saved = load_file(tmp_path / "sft" / "policy" / "adapter_model.safetensors")
    assert any(float(tensor.abs().max()) > 0 for name, tensor in saved.items() if "lora_B" in name)
    assert load_policy(PolicySettings(model=str(tmp_path / "sft" / "policy")))
    assert not (tmp_path / "x" / "metrics.jsonl").exists()


def test_a_bfloat16_adapter_with_split_weights_is_trained_as_in_one_process(model: Path, tmp_path: Path) -> None:
    """Masters and the reference's adapter are split, saved and resumed as other weights are."""
    base = load_frozen(PolicySettings(model=str(model), dtype="bfloat16"))
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    start = load_policy(PolicySettings(model=str(tmp_path / "base"), lora=LoraSettings(r=2), dtype="bfloat16"))
    with torch.no_grad():
        for parameter in start.policy_parameters():
            parameter.add_(1e-3)
    adapter = tmp_path / "adapter"
    write_policy(start, adapter)
    (alone,) = run_in(1, train_in_halves, tmp_path, adapter, tmp_path / "alone", False)
    both = run_in(2, train_in_halves, tmp_path, adapter, tmp_path / "both", True)
    for found in both:
        assert found["steps"] == alone["steps"] == [0, 1, 1]
        mine, theirs = alone["trained"], found["trained"]
        assert mine.keys() == theirs.keys()
        off = torch.cat([(mine[name] - theirs[name]).float().abs().flatten() for name in mine])
        assert float(off.mean()) < 1e-6
    saved = tmp_path / "both" / "policy"
    assert (saved / "adapter_model.safetensors").is_file() and not (saved / "model.safetensors").exists()
