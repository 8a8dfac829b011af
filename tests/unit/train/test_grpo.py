"""Answers to one prompt against each other: the recipe `grpo` as its papers write it, and rewards
by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.align import Credit, CreditSettings, TokenTable, token_labels
from text2grad.config import find_config, load_config
from text2grad.errors import UsageError
from text2grad.feedback import Critic, Critique, Example, Failure, Judgement, Message, Source, Span
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.rl.advantage import group_advantages
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import compute_metrics
from text2grad.train.rollout import Responses, Rollout, build_rollout, group_scores, judge, measure_policy
from text2grad.train.update import accumulate_gradient, loss_terms
from tiny_runs import TEXTS, tiny_model

CONFIG = load_config([find_config("demo"), find_config("grpo")])
SETTINGS = CONFIG.ppo
NAN = float("nan")
SCORES = [
    [1.0, -1.0, 0.5, 1.0, -1.0, -1.0, NAN, 0.0],  # differ; one critique failed
    [1.0] * 8,  # all the same
    [-1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 1.0],  # one good answer
]
CUT = {2, 11, 23}  # the last is the only good answer of its group
LENGTHS = [3, 9, 5, 7, 2, 12, 4, 6] * 3


class Verdicts:
    """Gives the verdicts of `SCORES`, in order."""

    source = Source(kind="program")
    scores: Sequence[Sequence[float]] = SCORES

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        scores = [value for group in self.scores for value in group]
        failure = Failure(kind="invalid", message="unreadable")
        return [failure if np.isnan(value) else Critique(text="", score=value) for value in scores]


class Marked(Verdicts):
    """Gives the same verdicts, and marks the first half of each answer: good where the verdict
    is."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        verdicts = super().critique(examples, responses)
        return [marked(said, text) for said, text in zip(verdicts, responses, strict=True)]


class Hopeless(Marked):
    """Of the second prompt all answers are poor."""

    scores: Sequence[Sequence[float]] = [SCORES[0], [-1.0] * 8, SCORES[2]]


def marked(said: Judgement, text: str) -> Judgement:
    half = len(text) // 2
    if isinstance(said, Failure) or not said.score or not text[:half].strip():
        return said
    label: Literal[1, -1] = 1 if said.score > 0 else -1
    return said.model_copy(update={"spans": (Span(start=0, end=half, label=label, text=text[:half]),)})


