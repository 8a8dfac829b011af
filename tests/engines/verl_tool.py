"""The tool of the agent in `verl_run`, and how a call of it is read. verl executes this file by its
path."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool


@ToolParser.register("always")
class Always(ToolParser):
    """Every turn calls the tool but the last, which verl does not read."""

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        return self.tokenizer.decode(responses_ids), [FunctionCall(name="sing", arguments="{}")]


@function_tool
def sing() -> str:
    """Sing what would be paid, if a tool could be."""
    return "aeiou" * 3
