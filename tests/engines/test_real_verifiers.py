"""verifiers' own nodes and branches: what the plug-in writes is what they spread over the
tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples import said_by
from test_verifiers import land, spread, trace_of
from transformers import PreTrainedTokenizerFast
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Branch
from verifiers.v1.types import AssistantMessage, ToolMessage, UserMessage

from text2grad.align.rewards import TokenCredit
from text2grad.plugins.landing import LandingCritic, check_landing, landing_cases
from text2grad.plugins.verifiers import assign_credit


def real_node(role: str, ids: Sequence[int], mask: Sequence[bool], sampled: bool) -> Any:
    messages = {
        "user": UserMessage(content="Say it."),
        "assistant": AssistantMessage(content="Said."),
        "tool": ToolMessage(tool_call_id="1", content="a"),
    }
    return MessageNode(message=messages[role], token_ids=[*ids], mask=[*mask], sampled=sampled)


def test_advantages_land_on_what_was_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    assert check_landing(land(real_node), tokenizer) >= 8


def test_a_branch_spreads_them_over_its_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    trace = trace_of(landing_cases(tokenizer)[2], real_node)
    trace.task.data = TaskData(id="t-1")
    assign_credit([trace], TokenCredit(LandingCritic(), tokenizer))
    branch = Branch(index=0, nodes=trace.nodes)
    assert branch.advantages == spread(trace.nodes) and any(branch.advantages)
    assert branch.sampled_mask == [own for node in trace.nodes for own in node.mask]


def test_a_failed_critic_leaves_a_branch_unassigned(tokenizer: PreTrainedTokenizerFast) -> None:
    trace = trace_of(landing_cases(tokenizer)[7], real_node)
    (outcome,) = assign_credit([trace], TokenCredit(LandingCritic(), tokenizer))
    assert outcome.failures and Branch(index=0, nodes=trace.nodes).advantages is None


def test_the_example_runs(tmp_path: Path) -> None:
    lines = said_by("verifiers_trace", tmp_path)
    assert [line for line in lines if line.endswith("-1.0")] == ["a sampled -1.0"] * 3
    assert lines.count("a         +0.0") == 3
