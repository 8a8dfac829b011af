"""SQuALITY's human evaluation: reviewers highlighted parts of summaries, commented, and gave 0-100 ratings.

A highlight is published as text without its position, so only one that occurs once in the response can be
placed; and as a comment without a label, so only one whose comment says so plainly is praise or criticism
(`polarity`). Everything that yields no span is counted. The verdict is the reviewer's overall rating.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback, QuoteCounts, Span
from text2grad.formats.datasets.finegrained import shortened
from text2grad.formats.datasets.polarity import polarity
from text2grad.formats.marks import human_record
from text2grad.tasks.loaders import Row, optional_text, read_rows, text_of

NESTED_KEYS = frozenset({"passage-id", "questions"})
FLAT_KEYS = frozenset({"passage_id", "question", "system", "spans", "worker_id"})


Questions = Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]
"""(story, index of the question) -> its text and the references."""
RATINGS = ("correctness", "selection", "overall")


def reader(rows: Sequence[Row], path: Path) -> Callable[[Row, str], Iterator[Feedback]]:
    """What reads a row of a file: of all-responses.jsonl as published, or of its flat form, a review to a row.

    The published file has no question texts; they are read from questions_and_references.jsonl beside it, or
    from v1-3/txt/test.jsonl where the repository has it.

    Raises:
        UserError: the questions are not found.
    """
    nested = bool(rows) and rows[0].keys() >= NESTED_KEYS
    questions = _read_questions(path, required=nested)
    return lambda row, _: (_feedback(each, questions) for each in (_reviews(row, questions) if nested else [row]))


def find(selection: str, response: str) -> list[tuple[int, int]]:
    """Where a highlighted text occurs in the response (characters, end exclusive), overlaps included.

    First literally; if it is not found, with any white space in place of its own (copying from a web
    page joins lines). Word boundaries do not matter: people drag over parts of words.
    """
    if not selection.strip():
        return []
    exact = _occurrences(re.escape(selection), response)
    return exact or _occurrences(r"\s+".join(map(re.escape, selection.split())), response)


def _occurrences(pattern: str, response: str) -> list[tuple[int, int]]:
    # A look-ahead finds overlapping occurrences too.
    return [match.span(1) for match in re.finditer(f"(?=({pattern}))", response)]


def _feedback(row: Row, questions: Questions) -> Feedback:
    """The record of one review. `row["spans"]`: what was highlighted, and the comment on it."""
    story, index, system, worker = (
        str(row[key]) for key in ("passage_id", "question_index", "system", "worker_id")
    )
    words, references = questions.get((story, index), (text_of(row, "question"), ()))
    question, response = f"{words} (story {story})", text_of(row, "response")
    marks = [(mark["selection"], " ".join(" ".join(mark["comment"]).split())) for mark in row["spans"]]
    ratings = _ratings(row)
    spans, counts = _spans(marks, response)
    critique = Critique(
        text=_text(marks, ratings),
        spans=spans,
        score=round(ratings["overall"] / 50 - 1, 2),  # a model has to learn to write it
        quotes=counts,
    )
    meta = {
        "dataset": "squality",
        "question": question,
        "gold": references[0] if references else "",
        "system": system,
        "worker": worker,
        "ratings": ratings,
    }
    return human_record(f"squality-{story}-{index}-{system}-{worker}", question, response, critique, meta)


def _spans(marks: Sequence[tuple[str, str]], response: str) -> tuple[tuple[Span, ...], QuoteCounts]:
    """The spans that can be placed and labelled, sorted, and why the others cannot: each mark counts once."""
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


def _text(marks: Sequence[tuple[str, str]], ratings: Mapping[str, float]) -> str:
    """The reviewer's own words, each with what they are about; then the ratings."""
    remarks = [f"{shortened(selection)}: {comment}" for selection, comment in marks if comment]
    rated = ", ".join(f"{name} {value:g}" for name, value in ratings.items())
    return "\n".join([*remarks, f"Rated from 0 to 100: {rated}."])


def _reviews(row: Row, questions: Questions) -> Iterator[Row]:
    """The reviews of a published row, flat."""
    story = str(row["passage-id"])
    for index, systems in row["questions"].items():
        if (story, index) not in questions:
            raise ValueError(f"story {story} has no question {index} among the question texts")
        place = {"passage_id": story, "question_index": index, "question": questions[story, index][0]}
        for system, answer in systems.items():
            for review in answer["reviews"]:
                marks = [{"selection": m["selection"], "comment": m["annotation"]} for m in review["annotations"]]
                who = {"system": system, "response": answer["response"], "worker_id": review["worker_id"]}
                yield {**place, **who, "spans": marks, **{name: review[f"{name}-rating"] for name in RATINGS}}


def _ratings(row: Row) -> dict[str, float]:
    for name in RATINGS:
        if not isinstance(row[name], int | float) or not 0 <= row[name] <= 100:
            raise ValueError(f"{name} rating {row[name]!r} is not between 0 and 100")
    return {name: row[name] for name in RATINGS}


def _read_questions(path: Path, required: bool) -> Questions:
    beside = path.with_name("questions_and_references.jsonl")
    published = path.parent.parent / "v1-3" / "txt" / "test.jsonl"
    source = next((file for file in (beside, published) if file.is_file()), None)
    if source is None:
        if required:
            raise UserError(f"{path} has no question texts", f"put {beside.name} or {published.name} beside it")
        return {}
    return {key: value for row in read_rows(source) for key, value in _questions(row)}


def _questions(row: Row) -> Iterator[tuple[tuple[str, str], tuple[str, tuple[str, ...]]]]:
    story = optional_text(row, "passage_id") or text_of(row["metadata"], "passage_id")
    for index, question in enumerate(row["questions"]):
        references = question.get("references") or [
            response["response_text"] for response in question.get("responses", [])
        ]
        yield (story, str(index)), (text_of(question, "question_text"), tuple(references))
