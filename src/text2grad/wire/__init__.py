"""Define the answer format z = [critique ; span map] of critics (paper, section 3.4).

Annotator and reward model write the same JSON object. The critique comes first, so that reasoning
precedes labels:

    {"critique": "...", "good_spans": ["quote", ...], "poor_spans": [...], "score": 1.0}

An optional third list before the score, "improvable_spans", quotes what is right but could be
better.

`render` writes z. `parse` reads it, or returns a typed `Failure` with the reason. `parse` repairs
an answer only if it has a single reading, and never guesses where a string ends.
"""

from text2grad.wire.answer import json_schema, parse, render

__all__ = ["json_schema", "parse", "render"]
