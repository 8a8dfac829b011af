"""SQuALITY's human evaluation: reviewers highlighted parts of summaries, commented, and gave 0-100 ratings.

A highlight is published as text without its position, so only one that occurs once in the response can be
placed; and as a comment without a label, so only one whose comment says so plainly is praise or criticism
(`polarity`). Everything that yields no span is counted. The verdict is the reviewer's overall rating.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from text2grad.critics.finegrained import shortened
from text2grad.critics.polarity import polarity
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Feedback, Message, QuoteCounts, Source, Span
from text2grad.tasks.loaders import Row, bad_record, optional_text, read_rows, text_of

NESTED_KEYS = frozenset({"passage-id", "questions"})
FLAT_KEYS = frozenset({"passage_id", "question", "system", "spans", "worker_id"})


@dataclass(frozen=True)
class Review:
    """One reviewer's word on one response. `marks`: (highlighted text, comment) in the reviewer's order."""

    story: str
    question_index: str
    question: str
    references: tuple[str, ...]
    system: str
    worker: str
    response: str
    marks: tuple[tuple[str, str], ...]
    ratings: Mapping[str, float]


Questions = Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]


def records(rows: Sequence[Row], path: Path) -> Iterator[Feedback]:
    """All reviews of a file: all-responses.jsonl as published, or its flat form with one review per row.

    The published file has no question texts; they are read from questions_and_references.jsonl beside it, or
    from v1-3/txt/test.jsonl where the repository has it.

    Raises:
        UserError: the questions are nowhere, or a record is bad (which one).
    """
    nested = bool(rows) and rows[0].keys() >= NESTED_KEYS
    questions = _read_questions(path, required=nested)
    for number, row in enumerate(rows, start=1):
        try:
            yield from map(_feedback, _nested(row, questions) if nested else [_flat(row, questions)])
        except (AttributeError, KeyError, TypeError) as error:
            # Only shapes are wrong here: a list where an object belongs, or a key that is not there.
            raise bad_record(path, number, ValueError(f"not a SQuALITY review: {error}")) from error
        except ValueError as error:
            raise bad_record(path, number, error) from error


def find(selection: str, response: str) -> list[tuple[int, int]]:
    """Where a highlighted text stands in the response (characters, end exclusive), overlaps included.

    First to the letter; only if it is nowhere, with any white space in place of its own (copying from a web
    page joins lines). Word boundaries do not matter: people drag over parts of words.
    """
    if not selection.strip():
        return []
    exact = _occurrences(re.escape(selection), response)
    return exact or _occurrences(r"\s+".join(map(re.escape, selection.split())), response)


def _occurrences(pattern: str, response: str) -> list[tuple[int, int]]:
    # A look-ahead finds overlapping occurrences too.
    return [match.span(1) for match in re.finditer(f"(?=({pattern}))", response)]


def _feedback(review: Review) -> Feedback:
    question = f"{review.question} (story {review.story})"
    example = Example(
        id=f"squality-{review.story}-{review.question_index}-{review.system}-{review.worker}",
        prompt=(Message(role="user", content=question),),
        reference=review.references[0] if review.references else "",
        meta={
            "dataset": "squality",
            "question": question,
            "gold": review.references[0] if review.references else "",
            "system": review.system,
            "worker": review.worker,
            "ratings": dict(review.ratings),
        },
    )
    spans, counts = _spans(review)
    critique = Critique(
        text=_text(review),
        spans=spans,
        score=round(review.ratings["overall"] / 50 - 1, 2),  # a model has to learn to write it
        quotes=counts,
    )
    return Feedback.of(example, review.response, critique, Source(kind="human"))


def _spans(review: Review) -> tuple[tuple[Span, ...], QuoteCounts]:
    """The spans that can be placed and labelled, sorted, and why the others cannot: each mark counts once."""
    counts: Counter[str] = Counter()
    spans: dict[tuple[int, int, int], Span] = {}
    for selection, comment in review.marks:
        places, label = find(selection, review.response), polarity(comment)
        counts["normalised"] += bool(places) and selection not in review.response
        if len(places) != 1:
            counts["ambiguous" if places else "unmatched"] += 1
        elif label is None:
            counts["no_polarity"] += 1
        else:
            start, end = places[0]
            counts["repeated"] += (start, end, -label) in spans
            quote = review.response[start:end]
            spans[start, end, -label] = Span(start=start, end=end, label=label, text=quote, reason=comment)
    return tuple(spans[key] for key in sorted(spans)), QuoteCounts(**counts)


def _text(review: Review) -> str:
    """The reviewer's own words, each with what they are about; then the ratings."""
    remarks = [f"{shortened(selection)}: {comment}" for selection, comment in review.marks if comment]
    rated = ", ".join(f"{name} {value:g}" for name, value in review.ratings.items())
    return "\n".join([*remarks, f"Rated from 0 to 100: {rated}."])


def _nested(row: Row, questions: Questions) -> Iterator[Review]:
    story = str(row["passage-id"])
    for index, systems in row["questions"].items():
        if (story, index) not in questions:
            raise ValueError(f"story {story} has no question {index} among the question texts")
        question, references = questions[story, index]
        for system, answer in systems.items():
            for review in answer["reviews"]:
                yield Review(
                    *(story, index, question, references, system, str(review["worker_id"])),
                    response=text_of(answer, "response"),
                    marks=tuple(
                        (mark["selection"], _comment(mark["annotation"])) for mark in review["annotations"]
                    ),
                    ratings=_ratings(review, "-rating"),
                )


def _flat(row: Row, questions: Questions) -> Review:
    story, index = str(row["passage_id"]), str(row["question_index"])
    question, references = questions.get((story, index), (text_of(row, "question"), ()))
    return Review(
        *(story, index, question, references, text_of(row, "system"), str(row["worker_id"])),
        response=text_of(row, "response"),
        marks=tuple((mark["selection"], _comment(mark["comment"])) for mark in row["spans"]),
        ratings=_ratings(row, ""),
    )


def _comment(parts: Sequence[str]) -> str:
    return " ".join(" ".join(parts).split())


def _ratings(row: Mapping[str, Any], suffix: str) -> dict[str, float]:
    ratings = {name: row[name + suffix] for name in ("correctness", "selection", "overall")}
    for name, value in ratings.items():
        if not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ValueError(f"{name} rating {value!r} is not between 0 and 100")
    return ratings


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
