"""SkyRL's generator with credit for words: a reward for each token of the response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from versions import Listening, version_of

from page import shown_on_page
from text2grad.align.rewards import TokenCredit
from text2grad.errors import CritiquesFailed, UserError
from text2grad.plugins.landing import Case, LandingCritic, Row, check_landing, landing_cases
from text2grad.plugins.skyrl import TokenCreditGenerator


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    version_of(monkeypatch, "0.4.0")


class FakeGenerator:
    """Hands out what is in store, in the fields of `GeneratorOutput` that are read or written."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.rewards: list[Any] = [0.0] * len(cases)

    async def generate(self, input_batch: Any) -> dict[str, Any]:
        assert len(input_batch["prompts"]) == len(self.cases)
        return {
            "prompt_token_ids": [list(case.prompt) for case in self.cases],
            "response_ids": [list(case.trajectory.ids) for case in self.cases],
            "loss_masks": [list(case.trajectory.mask or []) for case in self.cases],
            "rewards": self.rewards,
            "stop_reasons": ["stop" for _ in self.cases],
            "rollout_metrics": {"generate/x": 1.0},
            "rollout_logprobs": None,
        }


def config(estimator: str = "gae") -> Any:
    return SimpleNamespace(trainer=SimpleNamespace(algorithm=SimpleNamespace(advantage_estimator=estimator)))


def generated(credit: TokenCredit, cases: Sequence[Case], extras: Any = None) -> dict[str, Any]:
    prompts = [[{"role": "user", "content": f"Say it, {case.name}."}] for case in cases]
    generator = TokenCreditGenerator(FakeGenerator(cases), credit, config())
    out: dict[str, Any] = asyncio.run(generator.generate({"prompts": prompts, "env_extras": extras}))
    return out


def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row]:
    out = generated(credit, cases)
    failed = sum(case.verdict is None for case in cases) / len(cases)
    metrics = out["rollout_metrics"]
    assert (metrics["generate/x"], metrics["text2grad/failed"]) == (1.0, failed)
    assert metrics["text2grad/words_mean"] < 0
    assert out["stop_reasons"] == ["stop"] * len(cases)
    return [Row(*each) for each in zip(out["response_ids"], out["rewards"], out["loss_masks"], strict=True)]


def test_rewards_land_on_their_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert check_landing(land, tokenizer, outcome=None) >= 8


def test_the_critic_sees_the_row(tokenizer: PreTrainedTokenizerFast) -> None:
    critic = Listening()
    extras = [{"reference": "b", "tests": "c"}] * 2
    generated(TokenCredit(critic, tokenizer), landing_cases(tokenizer)[:2], extras)
    first, second = critic.examples
    assert (first.reference, second.reference, first.meta) == ("b", "b", {"tests": "c"})
    assert second.prompt[0].content == "Say it, nothing blamed."


def test_the_environments_rewards_are_mixed_in(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = landing_cases(tokenizer)[:3]
    prompts = [[{"role": "user", "content": "Say it."}]] * len(cases)
    generator = FakeGenerator(cases)
    generator.rewards = [1.0, [0.25] * len(cases[1].mask), 0.0]

    def rewards(weight: float, words: float = 1.0) -> tuple[list[Any], dict[str, float]]:
        made = TokenCreditGenerator(
            generator,
            TokenCredit(LandingCritic(), tokenizer),
            config(),
            words_weight=words,
            environment_weight=weight,
        )
        out = asyncio.run(made.generate({"prompts": prompts, "env_extras": None}))
        return [np.array(each) for each in out["rewards"]], out["rollout_metrics"]

    (first, second, third), metrics = rewards(0.5)
    alone, _ = rewards(0.0)
    assert (first - alone[0])[-1] == 0.5 and not (first - alone[0])[:-1].any()
    np.testing.assert_allclose(second - alone[1], 0.125)
    assert np.array_equal(third, alone[2])
    assert metrics["text2grad/environment_mean"] == pytest.approx((1 + 0.25 * len(second)) / 3)
    assert min(rewards(0.0, words=3.0)[0][0]) == -3


def test_too_many_failures_stop_the_run(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = [case for case in landing_cases(tokenizer) if case.verdict is None] * 8
    with pytest.raises(CritiquesFailed, match=r"^8 of the last 8 critiques failed, the last: [^\n]*$"):
        generated(TokenCredit(LandingCritic(), tokenizer), cases)


def test_estimators_that_add_up_and_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = TokenCreditGenerator
    for estimator in ("grpo", "rloo", "maxrl"):
        with pytest.raises(UserError, match=rf"^SkyRL's {estimator} sums .* .one of gae, reinforce...$"):
            made(None, None, config(estimator))
    version_of(monkeypatch, "0.3.1")
    with pytest.raises(UserError, match=r"^skyrl 0\.3\.1: the plug-in is written for 0\.4 .pip install skyrl==0"):
        made(None, None, config())


def test_the_page_shows_what_runs(tokenizer: PreTrainedTokenizerFast) -> None:
    class BasePPOExp:
        def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
            return FakeGenerator(landing_cases(tokenizer)[:1])

    space: dict[str, Any] = {"BasePPOExp": BasePPOExp, "critic": LandingCritic()}
    exec(shown_on_page("plugins.skyrl"), space)
    generator = space["WithWords"]().get_generator(config(), tokenizer, None)
    prompts = [[{"role": "user", "content": "Say it."}]]
    out = asyncio.run(generator.generate({"prompts": prompts, "env_extras": None}))
    assert min(out["rewards"][0]) == -1
