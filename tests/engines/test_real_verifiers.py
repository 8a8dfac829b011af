"""verifiers' own nodes and branches: what the plug-in writes is what they spread over the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples import said_by
from test_traces import SAMPLE, run_of
from test_verifiers import land, spread, trace_of
from transformers import PreTrainedTokenizerFast
from verifiers.v1 import episode, types
from verifiers.v1 import trace as trace_module
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Branch, Trace, WireTrace
from verifiers.v1.types import AssistantMessage, ToolMessage, UserMessage
from verifiers.v1.utils.trace_store import TRACES_FILE, read_episodes

from synthetic_run import write_run
from text2grad.align.rewards import TokenCredit
from text2grad.formats.export import write_rows
from text2grad.plugins.landing import LandingCritic, check_landing, landing_cases
from text2grad.plugins.verifiers import assign_credit
from text2grad.report.traces import episodes
from verifiers_fields import NEEDED, WRITTEN


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
    (payment,) = assign_credit([trace], TokenCredit(LandingCritic(), tokenizer))
    assert payment.failures and Branch(index=0, nodes=trace.nodes).advantages is None


def test_its_reader_opens_the_samples_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    run_of(run / "ppo" / "own", SAMPLE, {**SAMPLE, "score": None, "failure": {"kind": "invalid", "message": "x"}})
    written = list(episodes(run))
    write_rows(written, "verifiers", tmp_path / TRACES_FILE)
    for trace_type in (WireTrace, Trace):  # any consumer, and the strict read
        found = read_episodes(tmp_path, trace_type)
        assert [each.id for each in found] == [each["id"] for each in written]
    one = next(each for each in found if each.task.data.id == SAMPLE["id"])
    (branch,) = one.traces[0].branches
    assert branch.token_ids == SAMPLE["ids"] and all(branch.sampled_mask)
    assert branch.logprobs == SAMPLE["logp"] and branch.advantages == SAMPLE["advantage"]
    assert branch.reference_logprobs == [-1.0, -2.5, -3.0, -3.0]
    assert one.traces[0].reward == -0.5 and one.traces[0].num_turns == 2
    assert "go on" in one.traces[0].transcript


def test_its_records_have_the_fields_that_we_write() -> None:
    """What ordinary tests hold our files to (verifiers_fields)."""
    known = {**vars(episode), **vars(trace_module), **vars(types), "TaskData": TaskData, "MessageNode": MessageNode}
    known["AgentConfig"] = WireAgentConfig
    for name, fields in WRITTEN.items():
        own = known[name].model_fields
        assert fields <= own.keys(), name
        assert {key for key, field in own.items() if field.is_required()} == NEEDED.get(name, set()), name


def test_the_example_runs(tmp_path: Path) -> None:
    lines = said_by("verifiers_trace", tmp_path)
    assert [line for line in lines if line.endswith("-1.0")] == ["a sampled -1.0"] * 3
    assert lines.count("a         +0.0") == 3
