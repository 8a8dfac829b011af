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
from text2grad.durable.log import RunLog, Stopwatch
from text2grad.durable.processes import Ranks
from text2grad.durable.run import save_policy
from text2grad.durable.state import Randomness, seed_everything
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_inputs
from text2grad.stages.training import run_inputs
from text2grad.train.optimizers import learning_rate_factor
from text2grad.train.passes import PassSize


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def finish(folder: Path, value: float, steps: int = 2) -> None:
    """A whole run: metrics, one sample, a policy."""
    with RunLog(folder, "run", steps) as log:
        for step in range(steps):
            log.metrics(step, {"loss": value})
        log.sample({"step": 0, "response": f"ä{value}"})
        log.finish()
    (folder / "policy").mkdir(exist_ok=True)


def test_metrics_and_samples_are_one_line_each(tmp_path: Path) -> None:
    finish(tmp_path / "ppo" / "x", 0.5)
    assert lines(tmp_path / "ppo" / "x" / "metrics.jsonl") == [{"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.5}]
    assert lines(tmp_path / "ppo" / "x" / "samples.jsonl") == [{"step": 0, "response": "ä0.5"}]


def test_every_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with RunLog(tmp_path, "run", 2) as log:
        log.metrics(0, {"loss": 1.0})
        assert len(lines(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_a_number_is_never_written(tmp_path: Path, value: float) -> None:
    with RunLog(tmp_path, "run", 1) as log, pytest.raises(FloatingPointError, match="kl is not finite"):
        log.metrics(3, {"loss": 1.0, "kl": value})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_progress_is_a_plain_line_on_stderr_for_the_first_and_the_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunLog(tmp_path, "sft", 57, show=("loss", "absent")) as log:
        for step in range(57):
            log.metrics(step, {"loss": 0.25, "lr": 1.0})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["sft: 1/57 loss 0.25, 0 s left", "sft: 57/57 loss 0.25"]


def test_a_new_run_replaces_a_complete_one_when_it_is_complete(tmp_path: Path) -> None:
    finish(tmp_path, 1.0)
    with RunLog(tmp_path, "run", 1) as log:
        log.metrics(0, {"loss": 2.0})
        assert lines(tmp_path / "metrics.jsonl")[0]["loss"] == 1.0
        log.finish()
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 2.0}]
    assert not (tmp_path / "samples.jsonl").exists()  # the new run wrote none; the old ones are not its own
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_that_fails_leaves_the_complete_one_whole(tmp_path: Path) -> None:
    finish(tmp_path, 1.0)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    for _ in range(2):  # the second must not go on writing where the first stopped
        with pytest.raises(KeyboardInterrupt), RunLog(tmp_path, "run", 9) as log:
            log.metrics(0, {"loss": 7.0})
            raise KeyboardInterrupt
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before
    assert lines(tmp_path / "metrics.jsonl.partial") == [{"step": 0, "loss": 7.0}]


def test_a_run_that_fails_before_its_first_line_changes_nothing(tmp_path: Path) -> None:
    with RunLog(tmp_path, "run", 9) as log:
        log.metrics(0, {"loss": 1.0})  # an earlier run that was stopped: it has no policy
    with pytest.raises(ValueError, match="no prompts"), RunLog(tmp_path, "run", 9):
        raise ValueError("no prompts")
    assert len(lines(tmp_path / "metrics.jsonl")) == 1


def test_a_run_that_was_stopped_is_started_over_in_place(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with RunLog(tmp_path, "run", 9) as log:
            log.metrics(0, {"loss": value})
            log.sample({"step": 0})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 2.0}]
    assert len(lines(tmp_path / "samples.jsonl")) == 1


class Writes(Policy):
    """Stands in for a policy whose files are one text; `breaks`: the disk is full half-way."""

    def __init__(self, text: str, breaks: bool = False) -> None:
        torch.nn.Module.__init__(self)
        self.text = text
        self.breaks = breaks


@pytest.fixture
def one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are written as one text."""

    def write(policy: Writes, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model").write_text(policy.text)
        if policy.breaks:
            raise OSError("no space left")
        (folder / "tokenizer").write_text(policy.text)

    monkeypatch.setattr(run, "write_policy", write)


@pytest.mark.usefixtures("one_text")
def test_a_policy_replaces_the_earlier_one(tmp_path: Path) -> None:
    for text in ("old", "new"):
        save_policy(Writes(text), tmp_path / "deep" / "policy")
        assert (tmp_path / "deep" / "policy" / "tokenizer").read_text() == text
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["policy"]


@pytest.mark.usefixtures("one_text")
def test_a_policy_half_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    place = tmp_path / "policy"
    save_policy(Writes("old"), place)
    with pytest.raises(OSError, match="no space"):
        save_policy(Writes("new", breaks=True), place)
    assert {path.name: path.read_text() for path in place.iterdir()} == {"model": "old", "tokenizer": "old"}
    save_policy(Writes("newer"), place)
    assert (place / "tokenizer").read_text() == "newer"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_learning_rate_rises_and_falls_as_its_schedule_says(schedule: str) -> None:
    factor = learning_rate_factor(schedule, 0.1, 100)  # type: ignore[arg-type]
    values = [factor(step) for step in range(100)]
    rising, falling = values[:10], values[10:]
    assert rising == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert falling[0] == 1.0
    middle = {"constant": 1.0, "linear": 0.5, "cosine": 0.5}[schedule]
    assert values[55] == pytest.approx(middle)
    assert values[32] == pytest.approx(
        {"constant": 1.0, "linear": 1 - 22 / 90, "cosine": 0.8597}[schedule], abs=1e-4
    )
    assert factor(100) == pytest.approx(1.0 if schedule == "constant" else 0.0)
    assert factor(150) == pytest.approx(1.0 if schedule == "constant" else 0.0)  # never rises again, never negative
    assert all(later <= earlier for earlier, later in itertools.pairwise(falling))


def test_without_warm_up_the_first_step_is_a_whole_one() -> None:
    assert learning_rate_factor("linear", 0.0, 4)(0) == 1.0
    assert learning_rate_factor("linear", 0.03, 4)(0) == 0.5  # a warm-up takes one step at least


def test_a_seed_seeds_all_generators() -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), float(torch.rand(())), float(np.random.rand())

    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    second = draw()
    assert all(a != b for a, b in zip(first, second, strict=True))


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
        return {**run_inputs(config, config.policy), **critic_inputs(config)}

    plain = inputs()
    assert (
        inputs(policy={"model": "elsewhere"}, sandbox={"workers": 7}) == plain
    )  # the weights are compared by digest
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
    now = Randomness.now()
    saved = Randomness(now.python, now.numpy, now.torch, [torch.tensor([n]) for n in range(11)])
    Randomness.restore(saved.tensors("me"), saved.numbers(), "me")
    assert given == {n: n for n in range(11)}


def test_passes_that_all_processes_must_make_alike_stay_as_large_as_they_are() -> None:
    def never(size: int) -> int:
        tried.append(size)
        raise MemoryError

    tried: list[int] = []
    for size, fixed, sizes in ((8, True, [8]), (5, False, [5, 2, 1]), (1, False, [1])):
        tried.clear()
        with pytest.raises(MemoryError):
            PassSize(size, ranks=Ranks(0, 2, sharded=fixed)).fitting(never, lambda: None)
        assert tried == sizes
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        PassSize(8).fitting(lambda size: torch.zeros(2) @ torch.zeros(3), lambda: None)
