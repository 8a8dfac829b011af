"""What the processes of these tests do. Each scene is a function that every process runs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from text2grad.align import CreditSettings, TokenTable
from text2grad.config import find_config, load_config
from text2grad.durable.launch import joined
from text2grad.durable.processes import ALONE, Ranks
from text2grad.durable.run import RunOptions
from text2grad.durable.state import seed_everything
from text2grad.feedback import Example, Failure, Judgement, Message, Overlap, Span
from text2grad.policy.encode import encode_prompt
from text2grad.policy.load import add_head, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.policy.shard import gathered, whole
from text2grad.stages.train import run_train
from text2grad.train import learner, supervised
from text2grad.train.pairs import MarkedText, Pair, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import PolicyStats, Rollout, draws_of, judge, measure, merge, respond, score
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import train_supervised
from text2grad.train.update import accumulate_gradient
from tiny_runs import TEXTS, Halves

COUNT = 7
"""Responses of a batch: shares of 3 and 4, so that processes have different numbers of passes to make."""
LABEL_WEIGHT = 0.5
SPEECH = GenerationSettings(max_new_tokens=6, temperature=1.0, batch_size=3)
SETTINGS = PPOSettings(
    advantage="gae",
    steps=4, rollouts=COUNT, epochs=2, mini_batches=2, micro_batch_size=3, lr=1e-3, schedule="cosine",
    value_warmup=1, kl_target=0.01,
    normalisation="whiten",
)  # fmt: skip
TRAINING = SupervisedSettings(epochs=3, batch_size=3, micro_batch_size=1, lr=1e-2)
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora separate": {"lora": LoraSettings(r=2, dropout=0.0), "value_head": "separate"},
}


class Stops(Halves):
    """In one process, does something at its n-th call."""

    overlap: Overlap = "allowed"

    def __init__(self, rank: int, at: int, what: str) -> None:
        self.calls, self.what, self.at = 0, what, at if os.environ["RANK"] == str(rank) else 0

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.calls += 1
        if self.calls == self.at:
            DEEDS[self.what]()
            if self.what == "down":
                return [Failure(kind="exhausted", message="the endpoint is down") for _ in responses]
        return super().critique(examples, responses)


def fail() -> None:
    raise ValueError("no answer from the judge")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


DEEDS: dict[str, Callable[[], object]] = {
    "fail": fail, "terminate": terminate, "die": lambda: os._exit(9), "down": lambda: None,
}  # fmt: skip


def examples() -> list[Example]:
    return [Example(id=str(n), prompt=(Message(role="user", content=text),)) for n, text in enumerate(TEXTS * 2)]


def load(model: Path, kind: str) -> Policy:
    seed_everything(5)
    policy = load_policy(PolicySettings(model=str(model), **KINDS[kind]))
    torch.nn.init.normal_(policy.value_head.outer.weight, std=0.3)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    policy.freeze_reference()
    return policy.eval()


def collect(policy: Policy, ranks: Ranks) -> Rollout:
    """A batch by the same steps as `train_ppo`."""
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples()[:COUNT]]
    rows = ranks.share(COUNT)
    with gathered(policy), ranks.barrier():
        samples = respond(policy, prompts[rows], SPEECH, draws_of(5, 0, rows, SPEECH.max_new_tokens))
        part = judge(examples()[:COUNT][rows], samples, TokenTable(policy.tokenizer), Halves(), CreditSettings())
    answered = merge(ranks.all_gather(part))
    batch = policy.pack(prompts, [sample.ids for sample in answered.samples])
    measured = measure(policy, batch, SETTINGS, SPEECH.temperature, passes(ranks))
    return score(batch, answered, PolicyStats(*ranks.all_gather_rows(measured)), SETTINGS, 0.1)


def passes(ranks: Ranks) -> PassSize:
    return PassSize(SETTINGS.micro_batch_size, ranks=ranks)


def gradients(policy: Policy, rollout: Rollout, ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, float]]:
    terms = accumulate_gradient(policy, rollout, torch.arange(COUNT), SETTINGS, 1.0, False, passes(ranks))
    named = {name: whole(p.grad) for name, p in policy.named_parameters() if p.grad is not None}
    return named, terms


def compare(model: Path, sharded: bool) -> dict[str, Any]:
    """Rollout and gradient of one batch, in one process and in two, for every kind of policy."""
    torch.set_num_threads(1)
    with joined(sharded) as ranks:
        facts: dict[str, Any] = {
            "world": dist.get_world_size(), "backend": dist.get_backend(), "rank": dist.get_rank(), "kinds": {},
        }  # fmt: skip
        for kind in KINDS:
            alone = load(model, kind)
            expected = collect(alone, ALONE)
            wanted, terms = gradients(alone, expected, ALONE)
            policy = load(model, kind)
            if ranks.rank == 1:
                with torch.no_grad():
                    policy.value_head.outer.bias.fill_(9.0)  # to be replaced by the first process's
            ranks.broadcast_weights(policy)
            found = collect(policy, ranks)
            got, told = gradients(policy, found, ranks)
            facts["kinds"][kind] = {
                "same names": wanted.keys() == got.keys(),
                "same responses": torch.equal(expected.batch.response_ids, found.batch.response_ids),
                "rollout": max(distance(getattr(expected, name), getattr(found, name)) for name in COLUMNS),
                "gradient": max(distance(wanted[name], got[name]) for name in wanted),
                "size": max(float(wanted[name].abs().max()) for name in wanted),
                "value size": float(wanted["value_head.inner.weight"].abs().max()),
                "terms": max(abs(terms[name] - told[name]) for name in terms),
                "parts": {name: part_of(p) for name, p in policy.named_parameters()},
            }
        facts["supervised"] = compare_supervised(model, ranks)
    return facts


COLUMNS = ("old_logp", "kl", "entropy", "values", "rewards", "advantages", "returns")


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def part_of(parameter: Tensor) -> tuple[int, int]:
    """Rows of a parameter that this process holds, and of all."""
    held = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return len(held), len(parameter)


def pairs() -> list[Pair]:
    """Of every prompt the first two characters are good words."""
    marked = [(MarkedText(0, text, (Span(start=0, end=2, label=1, text=text[:2]),)),) for text in TEXTS]
    turns = [(Message(role="user", content=text),) for text in TEXTS]
    return [
        Pair(str(n), turn, turn[0].content * n, mark, 1 / n)
        for n, (turn, mark) in enumerate(zip(turns, marked, strict=True), start=1)
    ]


def compare_supervised(model: Path, ranks: Ranks) -> dict[str, float]:
    found = {}
    for name, each in (("alone", ALONE), ("together", ranks)):
        policy = load(model, "full")
        add_head(policy, "label_head")
        add_head(policy, "score_head")
        each.broadcast_weights(policy)
        encoded = encode_pairs(policy, pairs())[:3]
        loss = sum(supervised.accumulate_gradient(policy, encoded, PassSize(1, ranks=each), LABEL_WEIGHT).values())
        found[name] = loss, {n: whole(p.grad) for n, p in policy.named_parameters() if p.grad is not None}
    (loss, wanted), (told, got) = found["alone"], found["together"]
    gradient = max(distance(wanted[name], got[name]) for name in wanted)
    return {
        "loss": abs(loss - told),
        "gradient": gradient,
        "size": max(float(g.abs().max()) for g in wanted.values()),
    }


def train(model: Path, folder: Path, sharded: bool, stop: tuple[int, int, str] = (0, 0, ""), **changes: Any) -> str:
    """A whole PPO run; one process draws as several do."""
    torch.set_num_threads(1)
    seed_everything(5)
    with joined(sharded) as ranks:
        ranks.by_row = True
        policy = load_policy(PolicySettings(model=str(model)))
        settings = SETTINGS.model_copy(update=changes)
        options = RunOptions(folder, "x", 5, ranks=ranks, checkpoint_every=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner, "due", lambda *_: False)
            train_ppo(policy, examples(), Stops(*stop), settings, CreditSettings(), SPEECH, options)
    return "done"


def train_with_adapters(model: Path, folder: Path, sharded: bool) -> str:
    """A supervised run of adapters; then two processes with different data."""
    torch.set_num_threads(1)
    seed_everything(5)
    with joined(sharded) as ranks:
        policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=2, dropout=0.0)))
        train_supervised(
            policy, pairs(), TRAINING, RunOptions(folder / "sft", "sft", 5, ranks=ranks, checkpoint_every=1)
        )
        policy = load_policy(PolicySettings(model=str(model)))
        seen = examples()[ranks.rank :]
        options = RunOptions(folder / "x", "x", 5, ranks=ranks, checkpoint_every=1)
        train_ppo(policy, seen, Halves(), SETTINGS, CreditSettings(), SPEECH, options)
    return "not refused"


def train_in_halves(adapter: Path, folder: Path, sharded: bool) -> dict[str, Any]:
    """A run of an adapter trained before, in bfloat16, stopped after a step and resumed."""
    torch.set_num_threads(1)
    steps: list[int] = []
    lora = LoraSettings(r=2, dropout=0.0)

    def begin(last: int) -> Policy:
        seed_everything(5)
        policy = load_policy(PolicySettings(model=str(adapter), lora=lora, dtype="bfloat16"))

        def look(step: int, metrics: dict[str, float]) -> None:
            steps.append(step)
            if step == 0:
                assert metrics["kl"] == 0, "the reference is the start, to the bit"
            if step == last:
                raise InterruptedError

        changes = {"steps": 2, "lr": 1e-6, "value_warmup": 0, "kl_target": None}
        options = RunOptions(folder, "x", 5, ranks=ranks, on_step=look, checkpoint_every=1)
        settings = SETTINGS.model_copy(update=changes)
        train_ppo(policy, examples(), Halves(), settings, CreditSettings(), SPEECH, options)
        return policy

    with joined(sharded) as ranks:
        ranks.by_row = True
        with contextlib.suppress(InterruptedError):
            begin(1)
        policy = begin(99)
        return {"steps": steps, "trained": trained(policy)}


def trained(policy: Policy) -> dict[str, Tensor]:
    return {name: whole(p.detach()).clone() for name, p in policy.named_parameters() if p.requires_grad}


def train_by_config(words: Sequence[str]) -> int:
    """The stage behind `text2grad train`; says how many processes there were."""
    run_train(load_config(find_config("demo"), words), "x")
    return int(os.environ["WORLD_SIZE"])
