"""Remarks as people write them: mark-up, quotes, columns of any name; every line that lost
something is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.export import export
from text2grad.data.records import ImportResult, import_feedback, merge_feedback
from text2grad.data.spans.marks import diff_spans
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source
from text2grad.json_text import record_json
from text2grad.jsonl import write_jsonl
from text2grad.page.quality import feedback_quality

DUE = "It is due next week."
TURN = [{"role": "assistant", "content": DUE}]
ASKED = [{"role": "user", "content": "When?"}, *TURN]


def read(folder: Path, *rows: dict[str, Any]) -> ImportResult:
    file = folder / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return import_feedback(file, no_prompt=True)


def table(folder: Path, text: str, *names: str, scales: tuple[str, ...] = ()) -> ImportResult:
    file = folder / "mine.csv"
    file.write_text(text, encoding="utf-8")
    return import_feedback(file, names=names, scales=scales, no_prompt="prompt" not in text)


def quoted(record: Feedback) -> list[tuple[str, int, str]]:
    return [(span.text, span.label, span.reason) for span in record.spans]


def test_spans_by_text_alone(tmp_path: Path) -> None:
    spans = [{"text": "due", "label": "good"}, {"quote": "next  week", "label": -1, "reason": "Friday"}]
    (record,) = read(tmp_path, {"prompt": "p", "response": DUE, "spans": spans, "score": "bad"}).records
    assert quoted(record) == [("due", 1, ""), ("next week", -1, "Friday")] and record.score == -1


def test_a_repeated_text_is_taken_by_order_or_asked_for(tmp_path: Path) -> None:
    poor = {"text": "a", "label": "poor"}
    rows = [{"response": "a b a", "spans": spans} for spans in ([poor, poor], [{**poor, "occurrence": 2}], [poor])]
    found = read(tmp_path, *rows)
    assert [[span.start for span in record.spans] for record in found.records] == [[0, 4], [4], []]
    (loss,) = found.losses
    assert "line 3: 'a' is in the response 2 times" in loss and "occurrence" in loss


def test_every_line_that_lost_something_is_named(tmp_path: Path) -> None:
    rows = [
        {"response": DUE, "critique": "fine"},
        {"response": DUE, "spans": [{"text": "next month", "label": "poor", "reason": "Friday"}]},
        {"response": DUE, "spans": [{"text": "due"}]},
        {"response": DUE, "spans": [{"start": 0, "end": 2, "label": 1, "text": "is"}]},
        {"response": DUE, "spans": [{"start": 0, "end": 99, "label": 1}]},
        {"response": DUE},
    ]
    found = read(tmp_path, *rows)
    assert [loss.partition(";")[0] for loss in found.losses] == [
        "line 2: 'next month' is not in the response",
        "line 3: 'due' has no label",
        "line 4: [0, 2) is 'It' and not 'is'",
        "line 5: [0, 99) is not inside the 20 characters of the response",
        "line 6: no judgement of the response: fill in critique, good, poor, spans, score or corrected",
    ]
    assert found.losses[0].endswith("nearest: 'next week'") and len(found.records) == 4
    assert found.records[1].critique == '"next month": Friday' and found.records[1].meta["lost"] == ["next month"]
    assert (found.report.unmatched, found.report.no_polarity) == (2, 1), "lines 4 and 5 are one remark: of nothing"


def test_columns_of_any_name_and_any_delimiter(tmp_path: Path) -> None:
    for mark, quote in ((",", '"{}"'), (";", "{}"), ("\t", "{}")):
        rows = [["question", "answer", "date", "comment"], ["When?", quote.format("[-Soon-], or not."), "1", "No."]]
        text = "\n".join(mark.join(row) for row in rows) + "\n"
        found = table(tmp_path, text, "prompt=question,response=answer", "critique=comment")
        (record,) = found.records
        assert (record.response, record.critique, record.prompt[0].content) == ("Soon, or not.", "No.", "When?")
        assert quoted(record) == [("Soon", -1, "")] and found.ignored == ("date",)
    letters = ("Prompt,RESPONSE,Poor", ' prompt , "response" ,“poor”', "ｐｒｏｍｐｔ,response\u00a0,'Poor'")
    for header in letters:
        (record,) = table(tmp_path, f"{header}\nWhen?,{DUE},next week\n").records
        assert record.prompt[0].content == "When?" and quoted(record) == [("next week", -1, "")]


def test_losses_are_in_the_line_where_their_row_begins(tmp_path: Path) -> None:
    found = table(tmp_path, 'prompt,response,poor\np,"two\nlines",three\n,,\np,one,\nprompt,response,poor\n')
    assert [loss.partition(":")[0] for loss in found.losses] == ["row 2", "row 4 (line 5)", "row 5 (line 6)"]
    assert len(found.records) == 1 and "a repeated header" in found.losses[-1]


CELLS = "prompt,response,critique\n"
SAME_ID = "row 3: the id '1' belongs to another text in row 2"
UNCLEAR: list[tuple[str, list[str], str]] = [
    ("question,answer\na,b\n", [], "no column 'response'.*--map response=COLUMN; columns: question, answer"),
    ("respones,critique\na,b\n", [], "did you mean 'response'.*--map response=respones"),
    ("prompt,response\na,b\n", [], "--map critique=COLUMN"),
    ("response,critiqe\na,b\n", [], "did you mean 'critique'.*--map critique=critiqe"),
    ("response,critique\na,b\n", ["response=anser"], "no column 'anser'.*columns: response, critique"),
    ("answer,critique\na,b\n", ["response=anser"], "did you mean 'answer'"),
    ("response,critique\na,b\n", ["response"], "is not a pair"),
    ("response,critique\na,b\n", ["respons=response"], "no field 'respons' .did you mean 'response'"),
    ("Response,response,critique\na,b,c\n", [], "'Response' and 'response'"),
    (f"Remarks,,\n{CELLS}p,a,b\n", [], "row 2 looks like the header"),
    (f"{CELLS}p,a,b\n,c,d\nq,e,f\n", [], "row 3: the prompt is empty"),
    ("id,prompt,response,critique\n1,p,a,b\n1,q,a,b\n", [], SAME_ID),
    ("id,response,critique\n1,a,b\n1,c,d\n", [], SAME_ID),
    ("id,response,critique\n../1,a,b\n", [], "row 2: the id '../1' leads out of its folder"),
]


def test_a_table_that_is_not_clear(tmp_path: Path) -> None:
    for text, names, problem in UNCLEAR:
        with pytest.raises(UserError, match=problem):
            table(tmp_path, text, *names)


PART = [{"role": "assistant", "content": [{"type": "text", "text": DUE}]}]
TURNS: list[tuple[Any, Any]] = [
    *(("When?", response) for response in (TURN, {"content": DUE}, ASKED, PART)),
    *(("When?", json.dumps(response)) for response in (TURN, TURN[0])),
    ("When?", [{"role": "assistant", "content": DUE, "tool_calls": None, "name": "a"}]),
    (None, ASKED),
    (ASKED[:1], ASKED),
    (json.dumps(ASKED[:1]), DUE),
]


def test_a_response_of_turns_is_its_answer(tmp_path: Path) -> None:
    for prompt, response in TURNS:
        (record,) = read(tmp_path, {"prompt": prompt, "response": response, "poor": ["next week"]}).records
        assert (record.response, [turn.content for turn in record.prompt]) == (DUE, ["When?"])
        assert quoted(record) == [("next week", -1, "")]


def test_other_json_and_the_text_of_a_turn_are_text(tmp_path: Path) -> None:
    for answer in ('[{"content": "x"}]', '{"role": "admin", "content": "x"}', "[]", "{}", "[1, 2]"):
        (record,) = read(tmp_path, {"prompt": "p", "response": answer, "critique": "c"}).records
        assert record.response == answer
    turn = [{"role": "assistant", "content": "return a[-1-] or <bad>x</bad>"}]
    (record,) = read(tmp_path, {"prompt": "p", "response": turn, "critique": "c"}).records
    assert (record.response, record.spans) == (turn[0]["content"], ()), "no mark-up"


BAD_CELLS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"response": ASKED[:1]}, "no message of the assistant"),
    ({"response": ["a", "b"]}, "neither text nor a list of turns"),
    ({"response": [{"from": "gpt", "value": "a"}]}, "neither text nor a list of turns"),
    ({"prompt": [{"role": "user", "content": [{"type": "text", "text": {"a": 1}}]}]}, "in place of text"),
    ({"prompt": [{"role": "user", "content": {"a": 1}}]}, "the user has an object as content"),
    ({"response": "[{'role': 'assistant', 'content': 'a'}]"}, "write them as JSON"),
    ({"response": True}, "the response is the value true"),
    ({"response": 42}, "the response is the number 42"),
    ({"response": None}, "the response is empty"),
    ({"response": float("nan")}, "the response is empty"),
    ({"prompt": ["a"]}, "the prompt is neither text nor"),
    ({"prompt": 7}, "the prompt is the number 7"),
    ({"prompt": "Who?", "response": ASKED}, "another prompt than the row's"),
    ({"critique": {"text": "a"}}, "the critique is an object"),
    ({"corrected": ["a"]}, "the corrected is neither text nor"),
    ({"annotator": True}, "the annotator is the value true"),
    ({"poor": [{"text": "due"}]}, "poor has an object instead of a quote"),
    ({"good": 1990}, "good has the number 1990 instead of a quote"),
    ({"spans": ["due"]}, "a span is an object"),
    ({"spans": "due"}, "the spans are not a JSON list of objects"),
    ({"spans": [{"text": "due", "label": 1, "occurrence": 0}]}, "occurrence 0"),
    ({"response": "[-a-]{b"}, "is not closed"),
    ({"score": "seven"}, "the score 'seven' is not a number"),
    ({"score": True}, "the score 'True' is not a number"),
    ({"score": 4}, "between -1 and 1 .*--scale 1..5"),
)


def test_a_cell_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    good = {"prompt": "p", "response": DUE, "critique": "c"}
    for row, problem in BAD_CELLS:
        with pytest.raises(UserError, match=rf"line 2: .*{problem}") as caught:
            read(tmp_path, good, {**good, **row})
        assert "\n" not in str(caught.value)


def test_all_bad_rows_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        table(tmp_path, 'prompt,response,score\np,"a\nb",1\np,,1\np,a,7\np,a,x\np,,1\n')
    message = str(caught.value)
    assert "row 3 (line 4), row 6 (line 7): the response is empty; row 4 (line 5): the score 7 is not" in message
    assert "row 5 (line 6): the score 'x' is not a number" in message and "--scale 1..5" in message


SCORED: list[tuple[str, list[Any], tuple[str, ...], list[float], str]] = [
    ("Stars", [4, 5], ("1..5",), [0.5, 1], "ratings 1 to 5 read as -1 to 1 (stars: as --scale says)"),
    ("stars", [4, 5], ("stars=1..5",), [0.5, 1], "as --scale says"),
    ("score", [4, 5], ("1..5",), [0.5, 1], "ratings 1 to 5"),
    ("score", ["4/5", "5/5"], ("1..5",), [0.5, 1], "ratings 1 to 5"),
    ("score", ["2,5", "5"], ("0..5",), [0, 1], "ratings 0 to 5"),
    ("score", ["4/5", "80 %"], (), [0.6, 0.6], "4/5 read as 0.6: on a scale from 0 to its maximum"),
    ("score", [0, 1], (), [0, 1], "scores 0 and 1 are used unchanged"),
    ("score", [0, 1], ("0..1",), [-1, 1], "ratings 0 to 1 read as -1 to 1"),
    ("score", ["0,5", "−1", "0.25 ", "1e-05"], (), [0.5, -1, 0.25, 1e-05], ""),
    ("score", ["good", "Bad", "👎", "neutral", "0"], (), [1, -1, -1, 0, 0], "'Bad' read as -1"),
]


def test_a_score_is_read_on_a_scale_that_is_known_and_told(tmp_path: Path) -> None:
    for column, values, scales, scores, note in SCORED:
        rows = "".join(f'p,r{n},"{value}"\n' for n, value in enumerate(values))
        found = table(tmp_path, f"prompt,response,{column}\n{rows}", scales=scales)
        assert [record.score for record in found.records] == scores
        assert note in "; ".join(found.scales)


def test_a_rating_without_a_scale_is_no_score_and_says_so(tmp_path: Path) -> None:
    found = table(tmp_path, "prompt,response,stars,critique\np,r,4,c\np,s,5,\n")
    assert [record.score for record in found.records] == [None]
    (lost,) = found.unscored
    assert lost.startswith("stars: ") and "4, 5" in lost and "--scale stars=" in lost and lost in found.losses
    for column, values, scales in (("stars", "45", ("1..5",)), ("thumbs", ("down", "up"), ())):
        rows = "".join(f"p,r{value},{value},c\n" for value in values)
        assert not table(tmp_path, f"prompt,response,{column},critique\n{rows}", scales=scales).unscored
    for scales, words in (((), r"--scale stars=WORST\.\.BEST"), (("helpful=1..5",), "its ratings: stars")):
        with pytest.raises(UserError, match=words):
            table(tmp_path, "prompt,response,stars\np,r,4\n", scales=scales)
    with pytest.raises(UserError, match="stars: not on the scale 1 to 5, so without a score: 7"):
        table(tmp_path, "prompt,response,stars\np,r,7\n", scales=("1..5",))


OTHER_FORMS = [
    ("cafe\u0301 is shut", "caf\u00e9", "cafe\u0301", 1),
    ("caf\u00e9 is shut", "cafe\u0301", "caf\u00e9", 1),
    ("“Don’t go” — so", '"Don\'t go" - so', "“Don’t go” — so", 1),
    (DUE, "“next week”", "next week", 0),
    (DUE, "NEXT WEEK", "next week", 1),
    ("Ａ，Ｂ 10", "A,B", "Ａ，Ｂ", 1),
    ("A,B １０", "10", "１０", 1),
]


def test_a_quote_in_another_form_stands_once_in_the_critique(tmp_path: Path) -> None:
    for response, quote, there, normalised in OTHER_FORMS:
        (record,) = read(tmp_path, {"prompt": "p", "response": response, "poor": [quote]}).records
        assert quoted(record) == [(there, -1, "")] and record.critique == f'"{there}": poor'
        assert record.meta.get("normalised", 0) == normalised


def test_a_quote_with_the_brackets_of_mark_up_says_that_they_are_text(tmp_path: Path) -> None:
    row = {"response": "re.sub('[-1-]', s)", "poor": ["'[-1-]'"]}
    (record,) = read(tmp_path, row).records
    assert record.response == row["response"] and quoted(record) == [("'[-1-]'", -1, "")]
    row = {"response": "It is due [-next week-]{the mail}.", "good": ["mail"], "critique": "c"}
    assert read(tmp_path, row).records[0].response == DUE


def test_corrections_are_spans_and_omissions(tmp_path: Path) -> None:
    text = f"{CELLS}p,It is due [-next week-]{{+on Friday+}}.,c\np,It is due {{+today+}}.,c\n"
    replaced, added = table(tmp_path, text).records
    assert (replaced.response, replaced.meta["corrected"]) == (DUE, "It is due on Friday.")
    assert quoted(replaced) == [("next week", -1, "should be: on Friday")]
    assert (added.meta["corrected"], added.meta["omissions"]) == ("It is due today.", ["today"])
    found = table(tmp_path, f"{CELLS}p,It is <del>due</del>.,c\n")
    assert found.records[0].response == "It is <del>due</del>." and "'<del>due</del>' is kept" in found.losses[0]
    text = "prompt,response,corrected\np,It <del>is</del> due.,It <del>is</del> late.\n"
    assert quoted(table(tmp_path, text).records[0]) == [("due", -1, "should be: late")]
    spans, omissions = diff_spans("He came on Monday, sadly.", "He came late on Friday.")
    assert [(s.text, s.reason) for s in spans] == [("Monday, sadly", "should be: Friday")] and omissions == (
        "late",
    )
    assert diff_spans("same", "same") == ((), ())


HEAD = "prompt,response,poor,critique,annotator\n"


def test_an_edited_table_keeps_its_remarks(tmp_path: Path) -> None:
    rows = [f"When is {n} due?,{n} is due next week.,next week,Friday {n}.," for n in range(33)]
    first = table(tmp_path, HEAD + "\n".join(rows)).records
    rows[4] = rows[4].replace("Friday 4", "Monday 4")
    second = table(tmp_path, HEAD + "\n".join(["Who?,Ann.,Ann,No.,", *reversed(rows)])).records
    both = merge_feedback(first, second)
    assert len(both) == 34 and [record.id for record in both[:33]] == [record.id for record in first]
    assert [record.critique for record in both if "Monday" in record.critique] == ["Monday 4."]
    export(first[:1], "csv", tmp_path / "mine.csv")
    text = (tmp_path / "mine.csv").read_text(encoding="utf-8").replace("Friday 0", "Sunday 0")
    assert len(merge_feedback(first[:1], table(tmp_path, text).records)) == 1, (
        "what is exported replaces what was there"
    )


def test_the_same_remark_twice_is_one_and_two_people_are_two(tmp_path: Path) -> None:
    row = "When?,It is late.,late,No."
    found = table(tmp_path, HEAD + "\n".join([f"{row},", f"{row},", f"{row},ann", f"{row},bob", f"{row} So.,bob"]))
    assert [record.meta.get("annotator", "") for record in found.records] == ["", "ann", "bob", "bob"]
    assert len({record.id for record in found.records}) == 3
    assert found.losses == ("row 3: repeats the remark in row 2: left out",)
    assert merge_feedback(found.records, found.records) == found.records
    for records, people in ((found.records[:1] * 2, 0), (found.records[1:3], 1)):
        write_jsonl(tmp_path / "out.jsonl", records)
        assert feedback_quality(tmp_path / "out.jsonl")["several_annotators"] == people


def test_published_critiques_without_marks(tmp_path: Path) -> None:
    draft = {"id": "1", "title": "t", "post": "p", "generated_summary_for_feedback": "s", "feedback": "Too short."}
    record = read(tmp_path, draft).records[0]
    assert (record.response, record.critique, record.source.kind) == ("s", "Too short.", "human")
    rated = [{"response": "r", "critique": "Good.", "overall_score": 10}, {"response": "q", "critique": ""}]
    (record,) = read(tmp_path, {"instruction": "i", "completions": rated}).records
    assert (record.response, record.score, record.source.kind) == ("r", 1.0, "llm")


def test_a_quote_may_hold_a_line_separator(tmp_path: Path) -> None:
    text = "It is\u2028due."
    (record,) = table(tmp_path, f'prompt,response,poor\np,"{text}","is\u2028due"\n').records
    assert quoted(record) == [("is\u2028due", -1, "")]


def test_whole_numbers_are_read_as_they_are_written(tmp_path: Path) -> None:
    many = [1234567890123456781, 1234567890123456782]
    found = read(tmp_path, *({"prompt": "p", "response": DUE, "critique": "c", "annotator": n} for n in many))
    assert [record.meta["annotator"] for record in found.records] == list(map(str, many))
    big = 10**400
    assert read(tmp_path, {"id": big, "response": DUE, "critique": "c"}).records[0].id == str(big)
    mark = {"start": 10, "end": 10**400, "label": "bad"}
    assert read(tmp_path, {"text": DUE, "label": [mark]}).report.unmatched == 1


def test_a_row_without_a_rating_stays_beside_one_that_is_left_out(tmp_path: Path) -> None:
    text = "prompt,response,critique,stars\np,a,fine,5\np,b,no stars,\np,,empty,3\n"
    (tmp_path / "mine.csv").write_text(text, encoding="utf-8")
    found = import_feedback(tmp_path / "mine.csv", scales=["stars=1..5"], skip=True)
    assert [(record.response, record.score) for record in found.records] == [("a", 1.0), ("b", None)]


@pytest.mark.parametrize("name", ["records.json", "records.jsonl.gz"])
def test_our_records_are_read_in_each_form_of_json(name: str, tmp_path: Path) -> None:
    record = Feedback(
        id="1", prompt=(Message(role="user", content="?"),), response="a", critique="b", source=Source(kind="human")
    )
    rows = [record_json(record)]
    data = f"[{','.join(rows)}]" if name.endswith(".json") else "\n".join(rows)
    (tmp_path / name).write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
    assert list(import_feedback(tmp_path / name).records) == [record]
