"""Adapters from environments of other libraries to text2grad's `Environment`.

The method `environment()` of a task returns one.
"""

import asyncio
import json
import re

import text2grad as t2g


class FromTRL:
    """An environment of TRL's `environment_factory`: `reset(**row)`, and methods as tools."""

    def __init__(self, inner):
        self.inner = inner

    def reset(self, example):
        observation = self.inner.reset(**example.meta)
        return [t2g.Message(role="user", content=observation)] if observation else []

    def step(self, turn):
        calls = [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", turn.content)]
        results = [getattr(self.inner, call["name"])(**call["arguments"]) for call in calls]
        return [t2g.Message(role="tool", content=str(result)) for result in results], not calls


class FromVerifiers:
    """A multi-turn environment of verifiers: async `setup_state`, `env_response` and
    `is_completed`."""

    def __init__(self, inner):
        self.inner = inner

    def reset(self, example):
        self.messages = [message.model_dump() for message in example.prompt]
        self.state = asyncio.run(self.inner.setup_state({**example.meta, "prompt": list(self.messages)}))
        return []

    def step(self, turn):
        self.messages.append(turn.model_dump())
        replies = asyncio.run(self.inner.env_response(self.messages, self.state))
        self.messages += replies
        return [t2g.Message(**reply) for reply in replies], asyncio.run(self.inner.is_completed(self.state))


if __name__ == "__main__":
    adder = FromTRL(type("Adder", (), {"reset": lambda self, **row: "Add.", "add": lambda self, a, b: a + b})())
    adder.reset(t2g.Example(id="1", prompt=(t2g.Message(role="user", content="2 + 3?"),)))
    for words in ('<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "It is 5."):
        print(adder.step(t2g.Message(role="assistant", content=words)))
