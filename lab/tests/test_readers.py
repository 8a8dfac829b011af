"""Readers of research data sets: spans, counts, and no guesses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from places import SHARED
from text2grad import wire
from text2grad.data.files import read_rows
from text2grad.data.published import read_examples
from text2grad.data.records import import_feedback
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Feedback, Span
from text2grad.sandbox import Runner
from text2grad_lab.readers.finegrained import finegrained_example, shortened, span_score
from text2grad_lab.readers.ilf import SHAPE
from text2grad_lab.readers.polarity import polarity
from text2grad_lab.readers.squality import find

DATA = Path(__file__).parent / "data"
FINEGRAINED, SQUALITY_KIND, DEFACTO, ILF_KIND = (
    f"text2grad_lab.readers.{module}:{module.upper()}" for module in ("finegrained", "squality", "defacto", "ilf")
)
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
QA = DATA / "finegrained_qa.json"
SQUALITY = DATA / "squality" / "all-responses.jsonl"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as started:
        yield started


def finegrained(characters: int | None = None) -> list[Example]:
    rows = json.loads(QA.read_text(encoding="utf-8"))
    return [finegrained_example(row, f"{QA.stem}-{n}", characters) for n, row in enumerate(rows, start=1)]


def split_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def quoted(record: Feedback) -> list[tuple[str, int, str]]:
    return [(span.text, span.label, span.reason) for span in record.spans]


def test_finegrained_errors_are_poor_spans_with_their_evidence() -> None:
    first, second = import_feedback(QA, FINEGRAINED).records
    assert quoted(first) == [
        ("1990", -1, "Wrong-Grounding: the passage says: The town flooded in 1991."),
        ("Rain was heavy in 1990.", -1, "Redundant: Rain was heavy in 1990."),
        ("swam home.", -1, "Unverifiable"),
    ]
    assert first.spans[1].start == 24, "the offsets select the second occurrence"
    assert first.critique == (
        '"1990" contradicts the passages. "Rain was heavy in 1990." is redundant. '
        '"swam home." is not supported by the passages. '
        'The answer is missing: "Rain fell for a week. The bridge was lost 🌉."'
    )
    assert (second.spans, second.critique, second.score) == ((), "No error was found.", 1.0)


def test_feedback_and_task_agree_on_id_prompt_and_reference() -> None:
    records = import_feedback(QA, FINEGRAINED, context_characters=30).records
    examples = finegrained(30)
    assert [r.example().model_dump() for r in records] == [e.model_dump() for e in examples]


@pytest.mark.parametrize(
    ("text", "spans", "missing", "score"),
    [
        ("0123456789", [], "", 1.0),
        ("0123456789", [(0, 10)], "", -1.0),
        ("0123456789", [(0, 3), (2, 5)], "", 0.0),
        ("0123456789", [(0, 1)], "", 0.8),
        ("0123456789", [], "x" * 10, 0.0),
        ("01234", [], "x" * 15, -0.5),
        ("", [], "x", -1.0),
        ("", [], "", 0.0),
    ],
)
def test_span_score_is_the_share_outside_poor_spans_and_missing_text(
    text: str, spans: list[tuple[int, int]], missing: str, score: float
) -> None:
    poor = [Span(start=a, end=b, label=-1, text=text[a:b]) for a, b in spans]
    good = [Span(start=6, end=8, label=1, text=text[6:8])] if len(text) > 8 else []
    assert span_score(text, [*poor, *good], missing) == score


def test_every_squality_highlight_is_a_span_or_counted(tmp_path: Path) -> None:
    imported = import_feedback(SQUALITY, SQUALITY_KIND)
    first, second = imported.records
    assert quoted(first) == [
        ("The captain lands on Mars.", 1, "This is an excellent opening"),
        ("He stays\n\nthere for ever.", -1, "Incorrect: he leaves."),
    ]
    assert first.id == "squality-101-0-bart-3" and first.score == 0.5
    assert first.prompt[0].content == "What is the plot of the story? (story 101)"
    assert (first.meta["unmatched"], first.meta["ambiguous"], first.meta["no_polarity"]) == (1, 1, 2)
    assert '"robots": incorrect' in first.critique and '"s, and": comma?' in first.critique, "kept without a span"
    report = imported.report
    counted = report.unmatched + report.ambiguous + report.no_polarity + report.repeated
    assert (report.records, report.spans, counted, report.no_spans, report.failed) == (2, 2, 4, 1, 0)
    assert second.spans == () and second.critique == (
        "Rated from 0 to 100: correctness 100, selection 90, overall 95."
    )
    answer = json.loads(SQUALITY.read_text(encoding="utf-8"))["questions"]["0"]["bart"]
    place = {"passage_id": "101", "question_index": "0", "question": "What is the plot of the story?"}
    flat = [
        {
            **place,
            "system": "bart",
            "response": answer["response"],
            "worker_id": review["worker_id"],
            "spans": [{"selection": m["selection"], "comment": m["annotation"]} for m in review["annotations"]],
            **{name: review[f"{name}-rating"] for name in ("correctness", "selection", "overall")},
        }
        for review in answer["reviews"]
    ]
    (tmp_path / "flat.jsonl").write_text("\n".join(map(json.dumps, flat)), encoding="utf-8")
    assert import_feedback(tmp_path / "flat.jsonl", SQUALITY_KIND).report == report


def test_find_returns_all_places() -> None:
    overlapping, spaces = (
        find("aa", "aaa"),
        [find("a b", "a b a\n b"), find("a b", "x a\n\nb"), find(" a b ", "a\tb")],
    )
    assert overlapping == [(0, 2), (1, 3)] and spaces == [[(0, 3)], [(2, 6)], [(0, 3)]]
    assert find("(a+", "x(a+b") == [(1, 4)]
    assert not any(find(text, "b b") for text in ("a", " ", ""))


@given(st.text(min_size=1), st.data())
def test_every_substring_is_found(response: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(response) - 1))
    end = data.draw(st.integers(start + 1, len(response)))
    if response[start:end].strip():
        assert (start, end) in find(response[start:end], response)


POLARITIES = {
    1: ["Good", "Excellent description of the robots!", "This is a very strong response.", "Well said!"],
    -1: [
        *("Incorrect", "Incorrect: he never left, but wanted to", "repeated but also untrue", "makes no sense"),
        "This isn’t true; he came because he was chasing someone else",
        *("None of this is accurate", "This is both confusing and repetitive", "Not in the story"),
    ],
    None: [
        *("", "?", "comma", "repeat?", "not sure this is accurate", "goodness, what a typographer"),
        "Great summary but doesn't go all the way to the end",
        "This is a good opportunity to explain why",
        "This is true, and it contradicts the earlier statement",
        "Incorrect. Even though all of it is false, the sentence structure is good.",
        "None of this is accurate, although it is creative.",
        "This is slightly more correct than the rest",
        "Tholon is her last name not her first, so this is an odd way to refer to her",
    ],
}


def test_polarity_of_comments() -> None:
    for label, comments in POLARITIES.items():
        assert {comment: polarity(comment) for comment in comments} == dict.fromkeys(comments, label)


def test_shortened_texts() -> None:
    assert shortened("one\n two") == '"one two"' and shortened("a b c", words=2) == '"a b …"'


def change(rows: list[dict[str, Any]], record: int, *path: Any, value: Any) -> list[dict[str, Any]]:
    target: Any = rows[record]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return rows


ERROR, BART = ("feedback", "errors", 0), ("questions", "0", "bart")
POINTER = ("feedback", "errors", 1, "explanation")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*ERROR, "end"), 999, "error span"),
        ((*ERROR, "start"), "3", "error span"),
        ((*ERROR, "error type"), "", "error type"),
        (("feedback", "errors"), {}, "not a list of objects"),
        (POINTER, '{"passage_id": 9, "sentence_id": [0]}', "no sentence"),
        (POINTER, '{"passage_id": 0, "sentence_id": [0]}', "no sentence"),
        (POINTER, '{"passage', "neither text nor a pointer"),
        (("prediction 1",), "", "no text in 'prediction 1'"),
        (("passages",), [["only a title"]], "passages"),
        (("passages",), [["t", 3]], "passage"),
        (("passages",), "none", "passages"),
        (("feedback",), [], "feedback"),
        (("question",), "", "question"),
        ((*BART, "response"), "", "no text in 'response'"),
        ((*BART, "reviews"), 3, "not a record of squality"),
        ((*BART, "reviews", 0, "overall-rating"), 101, "overall rating 101"),
        (("passage-id",), "999", "story 999 has no question 0"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, path: tuple[Any, ...], value: Any, words: str) -> None:
    squality = path[0] in ("questions", "passage-id")
    source = SQUALITY if squality else QA
    rows = [json.loads(SQUALITY.read_text("utf-8"))] if squality else json.loads(QA.read_text("utf-8"))
    questions = SQUALITY.with_name("questions_and_references.jsonl")
    (tmp_path / questions.name).write_bytes(questions.read_bytes())
    good = source.read_text("utf-8").split("\n")[:1] if squality else [json.dumps(rows[1])]
    bad = [json.dumps(row) for row in change(rows[:1], 0, *path, value=value)]
    (tmp_path / "bad.jsonl").write_text("\n".join([*good, *bad]), encoding="utf-8")
    with pytest.raises(UserError, match=rf"bad.jsonl: line 2: .*{words}"):
        import_feedback(tmp_path / "bad.jsonl", SQUALITY_KIND if squality else FINEGRAINED)


def test_missing_question_texts_are_named(tmp_path: Path) -> None:
    (tmp_path / "all-responses.jsonl").write_bytes(SQUALITY.read_bytes())
    with pytest.raises(UserError, match="put questions_and_references"):
        import_feedback(tmp_path / "all-responses.jsonl", SQUALITY_KIND)


ZERO = dict.fromkeys(("unmatched", "ambiguous", "no_polarity", "repeated", "normalised", "failed"), 0)
FIGURES: dict[str, dict[str, Any]] = {
    "finegrained_rlhf_qa/dev_feedback.json": {
        **{**ZERO, "source": "finegrained_qa", "records": 500, "spans": 1373, "exact": 1373, "no_spans": 36}
    },
    "squality_human_eval/all-responses.jsonl": {
        **{**ZERO, "source": "squality", "records": 900, "spans": 771, "exact": 3040, "no_spans": 623},
        **{"unmatched": 5, "ambiguous": 313, "no_polarity": 2050, "repeated": 3, "normalised": 97},
    },
}


@real
@pytest.mark.parametrize("file", FIGURES)
def test_published_files_have_the_documented_figures(file: str) -> None:
    imported = import_feedback(SHARED / file, FINEGRAINED if "qa" in file else SQUALITY_KIND)
    assert imported.report.model_dump() == FIGURES[file]
    assert len({record.id for record in imported.records}) == len(imported.records)
    for record in imported.records:
        judgement = record.judgement()
        assert isinstance(judgement, Critique)
        parsed = wire.parse(wire.render(judgement, record.response), record.response)
        assert isinstance(parsed, Critique)
        assert (parsed.text, parsed.spans, parsed.score) == (judgement.text, judgement.spans, judgement.score)


@real
def test_every_defacto_record_is_imported_and_missing_spans_explained() -> None:
    records = []
    for name in ("train", "val", "test"):
        rows = split_lines(SHARED / f"defacto/{name}.jsonl")
        imported = import_feedback(SHARED / f"defacto/{name}.jsonl", DEFACTO).records
        for row, record in zip(rows, imported, strict=True):
            assert (record.error, record.response) == (None, row["candidate"])
            assert (
                record.meta["has_error"] == row["has_error"] and row["feedback"]["explanation"] in record.critique
            )
        records += imported
    assert len(records) == 2561 and sum(record.meta["has_error"] for record in records) == 701 + 341 + 779
    bare = [record.meta for record in records if record.meta["has_error"] and not record.spans]
    assert Counter("omissions" if "omissions" in meta else meta["unchanged"] for meta in bare) == {
        "omissions": 19,
        True: 15,
    }


def test_finegrained_qa() -> None:
    first, second = finegrained()
    assert first.prompt[0].content == (
        "Who was mayor when it flooded?\n\n"
        "Flood: The town flooded in 1991. Ann Lee was mayor.\n\n"
        "Weather: Rain fell for a week. The bridge was lost 🌉."
    )
    assert first.reference == "Ann Lee was mayor when the town flooded in 1991."
    assert second.reference == "In the flood.", "the gold answer replaces an empty correction"
    assert second.meta["corrected"] == ""
    flood, mayor = "\n\nFlood: The town flooded in 1991.", " Ann Lee was mayor."
    for characters, context in ((0, ""), (44, flood + mayor), (30, flood)):
        (first, _) = finegrained(characters)
        assert first.prompt[0].content == "Who was mayor when it flooded?" + context, "only complete sentences"


ILF = {
    "task_id": 7,
    "prompt": '"""\nDouble a number.\n"""\n\ndef helper():\n    return 1\n\ndef double(n):\n',
    "test": 'from pytest import approx\n\ndef check(candidate):\n\tassert candidate(2) ==approx( 4), "x"\n',
    "Feedback": "It adds one.",
    "original_model_completion": "def double(n):\n    return n + 1\n",
    "unedited_annotator_completion": "def double(n):\r\n    return n * 2\r\n",
}


def test_ilf_has_the_models_program_and_the_correction(tmp_path: Path, runner: Runner) -> None:
    (tmp_path / "ilf.jsonl").write_text(json.dumps(ILF))
    (problem,) = read_examples(str(tmp_path / "ilf.jsonl"), [SHAPE])
    assert (problem.id, problem.meta["entry_point"]) == ("mbpp-7", "double")
    assert problem.meta["human_feedback"] == "It adds one."
    assert runner.run(problem.meta["draft"], problem.meta["tests"]).outcome == "failed"
    assert problem.reference == "def double(n):\n    return n * 2\n"
    assert runner.run(problem.reference, problem.meta["tests"]).passed


@real
def test_published_ilf_feedback_has_its_program() -> None:
    path = SHARED / "ilf_code_feedback" / "surge_annotations.jsonl"
    rows, records = list(read_rows(path)), import_feedback(path, ILF_KIND).records
    assert [record.response for record in records] == [row["original_model_completion"] for row in rows]
    assert [record.critique for record in records] == [row["Feedback"] for row in rows]
    assert all(record.meta["corrected"] for record in records)
