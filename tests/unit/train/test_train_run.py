"""What a training loop leaves behind, and what it must not destroy."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from text2grad.config import Config
from text2grad.durable import run
from text2grad.durable.identity import flatten
from text2grad.durable.log import RunLog, Stopwatch
from text2grad.durable.run import save_policy
from text2grad.durable.settings import Schedule
from text2grad.durable.state import Randomness, seed_everything
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_inputs
from text2grad.train.optimizers import learning_rate_factor
from text2grad.train.passes import PassSize


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(folder: Path, value: float, stop: bool = False) -> None:
    """A run of one step with one sample; `stop`: it ends before its policy is in place."""
    with RunLog(folder, "run", 1) as log:
        log.metrics(0, {"loss": value})
        log.sample({"step": 0, "response": f"ä{value}"})
        if stop:
            raise KeyboardInterrupt
        log.finish()
    (folder / "policy").mkdir(exist_ok=True)


def test_a_run_replaces_a_complete_one_when_it_is_complete_itself(tmp_path: Path) -> None:
    write(tmp_path, 0.5)
    complete = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 0.5}]
    assert lines(tmp_path / "samples.jsonl") == [{"step": 0, "response": "ä0.5"}]
    for _ in range(2):  # the second must not go on writing where the first stopped
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 7.0, stop=True)
        assert {path: path.read_bytes() for path in complete} == complete
        assert lines(tmp_path / "metrics.jsonl.partial") == [{"step": 0, "loss": 7.0}]
    with RunLog(tmp_path, "run", 1) as log:
        log.metrics(0, {"loss": 2.0})
        log.finish()
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 2.0}]
    assert not (tmp_path / "samples.jsonl").exists(), "this run wrote none"
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_without_a_policy_is_started_over_in_place_once_it_has_a_line(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, value, stop=True)
    with pytest.raises(ValueError, match="no prompts"), RunLog(tmp_path, "run", 9):
        raise ValueError("no prompts")
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 2.0}]
    assert len(lines(tmp_path / "samples.jsonl")) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_a_number_is_never_written(tmp_path: Path, value: float) -> None:
    with RunLog(tmp_path, "run", 1) as log, pytest.raises(FloatingPointError, match="kl"):
        log.metrics(3, {"loss": 1.0, "kl": value})
    assert not (tmp_path / "metrics.jsonl").exists()


class Writes(Policy):
    """Stands in for a policy whose files are one text; `breaks`: the disk is full half-way."""

    def __init__(self, text: str, breaks: bool = False) -> None:
        torch.nn.Module.__init__(self)
        self.text = text
        self.breaks = breaks


def test_a_policy_replaces_the_earlier_one_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(policy: Writes, folder: Path, weights: object) -> None:
        folder.mkdir(parents=True)
        (folder / "model").write_text(policy.text)
        if policy.breaks:
            raise OSError("no space left")
        (folder / "tokenizer").write_text(policy.text)

    monkeypatch.setattr(run, "write_policy", write_text)
    place = tmp_path / "deep" / "policy"
    for text, broken in (("old", False), ("new", False), ("newer", True), ("newest", False)):
        if broken:
            with pytest.raises(OSError, match="no space"):
                save_policy(Writes(text, broken), place)
            text = "new"
        else:
            save_policy(Writes(text), place)
        contents = {path.name: path.read_text() for path in place.iterdir()}
        assert contents.pop("manifest.json") and contents == {"model": text, "tokenizer": text}
    assert [path.name for path in place.parent.iterdir()] == ["policy"]


@pytest.mark.parametrize(
    ("schedule", "at_32", "middle", "end"),
    [("constant", 1.0, 1.0, 1.0), ("linear", 1 - 22 / 90, 0.5, 0.0), ("cosine", 0.8597, 0.5, 0.0)],
)
def test_the_learning_rate_rises_and_falls_as_its_schedule_says(
    schedule: Schedule, at_32: float, middle: float, end: float
) -> None:
    factor = learning_rate_factor(schedule, 0.1, 100)
    values = [factor(step) for step in range(100)]
    assert values[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert values[10] == 1.0 and all(later <= earlier for earlier, later in itertools.pairwise(values[10:]))
    # It never rises again, and is never negative.
    assert [values[32], values[55], factor(100), factor(150)] == pytest.approx([at_32, middle, end, end], abs=1e-4)
    assert learning_rate_factor(schedule, 0.0, 4)(0) == 1.0
    assert learning_rate_factor(schedule, 0.03, 4)(0) == 0.5, "a warm-up takes one step at least"


def test_a_seed_seeds_all_generators() -> None:
    draws = []
    for seed in (3, 3, 4):
        seed_everything(seed)
        draws.append((random.random(), float(torch.rand(())), float(np.random.rand())))
    assert draws[0] == draws[1] and all(a != b for a, b in zip(draws[1], draws[2], strict=True))


def test_a_stopwatch_books_time_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 14.0, 14.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch()
    for name in ("generate", "update", "generate"):
        watch.lap(name)
    assert watch.seconds == {"seconds_generate": 1.5, "seconds_update": 3.0}


def test_settings_of_the_policy_and_the_sandbox_belong_to_a_run() -> None:
    base: dict[str, dict[str, object]] = {
        "critic": {"kind": "program"}, "task": {"name": "demo"}, "policy": {"model": "tiny"}
    }  # fmt: skip

    def inputs(**sections: dict[str, object]) -> dict[str, str]:
        config = Config.model_validate(base | {name: base.get(name, {}) | s for name, s in sections.items()})
        return {**flatten(run=config.run, policy=config.policy), **critic_inputs(config)}

    plain = inputs()
    assert inputs(policy={"model": "elsewhere"}) == plain  # the weights are compared by digest
    for changed in (
        inputs(policy={"value_head": "separate"}),
        inputs(policy={"lora": {"r": 4}}),
        inputs(sandbox={"seconds": 77}),
    ):
        assert changed.keys() == plain.keys() and changed != plain


def test_generators_of_many_devices_go_back_to_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, int] = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 12)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: given.update({index: int(state[0])}))
    now = Randomness.capture()
    saved = Randomness(now.python, now.numpy, now.torch, [torch.tensor([n]) for n in range(11)])
    Randomness.restore(saved.tensors(), saved.numbers())
    assert given == {n: n for n in range(11)}


def test_passes_are_halved_until_one_row_does_not_fit_and_other_errors_are_raised_as_they_are() -> None:
    def never(size: int) -> int:
        tried.append(size)
        raise MemoryError

    tried: list[int] = []
    for size, sizes in ((5, [5, 2, 1]), (1, [1])):
        tried.clear()
        with pytest.raises(MemoryError):
            PassSize(size).run(never, lambda: None)
        assert tried == sizes
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        PassSize(8).run(lambda size: torch.zeros(2) @ torch.zeros(3), lambda: None)
