"""Training on episodes: what others say between turns is read, and is in no loss, no mean and no
reward."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.align import CreditSettings, TokenTable, credit
from text2grad.durable.run import RunOptions
from text2grad.durable.state import seed_everything
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source, Span, turns_of
from text2grad.policy.episode import play
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import compute_metrics, token_strips
from text2grad.train.rollout import Responses, Rollout, build_rollout, judge, measure_policy
from text2grad.train.update import accumulate_gradient
from tiny_runs import TEXTS, Talker, ending, tiny_model

SPEECH = GenerationSettings(max_new_tokens=5, temperature=1.0, max_turns=3)
GAE = PPOSettings(advantage="gae", rollouts=8, micro_batch_size=3, gamma=0.9)
GROUP = PPOSettings(advantage="group", rollouts=8, samples_per_prompt=2, micro_batch_size=3)
EXAMPLES = [
    Example(id=text, prompt=(Message(role="user", content=text),), meta={"say": "payable " * n})
    for n, text in enumerate(TEXTS)
    for _ in range(2)
]


class Turns:
    """Praises the first character of each turn and blames the last; a score by length. Fails at
    some."""

    source = Source(kind="program")

    def __init__(self, failing: Callable[[int], bool] = lambda number: False) -> None:
        self.failing = failing

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [
            Failure(kind="refused", message="no") if self.failing(number) else self.judge(response)
            for number, response in enumerate(responses)
        ]

    def judge(self, response: str) -> Critique:
        spans = []
        for turn in turns_of(response):
            if turn.end - turn.start > 1:
                edges = ((turn.start, turn.start + 1, 1), (turn.end - 1, turn.end, -1))
                spans += [Span(start=a, end=b, label=c, text=response[a:b]) for a, b, c in edges]  # type: ignore[arg-type]
        return Critique(text="turn by turn", spans=tuple(spans), score=(len(response) % 5 - 2) / 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), context=256)


@pytest.fixture
def policy(folder: Path) -> Policy:
    torch.manual_seed(0)
    made = ending(load_policy(PolicySettings(model=str(folder))))
    torch.nn.init.normal_(made.value_head.outer.weight, std=0.3)
    made.freeze_reference()
    return made


def collect(
    policy: Policy, settings: PPOSettings, critic: Turns | None = None
) -> tuple[list[Sample], Responses, Rollout]:
    torch.manual_seed(3)
    samples = play(policy, EXAMPLES, Talker, SPEECH)
    assert any(len(each.sampled_ids) < len(each.ids) for each in samples), "some episodes have several turns"
    answered = judge(EXAMPLES, samples, TokenTable(policy.tokenizer), critic or Turns(), CreditSettings())
    batch = policy.pack(
        [each.prompt or [] for each in samples], [each.ids for each in samples], [each.mask for each in samples]
    )
    measured = measure_policy(policy, batch, settings, SPEECH.temperature)
    return samples, answered, build_rollout(batch, answered, measured, settings, 0.1)


def test_figures_are_those_of_each_episode_read_alone(policy: Policy) -> None:
    """Log-probabilities, entropies and values of the policy's tokens, without padding or another
    row."""
    samples, _, rollout = collect(policy, GAE)
    for row, sample in enumerate(samples):
        ids = torch.tensor([[*(sample.prompt or []), *sample.ids]])
        with torch.no_grad():
            output = policy.model(input_ids=ids, output_hidden_states=True)
            values = policy.value_head(output.hidden_states[-1])[0]
        log_p = output.logits[0].log_softmax(-1)
        for t, own in enumerate(sample.mask or []):
            place = len(sample.prompt or []) + t
            if own:
                before = log_p[place - 1]
                assert float(rollout.old_logp[row, t]) == pytest.approx(float(before[sample.ids[t]]), abs=1e-4)
                assert float(rollout.entropy[row, t]) == pytest.approx(
                    float(-(before.exp() * before).sum()), abs=1e-4
                )
                assert float(rollout.values[row, t]) == pytest.approx(float(values[place - 1]), abs=1e-4)
            else:
                for name in ("old_logp", "kl", "entropy", "rewards", "advantages", "returns", "delta", "loss_mask"):
                    assert not getattr(rollout, name)[row, t], name


def test_the_verdict_is_paid_to_the_last_own_token_and_words_to_those_they_are_about(policy: Policy) -> None:
    samples, answered, rollout = collect(policy, GAE)
    for row, (sample, judgement, aligned) in enumerate(
        zip(samples, answered.judgements, answered.aligned, strict=True)
    ):
        assert isinstance(judgement, Critique) and sample.mask is not None
        own = [t for t, mine in enumerate(sample.mask) if mine]
        assert own[-1] == len(sample.ids) - 1
        without = judgement.model_copy(update={"score": None})
        expected = credit(without, aligned, CreditSettings()).delta
        expected[-1] += judgement.score
        assert rollout.delta[row][own].tolist() == expected.tolist()
        assert float(rollout.delta[row].abs().sum()) == pytest.approx(float(abs(expected).sum()))


@pytest.mark.parametrize("settings", [GAE, GROUP], ids=["gae", "group"])
def test_neither_the_size_of_a_pass_nor_other_numbers_under_the_mask_change_the_gradient(
    policy: Policy, settings: PPOSettings
) -> None:
    found = []
    for size in (8, 3, 1):
        _, _, rollout = collect(policy, settings.model_copy(update={"micro_batch_size": size}))
        if size == 3:  # garbage where others spoke
            rng = torch.Generator().manual_seed(0)
            columns = ("delta", "advantages", "old_logp", "values", "returns", "rewards")
            noise = {name: torch.randn(rollout.delta.shape, generator=rng) for name in columns}
            garbage = {
                name: torch.where(rollout.batch.mask, getattr(rollout, name), 1e3 * noise[name]) for name in columns
            }
            rollout = replace(rollout, **garbage)
        accumulate_gradient(policy, rollout, torch.arange(8), settings, 1.0, warming=False)
        found.append(torch.cat([p.grad.flatten() for p in policy.policy_parameters() if p.grad is not None]))
        policy.zero_grad(set_to_none=True)
    assert found[0].abs().max() > 1e-4
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-6)


def test_equal_prompts_are_shared_around_what_others_said(policy: Policy) -> None:
    """Read once for all their episodes, they give the same figures."""
    _, _, together = collect(policy, GAE)
    assert policy.reader.shares_prompts
    policy.reader.shares_prompts = False
    apart = measure_policy(policy, together.batch, GAE, SPEECH.temperature)
    torch.testing.assert_close(together.old_logp, apart.logp, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.values, apart.values, rtol=1e-4, atol=1e-5)


def test_a_group_compares_verdicts_and_leaves_failures_out(policy: Policy) -> None:
    samples, answered, rollout = collect(policy, GROUP, Turns(failing=lambda number: number == 3))
    assert not rollout.loss_mask[3].any() and rollout.loss_mask[2].any()
    assert not rollout.advantages[3].any()
    gains = [item.group_score for item in answered.credits]
    assert gains[2] == answered.judgements[2].score  # type: ignore[union-attr]
    assert [len(each.sampled_ids) for each in samples] == rollout.batch.mask.sum(1).tolist()


def test_metrics_and_strips_are_of_own_tokens(policy: Policy) -> None:
    samples, answered, rollout = collect(policy, GAE)
    found = compute_metrics(answered, rollout, 0.1)
    assert found["response_length"] == pytest.approx(sum(len(each.sampled_ids) for each in samples) / len(samples))
    counted = [len([own for own, _ in groupby(sample.mask or []) if own]) for sample in samples]
    assert found["turns"] == pytest.approx(sum(counted) / len(samples)) and max(counted) == 3
    for sample, strip in zip(samples, token_strips(0, answered, rollout, 8), strict=True):
        assert len(strip["tokens"]) == len(strip["delta"]) == len(strip["advantage"]) == len(sample.sampled_ids)
        assert "payable" not in strip["response"]


def run(folder: Path, out: Path, on_step: Any = None, **changes: Any) -> Path:
    seed_everything(5)
    policy = ending(load_policy(PolicySettings(model=str(folder))))
    settings = PPOSettings(steps=4, rollouts=4, micro_batch_size=2, lr=1e-2, **changes)
    train_ppo(
        policy,
        EXAMPLES,
        Turns(),
        settings,
        CreditSettings(),
        SPEECH,
        RunOptions(out, "x", 5, on_step=on_step, checkpoint_every=1),
        Talker,
    )
    return out


def facts(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]


@pytest.mark.parametrize("changes", [{}, {"advantage": "gae", "value_warmup": 1}], ids=["returns", "gae"])
def test_a_run_that_was_stopped_ends_as_if_it_had_never_stopped(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 1:
            raise KeyboardInterrupt

    straight = run(folder, tmp_path / "straight", **changes)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "stopped", stop, **changes)
    again = run(folder, tmp_path / "stopped", **changes)
    assert facts(again) == facts(straight) and len(facts(again)) == 4
    weights = [(each / "policy" / "model.safetensors").read_bytes() for each in (straight, again)]
    assert weights[0] == weights[1]
