"""The environment of an episode: a record to read and a form to fill in, one call per turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from text2grad.feedback import Example, Message

READ = re.compile(r"read (\w+)")
SET = re.compile(r"set (\w+) to (\S.*)")
SUBMIT = "submit"
DONE = "done"
HELP = "Write one line: read FIELD, set FIELD to VALUE, or submit."


class Desk:
    """Answers calls until the form is submitted, which ends the episode.

    Attributes:
        record: the text of each field of the record; the form may ask for only some of them.
        form: the values written so far.
    """

    def __init__(self, record: Mapping[str, str] | None = None) -> None:
        self.record = record or {}
        self.form: dict[str, str] = {}

    def reset(self, example: Example) -> Sequence[Message]:
        """Load the example's record, without a message."""
        self.record, self.form = example.meta["record"], {}
        return ()

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """Answer a turn as the tool that it calls."""
        line = turn.content.strip()
        if line == SUBMIT:
            return (), True
        return (Message(role="tool", content=self.respond(line)),), False

    def respond(self, line: str) -> str:
        """Return the result of a call, or the reason why it has no result."""
        call = READ.fullmatch(line) or SET.fullmatch(line)
        if call is None:
            return HELP
        if call[1] not in self.record:
            return f"no field {call[1]}"
        if call.re is READ:
            return self.record[call[1]]
        self.form[call[1]] = call[2]
        return DONE
