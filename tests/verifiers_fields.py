"""The fields of verifiers 0.4's records that we write, by model: a canary for our export and for theirs.

Here in CI every key that we write must be one of these, and none that is needed may be missing; the nightly run
(tests/engines) compares them with verifiers' own models, and has its own reader open the file.
"""

from __future__ import annotations

from typing import Any

NEEDED = {
    "Episode": {"task"},
    "Trace": {"task", "agent"},
    "TraceTask": {"type", "data"},
    "AgentInfo": {"config"},
    "GroupInfo": {"id"},
    "VersionInfo": {"version"},
    "MessageNode": {"message"},
    "Reward": {"score"},
    "Error": {"type", "message"},
    "TrainRunInfo": {"id", "work"},
    "TrainWorkInfo": {"step"},
    "SystemMessage": {"content"},
    "UserMessage": {"content"},
    "ToolMessage": {"tool_call_id", "content"},
}
"""What has no default."""
WRITTEN = {
    "Episode": {"id", "env", "task", "group", "run", "ok", "traces"},
    "Trace": {
        *("version", "id", "verifiers", "task", "agent", "nodes", "rewards", "metrics", "info"),
        *("is_completed", "ok", "errors"),
    },
    "EnvInfo": {"id"},
    "GroupInfo": {"id"},
    "VersionInfo": {"version"},
    "TraceTask": {"type", "data"},
    "TaskData": {"id", "prompt"},
    "AgentInfo": {"config", "name", "trainable"},
    "AgentConfig": {"model"},
    "MessageNode": {
        *("parent", "message", "sampled", "token_ids", "mask", "logprobs", "advantages"),
        *("reference_logprobs", "entropies"),
    },
    "Reward": {"score"},
    "Error": {"type", "message"},
    "TrainRunInfo": {"type", "id", "name", "work"},
    "TrainWorkInfo": {"type", "step"},
    "SystemMessage": {"role", "content"},
    "UserMessage": {"role", "content"},
    "AssistantMessage": {"role", "content"},
    "ToolMessage": {"role", "tool_call_id", "content"},
}


def parts(episode: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every object of an episode with the name of its model."""
    found = [("Episode", episode), ("EnvInfo", episode["env"]), ("GroupInfo", episode["group"])]
    found += [("TrainRunInfo", episode["run"]), ("TrainWorkInfo", episode["run"]["work"])]
    for holder in (episode, *episode["traces"]):
        found += [("TraceTask", holder["task"]), ("TaskData", holder["task"]["data"])]
        found += [_message(each) for each in holder["task"]["data"]["prompt"]]
    for trace in episode["traces"]:
        found += [("Trace", trace), ("VersionInfo", trace["verifiers"]), ("AgentInfo", trace["agent"])]
        found += [("AgentConfig", trace["agent"]["config"])]
        found += [("Reward", each) for each in trace["rewards"].values()]
        found += [("Error", each) for each in trace["errors"]]
        found += [("MessageNode", each) for each in trace["nodes"]]
        found += [_message(each["message"]) for each in trace["nodes"]]
    return found


def _message(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"{message['role'].capitalize()}Message", message
