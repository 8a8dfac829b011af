"""Prodigy's JSON Lines: labelled spans (code points), a label, a choice, or the text alone, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from text2grad.feedback import Feedback
from text2grad.formats.importer import SCORE_SCALE, Importer, Names, Opinion, own_scales, skip, text_in
from text2grad.formats.marks import CODE_POINTS, LABELS, Mark
from text2grad.formats.scale import of_options
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row, RowError

ANSWERS = ("accept", "reject", "ignore")
_TEXTS = ("text", "response", "output", "completion", "html")
_WRITTEN = ("critique", "user_input", "comment", "corrected", "score")


def _is_task(row: Row) -> bool:
    shown = row.keys() & {"text", "response", "html", "options"}
    return row.get("answer") in ANSWERS and bool(shown)


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of a line. What the annotator ignored is skipped; spans, or a choice, that were rejected are kept
    as a failure: what is right instead is not said. A label that was rejected is the opposite of one accepted.
    """
    known = {**row, **row["meta"]} if isinstance(row.get("meta"), dict) else row
    own = replace(names, chosen={"response": _TEXTS, **names.chosen})
    if "options" in row and not own.key(row, "response", _TEXTS):
        cure = "write pairs of prompt, chosen and rejected for: text2grad train-reward --pairs FILE"
        raise RowError("options to choose from, and no response that is judged", cure)
    field, id = own.response(row), text_in(known, "id") or fallback_id
    if row["answer"] == "ignore":
        yield skip(id, "answers 'ignore'")
        return
    prompt = names.prompt({name: value for name, value in known.items() if name != field})
    opinion = Opinion(id, row[field], prompt, text_in(row, "_annotator_id", "_session_id"))
    for key in dict.fromkeys([*_WRITTEN, *(name for chosen in names.chosen.values() for name in chosen)]):
        if known.get(key) != opinion.response:
            opinion.answer(key, known.get(key), names)
    others = [key for key in row if key.startswith(("field_", "relations")) and key not in opinion.ratings]
    opinion.aside |= {key: row[key] for key in others}
    _judge(opinion, row, names)
    yield opinion


def _judge(opinion: Opinion, row: Row, names: Names) -> None:
    """Add what was marked or chosen, as far as it was accepted."""
    accepted = row["answer"] == "accept"
    if label := row.get("label"):
        if accepted:
            opinion.answer("label", label, names)
        else:
            sign = names.labels().get(str(label).strip().casefold())
            opinion.ratings["label"] = f"not {label}" if sign is None else LABELS[-sign]
        return
    if "options" in row:
        texts = {str(each.get("id")): each.get("text") or each.get("id") for each in row["options"]}
        picked = [texts.get(str(each), each) for each in row.get("accept") or ()]
        opinion.answer("choice", picked if accepted else None, names)
    if row.get("spans") is not None:
        opinion.marks = list(map(Mark.of, row["spans"])) if accepted else []
    elif "options" not in row and not opinion.comments and not opinion.ratings:
        opinion.ratings["answer"] = row["answer"]
        return
    opinion.failure = "" if accepted else "the annotator said reject"


def read_names(path: Path, rows: Sequence[Row]) -> Names:
    """The options of a choice are its scale, where what they show is numbers, or words of a known order."""
    options: list[Row] = next((row["options"] for row in rows if row.get("options")), [])
    scale = of_options(each.get("text") or each.get("id") for each in options)
    return Names(scales={**own_scales(rows), **({"choice": scale} if scale else {})}, source=str(path))


IMPORTER = Importer("prodigy", opinions, known=_is_task, names=read_names, counting=CODE_POINTS)


def row_of(record: Feedback) -> Row:
    """A record as Prodigy has it; `opinions` reads it back."""
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label].upper(), "text": s.text, "reason": s.reason}
        for s in record.spans
    ]
    row: Row = {"text": record.response, "spans": spans, "answer": "accept" if record.error is None else "ignore"}
    meta = {"id": record.id, "prompt": conversation_text(record.prompt), **SCORE_SCALE}
    extra = {"score": record.score, "_annotator_id": record.meta.get("annotator") or None}
    row |= {"critique": record.critique, "meta": meta}
    return row | {name: value for name, value in extra.items() if value is not None}
