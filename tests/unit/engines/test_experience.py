"""Trajectories that come through an engine get the rewards and advantages of the local loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from text2grad.align import CreditSettings, TokenTable
from text2grad.engines.experience import JudgedAnswer, JudgedTrajectory, lost_trajectory, score_trajectories
from text2grad.errors import CritiquesFailed
from text2grad.feedback import Critique, Example, Failure, Judgement, Message
from text2grad.policy.encode import encode_prompts
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    build_rollout,
    judge,
    measure_policy,
    pack_samples,
    random_numbers,
    sample_responses,
)
from tiny_runs import Halves, Talker, ending, tiny_model

EXAMPLES = [Example(id=str(n), prompt=(Message(role="user", content=f"write {n}"),)) for n in range(4)]
ASKED = [example for example in EXAMPLES for _ in range(2)]
GENERATION = GenerationSettings(max_new_tokens=6, max_turns=2)


class HalvesButOne(Halves):
    """Has no word for one prompt."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        none = Failure(kind="refused", message="no")
        judged = super().critique(examples, responses)
        return [none if each.id == "2" else found for each, found in zip(examples, judged, strict=True)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    policy = load_policy(PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("tiny")))))
    policy.freeze_reference()
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return ending(policy)


def local(policy: Policy, settings: PPOSettings, plays: bool) -> tuple[Responses, Rollout, PolicyStats]:
    """What the local loop makes of a batch."""
    prompts = encode_prompts(policy.tokenizer, ASKED, policy.context, GENERATION.max_new_tokens)
    draws = random_numbers(0, 0, len(ASKED), 12)
    samples = sample_responses(policy, prompts, GENERATION, draws, Talker if plays else None, ASKED)
    batch = pack_samples(policy, prompts, samples)
    table = TokenTable(policy.tokenizer)
    responses = judge(ASKED, samples, table, HalvesButOne(), CreditSettings())
    stats = measure_policy(policy, batch, settings, 1.0)
    return responses, build_rollout(batch, responses, stats, settings, settings.kl_coefficient), stats


def through_an_engine(responses: Responses, rollout: Rollout, stats: PolicyStats) -> list[JudgedTrajectory]:
    """The same as an engine hands it back: rows of their own length, judgements as JSON."""
    made = []
    for row, sample in enumerate(responses.samples):
        length = int(rollout.batch.lengths[row])
        judged = JudgedAnswer(
            number=row // 2,
            example=responses.examples[row],
            judgement=responses.judgements[row],
            truncated=sample.truncated,
            between=sample.between,
        )
        prompt_width = rollout.batch.input_ids.shape[1] - rollout.batch.width
        whole = rollout.batch.attention_mask[row, :prompt_width].bool()
        made.append(
            JudgedTrajectory(
                answer=JudgedAnswer.model_validate_json(judged.model_dump_json()),
                prompt=rollout.batch.input_ids[row, :prompt_width][whole].tolist(),
                ids=sample.ids,
                mask=rollout.batch.mask[row, :length].long().tolist(),
                logp=stats.logp[row, :length],
                entropy=stats.entropy[row, :length],
                ref_logp=stats.ref_logp[row, :length],
                values=stats.values[row, :length],
                last_value=float(stats.last_value[row]),
            )
        )
    return made


@pytest.mark.parametrize("plays", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"advantage": "gae", "normalisation": "whiten", "kl": "k3"},
        {"advantage": "group", "lost_groups": "shared", "mask_truncated": True},
        {"advantage": "group", "drop_equal_groups": True, "normalisation": "none"},
    ],
)
def test_scores_are_the_local_loops(policy: Policy, settings: dict[str, str], plays: bool) -> None:
    ppo = PPOSettings(samples_per_prompt=2, rollouts=8, max_kl=None, **settings)  # type: ignore[arg-type]
    responses, mine, stats = local(policy, ppo, plays)
    batch = through_an_engine(responses, mine, stats)
    told, theirs = score_trajectories(
        batch, TokenTable(policy.tokenizer), ppo, CreditSettings(), ppo.kl_coefficient
    )
    assert told.texts == responses.texts and told.judgements == responses.judgements
    assert float(mine.kl.abs().sum()) > 0 and float(mine.advantages.abs().sum()) > 0
    for field in fields(Rollout):
        if field.name not in ("batch", "ratio"):
            left, right = getattr(mine, field.name), getattr(theirs, field.name)
            assert torch.allclose(left.float(), right.float(), atol=1e-5, rtol=0), field.name


def test_a_lost_trajectory_teaches_nothing(policy: Policy) -> None:
    ppo = PPOSettings(samples_per_prompt=2, rollouts=8, max_kl=None, advantage="group", max_failed=1.0)
    batch = through_an_engine(*local(policy, ppo, False))
    batch[5] = lost_trajectory(2, ASKED[5], policy.tokenizer.eos_token_id)
    responses, rollout = score_trajectories(batch, TokenTable(policy.tokenizer), ppo, CreditSettings(), 0.1)
    assert isinstance(responses.judgements[5], Failure) and not rollout.loss_mask[5].any()
    assert rollout.loss_mask[:4].any(dim=1).all()


def test_too_many_failures_stop_the_run(policy: Policy) -> None:
    ppo = PPOSettings(samples_per_prompt=2, rollouts=8, max_kl=None, max_failed=0.2)
    batch = through_an_engine(*local(policy, ppo, False))
    with pytest.raises(CritiquesFailed):
        score_trajectories(batch, TokenTable(policy.tokenizer), ppo, CreditSettings(), 0.1)


def test_a_judgement_survives_its_way(tmp_path: Path) -> None:
    critique = Halves().judge("some words")
    judged = JudgedAnswer(number=1, example=EXAMPLES[0], judgement=critique, between=[(), (EXAMPLES[0].prompt[0],)])
    back = JudgedAnswer.model_validate_json(judged.model_dump_json())
    assert back == judged and isinstance(back.judgement, Critique)
