"""DPO and the scalar reward model, trained by TRL: training results and files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import RewardConfig, RewardTrainer

from text2grad.config import PRESETS, Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source
from text2grad.jsonl import write_jsonl
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.critics import critic_factory
from text2grad.stages.run_folder import HELDOUT_FEEDBACK, RunFolder
from text2grad_lab.baselines.pairs import (
    PairSettings,
    policy_and_pairs,
    preference_data,
    reference_of,
    run_train_dpo,
    trainer_arguments,
)
from text2grad_lab.baselines.scalar import ScoreModel, full_sequences, run_train_scalar
from tiny_runs import tiny_model

PAIRS = [
    {"prompt": f"say {word}", "chosen": f"ok {word}", "rejected": f"rain {word}"}
    for word in ("one", "two", "six", "ten", "a", "b", "c", "d")
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    words = ["--policy.model", str(tiny_model(tmp_path / "model")), "--run.folder", str(tmp_path / "run")]
    words += ["--run.threads", "1", "--task.heldout_share", "0.3", "--policy.device", "cpu"]
    for name in ("dpo", "scalar_model"):
        training = {"epochs": 20, "batch_size": 4, "micro_batch_size": 2, "lr": 0.005}
        words += [f"--extra.{name}.training", json.dumps(training)]
    return load_config(PRESETS / "demo.yaml", words)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return str(file)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_frozen(PolicySettings(model=str(folder))).model.state_dict())


def with_adapter(config: Config) -> Config:
    policy = config.policy.model_validate({**config.policy.model_dump(), "lora": {"r": 4}})
    return config.model_copy(update={"policy": policy})


def test_dpo_prefers_the_chosen_answers_and_is_repeatable(config: Config, pairs: str) -> None:
    config = with_adapter(config)
    first = run_train_dpo(config, "dpo", pairs)
    assert (first.pairs, first.trained_on + first.heldout) == (8, 8) and first.heldout > 0
    rows = [json.loads(line) for line in (Path(first.out).parent / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-3), "training starts at the reference"
    assert first.metrics["accuracy"] == 1 and first.metrics["loss"] < 0.6
    assert 0 <= first.figures["heldout_accuracy"] <= 1
    before = weights_of(Path(first.out))
    assert run_train_dpo(config, "dpo", pairs).metrics == first.metrics
    after = weights_of(Path(first.out))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_reference_is_the_policy_to_the_bit_in_bfloat16(config: Config) -> None:
    """A merged adapter would be rounded away."""
    settings = with_adapter(config).policy.model_copy(update={"dtype": "bfloat16"})
    policy = load_policy(settings)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            weight.add_(1e-4 if "lora_B" in name else 0.0)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(reference_of(policy)(ids).logits, policy.model.eval()(ids).logits)


def test_pairs_of_feedback_that_is_split_already_are_all_for_training(config: Config) -> None:
    run = RunFolder.of(config)
    run.path.mkdir()
    (run.path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    assert len(preference_data(config, str(run.path / "pairs.jsonl")).train) < len(PAIRS)
    critique = Critique(text="", score=1.0)
    example = Example(id="h", prompt=(Message(role="user", content="say x"),))
    write_jsonl(run.path / HELDOUT_FEEDBACK, [Feedback.of(example, "ok", critique, Source(kind="program"))])
    assert len(preference_data(config, str(run.path / "pairs.jsonl")).train) == len(PAIRS)


@pytest.mark.parametrize("lora", [False, True])
def test_a_scalar_model_scores_chosen_answers_higher_and_is_a_critic(
    config: Config, pairs: str, lora: bool
) -> None:
    config = with_adapter(config) if lora else config
    kind = "text2grad_lab.baselines.scalar:SCALAR_MODEL"
    with critic_factory(config, kind) as factory, pytest.raises(UserError, match="train-scalar"), factory.open():
        pass
    summary = run_train_scalar(config, pairs)
    assert summary.metrics["accuracy"] == 1 and summary.metrics["loss"] < 0.4
    with critic_factory(config, kind) as factory, factory.open() as opened:
        critic: Any = opened
    examples = [Example(id=row["prompt"], prompt=(Message(role="user", content=row["prompt"]),)) for row in PAIRS]
    chosen, rejected = (critic.critique(examples, [row[side] for row in PAIRS]) for side in ("chosen", "rejected"))
    for better, worse in zip(chosen, rejected, strict=True):
        assert isinstance(better, Critique) and isinstance(worse, Critique)
        assert better.score is not None and worse.score is not None and better.score > worse.score
    heldout = preference_data(config, pairs).heldout
    prompts = [pair.prompt for pair in heldout]
    better, worse = (
        critic.scores(prompts, [getattr(pair, side) for pair in heldout]) for side in ("chosen", "rejected")
    )
    losses = [math.log1p(math.exp(low - high)) for high, low in zip(better, worse, strict=True)]
    assert summary.figures["heldout_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    alone = critic.critique(examples[:1], [PAIRS[0]["chosen"]])[0]
    assert isinstance(alone, Critique) and isinstance(chosen[0], Critique)
    assert alone.score == pytest.approx(chosen[0].score, abs=1e-5), "padding changes nothing"
    (long,) = critic.critique(examples[:1], ["rain " * 400])
    assert isinstance(long, Failure) and long.kind == "unsupported"


def test_the_loss_and_its_gradient_are_those_of_bradley_and_terry(config: Config, pairs: str) -> None:
    policy, split = policy_and_pairs(config, pairs)
    model = ScoreModel(policy)
    torch.nn.init.normal_(model.head.map.weight, generator=torch.Generator().manual_seed(0))
    rows = full_sequences(policy, split.train[:3])
    arguments = trainer_arguments(RewardConfig, config, PairSettings(), config.run.folder)
    model.config.num_labels = 1
    trainer = RewardTrainer(model=model, args=arguments, train_dataset=rows, processing_class=policy.tokenizer)
    trainer.compute_loss(model, trainer.data_collator(list(rows))).backward()

    def states(side: str) -> torch.Tensor:
        """Return the last hidden state of each answer, computed without batching: (N, H)."""
        ids = [torch.tensor([row[side]]) for row in rows]
        with torch.no_grad():
            return torch.stack([policy.model(i, output_hidden_states=True).hidden_states[-1][0, -1] for i in ids])

    difference = states("chosen_ids") - states("rejected_ids")
    margins = difference @ model.head.map.weight.detach()[0]
    oracle = [math.log1p(math.exp(-margin)) for margin in margins.tolist()]
    with torch.no_grad():
        loss = trainer.compute_loss(model, trainer.data_collator(list(rows)))
    assert loss.item() == pytest.approx(sum(oracle) / 3, rel=1e-5)
    gradient = -(torch.sigmoid(-margins)[:, None] * difference).mean(dim=0)
    torch.testing.assert_close(model.head.map.weight.grad[0], gradient, rtol=1e-4, atol=1e-6)


def test_the_head_has_a_constant_rate_and_the_trunk_alone_is_clipped(config: Config) -> None:
    model = ScoreModel(load_policy(config.policy))
    optimizer, schedule = model.optimizers(PairSettings(lr=1e-3), config.training, steps=4)
    head, trunk = model.head.map.weight, next(model.model.parameters())
    head.grad, trunk.grad = torch.full_like(head, 100.0), torch.full_like(trunk, 100.0)
    rates = []
    for _ in range(4):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    assert trunk.grad.norm() == pytest.approx(1.0, rel=1e-4) and head.grad.min() == 100.0
    assert {rate for _, rate in rates} == {model.head.step / head.shape[1]}
    assert rates[0][0] == 5e-4 and rates[3][0] < 1e-3 == max(rates)[0], "warm-up, then a decay"


def test_answers_of_several_turns_are_refused(config: Config, tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    turns += [{"role": "assistant", "content": "c"}]
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"prompt": "p", "chosen": turns, "rejected": "x"}) + "\n")
    with pytest.raises(UserError, match="several turns"):
        run_train_dpo(config, "dpo", str(file))
