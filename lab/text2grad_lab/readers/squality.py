"""SQuALITY's human evaluation: highlights in summaries with comments, and ratings from 0 to 100.

Highlights are published as text without positions: only those that occur once in the response can
be placed. Comments are published without labels: only unmistakable ones become praise or criticism
(`polarity`). Highlights that yield no span are counted. The verdict is the overall rating.

    text2grad import all-responses.jsonl --kind text2grad_lab.readers.squality:SQUALITY \\
        --config human_qa
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from text2grad.data.files import Row, optional_text, read_rows, required_text
from text2grad.data.opinions import Importer, Names, Opinion
from text2grad.data.spans.marks import drop_empty
from text2grad.errors import UserError
from text2grad.feedback import QuoteCounts, Span
from text2grad_lab.readers.finegrained import shortened
from text2grad_lab.readers.polarity import polarity

NESTED_KEYS = frozenset({"passage-id", "questions"})
FLAT_KEYS = frozenset({"passage_id", "question", "system", "spans", "worker_id"})
"""The keys of all-responses.jsonl as published, and of its flat form with a review per row."""
Question = tuple[str, tuple[str, ...]]
"""The text of a question and its references."""
RATINGS = ("correctness", "selection", "overall")


def find(selection: str, response: str) -> list[tuple[int, int]]:
    """Return all places (start, end) of a highlighted text in the response, overlaps included.

    If the literal text is not found, whitespace may differ, since copying from a web page joins
    lines. Word boundaries are ignored, since people also mark parts of words.
    """
    if not selection.strip():
        return []
    patterns = re.escape(selection), r"\s+".join(map(re.escape, selection.split()))
    # A look-ahead finds overlapping occurrences too.
    matches = ([match.span(1) for match in re.finditer(f"(?=({pattern}))", response)] for pattern in patterns)
    return next(filter(None, matches), [])


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the opinion of each review in a row; `names.companion` has the questions' texts."""
    reviews = _reviews(row, names.companion) if _is_nested(row) else [row]
    return (_opinion(review, names.companion) for review in reviews)


def _is_nested(row: Row) -> bool:
    return row.keys() >= NESTED_KEYS


def _opinion(row: Row, questions: Mapping[tuple[str, str], Question]) -> Opinion:
    """Return the opinion of a review; `row["spans"]` has highlighted texts and comments on them."""
    place = [str(row[key]) for key in ("passage_id", "question_index", "system", "worker_id")]
    story, index, system, worker = place
    words, references = questions.get((story, index), (required_text(row, "question"), ()))
    question, response = f"{words} (story {story})", required_text(row, "response")
    marks = [(mark["selection"], " ".join(" ".join(mark["comment"]).split())) for mark in row["spans"]]
    ratings = {name: row[name] for name in RATINGS}
    for name, value in ratings.items():
        if not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ValueError(f"{name} rating {value!r} is not between 0 and 100")
    spans, counts = _spans(marks, response)
    remarks = [f"{shortened(selection)}: {comment}" for selection, comment in marks if comment]
    rated = ", ".join(f"{name} {value:g}" for name, value in ratings.items())
    return Opinion(
        "-".join(["squality", *place]),
        response,
        question,
        comments=[*remarks, f"Rated from 0 to 100: {rated}."],
        spans=spans,
        counts=counts,
        score=round(ratings["overall"] / 50 - 1, 2),  # a model has to learn to write it
        meta=drop_empty(
            question=question, gold="".join(references[:1]), system=system, worker=worker, ratings=ratings
        ),
    )


def _spans(marks: Sequence[tuple[str, str]], response: str) -> tuple[tuple[Span, ...], QuoteCounts]:
    """Return the spans that can be placed and labelled, and counts of the other marks by reason."""
    counts: Counter[str] = Counter()
    spans: dict[tuple[int, int, int], Span] = {}
    for selection, comment in marks:
        places, label = find(selection, response), polarity(comment)
        counts["normalised"] += bool(places) and selection not in response
        if len(places) != 1:
            counts["ambiguous" if places else "unmatched"] += 1
        elif label is None:
            counts["no_polarity"] += 1
        else:
            start, end = places[0]
            counts["repeated"] += (start, end, -label) in spans
            quote = response[start:end]
            spans[start, end, -label] = Span(start=start, end=end, label=label, text=quote, reason=comment)
    return tuple(spans[key] for key in sorted(spans)), QuoteCounts(**counts)


def _reviews(row: Row, questions: Mapping[tuple[str, str], Question]) -> Iterator[Row]:
    """Yield the reviews of a published row in the flat format."""
    story = str(row["passage-id"])
    for index, systems in row["questions"].items():
        if (story, index) not in questions:
            raise ValueError(f"story {story} has no question {index} among the question texts")
        place = {"passage_id": story, "question_index": index, "question": questions[story, index][0]}
        for system, answer in systems.items():
            for review in answer["reviews"]:
                marks = [{"selection": m["selection"], "comment": m["annotation"]} for m in review["annotations"]]
                reviewed = {"system": system, "response": answer["response"], "worker_id": review["worker_id"]}
                yield {**place, **reviewed, "spans": marks, **{name: review[f"{name}-rating"] for name in RATINGS}}


def read_names(path: Path, rows: Sequence[Row]) -> Names:
    """Return the question texts and references by story and index of the question.

    They are read from questions_and_references.jsonl next to the file, or from v1-3/txt/test.jsonl
    in the published repository.

    Raises:
        UserError: the rows have no question texts, and both files are missing.
    """
    questions_file = path.with_name("questions_and_references.jsonl")
    published = path.parent.parent / "v1-3" / "txt" / "test.jsonl"
    source = next((file for file in (questions_file, published) if file.is_file()), None)
    if source is None and any(map(_is_nested, rows)):
        raise UserError(f"{path} has no question texts", f"put {questions_file.name} next to it")
    questions: dict[tuple[str, str], Question] = {}
    for row in read_rows(source) if source else ():
        story = optional_text(row, "passage_id") or required_text(row["metadata"], "passage_id")
        for index, question in enumerate(row["questions"]):
            answers = (response["response_text"] for response in question.get("responses", []))
            references = tuple(question.get("references") or answers)
            questions[story, str(index)] = required_text(question, "question_text"), references
    return Names(companion=questions)


SQUALITY = Importer(
    "squality",
    opinions,
    accepts=lambda row: row.keys() >= NESTED_KEYS or row.keys() >= FLAT_KEYS,
    names=read_names,
)
