"""The task `function_summaries`, shortened and in lower case for tiny models."""

from __future__ import annotations

import re

from text2grad.data.published import single_turn_example
from text2grad.feedback import Example
from text2grad.tasks.function_summaries import FunctionSummariesTask, shorten
from text2grad.tasks.library import DocumentedFunction

BODY, SIGNATURE = 90, 40
"""Maximum characters of the docstring's body and of the signature, for short contexts."""


class DocstringsTask(FunctionSummariesTask):
    """Functions in lower case with names as words, so that prompt and summary share tokens."""

    name = "docstrings"

    def prompt(self, function: DocumentedFunction, context: int | None) -> Example:
        """Return the shortened function and its summary, both in lower case."""
        signature = shorten(function.signature.replace("_", " "), SIGNATURE)
        body = shorten(function.body, BODY if context is None else context)
        content = f"{split_identifier(function.name)} {signature}\n{body}"
        return single_turn_example(
            function.place, content.lower(), function.summary.lower(), {"package": function.package}
        )


def split_identifier(name: str) -> str:
    """Split a name into words: `HTTPServer.get_userName` -> `http server . get user name`."""
    parts = [re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", part) for part in name.split(".")]
    return " . ".join(" ".join(word.lower() for word in part) for part in parts if part)
