"""Traces of verifiers: each node's advantages stand in the compact layout, a number for each
sampled id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from versions import Listening, version_of

from page import shown_on_page
from text2grad.align.rewards import TokenCredit
from text2grad.errors import CritiquesFailed, UserError
from text2grad.plugins.landing import Case, LandingCritic, Row, check_landing, landing_cases, standardise
from text2grad.plugins.verifiers import assign_credit

SCAFFOLD = [1, 1]
"""Ids of the template before a turn; they stand on the node of the turn, and are not the
policy's."""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    version_of(monkeypatch, "0.4.0")


class FakeMessage(SimpleNamespace):
    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


def fake_node(role: str, ids: Sequence[int], mask: Sequence[bool], sampled: bool) -> Any:
    message = FakeMessage(role=role, content="Say it.")
    return SimpleNamespace(message=message, token_ids=[*ids], mask=[*mask], sampled=sampled, advantages=[9.0])


def nodes_of(case: Case, make: Any) -> Iterator[Any]:
    yield make("user", case.prompt, [False] * len(case.prompt), False)
    before = SCAFFOLD
    for own, run in groupby(zip(case.trajectory.ids, case.mask, strict=True), key=lambda each: bool(each[1])):
        ids = [index for index, _ in run]
        mask = [False] * len(before) + [own] * len(ids)
        yield make("assistant" if own else "tool", [*before, *ids], mask, own)
        before = []


def trace_of(case: Case, make: Any) -> Any:
    data = FakeMessage(id=case.name, answer="b")
    return SimpleNamespace(nodes=list(nodes_of(case, make)), task=SimpleNamespace(data=data))


def spread(nodes: Sequence[Any]) -> list[float]:
    """Each node's numbers at the ids it sampled."""
    found: list[float] = []
    for node in nodes:
        numbers = iter(node.advantages or [])
        found += [next(numbers) if own else 0.0 for own in node.mask]
        assert next(numbers, None) is None, "a number too many"
    return found


def row_of(trace: Any) -> Row | None:
    if all(node.advantages is None for node in trace.nodes):
        return None
    ids = [index for node in trace.nodes for index in node.token_ids]
    return Row(ids, spread(trace.nodes), [own for node in trace.nodes for own in node.mask])


def land(make: Any) -> Any:
    def landed(credit: TokenCredit, cases: Sequence[Case]) -> list[Row | None]:
        rows: list[Row | None] = []
        for _, group in groupby(cases, key=lambda case: case.group):
            traces = [trace_of(case, make) for case in group]
            assign_credit(traces, credit)
            rows += map(row_of, traces)
        return rows

    return landed


def test_advantages_land_on_what_was_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    assert check_landing(land(fake_node), tokenizer) >= 8


def test_the_critic_sees_the_prompt_and_the_tasks_data(tokenizer: PreTrainedTokenizerFast) -> None:
    critic = Listening()
    trace = trace_of(landing_cases(tokenizer)[2], fake_node)
    trace.nodes[0].message.content = [{"type": "text", "text": "In "}, {"type": "text", "text": "parts."}]
    (outcome,) = assign_credit([trace], TokenCredit(critic, tokenizer))
    (example,) = critic.examples
    assert example.prompt[0].content == "In parts." and len(example.prompt) == 1
    assert (example.id, example.meta) == ("a tool between", {"answer": "b"})
    assert outcome.score == pytest.approx(1 / 3)


def test_the_environments_reward_is_mixed_in(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = landing_cases(tokenizer)[:4]
    traces, credit = [trace_of(case, fake_node) for case in cases], TokenCredit(LandingCritic(), tokenizer)
    rewards = [0.0, 3.0, 1.0, None]
    for trace, reward in zip(traces, rewards, strict=True):
        trace.rewards, trace.reward = {"solved": None if reward is None else object()}, reward or 0.0
    outcomes = assign_credit(traces, credit, words_weight=2.0, environment_weight=0.5)
    assert not any(outcome.failed for outcome in outcomes), "the outcomes are the critic's"
    scores = np.array(
        [0.5 * reward + case.verdict for reward, case in zip(rewards, cases, strict=True) if reward is not None]
    )
    for trace, case, score in zip(traces[:3], cases[:3], standardise(scores), strict=True):
        row = row_of(trace)
        assert row is not None
        expected = score * case.mask - 2 * case.blamed
        numbers = np.array(row.numbers)
        assert numbers[numbers != 0] == pytest.approx(expected[expected != 0], abs=1e-5)
    assert row_of(traces[3]) is None, "a missing reward is no reward of 0"


def test_too_many_failures_stop_the_run(tokenizer: PreTrainedTokenizerFast) -> None:
    cases = [case for case in landing_cases(tokenizer) if case.verdict is None] * 8
    with pytest.raises(CritiquesFailed, match=r"^8 of the last 8 critiques failed, the last: [^\n]*$"):
        assign_credit([trace_of(case, fake_node) for case in cases], TokenCredit(LandingCritic(), tokenizer))


def test_a_mask_that_does_not_fit_and_a_turn_without_ids_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    """verifiers would pad or cut a mask in silence; a client that keeps text alone leaves ids
    empty."""
    credit = TokenCredit(LandingCritic(), tokenizer)
    trace = trace_of(landing_cases(tokenizer)[0], fake_node)
    trace.nodes[1].mask.pop()
    trace.nodes[0].mask.append(False)
    with pytest.raises(UserError, match=r"^a mask of [0-9]+ for [0-9]+ ids in piece 0 of a trajectory"):
        assign_credit([trace], credit)
    for which in (slice(1, 2), slice(None)):
        trace = trace_of(landing_cases(tokenizer)[2], fake_node)
        for node in trace.nodes[which]:
            node.token_ids, node.mask = [], []
        with pytest.raises(UserError, match=r"^a sampled turn without ids .have the client keep token"):
            assign_credit([trace], credit)


def test_another_version_or_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    credit: Any = None
    for version in ("0.3.9", "0.40.1", "1.0"):
        version_of(monkeypatch, version)
        with pytest.raises(UserError, match=f"^verifiers {version}: the plug-in is written for 0.4 .pip install"):
            assign_credit([], credit)
    monkeypatch.setattr("text2grad.plugins.credit.version", absent)
    with pytest.raises(UserError, match=r"^this needs verifiers 0.4 .pip install verifiers==0.4.0"):
        assign_credit([], credit)


def test_the_page_shows_what_runs(tokenizer: PreTrainedTokenizerFast) -> None:
    traces = [trace_of(case, fake_node) for case in landing_cases(tokenizer)[:4]]
    exec(shown_on_page("plugins.verifiers"), {"traces": traces, "critic": LandingCritic(), "tokenizer": tokenizer})
    assert all(any(node.advantages for node in trace.nodes) for trace in traces)
