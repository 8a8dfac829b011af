"""SLF5K, ILF-for-code and UltraFeedback: critiques without marks that published data sets come with.

`text2grad annotate --anchor` finds the words it is about.
"""

from __future__ import annotations

from collections.abc import Iterator

from text2grad.feedback import Source
from text2grad.formats.importer import Importer, Names, Opinion
from text2grad.formats.published import responses_of
from text2grad.tasks import code, summarization
from text2grad.tasks.loaders import Row, optional_text

_KEYS = {shape.name: shape.keys for shape in (*summarization.SHAPES, *code.SHAPES)}
GPT_4 = Source(kind="llm", model="gpt-4")


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """What a person wrote about the draft of a row; nothing where nobody did."""
    for each in responses_of(row) or ():
        if each.feedback.strip():
            opinion = Opinion(each.id or fallback_id, each.response, each.prompt, meta=each.meta)
            opinion.comments, opinion.corrected = [each.feedback], each.reference
            yield opinion


def completions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """UltraFeedback: GPT-4's critique of every completion that has one, and its score of 1 to 10 as -1 to 1."""
    for each, completion in zip(responses_of(row) or (), row["completions"], strict=True):
        if words := optional_text(completion, "critique"):
            opinion = Opinion(each.id, each.response, each.prompt, comments=[words], meta=each.meta, source=GPT_4)
            score = completion.get("overall_score")
            if isinstance(score, int | float) and 1 <= score <= 10:
                opinion.score = round((float(score) - 5.5) / 4.5, 2)
            yield opinion


IMPORTERS = (
    Importer("slf5k", opinions, _KEYS["SLF5K"] | {"generated_summary_for_feedback", "feedback"}),
    Importer("ilf", opinions, _KEYS["ILF"]),
    Importer("ultrafeedback", completions, frozenset({"instruction", "completions"})),
)
