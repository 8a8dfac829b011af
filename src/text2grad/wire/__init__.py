"""The answer format z = [critique ; span map] of every critic that writes text (paper, section
3.4).

Annotator and reward model write the same JSON object, the critique first, so that reasoning
precedes labels:

    {"critique": "...", "good_spans": ["quote", ...], "poor_spans": [...], "score": 1.0}

with a third list before the score, "improvable_spans", where something is right and could be
better.

`render` writes it, `parse` reads it or says in a typed `Failure` why it cannot be read. `parse`
repairs only where one reading is possible; it never guesses where a string ends.
"""

from text2grad.wire.answer import json_schema, parse, render

__all__ = ["json_schema", "parse", "render"]
