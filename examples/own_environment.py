"""Environments of other libraries as text2grad's `Environment`: a task's method `environment()`
returns one."""

import asyncio
import json
import re

import text2grad as t2g


class FromTRL:
    """What an `environment_factory` of TRL makes: `reset(**row)`, and methods that are tools."""

    def __init__(self, made):
        self.made = made

    def reset(self, example):
        said = self.made.reset(**example.meta)
        return [t2g.Message(role="user", content=said)] if said else []

    def step(self, turn):
        calls = [json.loads(each) for each in re.findall(r"<tool_call>(.*?)</tool_call>", turn.content)]
        results = [getattr(self.made, call["name"])(**call["arguments"]) for call in calls]
        return [t2g.Message(role="tool", content=str(result)) for result in results], not calls


class FromVerifiers:
    """A multi-turn environment of verifiers: async `setup_state`, `env_response` and
    `is_completed`."""

    def __init__(self, made):
        self.made = made

    def reset(self, example):
        self.said = [message.model_dump() for message in example.prompt]
        self.state = asyncio.run(self.made.setup_state({**example.meta, "prompt": list(self.said)}))
        return []

    def step(self, turn):
        self.said.append(turn.model_dump())
        found = asyncio.run(self.made.env_response(self.said, self.state))
        self.said += found
        return [t2g.Message(**each) for each in found], asyncio.run(self.made.is_completed(self.state))


if __name__ == "__main__":
    adder = FromTRL(type("Adder", (), {"reset": lambda self, **row: "Add.", "add": lambda self, a, b: a + b})())
    adder.reset(t2g.Example(id="1", prompt=(t2g.Message(role="user", content="2 + 3?"),)))
    for words in ('<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "It is 5."):
        print(adder.step(t2g.Message(role="assistant", content=words)))