def rollout_of(
    folder: Path,
    settings: PPOSettings,
    credits: CreditSettings = CONFIG.credit,
    critic: Critic | None = None,
    kl: float = 0.0,
) -> tuple[Policy, Responses, Rollout]:
    """Answers of `LENGTHS` and `SCORES` to three prompts, with their advantages, `kl` at each
    token."""
    policy = load_policy(PolicySettings(model=str(folder)))
    policy.freeze_reference()
    asked = [Example(id=str(n // 8), prompt=(Message(role="user", content=TEXTS[n // 8]),)) for n in range(24)]
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in asked]
    rng = np.random.default_rng(0)
    samples = [Sample(rng.integers(10, 200, size=n).tolist(), row in CUT) for row, n in enumerate(LENGTHS)]
    answered = judge(asked, samples, TokenTable(policy.tokenizer), critic or Verdicts(), credits)
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    measured = measure_policy(policy, batch, settings, 1.0)
    measured = measured._replace(kl=measured.kl + kl * batch.mask)
    return policy, answered, build_rollout(batch, answered, measured, settings, settings.kl_coefficient)


def gradients(settings: PPOSettings, policy: Policy, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """That of one update, and that of the slow formula."""
    accumulate_gradient(policy, rollout, torch.arange(24), settings, 1.0, warming=False)
    got = torch.cat([p.grad.flatten() for p in policy.policy_parameters() if p.grad is not None])
    policy.zero_grad()
    logp = policy(rollout.batch, 1.0, valued=False).logp
    gains, kept = slow_gains(), slow_kept()
    loss = -sum((gains[row] * logp[row, : LENGTHS[row]].sum() for row in kept), torch.zeros(()))
    (loss / sum(LENGTHS[row] for row in kept)).backward()  # type: ignore[no-untyped-call]
    return got, torch.cat([p.grad.flatten() for p in policy.policy_parameters() if p.grad is not None])


def slow_gains() -> list[float]:
    gains = []
    for group in SCORES:
        read = [value for value in group if not np.isnan(value)]
        gains += [(value - np.mean(read)) / (np.std(read) + 1e-4) for value in group]
    return gains


def slow_kept() -> list[int]:
    """Rows that are learned from: read, not cut, of a group that differs."""
    values = [value for group in SCORES for value in group]
    return [row for row in range(24) if not np.isnan(values[row]) and row not in CUT and row // 8 != 1]


def test_an_update_is_the_slow_formula(tmp_path: Path) -> None:
    """A cut answer stays in the mean of its group; neither it nor an equal group is part of the
    token mean."""
    settings = SETTINGS.model_copy(update={"rollouts": 24, "micro_batch_size": 5})
    policy, answered, rollout = rollout_of(tiny_model(tmp_path), settings)
    got, slow = gradients(settings, policy, rollout)
    assert slow.abs().max() > 1e-3
    torch.testing.assert_close(got, slow, rtol=1e-3, atol=1e-6)
    metrics = compute_metrics(answered, rollout, 0.0)
    assert metrics["left_out"] == pytest.approx(1 - len(slow_kept()) / 24)
    assert metrics["critic_failed"] == pytest.approx(1 / 24)
    judged = [row for row in range(24) if row != 6]
    assert metrics["delta_sum"] == pytest.approx(float(rollout.delta[judged].sum(dim=1).mean()))


def test_beside_its_group_an_answer_has_what_its_words_earned_and_the_verdict_once(tmp_path: Path) -> None:
    """By verdicts answers are compared and not by sums of spans, of which a long one has more."""
    weighted = {"normalisation": "scale", "gamma": 0.7, "lam": 0.5, "kl_coefficient": 0.3, "mask_truncated": False}
    settings = SETTINGS.model_copy(update=weighted)
    credits = load_config([find_config("demo")]).credit
    _, answered, rollout = rollout_of(tiny_model(tmp_path), settings, credits, Marked())
    words = [slow_returns(said, LENGTHS[row], answered, row) for row, said in enumerate(answered.judgements)]
    read = np.concatenate([words[row] for row in range(24) if isinstance(answered.judgements[row], Critique)])
    assert np.ptp(read) > 1
    for row in slow_kept() + sorted(CUT - {11}):
        length = LENGTHS[row]
        expected = slow_gains()[row] + words[row] / np.sqrt(np.mean(read**2))
        got = rollout.advantages[row, :length] + 0.3 * rollout.kl[row, :length]
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-3)


def test_an_answer_without_a_verdict_is_compared_with_none_that_has_one() -> None:
    """Its words have another unit: a sum of them would be read as a verdict, and move the mean of
    its group."""
    delta = np.array([-3.0, -4.0], np.float32)
    said = [Credit(delta, verdict=verdict) for verdict in (1.0, None, -1.0, 1.0, None, None, None, None)]
    gains = group_scores(said, 4)
    np.testing.assert_array_equal(gains.numpy(), [1, NAN, -1, 1, -7, -7, -7, -7])
    learned, words = torch.ones(8, 2, dtype=torch.bool), torch.from_numpy(np.tile(delta, (8, 1)))
    advantages = group_advantages(gains, words, learned, 4)
    without = group_advantages(gains[[0, 2, 3]], words[:3], learned[:3], 3)
    assert torch.equal(advantages[[0, 2, 3]], without)
    assert torch.equal(advantages[[1, 4, 5, 6, 7]], words[:5])


def test_answers_whose_prompt_has_but_one_verdict_are_left_out_of_returns_too(tmp_path: Path) -> None:
    """Nothing else changes: what is learned from has the advantages that it has without the
    setting."""
    model, credits = tiny_model(tmp_path), load_config([find_config("demo")]).credit
    asked = {"advantage": "returns", "mask_truncated": False}
    settings = SETTINGS.model_copy(update={**asked, "drop_equal_groups": False})
    _, _, everything = rollout_of(model, settings, credits, Marked())
    settings = SETTINGS.model_copy(update={**asked, "drop_equal_groups": True})
    _, answered, rollout = rollout_of(model, settings, credits, Marked())
    assert torch.equal(rollout.advantages, everything.advantages)
    assert everything.loss_mask.any(dim=1).tolist() == [row != 6 for row in range(24)]  # a critique that failed
    assert rollout.loss_mask.any(dim=1).tolist() == [row != 6 and row // 8 != 1 for row in range(24)]
    assert compute_metrics(answered, rollout, 0.0)["left_out"] == pytest.approx(9 / 24)


def test_where_all_answers_to_a_prompt_fail_their_end_is_not_to_blame(tmp_path: Path) -> None:
    """The middle group is paid for its words alone, which share -1; the others have a verdict at
    their end."""
    model, credits = tiny_model(tmp_path), load_config([find_config("demo")]).credit
    asked = {"advantage": "returns", "mask_truncated": False, "drop_equal_groups": False, "kl_coefficient": 0.3}
    settings = SETTINGS.model_copy(update={**asked, "lost_groups": "paid"})
    _, _, paid = rollout_of(model, settings, credits, Hopeless(), kl=0.5)
    settings = settings.model_copy(update={"lost_groups": "shared"})
    _, answered, shared = rollout_of(model, settings, credits, Hopeless(), kl=0.5)
    for row, length in enumerate(LENGTHS):
        expected = paid.delta[row].clone()
        if row // 8 == 1:
            poor = torch.from_numpy(answered.labels[row] < 0).float()
            expected[:length] = -poor / max(1, int(poor.sum()))
        torch.testing.assert_close(shared.delta[row], expected)
    torch.testing.assert_close(shared.rewards, shared.delta - 0.3 * shared.kl)
    assert torch.equal(shared.loss_mask, paid.loss_mask) and torch.equal(shared.kl, paid.kl)
    assert compute_metrics(answered, shared, 0.0)["left_out"] == pytest.approx(1 / 24)
    verdicts = credits.model_copy(update={"scheme": "last_token"})
    ways = [settings.model_copy(update={"lost_groups": way}) for way in ("paid", "shared")]
    for_verdicts, same = (rollout_of(model, way, verdicts, Hopeless(), kl=0.5)[2].delta for way in ways)
    assert torch.equal(for_verdicts, same) and bool(same[8:16].any())


def slow_returns(said: Judgement, length: int, answered: Responses, row: int) -> NDArray[np.float64]:
    """What the tokens that a span touches earn, and those before them by 0.35 less a token; no
    verdict."""
    labels = np.zeros(length)
    if not isinstance(said, Failure):
        labels += token_labels(said.spans, answered.aligned[row])
    return np.array([sum(0.35 ** (k - t) * labels[k] for k in range(t, length)) for t in range(length)])


def test_a_token_may_grow_up_to_the_upper_clip_alone(tmp_path: Path) -> None:
    """All ratios are 1.25: with 0.2 above, what was praised stops there; with 0.28 it does not."""
    policy, _, rollout = rollout_of(tiny_model(tmp_path), SETTINGS)
    moved = replace(rollout, old_logp=rollout.old_logp - math.log(1.25))
    praised = rollout.loss_mask & (rollout.advantages > 0)
    for clip_high, stopped in ((0.2, praised), (None, praised), (0.28, praised & False)):
        settings = SETTINGS.model_copy(update={"clip_high": clip_high})
        clipped = loss_terms(policy, moved, settings, 1.0)["clip_fraction"].bool()
        assert torch.equal(clipped, stopped)


@pytest.mark.parametrize("name", ["demo", "kodcode", "slf5k", "ultrafeedback", "human_qa"])
def test_the_recipe_lies_over_every_preset(name: str) -> None:
    config = load_config([find_config(name), find_config("grpo")])
    asked = {key: getattr(config.ppo, key) for key in ("advantage", "samples_per_prompt", "clip_high")}
    size = 4 if name == "slf5k" else 8
    assert asked == {"advantage": "group", "samples_per_prompt": size, "clip_high": 0.28}
    assert (config.credit.scheme, config.ppo.kl_coefficient, config.ppo.epochs) == ("last_token", 0.0, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ppo.samples_per_prompt", "1"], "advantage group compares answers to one prompt"),
        (
            ["--ppo.advantage", "returns", "--ppo.samples_per_prompt", "1"],
            "drop_equal_groups compares answers to one prompt: set samples_per_prompt to 4",
        ),
        (["--ppo.rollouts", "12"], "rollouts 12 is not a multiple of samples_per_prompt 8"),
    ],
)
def test_what_is_no_group_is_refused_in_one_line(options: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_config([find_config("demo"), find_config("grpo")], options)
