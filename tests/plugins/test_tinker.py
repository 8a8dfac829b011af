"""Datums of the Tinker protocol: advantages stand at the targets that were paid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from page import shown_on_page
from text2grad.align.rewards import TokenCredit
from text2grad.errors import CritiquesFailed, UserError
from text2grad.plugins.landing import GROUP, Case, LandingCritic, Row, check_landing, landing_cases, standardise
from text2grad.plugins.tinker import with_credit


@dataclass(frozen=True)
class FakeDatum:
    """As the client's: fields of arrays, replaced with `dataclasses.replace`."""

    model_input: Any
    loss_fn_inputs: dict[str, Any] = field(default_factory=dict)


def fake_datum(ids: Sequence[int], mask: Sequence[float]) -> Any:
    inputs = {"target_tokens": np.array(ids[1:]), "mask": np.array(mask[1:], np.float32)}
    return FakeDatum(
        list(ids[:-1]), inputs | {"advantages": np.zeros(len(ids) - 1), "logprobs": np.zeros(len(ids) - 1)}
    )


def datum_of(case: Case, make: Callable[..., Any]) -> Any:
    mask = [0.0] * len(case.prompt) + [float(sampled) for sampled in case.mask]
    return make([*case.prompt, *case.trajectory.ids], mask)


def places(cases: Sequence[Case]) -> list[dict[str, int]]:
    return [{"group_idx": case.group, "traj_idx": number % GROUP} for number, case in enumerate(cases)]


def row_of(datum: Any) -> Row:
    return Row(*(datum.loss_fn_inputs[name].tolist() for name in ("target_tokens", "advantages", "mask")))


def land(make: Callable[..., Any]) -> Any:
    def landed(credit: TokenCredit, cases: Sequence[Case]) -> list[Row | None]:
        data = [datum_of(case, make) for case in cases]
        examples = [cases[0].trajectory.example, cases[GROUP].trajectory.example]
        kept, outcomes = with_credit(data, places(cases), credit, examples)
        assert [each.failed for each in outcomes] == [case.verdict is None for case in cases]
        rows = iter(map(row_of, kept))
        return [None if case.verdict is None else next(rows) for case in cases]

    return landed


def test_advantages_land_on_their_targets(tokenizer: PreTrainedTokenizerFast) -> None:
    assert check_landing(land(fake_datum), tokenizer) >= 8


def test_a_trajectory_of_several_datums_is_judged_once(tokenizer: PreTrainedTokenizerFast) -> None:
    """Where the context was rewritten, a trajectory has a datum for each part; each part gets its
    own numbers."""
    case = landing_cases(tokenizer)[2]
    cut = int(np.flatnonzero(case.mask == 0)[-1]) + 1
    ids, mask = list(case.trajectory.ids), [float(sampled) for sampled in case.mask]
    front = [0.0] * len(case.prompt)
    first = fake_datum([*case.prompt, *ids[:cut]], [*front, *mask[:cut]])
    second = fake_datum([*case.prompt, *ids[cut:]], [*front, *mask[cut:]])
    at = [{"group_idx": 0, "traj_idx": 0}] * 2
    credit = TokenCredit(LandingCritic(), tokenizer)
    kept, outcomes = with_credit([first, second], at, credit, [case.trajectory.example])
    assert len(outcomes) == 1 and outcomes[0].score == pytest.approx(1 / 3)
    for datum, part in zip(kept, (case.blamed[:cut], case.blamed[cut:]), strict=True):
        np.testing.assert_array_equal(datum.loss_fn_inputs["advantages"][len(case.prompt) - 1 :], -part)


