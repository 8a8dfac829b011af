"""A run that was stopped ends as if it had never stopped: weights, moments, logs, bit for bit on
one CPU."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from transformers.utils import chat_template_utils

from text2grad.align import CreditSettings, TokenTable
from text2grad.durable import run as run_module
from text2grad.durable.checkpoint import newest_checkpoint
from text2grad.durable.run import ResumeMode, RunOptions
from text2grad.durable.settings import CourseSettings
from text2grad.durable.state import Training, seed_everything
from text2grad.errors import Diverged, UserError
from text2grad.feedback import Example, Failure, Judgement, Message, Overlap, Source
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.save import write_policy
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.generate import Sample, generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.policy.tiny import make_tiny_model
from text2grad.signals import StopRequest, stop_here
from text2grad.train import learner, ppo, report, supervised
from text2grad.train import update as update_module
from text2grad.train.offline import LoggedAnswer, train_offline
from text2grad.train.pairs import MarkedText, Pair
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import (
    NextTokenSettings,
    OfflineSettings,
)
from text2grad.train.supervised import Heads, train_supervised
from text2grad.train.watch import probes
from tiny_runs import SMALL, TEXTS, Halves, tiny_model

STEPS = 6
SETTINGS = PPOSettings(
    advantage="gae",
    steps=STEPS, rollouts=4, epochs=2, mini_batches=2, lr=1e-3, schedule="cosine", value_warmup=1,
    kl_target=0.01, normalisation="whiten",
)  # fmt: skip
TRAINING = NextTokenSettings(epochs=3, batch_size=2, lr=1e-2)
COURSE: dict[str, Any] = {"checkpoint_every": 1, "course": CourseSettings(warmup=0.3)}
SPEECH = GenerationSettings(max_new_tokens=6, temperature=1.0, batch_size=3)
ADAPTERS = LoraSettings(r=2, dropout=0.3)


class Lots(Halves):
    """Draws lots for the score."""

    overlap: Overlap = "allowed"

    def score(self, text: str) -> float:
        return float(torch.rand(()))


class Stops(Lots):
    """Does something at its n-th call."""

    def __init__(self, at: int, what: Callable[[], object]) -> None:
        self.calls, self.at, self.what = 0, at, what

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.calls += 1
        if self.calls == self.at:
            self.what()
        return super().critique(examples, responses)


class Killed(BaseException):
    """Stands in for what no program can catch: nothing is saved on its way out."""


def killed() -> None:
    raise Killed


def asked(number: int) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probes, but where a test asks for some."""
    monkeypatch.setattr(probes, "is_due", lambda *_: False)


