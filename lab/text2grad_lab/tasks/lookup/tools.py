"""The environment of an episode: a table and a calculator with one plain-text call per turn."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from text2grad.feedback import Example, Message

LOOK_UP = re.compile(r"lookup (\w+) of (\w+)")
COMPUTE = re.compile(r"compute ([\d+\-*/() ]+)")
ANSWER = re.compile(r"answer (\S.*)")
HELP = "Write one line: lookup COLUMN of ITEM, compute SUM, or answer WORDS."
Table = Mapping[str, Mapping[str, int]]
"""Item -> column -> number."""
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Tools:
    """Answers calls until one is an answer, which ends the episode."""

    def __init__(self, table: Table | None = None) -> None:
        self.table: Table = table or {}

    def reset(self, example: Example) -> Sequence[Message]:
        """Load the example's table, without a message."""
        self.table = example.meta["table"]
        return ()

    def number(self, column: str, item: str) -> str | None:
        """Return a number in the table as text, or None."""
        value = self.table.get(item, {}).get(column)
        return None if value is None else str(value)

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """Answer a turn as the tool that it calls."""
        line = turn.content.strip()
        if ANSWER.fullmatch(line):
            return (), True
        return (Message(role="tool", content=self.respond(line)),), False

    def respond(self, line: str) -> str:
        """Return the result of a call, or the reason why it has no result."""
        if call := LOOK_UP.fullmatch(line):
            return self.number(*call.groups()) or f"no {call[1]} of {call[2]}"
        if call := COMPUTE.fullmatch(line):
            return value_of(call[1]) or "no such sum"
        return HELP


def value_of(text: str) -> str | None:
    """Return the value of an arithmetic expression in lowest terms, or None if it is invalid."""
    try:
        return str(_value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("no sum")