def test_the_environments_rewards_are_mixed_in(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = landing_cases(tokenizer)[:GROUP]
    data, credit = [datum_of(case, fake_datum) for case in cases], TokenCredit(LandingCritic(), tokenizer)

    def advantages(**more: Any) -> list[Any]:
        kept, _ = with_credit(data, places(cases), credit, [cases[0].trajectory.example], **more)
        return [datum.loss_fn_inputs["advantages"] for datum in kept]

    rewards = [[0.0, 3.0, 1.0, 0.0]]
    scores = [0.5 * reward + case.verdict for reward, case in zip(rewards[0], cases, strict=True) if case.verdict]
    mixed = advantages(rewards=rewards, environment_weight=0.5, words_weight=2.0)
    for numbers, case, score in zip(mixed, cases, standardise(np.array(scores)), strict=True):
        expected = score * case.mask - 2 * case.blamed
        np.testing.assert_allclose(numbers[len(case.prompt) - 1 :], expected, atol=1e-5)
    assert np.array_equal(advantages(rewards=rewards)[1], advantages()[1]), "their weight is 0 by default"
    with pytest.raises(UserError, match="no rewards of the environment for 4 trajectories"):
        advantages(environment_weight=0.5)


def test_too_many_failures_stop_the_run(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = [case for case in landing_cases(tokenizer) if case.verdict is None] * 8
    at = [{"group_idx": 0, "traj_idx": number} for number in range(8)]
    data = [datum_of(case, fake_datum) for case in cases]
    with pytest.raises(CritiquesFailed, match=r"^8 of the last 8 critiques failed, the last: [^\n]*$"):
        with_credit(data, at, TokenCredit(LandingCritic(), tokenizer), [cases[0].trajectory.example])


def test_the_gradient_of_the_protocols_loss_is_minus_the_advantage(tokenizer: PreTrainedTokenizerFast) -> None:
    """`importance_sampling` adds up -ratio * advantage over the targets; the mask is not sent."""
    cases = landing_cases(tokenizer)[:GROUP]
    credit = TokenCredit(LandingCritic(), tokenizer)
    data = [datum_of(case, fake_datum) for case in cases]
    kept, _ = with_credit(data, places(cases), credit, [cases[0].trajectory.example])
    for datum in kept:
        advantages = torch.from_numpy(datum.loss_fn_inputs["advantages"])
        logps = torch.randn(len(advantages), requires_grad=True)
        (-(torch.exp(logps - logps.detach()) * advantages).sum()).backward()
        assert logps.grad is not None
        torch.testing.assert_close(logps.grad, -advantages)
        assert not advantages[datum.loss_fn_inputs["mask"] == 0].any()


def test_what_does_not_fit_is_one_line(tokenizer: PreTrainedTokenizerFast) -> None:
    case = landing_cases(tokenizer)[0]
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda inputs: inputs.pop("mask"), "^no mask among target_tokens, advantages, logprobs"),
        (lambda inputs: inputs.update(mask=np.ones(2)), "^a mask of 2 for [0-9]+ ids in piece 0 of a trajectory"),
        (
            lambda inputs: inputs.update(target_tokens=np.array([], int), mask=np.ones(0)),
            "^a sampled turn without ids",
        ),
    ]
    for change, problem in changes:
        datum = datum_of(case, fake_datum)
        change(datum.loss_fn_inputs)
        credit = TokenCredit(LandingCritic(), tokenizer)
        with pytest.raises(UserError, match=problem) as error:
            with_credit([datum], places([case]), credit, [case.trajectory.example])
        assert "\n" not in str(error.value)


def test_the_page_shows_what_runs(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = landing_cases(tokenizer)
    assembled = [datum_of(case, fake_datum) for case in cases], places(cases)
    space: dict[str, Any] = {"assemble_training_data": lambda groups, advantages: assembled}
    space |= {"trajectory_groups": None, "advantages": None, "critic": LandingCritic(), "tokenizer": tokenizer}
    space |= {"examples": [cases[0].trajectory.example] * 2}
    exec(shown_on_page("plugins.tinker"), space)
    assert space["failed"] == 1 and len(space["data"]) == len(cases) - 1