@pytest.fixture
def probed(unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes at every second step, and at the last one."""
    monkeypatch.setattr(probes, "is_due", lambda step, steps, every: report.is_due(step, steps, 2))


Straight = Callable[..., tuple[Path, Training]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """What each run that was begun trains."""
    return watched(monkeypatch)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    found: list[Training] = []
    for loop in (ppo, supervised):

        def remembered(*words: Any, **options: Any) -> Training:
            found.append(Training(*words, **options))
            return found[-1]

        monkeypatch.setattr(loop, "Training", remembered)
    return found


def examples() -> list[Example]:
    return [Example(id=str(n), prompt=(Message(role="user", content=text),)) for n, text in enumerate(TEXTS * 2)]


def by_ppo(
    model: Path,
    folder: Path,
    critic: Halves,
    lora: bool = False,
    resume: ResumeMode = "auto",
    inputs: Mapping[str, str] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    checkpoint_every: int = 1,
    **changes: Any,
) -> None:
    seed_everything(5)
    policy = load_policy(PolicySettings(model=str(model), lora=ADAPTERS if lora else None, dtype=dtype))
    settings = SETTINGS.model_copy(update=changes)
    options = RunOptions(folder, "x", 5, resume, inputs or {}, checkpoint_every=checkpoint_every)
    train_ppo(policy, examples(), critic, settings, CreditSettings(), SPEECH, options)


def by_supervision(
    model: Path,
    folder: Path,
    on_step: Any = None,
    title: str = "sft",
    lora: bool = True,  # their dropout draws lots
    dtype: Literal["float32", "bfloat16"] = "float32",
    checkpoint_every: int = 1,
    label_weight: float = 0.0,
    verdicts: bool = False,
    spans: bool = False,
    times: int = 1,
    **changes: Any,
) -> dict[str, float]:
    seed_everything(5)
    policy = load_policy(PolicySettings(model=str(model), lora=ADAPTERS if lora else None, dtype=dtype))
    pairs = []
    for n, text in enumerate(TEXTS, start=1):
        marked = (MarkedText(0, text, ()),) if label_weight else ()
        score = 1 / n if verdicts else None
        pairs.append(Pair(str(n), (Message(role="user", content=text),), text * n * times, marked, score))
    settings = TRAINING.model_copy(update=changes)
    options = RunOptions(folder, title, 5, on_step=on_step, **{**COURSE, "checkpoint_every": checkpoint_every})
    heads = Heads(label_weight, verdicts, spans)
    return train_supervised(policy, pairs, settings, options, heads=heads)


def by_logged_answers(model: Path, folder: Path, on_step: Any = None, lora: bool = True, **changes: Any) -> None:
    seed_everything(5)
    policy = load_policy(PolicySettings(model=str(model), lora=ADAPTERS if lora else None))
    asked = [(Message(role="user", content=text),) for text in TEXTS]
    answers = [
        LoggedAnswer(str(n), turn, TEXTS[n] * 2, Halves().judge(TEXTS[n] * 2)) for n, turn in enumerate(asked)
    ]
    settings = OfflineSettings(epochs=3, batch_size=2, lr=1e-2)
    options = RunOptions(folder, "offline", 5, on_step=on_step, **COURSE)
    train_offline(policy, answers, settings.model_copy(update=changes), CreditSettings(), options)


@pytest.fixture(scope="module")
def straight(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Uninterrupted runs of PPO by what changes in their settings; each is made once."""
    made: dict[str, tuple[Path, Training]] = {}

    def make(**changes: Any) -> tuple[Path, Training]:
        key = str(changes)
        if key not in made:
            folder = tmp_path_factory.mktemp("straight") / "run"
            with pytest.MonkeyPatch.context() as patch:
                found = watched(patch)
                patch.setattr(probes, "is_due", lambda *_: False)
                by_ppo(model, folder, Lots(), **changes)
            made[key] = folder, found[-1]
        return made[key]

    return make


def logged(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Metrics without seconds, and samples to the letter."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    rows = [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in lines]
    samples = folder / "samples.jsonl"
    return rows, samples.read_text("utf-8") if samples.exists() else ""


def assert_same(one: tuple[Path, Training], other: tuple[Path, Training]) -> None:
    """Equal weights, moments, learning rate, coefficient, logs and policy files."""
    assert logged(one[0]) == logged(other[0])
    assert len(logged(one[0])[0]) == STEPS
    first, second = one[1].tensors(), other[1].tensors()
    assert first.keys() == second.keys()
    assert any("exp_avg_sq" in name or "momentum" in name for name in first)
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
    assert one[1].numbers() == other[1].numbers()
    assert one[1].schedule.get_last_lr() == other[1].schedule.get_last_lr()
    for path in (one[0] / "policy").glob("*.safetensors"):
        assert path.read_bytes() == (other[0] / "policy" / path.name).read_bytes()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("metrics.jsonl", "samples.jsonl"))


class Scene(NamedTuple):
    """How a run of PPO is stopped: at a call of its critic, by what, with which error and words on
    stderr or in the error; and what it is begun and resumed with, `lora` by both."""

    at: int
    what: Callable[[], object]
    error: type[BaseException]
    told: str
    begun: Mapping[str, Any] = {}
    resumed: Mapping[str, Any] = {}
    lora: bool = False
    overlap: Overlap = "allowed"


def server_down() -> None:
    raise UserError("the endpoint is down", "start it")


def out_of_memory() -> None:
    torch.empty(1 << 60)


RARELY = {"checkpoint_every": 0}
SCENES = {
    **{f"step {at}": Scene(at, killed, Killed, "") for at in (2, 4, STEPS)},
    "adapters": Scene(4, killed, Killed, "", lora=True),
    "two steps after its checkpoint": Scene(6, killed, Killed, "", {"checkpoint_every": 3}),
    "SIGTERM": Scene(3, asked(signal.SIGTERM), SystemExit, "step 2 of 6; the same command resumes it", RARELY),
    "SIGINT": Scene(3, asked(signal.SIGINT), KeyboardInterrupt, "step 2 of 6; the same command", RARELY, RARELY),
    "a critic beside the scoring": Scene(
        4, server_down, UserError, "the endpoint is down (start it)", RARELY, RARELY, overlap="helps"
    ),
    "all critiques failed": Scene(
        4, lambda: None, UserError, "4 of 4 critiques failed", RARELY, {"max_failed": 0.9}
    ),
    "out of memory": Scene(
        4, out_of_memory, UserError,
        "ppo.micro_batch_size (64) or generation.batch_size (3), then --force resumes from step 3", RARELY,
    ),
    "another rate over a complete run": Scene(4, killed, Killed, "", {"lr": 2e-3}, {"lr": 2e-3}),
    "restart with another rate": Scene(4, killed, Killed, "", {}, {"lr": 2e-3, "resume": "restart"}),
}  # fmt: skip


class Fails(Stops):
    """All of its critiques fail at the n-th call."""

    def judge(self, text: str) -> Judgement:
        down = Failure(kind="exhausted", message="the endpoint is down")
        return down if self.calls == self.at else super().judge(text)


@pytest.mark.parametrize("name", SCENES)
def test_ppo_resumes_as_if_it_had_never_stopped(
    model: Path,
    tmp_path: Path,
    seen: list[Training],
    straight: Straight,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    scene, folder = SCENES[name], tmp_path / "run"
    complete: dict[str, bytes] = {}
    if "complete" in name:
        shutil.copytree(straight()[0], folder)
        complete = contents(folder)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    critic = (Fails if "failed" in name else Stops)(scene.at, scene.what)
    critic.overlap = scene.overlap
    with pytest.raises(scene.error) as left:
        by_ppo(model, folder, critic, scene.lora, **scene.begun)
    assert scene.told in capsys.readouterr().err + str(left.value)
    assert scene.error is not SystemExit or left.value.args == (143,)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("critic")]
    now = contents(folder)
    assert {path: now[path] for path in complete} == complete and (complete or not (folder / "policy").exists())
    second = Lots()
    second.overlap = scene.overlap
    by_ppo(model, folder, second, scene.lora, **scene.resumed)
    kept = 3 if "two steps" in name else scene.at - 1
    assert (f"x: resumes after step {kept} of {STEPS}\n" in capsys.readouterr().err) == ("restart" not in name)
    changes: dict[str, Any] = {"lora": True} if scene.lora else {}
    changes |= {"lr": scene.resumed["lr"]} if "lr" in scene.resumed else {}
    assert_same(straight(**changes), (folder, seen[-1]))
    assert leftovers(folder) == ["policy"]


OF_A_PROBE = ("tokens", "starts", "delta", "kl", "value", "reward", "logp", "logp_change", "entropy")


def probes_of(folder: Path) -> list[dict[str, Any]]:
    return [row for line in logged(folder)[1].splitlines() if (row := json.loads(line)).get("probe")]


@pytest.mark.parametrize("call", [4, 5])  # of a probe at the beginning of step 2, and of that step
def test_probes_follow_the_same_prompts_and_training_does_not_notice(
    model: Path, tmp_path: Path, seen: list[Training], straight: Straight, probed: None, call: int
) -> None:
    """Their critic draws lots of torch's generator, and so does the policy; nor does it matter
    where it stops."""
    with pytest.raises(SystemExit):
        by_ppo(model, tmp_path / "run", Stops(call, asked(signal.SIGTERM)), checkpoint_every=0)
    by_ppo(model, tmp_path / "run", Lots())
    probes = probes_of(tmp_path / "run")
    spread = [number * len(examples()) // 4 for number in range(4)]
    expected = [(step, examples()[row].id) for step in (0, 2, 4, STEPS - 1) for row in spread]
    assert [(probe["step"], probe["id"]) for probe in probes] == expected
    for probe in probes:
        assert {len(probe[name]) for name in OF_A_PROBE} == {len(probe["ids"])}
        assert not {"advantage", "ratio", "learned"} & probe.keys(), "nothing was learned from it"
    changes = [max(map(abs, probe["logp_change"])) for probe in probes]
    assert max(changes[:4]) == 0 < min(changes[-4:])
    path = tmp_path / "run" / "samples.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"probe"' not in line), encoding="utf-8")
    assert_same(straight(), (tmp_path / "run", seen[-1]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_that_was_trained_before_goes_on_as_if_it_had_never_stopped(
    model: Path, tmp_path: Path, seen: list[Training], dtype: Literal["float32", "bfloat16"]
) -> None:
    """Its reference is the adapter it started from, also after a stop; with another start it is
    refused."""
    seed_everything(5)
    starts = [tmp_path / "sft", tmp_path / "other"]
    start = load_policy(PolicySettings(model=str(model), lora=ADAPTERS))
    for folder in starts:
        with torch.no_grad():
            for parameter in start.policy_parameters():
                parameter.add_(0.05)
        write_policy(start, folder)
    by_ppo(starts[0], tmp_path / "straight", Lots(), True, dtype=dtype)
    with pytest.raises(Killed):
        by_ppo(starts[0], tmp_path / "stopped", Stops(4, killed), True, dtype=dtype)
    with pytest.raises(UserError, match=r"inputs: the starting policy \("):
        by_ppo(starts[1], tmp_path / "stopped", Lots(), True, dtype=dtype)
    straight, count = seen[0], len(seen)
    by_ppo(starts[0], tmp_path / "stopped", Lots(), True, dtype=dtype)
    assert_same((tmp_path / "straight", straight), (tmp_path / "stopped", seen[count]))
    assert logged(tmp_path / "straight")[0][0]["kl"] == 0 and logged(tmp_path / "straight")[0][-1]["kl"] != 0
    assert (tmp_path / "stopped" / "policy" / "adapter_model.safetensors").is_file()


class Loop(NamedTuple):
    """A training loop, the step at which it is killed, refused changes by name, and heads that it
    trains."""

    begin: Callable[..., object]
    at: int = 3
    refused: Mapping[str, dict[str, Any]] = {}
    heads: tuple[str, ...] = ()


def with_heads(spans: bool) -> Loop:
    """A reward model whose heads, and what their optimizers remember, are part of a checkpoint."""
    heads: dict[str, Any] = {"label_weight": 1.0, "verdicts": True, "spans": spans}
    refused = {
        r"reward_model\.label_weight 1\.0 -> 2\.0": {"label_weight": 2.0},
        r"reward_model\.kind": {"spans": not spans},
        r"reward_model\.score_head": {"verdicts": False},
    }
    begin = partial(by_supervision, **heads)
    return Loop(begin, 2, refused, ("span_head" if spans else "label_head", "score_head"))


MUON = "text2grad.demo_muon:muon"
LOOPS = {
    "first step": Loop(by_supervision, 1),
    "last step": Loop(by_supervision, 5),
    "muon": Loop(partial(by_supervision, title="reward model", optimizer=MUON)),
    "muon, masters of half weights": Loop(partial(by_supervision, lora=False, dtype="bfloat16", optimizer=MUON)),
    "masters of half weights": Loop(partial(by_supervision, lora=False, dtype="bfloat16", lr=1e-6)),
    **{
        f"logged answers, {'adapter' if lora else 'all weights'}": Loop(
            partial(by_logged_answers, lora=lora),
            refused={r"offline\.lr 0\.01 -> 0\.02": {"lr": 0.02}},
        )
        for lora in (False, True)
    },
    "generative, heads": with_heads(False),
    "tagger": with_heads(True),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_resumes_as_if_it_had_never_stopped(
    model: Path, tmp_path: Path, seen: list[Training], name: str
) -> None:
    loop = LOOPS[name]

    def stop(step: int, _: dict[str, float]) -> None:
        if step == loop.at:
            raise Killed

    loop.begin(model, tmp_path / "straight")
    straight = seen[0]
    with pytest.raises(Killed):
        loop.begin(model, tmp_path / "stopped", on_step=stop)
    for refusal, changes in loop.refused.items():
        with pytest.raises(UserError, match=refusal):
            loop.begin(model, tmp_path / "stopped", **changes)
    loop.begin(model, tmp_path / "stopped")
    assert_same((tmp_path / "straight", straight), (tmp_path / "stopped", seen[-1]))
    assert leftovers(tmp_path / "stopped") == ["policy"]
    for head in loop.heads:
        assert any(head in key and bool(tensor.any()) for key, tensor in seen[-1].tensors().items())


def test_a_critic_beside_the_scoring_changes_nothing(
    model: Path, tmp_path: Path, seen: list[Training], straight: Straight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critic waits until scoring has begun, so it must be beside it; it draws lots all the
    same."""
    scoring = threading.Event()

    class Slow(Lots):
        overlap: Overlap = "helps"

        def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
            assert scoring.wait(60), "scoring did not begin"
            scoring.clear()
            return super().critique(examples, responses)

    original = learner.measure_policy

    def measure(*given: Any) -> Any:
        scoring.set()
        return original(*given)

    monkeypatch.setattr(learner, "measure_policy", measure)
    by_ppo(model, tmp_path / "beside", Slow())
    assert_same(straight(), (tmp_path / "beside", seen[-1]))
    rows = [json.loads(line) for line in (tmp_path / "beside" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert all(row["seconds_critique_hidden"] > 0 for row in rows)


Begin = Callable[..., object]


@contextmanager
def signalled(boundary: int) -> Iterator[list[int]]:
    """SIGTERM at a boundary, none at 0; how many boundaries there were."""
    seen, is_pending = [0], StopRequest.is_pending.fget  # type: ignore[attr-defined]

    def counted(request: StopRequest) -> bool:
        seen[0] += 1
        if seen[0] == boundary:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(is_pending(request))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "is_pending", property(counted))
        yield seen


class Looks(Lots):
    """Works in a thread beside the scoring, and has a boundary before each response."""

    overlap: Overlap = "helps"

    def score(self, text: str) -> float:
        stop_here()
        return super().score(text)


def ppo_beside(model: Path, folder: Path) -> None:
    by_ppo(model, folder, Looks(), lora=True)


def ppo_alone(model: Path, folder: Path) -> None:
    by_ppo(model, folder, Lots(), checkpoint_every=0, micro_batch_size=1)


@pytest.mark.parametrize(
    ("begin", "points", "kept"),
    [
        (ppo_alone, 4, True),
        (ppo_alone, 2, False),
        (ppo_beside, 3, True),
    ],
)
def test_a_signal_at_any_boundary_is_obeyed_there_and_the_run_resumes_to_the_bit(
    model: Path,
    tmp_path: Path,
    seen: list[Training],
    monkeypatch: pytest.MonkeyPatch,
    begin: Begin,
    points: int,
    kept: bool,
) -> None:
    """Boundaries drawn at random: in sampling, in passes forward and backward, in measurements in
    between.

    Where the state is too large to be kept beside, a step that changes the policy is finished
    first.
    """
    if not kept:
        monkeypatch.setattr(run_module, "CPU_COPY_BYTES", 0)
    with signalled(0) as all_of_them:
        begin(model, tmp_path / "straight")
    straight = tmp_path / "straight", seen[-1]
    for boundary in random.Random(points).sample(range(1, all_of_them[0] + 1), points):
        folder = tmp_path / str(boundary)
        with signalled(boundary) as passed, pytest.raises(SystemExit) as left:
            begin(model, folder)
        assert left.value.args == (143,)
        assert passed[0] == boundary or not kept or begin is ppo_beside
        assert not (folder / "policy").exists() or not kept
        if not (folder / "policy").exists():
            begin(model, folder)
        assert_same(straight, (folder, seen[-1]))
        assert leftovers(folder) == ["policy"]


def test_a_second_signal_ends_it_at_once_and_one_after_the_last_boundary_when_all_is_saved(
    model: Path, tmp_path: Path
) -> None:
    def twice() -> None:
        asked(signal.SIGINT)()
        asked(signal.SIGINT)()

    with pytest.raises(KeyboardInterrupt):
        by_ppo(model, tmp_path / "a", Stops(3, twice))
    assert [path.name for path in sorted((tmp_path / "a" / "checkpoints").iterdir())] == [
        "checkpoint-1",
        "checkpoint-2",
    ]

    def last(step: int, _: dict[str, float]) -> None:
        if step == STEPS - 1:
            asked(signal.SIGTERM)()

    with pytest.raises(SystemExit):
        by_supervision(model, tmp_path / "b", last)
    assert leftovers(tmp_path / "b") == ["policy"]


@pytest.fixture(scope="module")
def killed_run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its fourth step. Do not write to it."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(probes, "is_due", lambda *_: False)
        by_ppo(model, folder, Stops(4, killed))
    return folder


@pytest.fixture
def unfinished(killed_run: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(killed_run, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_has_changed_is_refused_by_name_and_nothing_is_written(
    model: Path, unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, asked = contents(unfinished), examples()
    other = make_tiny_model(tmp_path / "other", TEXTS, 300, 128, SMALL, seed=4) or tmp_path / "other"
    shutil.copytree(unfinished, tmp_path / "sft")

    def refused(words: str, start: Path = model, **changes: Any) -> None:
        with pytest.raises(UserError, match=words):
            by_ppo(start, unfinished, Lots(), **changes)

    refused(r"ppo\.lr 0\.001 -> 0\.002, ppo\.gamma 0\.7 -> 0\.5 \(--restart .*--force", lr=2e-3, gamma=0.5)
    refused("the reward model", inputs={"the reward model": "another"})
    refused(r"inputs: the starting policy \(", other)
    with monkeypatch.context() as patch:
        patch.setattr(Halves, "source", Source(kind="human"))
        refused(r"inputs: the critic \(")
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "examples", lambda: asked[:-1])
        refused(r"inputs: the prompts \(")
    with pytest.raises(UserError, match=r"run\.name x -> sft"):
        by_supervision(model, tmp_path / "sft")
    assert contents(unfinished) == before
    (unfinished / "metrics.jsonl").write_text('{"step": 0}\n')
    refused(r"metrics\.jsonl has changed since .*checkpoint-3")
    assert (unfinished / "metrics.jsonl").read_text() == '{"step": 0}\n', "of another run"


def test_a_forced_run_takes_the_new_settings(model: Path, unfinished: Path, seen: list[Training]) -> None:
    by_ppo(model, unfinished, Lots(), lr=2e-3, resume="force")
    assert len(logged(unfinished)[0]) == STEPS
    assert seen[-1].schedule.base_lrs == [2e-3]
    assert seen[-1].schedule.get_last_lr()[0] == pytest.approx(0.0)


class Clock:
    """Stands in for `datetime` where transformers renders a template."""

    today = datetime(2026, 1, 30)

    @classmethod
    def now(cls) -> datetime:
        return cls.today


@pytest.mark.parametrize("train", ["ppo", "sft"])
def test_a_run_whose_template_has_a_date_resumes_on_another_day(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: str
) -> None:
    """The messages and the template are what is compared; another template is refused."""
    dated, folder = tmp_path / "dated", tmp_path / "run"
    shutil.copytree(model, dated)
    template = (dated / "chat_template.jinja").read_text()
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + template)
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    tokenizer = load_tokenizer(str(dated))
    asked = encode_prompt(tokenizer, examples()[0].prompt)

    def begin(at: int | None) -> None:
        def stop(step: int, _: dict[str, float]) -> None:
            if step == at:
                raise Killed

        if train == "ppo":
            by_ppo(dated, folder, Stops(0 if at is None else at + 1, killed))
        else:
            by_supervision(dated, folder, stop)

    with pytest.raises(Killed):
        begin(2)
    monkeypatch.setattr(Clock, "today", datetime(2026, 2, 1))
    assert encode_prompt(tokenizer, examples()[0].prompt) != asked
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}" + template)
    with pytest.raises(UserError, match=r"inputs: the (prompts|training pairs) \("):
        begin(None)
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + template)
    begin(None)
    assert len(logged(folder)[0]) == STEPS


def test_a_damaged_checkpoint_is_named_and_passed_over(
    model: Path, unfinished: Path, seen: list[Training], straight: Straight, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = unfinished / "checkpoints" / "checkpoint-3"
    data = bytearray((newest / "tensors.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "tensors.safetensors").write_bytes(data)
    by_ppo(model, unfinished, Lots())
    told = capsys.readouterr().err
    assert f"{newest} (tensors.safetensors" in told and f"x: resumes after step 2 of {STEPS}\n" in told
    assert_same(straight(), (unfinished, seen[-1]))


def test_two_runs_in_one_folder_are_refused(model: Path, tmp_path: Path) -> None:
    def another() -> None:
        with pytest.raises(UserError, match=f"another run is training in .* \\(process {os.getpid()}\\)"):
            by_ppo(model, tmp_path / "run", Lots())

    by_ppo(model, tmp_path / "run", Stops(2, another))
    assert len(logged(tmp_path / "run")[0]) == STEPS
    (tmp_path / "run" / "run.lock").write_text("999999\n")  # what a killed run leaves
    by_ppo(model, tmp_path / "run", Lots())


@pytest.mark.parametrize("over", [False, True])
def test_a_run_killed_while_it_puts_its_files_in_place_is_mended(
    model: Path, tmp_path: Path, seen: list[Training], straight: Straight, over: bool
) -> None:
    """At each call that moves or removes a file of a run in its last step, over a complete run or
    none."""
    last = tmp_path / "last"
    if over:
        shutil.copytree(straight()[0], last)
    with pytest.raises(Killed):
        by_ppo(model, last, Stops(STEPS, killed), lr=2e-3)
    for point in itertools.count():
        folder = tmp_path / str(point)
        shutil.copytree(last, folder)
        with pytest.MonkeyPatch.context() as patch:
            left = [point]
            for module, name in ((os, "replace"), (shutil, "rmtree"), (Path, "unlink")):
                patch.setattr(module, name, dying(getattr(module, name), left, folder))
            try:
                by_ppo(model, folder, Lots(), lr=2e-3, checkpoint_every=4)
                break
            except Killed:
                pass
        by_ppo(model, folder, Lots(), lr=2e-3, checkpoint_every=4)
        assert_same(straight(lr=2e-3), (folder, seen[-1]))
        assert leftovers(folder) == ["policy"]
    assert point >= 6


def dying(act: Any, left: list[int], folder: Path) -> Any:
    """`act`, until so many calls have been made with something in this folder."""

    def call(*words: Any, **options: Any) -> Any:
        if str(words[0]).startswith(str(folder)):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
        return act(*words, **options)

    return call


# What can go wrong in a step.


DIVERGED: dict[str, tuple[Callable[..., object], float, str, int]] = {
    # the loop, its learning rate, what is said, and the rows of the batch that is kept
    "a PPO step": (by_ppo, 1e30, r"x: step \d of 6: .*lower ppo\.lr \(1e\+30\), or raise ppo\.kl", 4),
    "far from the reference": (by_ppo, 1.0, r"x: step \d of 6: .*\(ppo\.max_kl 3\).*lower ppo\.lr \(1\)", 4),
    "an SFT step": (by_supervision, 1e30, r"sft: step \d of 6: .*no parameter was changed .*sft\.lr", 2),
    "worse than guessing": (by_supervision, 3.0, r"sft: step \d of 6: .* the loss is \d.*lower sft\.lr", 2),
}


@pytest.mark.parametrize("name", DIVERGED)
def test_a_run_that_diverges_leaves_its_batch_a_hint_and_no_policy(model: Path, tmp_path: Path, name: str) -> None:
    begin, lr, told, count = DIVERGED[name]
    ppo_run = begin is by_ppo
    words: dict[str, Any] = {"value_warmup": 0, "critic": Lots()} if ppo_run else {"lora": False}
    with pytest.raises(Diverged, match=told) as caught:
        begin(model, tmp_path / "run", lr=lr, **words)
    assert "diverged.jsonl" in str(caught.value) and not (tmp_path / "run" / "policy").exists()
    rows = [json.loads(line) for line in (tmp_path / "run" / "diverged.jsonl").read_text().splitlines()]
    names = {"response", "tokens", "delta", "logp", "advantage", "kl"} if ppo_run else {"prompt", "target", "loss"}
    assert len(rows) == count and all(names <= row.keys() for row in rows)
    if name == "far from the reference":
        assert all(value is not None for row in rows for value in row["kl"]), "all its numbers are finite"


def test_a_policy_may_go_as_far_from_its_reference_as_max_kl_says(model: Path, tmp_path: Path) -> None:
    by_ppo(model, tmp_path / "b", Lots(), lr=1.0, value_warmup=0, max_kl=None)
    with pytest.raises(Diverged, match=r"step [23] of 6"):
        by_ppo(model, tmp_path / "d", Lots(), lora=True, max_kl=1e-9, kl="full")


def test_probabilities_that_are_not_numbers_are_one_line(
    model: Path, tmp_path: Path, seen: list[Training], straight: Straight
) -> None:
    def poison() -> None:
        with torch.no_grad():
            for parameter in seen[-1].policy.policy_parameters():
                parameter.fill_(float("nan"))

    with pytest.raises(UserError, match=r"step 2 of 6: .*not finite before the update, no parameter was changed"):
        by_ppo(model, tmp_path / "a", Stops(2, poison))

    def after(step: int, _: dict[str, float]) -> None:
        poison()

    policy = load_policy(PolicySettings(model=str(model)))
    options = RunOptions(tmp_path / "b", "ppo", 5, on_step=after)
    with pytest.raises(UserError, match=r"step 2 of 6: the policy's probabilities are not finite \(lower ppo\.lr"):
        train_ppo(policy, examples(), Lots(), SETTINGS, CreditSettings(), SPEECH, options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine on which more than one row at a time does not fit; how many rows were tried."""
    forward = Policy.forward
    tried: list[int] = []

    def fits(self: Policy, batch: Any, *given: Any, **named: Any) -> Any:
        tried.append(len(batch.mask))
        output = forward(self, batch, *given, **named)
        if len(batch.mask) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return output

    monkeypatch.setattr(Policy, "forward", fits)
    return tried


def test_where_memory_runs_out_smaller_passes_make_the_same_update(
    model: Path, tmp_path: Path, seen: list[Training], small: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit those of a run that was asked for passes so small."""
    by_ppo(model, tmp_path / "small", Lots(), micro_batch_size=4)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("out of memory")]
    assert told == [f"out of memory: continues with ppo.micro_batch_size {n}, the same update" for n in (2, 1)]
    assert small[:2] == [4, 2] and set(small[2:]) == {1}
    by_ppo(model, tmp_path / "asked", Lots(), micro_batch_size=1)
    assert_same((tmp_path / "asked", seen[-1]), (tmp_path / "small", seen[-2]))


def test_memory_that_runs_out_in_an_update_undoes_what_was_added_up(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pass of a mini-batch fails once, after the first one left its gradient."""
    terms = update_module.loss_terms
    calls: list[int] = []

    def fails_once(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        return terms(*given)

    halves: dict[str, Any] = {"rollouts": 4, "mini_batches": 1, "epochs": 1, "steps": 1, "value_warmup": 0}
    monkeypatch.setattr(update_module, "loss_terms", fails_once)
    by_ppo(model, tmp_path / "once", Lots(), micro_batch_size=2, **halves)
    assert len(calls) == 6
    monkeypatch.undo()
    by_ppo(model, tmp_path / "straight", Lots(), micro_batch_size=1, **halves)
    once, straight = (logged(tmp_path / name)[0][0]["grad_norm"] for name in ("once", "straight"))
    assert once == pytest.approx(straight, rel=1e-5)


def test_supervised_training_too_halves_its_passes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = supervised._loss_sums

    def fits(policy: Policy, items: Sequence[Any], *given: Any) -> Any:
        found = sums(policy, items, *given)
        if len(items) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found

    by_supervision(model, tmp_path / "asked", lora=False, micro_batch_size=1)
    monkeypatch.setattr(supervised, "_loss_sums", fits)
    by_supervision(model, tmp_path / "small", lora=False)
    assert "out of memory: continues with sft.micro_batch_size 4" in capsys.readouterr().err
    assert logged(tmp_path / "asked") == logged(tmp_path / "small")
    monkeypatch.setattr(supervised, "_loss_sums", lambda *_: torch.empty(1 << 60))
    with pytest.raises(UserError, match=r"sft: step 1 of 6: out of memory \(lower sft\.micro_batch_size"):
        by_supervision(model, tmp_path / "none", lora=False)


def test_a_full_disk_is_one_line_and_the_earlier_checkpoint_stays(
    model: Path, tmp_path: Path, seen: list[Training], straight: Straight
) -> None:
    """Every file of the third checkpoint in turn: no byte more than so many can be written to a
    file."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100_000, 2_000):  # the tensors, and a log or the state
        folder = tmp_path / str(limit)
        critic = Stops(3, lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)))
        try:
            with pytest.raises(UserError, match=r"cannot write .*File too large"):
                by_ppo(model, folder, critic)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        newest = newest_checkpoint(folder / "checkpoints")
        assert newest is not None and newest.step == 2
        assert not list((folder / "checkpoints").glob("*.partial"))
        by_ppo(model, folder, Lots())
        assert_same(straight(), (folder, seen[-1]))


def test_training_samples_with_torchs_generator(model: Path, tmp_path: Path) -> None:
    by_ppo(model, tmp_path / "run", Lots(), steps=1)
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    seed_everything(5)
    policy = load_policy(PolicySettings(model=str(model)))
    chosen = next(ppo.prompt_order(len(examples()), SETTINGS, random.Random(5)))
    samples = generate(policy, [encode_prompt(policy.tokenizer, examples()[i].prompt) for i in chosen], SPEECH)
    texts = TokenTable(policy.tokenizer)
    assert [json.loads(line)["response"] for line in lines] == [texts.align(s.ids).text for s in samples]


def test_an_empty_response_is_learned_from_and_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy ends its turn at once in half of the responses."""
    end = load_policy(PolicySettings(model=str(model))).tokenizer.eos_token_id
    original = learner.sample_responses

    def half(*given: Any) -> list[Sample]:
        samples = original(*given)
        return [Sample([end], False) if n % 2 else sample for n, sample in enumerate(samples)]

    monkeypatch.setattr(learner, "sample_responses", half)
    by_ppo(model, tmp_path / "run", Lots())
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    assert "" in {json.loads(line)["response"] for line in lines}
    monkeypatch.setattr(learner, "sample_responses", lambda _, rows, *__: [Sample([end], False) for _ in rows])
    by_ppo(model, tmp_path / "none", Lots())


def test_what_cannot_fit_the_window_is_refused_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(model=str(model)))
    long = GenerationSettings(max_new_tokens=200)
    with pytest.raises(UserError, match="too long"):
        train_ppo(
            policy, examples(), Lots(), SETTINGS, CreditSettings(), long, RunOptions(tmp_path / "run", "ppo", 5)
        )
    with pytest.raises(UserError, match="too long"):
        by_supervision(model, tmp_path / "run", times=99)
    assert not (tmp_path / "run").exists()
