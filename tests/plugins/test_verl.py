"""verl's agent loops with credit for words, beside a stand-in of the few lines of verl that they
are made of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from transformers import PreTrainedTokenizerFast
from versions import Listening, version_of

from text2grad.align.rewards import TokenCredit
from text2grad.errors import CritiquesFailed, UserError
from text2grad.plugins.landing import Case, LandingCritic, Row, check_landing, landing_cases


class AgentLoopOutput(BaseModel):
    """As verl's, whose score stands on the last id."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    reward_score: float | None = None
    extra_fields: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        output = self.model_dump(exclude_unset=True)
        output["responses"] = torch.tensor(output.pop("response_ids"))
        output["response_mask"] = torch.tensor(output.pop("response_mask"))
        score = output.pop("reward_score", None)
        if score is not None:
            output["rm_scores"] = torch.zeros(len(output["responses"]))
            output["rm_scores"][-1] = score
        return output


class Loop:
    """Hands out the trajectories that a row names; several where it asks for a list."""

    def __init__(self, trainer_config: Any, tokenizer: Any, cases: Sequence[Case]) -> None:
        self.config, self.tokenizer, self.cases = trainer_config, tokenizer, cases
        self.score: float | None = None

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        def output(case: Case) -> AgentLoopOutput:
            ids, mask = list(case.trajectory.ids), list(case.trajectory.mask or [])
            return AgentLoopOutput(
                prompt_ids=list(case.prompt), response_ids=ids, response_mask=mask, reward_score=self.score
            )

        if kwargs.get("several"):
            return [output(case) for case in self.cases]
        return output(self.cases[kwargs["index"]])


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    version_of(monkeypatch, "0.9.1")
    package = ModuleType("verl.experimental.agent_loop")
    package.__dict__.update(AgentLoopOutput=AgentLoopOutput, SingleTurnAgentLoop=Loop, ToolAgentLoop=Loop)
    for name in ("verl", "verl.experimental"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.delitem(sys.modules, "text2grad.plugins.verl", raising=False)
    import text2grad.plugins.verl as module

    yield module
    sys.modules.pop("text2grad.plugins.verl")


def config(estimator: str = "gae", use_v1: bool = True) -> Any:
    algorithm, trainer = SimpleNamespace(adv_estimator=estimator), SimpleNamespace(use_v1=use_v1)
    return SimpleNamespace(algorithm=algorithm, trainer=trainer)


MADE: list[TokenCredit] = []
"""What `credit` hands out."""


def credit(tokenizer: Any) -> TokenCredit:
    return MADE[-1]


def loop_of(plugin: Any, made: TokenCredit, cases: Sequence[Case]) -> Any:
    MADE.append(made)
    plugin.load_credit.cache_clear()
    return plugin.TokenCreditToolLoop(config(), made.table, cases, credit=f"{__name__}:credit")


ROW: dict[str, Any] = {
    "raw_prompt": [{"role": "user", "content": "Say it."}],
    "reward_model": {"style": "rule", "ground_truth": "b"},
    "extra_info": {"tests": "c"},
    "uid": "u-1",
}


def test_rewards_land_on_their_tokens(plugin: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    def land(made: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        loop = loop_of(plugin, made, cases)

        async def rollouts() -> list[Any]:  # as verl: one call each, at once
            return await asyncio.gather(*(loop.run({}, index=index, **ROW) for index in range(len(cases))))

        outputs = asyncio.run(rollouts())
        assert all("token_rewards" not in output.as_dict() for output in outputs)
        infos = [output.extra_fields["reward_extra_info"] for output in outputs]
        assert [info["text2grad/failed"] for info in infos] == [float(case.verdict is None) for case in cases]
        assert len({tuple(info) for info in infos}) == 1, "verl wants the same keys for all"
        assert all(output.reward_score == pytest.approx(sum(output.token_rewards)) for output in outputs)
        fields = [output.as_dict() for output in outputs]
        return [Row(each["responses"], each["rm_scores"], each["response_mask"]) for each in fields]

    assert check_landing(land, tokenizer, outcome=None) >= 8


def test_outputs_of_a_rewritten_context_are_judged_each(plugin: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    critic = Listening()
    loop = loop_of(plugin, TokenCredit(critic, tokenizer), landing_cases(tokenizer)[:2])
    first, last = asyncio.run(loop.run({}, several=True, **ROW))
    assert (min(first.token_rewards), min(last.token_rewards)) == (-1, 0)
    example, _ = critic.examples
    assert (example.id, example.reference, example.meta) == ("u-1", "b", {"tests": "c"})


def own_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> Any:
    return {
        "score": len(solution_str) if (data_source, ground_truth) == ("d", "b") and "tests" in extra_info else 0
    }


@pytest.mark.parametrize(("given", "function"), [(3.0, None), (None, own_score), (None, None)])
def test_verls_own_reward_is_mixed_in(
    plugin: Any, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, given: Any, function: Any
) -> None:
    """The loop's, else that of its reward function, else verl's default; on the last id of the
    policy's own."""
    package: Any = ModuleType("verl.trainer.ppo.reward")
    package.get_custom_reward_fn = lambda config: function
    scores: Any = ModuleType("verl.utils.reward_score")
    scores.default_compute_score = lambda **row: -1.0
    for name in ("verl.trainer", "verl.trainer.ppo", "verl.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, scores.__name__, scores)
    case = landing_cases(tokenizer)[3]
    MADE.append(TokenCredit(LandingCritic(), tokenizer))
    plugin.load_credit.cache_clear()

    def output(**weights: float) -> Any:
        loop = plugin.TokenCreditToolLoop(config(), tokenizer, [case], credit=f"{__name__}:credit", **weights)
        loop.score = given
        return asyncio.run(loop.run({}, index=0, data_source="d", **ROW))

    alone, both = output(), output(environment_weight=0.5, words_weight=2.0)
    text = tokenizer.decode(case.trajectory.ids, skip_special_tokens=True)
    reward = given if given is not None else len(text) if function else -1.0
    last = np.flatnonzero(case.mask)[-1]
    assert case.verdict is not None and both.token_rewards[last] == pytest.approx(case.verdict + 0.5 * reward)
    assert min(both.token_rewards[:last]) == 2 * min(alone.token_rewards) == -2
    info = both.extra_fields["reward_extra_info"]
    assert info["text2grad/environment_mean"] == reward
    assert alone.reward_score == pytest.approx(sum(alone.token_rewards))


def test_too_many_failures_stop_every_loop_that_follows(plugin: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    cases = [case for case in landing_cases(tokenizer) if case.verdict is None]
    loop = loop_of(plugin, TokenCredit(LandingCritic(), tokenizer), cases)
    for number in range(6):
        if number < 3:
            asyncio.run(loop.run({}, index=0, **ROW))
        else:
            with pytest.raises(CritiquesFailed, match=rf"^{number + 1} of the last {number + 1} critiques failed"):
                asyncio.run(loop.run({}, index=0, **ROW))


def test_loops_of_a_worker_ask_the_critic_in_batches(plugin: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """verl makes a loop for each rollout."""
    critic, cases = Listening(), landing_cases(tokenizer)
    first = loop_of(plugin, TokenCredit(critic, tokenizer), cases)
    loops = [
        plugin.TokenCreditToolLoop(config(), first.tokenizer, cases, credit=f"{__name__}:credit") for _ in "ab"
    ]

    async def rollouts() -> None:
        await asyncio.gather(*(loop.run({}, index=number, **ROW) for number, loop in enumerate([first, *loops])))

    asyncio.run(rollouts())
    assert critic.sizes == [3]


def test_what_cannot_be_trained_is_refused_in_one_line(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimators that add up, the old trainer, a credit that is not there, another version."""

    def refused(problem: str, settings: Any, credit: str = "a:b") -> None:
        with pytest.raises(UserError, match=problem):
            plugin.TokenCreditSingleTurn(settings, "tokenizer", (), credit=credit)

    for estimator in ("grpo", "rloo", "opo", "gpg", "gdpo", "reinforce_plus_plus_baseline"):
        refused(rf"^verl's {estimator} sums the rewards of a trajectory.* .one of gae, rei", config(estimator))
    refused("^verl's old trainer reads one score .*trainer.use_v1=True", config(use_v1=False))
    refused(f"^credit '{__name__}:crdit': .* has no crdit .did you mean 'credit'", config(), f"{__name__}:crdit")
    version_of(monkeypatch, "0.9.10")
    refused(r"^verl 0\.9\.10: the plug-in is written for 0\.9\.1 .pip install 'text", config())
