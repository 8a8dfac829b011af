"""Exports of tools: scales that are declared or not, offsets in whatever counting, other texts,
several people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from human_data import corrected_file
from text2grad.data.records import ImportResult, import_feedback, merge_feedback
from text2grad.data.spans.marks import BROWSER, CODE_POINTS, Counting, Mark, to_code_points
from text2grad.errors import UserError
from text2grad.jsonl import write_jsonl

D = {"prompt": "When?", "response": "It is due next week."}
EMOJI = "Ja 🙂, it is 🎉 next week."
CRLF = "one two\r\nthree four\r\nfive"


def read(folder: Path, content: Any, name: str = "a.json", **said: Any) -> ImportResult:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return import_feedback(folder / name, no_prompt=True, **said)


def studio(*results: dict[str, Any], data: Any = D, id: int = 1) -> dict[str, Any]:
    return {"id": id, "data": data, "annotations": [{"id": 10 * id, "completed_by": 3, "result": list(results)}]}


def whole(kind: str, value: Any, name: str = "q", to: str = "response") -> dict[str, Any]:
    return {"from_name": name, "to_name": to, "type": kind, "id": name, "value": {kind: value}}


def region(start: Any, end: Any, text: str = "", label: str = "bad", to: str = "text") -> dict[str, Any]:
    value = {"start": start, "end": end, "labels": [label], **({"text": text} if text else {})}
    return {"from_name": "label", "to_name": to, "type": "labels", "id": f"{start}-{end}", "value": value}


def nameless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without an id of its own."""
    return {name: value for name, value in result.items() if name != "id"}


def argilla(id: str = "x", fields: Any = D, **answers: Any) -> dict[str, Any]:
    responses = {name: [{"value": value, "user_id": "u"}] for name, value in answers.items()}
    return {"id": id, "fields": fields, "responses": responses}


# Ratings.

EXCELLENT, GOOD = (whole("choices", [word]) for word in ("Excellent", "Good"))
OKS = [argilla(ok=True), argilla("y", ok=False), argilla("z", ok=None)]
RATED: list[tuple[list[Any], list[str], list[float | None], str]] = [
    ([studio(whole("number", 1))], [], [None], "--scale q=WORST..BEST"),
    ([studio(whole("rating", 4))], ["1..10"], [-0.333333], "ratings 1 to 10 read as -1 to 1"),
    ([studio(*map(nameless, (region(0, 2), whole("rating", 4))))], ["1..5"], [0.5], "ratings 1 to 5"),
    ([studio(whole("choices", ["Bad"]))], [], [-1], "'Bad' read as -1"),
    ([studio(whole("choices", ["Yes"], "has_error"))], [], [None], "--scale has_error="),
    ([studio(EXCELLENT), studio(GOOD, id=2)], [], [None, None], "order"),
    ([studio(whole("taxonomy", [["a", "b"]]))], [], [None], "q: kept in meta.aside"),
    ([studio(whole("rating", 3, "a"), whole("rating", 5, "b"))], ["1..5"], [None], "--map score=a"),
    ([studio(whole("rating", 3, "a"), whole("rating", 5, "overall"))], ["1..5"], [1], "kept in meta.ratings"),
    ([argilla(rating=1), argilla("y", rating=5), argilla("z", rating=0)], [], [None] * 3, "--scale rating="),
    (OKS, ["no,false,true"], [1, 0, None], "nothing"),
    ([argilla(grade="A"), argilla("y", grade="C")], ["F,D,C,B,A"], [1, 0], "f, d, c, b, a read as -1 to 1"),
    ([argilla(toxicity=5)], [], [None], "--scale toxicity="),
    ([argilla(toxicity=5)], ["toxicity=5..1"], [-1], "ratings 5 to 1 read as -1 to 1"),
    ([argilla(tags=["good", "short"])], [], [1], "'good, short' read as 1"),
    ([argilla(tags=["good", "wrong"])], [], [None], "tags: neither praise nor criticism"),
    ([argilla(order=[{"value": "a", "rank": 1}])], [], [None], "order: kept in meta.aside"),
    ([argilla(note="It is wrong, I fear.")], [], [None], ""),
    ([argilla(mark="4/5"), argilla("y", mark="3,5")], ["1..5"], [0.5, 0.25], "ratings 1 to 5"),
    ([argilla(mark="4/5")], [], [0.6], "on a scale from 0 to its maximum"),
]


def test_a_rating_is_a_score_only_on_a_known_scale(tmp_path: Path) -> None:
    for rows, scales, scores, note in RATED:
        found = read(tmp_path, rows, scales=scales)
        assert [record.score for record in found.records] == scores
        assert note in "\n".join((*found.scales, *found.losses))
        assert any(record.meta.keys() & {"ratings", "aside"} or record.critique for record in found.records)


VIEW = "<View><Text name='t' value='$response'/><{tag} name='q' toName='t' {more}</View>"


def choices(*words: str) -> str:
    return ">" + "".join(f"<Choice value='{word}'/>" for word in words) + "</Choices>"


DECLARED: list[tuple[str, str, dict[str, Any], float | None]] = [
    ("Rating", "maxRating='10'/>", whole("rating", 4, to="t"), -0.333333),
    ("Rating", "/>", whole("rating", 4, to="t"), 0.5),
    ("Rating", "/>", whole("rating", 9, to="t"), None),
    ("Number", "min='0' max='100'/>", whole("number", 40, to="t"), -0.2),
    ("Number", "/>", whole("number", 40, to="t"), None),
    ("Choices", choices("1", "2", "3"), whole("choices", ["2"], to="t"), 0),
    ("Choices", choices("Poor", "Fair", "Good", "Excellent"), whole("choices", ["fair"], to="t"), None),
    ("Choices", choices("Meh", "Good", "Superb"), whole("choices", ["Good"], to="t"), None),
    ("Choices", choices("Good", "Bad", "Cannot tell"), whole("choices", ["Good"], to="t"), 1),
]


def test_label_studios_configuration_declares_the_scale(tmp_path: Path) -> None:
    for tag, more, result, score in DECLARED:
        view = VIEW.format(tag=tag, more=more)
        found = read(tmp_path, [{**studio(result), "label_config": view}])
        assert found.records[0].score == score and bool(found.losses) == (score is None)
        for name in ("a.xml", "label_config.xml", "config.xml"):
            (tmp_path / name).write_text(view, encoding="utf-8")
            assert read(tmp_path, [studio(result)]).records[0].score == score
            (tmp_path / name).unlink()


def test_argillas_settings_declare_scales_texts_and_what_is_written(tmp_path: Path) -> None:
    fields = {"instruction": "p", "generation": "It is so."}
    words = [{"value": word} for word in ("meh", "good", "top")]
    questions = [
        {"name": "r", "settings": {"type": "rating", "options": [{"value": n} for n in range(11)]}},
        {"name": "v", "settings": {"type": "label_selection", "options": words}},
        {"name": "t", "settings": {"type": "text"}},
        {"name": "s", "settings": {"type": "span", "field": "instruction"}},
    ]
    mark = {"start": 0, "end": 1, "label": "bad"}
    row = argilla(fields=fields, r=0, v="good", t="wrong", s=[mark])
    content = {"settings": {"questions": questions}, "records": [row]}
    found = read(tmp_path, content, names=["response=generation,score=r"])
    (record,) = found.records
    assert (record.score, record.critique, record.spans, record.response) == (-1, "wrong", (), "It is so.")
    assert found.scales[0] == "ratings 0 to 10 read as -1 to 1 (r: as a.json says)"
    assert any("on 'instruction' and not on the response: 1" in loss for loss in found.losses)


# Offsets.


OFFSETS: list[tuple[str, tuple[Any, ...], Counting | None, str]] = [
    (EMOJI, (16, 25), BROWSER, "next week"),
    (EMOJI, (14, 23), None, "next week"),
    (EMOJI, (16, 25), None, "next week"),
    (EMOJI, (15, 21), CODE_POINTS, "ext we"),
    (EMOJI, (14, 23, "next week"), BROWSER, "next week"),
    (EMOJI, (0, 3, "next week"), BROWSER, "next week"),
    (EMOJI, (0, 3, "next month"), BROWSER, ""),
    (CRLF, (8, 13), BROWSER, "three"),
    (CRLF, (9, 14), BROWSER, "three"),
    (CRLF, (4, 13, "two\\nthree"), BROWSER, "two\r\nthree"),
    (CRLF, (4, 14, "two\r\nthree"), CODE_POINTS, "two\r\nthree"),
    (CRLF, (0, 99), BROWSER, ""),
    ('f("a\\nb")\nx', (0, 9, 'f("a\\nb")'), BROWSER, 'f("a\\nb")'),
    ("a b a", (1, 2, "a"), BROWSER, ""),
    ("今天🙂下周末吧", (4, 5), None, ""),
]


def test_offsets_are_counted_as_their_quotes_say() -> None:
    for text, (start, end, *quote), tool, found in OFFSETS:
        (place,) = to_code_points([Mark(start, end, "bad", *quote)], text, tool)
        assert (text[place.start : place.end] if 0 <= place.start < place.end else "") == found
    marks = to_code_points([Mark(14, 23, "bad", "next week"), Mark(15, 17, "bad")], EMOJI, BROWSER)
    assert [EMOJI[mark.start : mark.end] for mark in marks] == ["next week", "ex"], "as the others are"


NOW, OR = {"question": "Now or b?", "answer": "b it is"}, {"question": "b or c?", "answer": "b it is"}
REGIONS: list[tuple[dict[str, str], dict[str, Any], list[str], str]] = [
    ({"text": "a b"}, region("0", "1"), ["a"], ""),
    ({"text": "a b"}, region(0, 1, to="anything"), ["a"], ""),
    (NOW, region(0, 3, "Now", to="question"), [], "on 'question'"),
    (NOW, region(0, 3, "Now", to="q"), [], "on 'question'"),
    (NOW, region(0, 1, "b", to="a"), ["b"], ""),
    (OR, region(0, 1, "b", to="a"), [], "any of several texts"),
    (OR, region(0, 1, to="a"), [], "--map response=KEY"),
]


def test_a_region_belongs_to_the_text_it_is_on(tmp_path: Path) -> None:
    for data, result, spans, note in REGIONS:
        found = read(tmp_path, [studio(result, data=data)])
        assert [span.text for span in found.records[0].spans] == spans
        assert bool(found.losses) == bool(note) and note in "\n".join(found.losses)


# Several people, and what nobody meant.


def test_two_people_are_two_opinions(tmp_path: Path) -> None:
    rows = [{"text": "N", "label": "GOOD", "answer": how, "_annotator_id": how} for how in ("accept", "reject")]
    records = read(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl").records
    assert [record.score for record in records] == [1, -1]
    write_jsonl(tmp_path / "own.jsonl", merge_feedback([], records))
    assert (
        import_feedback(tmp_path / "own.jsonl", no_prompt=True).records
        == records
        == merge_feedback(records[:1], records[1:])
    )
    row = json.dumps({"id": 1, "text": "It is so.", "label": ["bad"], "Comments": []})
    ann, ben, everyone = (read(tmp_path, row, f"{name}.jsonl").records for name in ("ann", "ben", "all"))
    assert [record.meta.get("annotator") for record in (*ann, *ben, *everyone)] == ["ann", "ben", None], "doccano"
    assert len(merge_feedback(ann, ben)) == 2


def test_what_nobody_submitted_is_no_opinion_and_what_was_rejected_a_failure(tmp_path: Path) -> None:
    mark = {"start": 10, "end": 19, "label": "poor"}
    spans = [
        {"value": [mark], "status": "submitted", "user_id": "u"},
        {"value": [], "status": "draft", "user_id": "v"},
    ]
    (record,) = read(tmp_path, [{"id": "r", "fields": D, "responses": {"spans": spans}}]).records
    assert [span.text for span in record.spans] == ["next week"]
    row = {"text": "It is.", "spans": [], "answer": "reject"}
    (record,) = read(tmp_path, json.dumps(row), "x.jsonl").records
    assert record.error is not None and record.error.kind == "unsupported"


def test_our_own_records_come_back_as_they_are(tmp_path: Path) -> None:
    first = import_feedback(corrected_file(tmp_path / "remarks.jsonl", 3))
    write_jsonl(tmp_path / "own.jsonl", first.records)
    again = import_feedback(tmp_path / "own.jsonl", no_prompt=True)
    assert again.records == first.records and again.report.source == "feedback"
    assert again.report.model_copy(update={"source": "remarks"}) == first.report


PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}
FLAT_TABLE = "id,prompt,response,q.responses,q.responses.users,q.responses.status\n1,p,r,\"['bad']\",\"['u']\",x\n"
PLACELESS = {"type": "hypertextlabels", "value": {"start": "/p[1]/text()[1]", "end": "/p[1]"}}
LABELS = [{"text": "a", "label": [[0]]}, {"text": "a", "label": [["x", 1, "bad"]]}]
FOUR = [studio(whole("rating", 4))]
UNREADABLE: list[tuple[Any, dict[str, Any], str]] = [
    ([{"id": 3, "data": D, "predictions": [{"result": []}]}], {}, "has no opinions: predictions of a model"),
    ([{"data": {"image": "x"}, "annotations": []}] * 3, {}, "record 1, record 2, .*--map response=KEY"),
    ([studio(), {"id": 2, "data": {}, "annotations": []}], {}, r"record 2: no text .*--map response=KEY"),
    ([studio(PLACELESS)], {}, "offsets"),
    ([{**studio(), "annotations": [3]}], {}, "not a record of label_studio"),
    ([{"foo": {"bar": "x"}}], {}, r"name the keys: --map .*keys: foo.bar"),
    ([PAIR], {}, "DPOTrainer"),
    ([{"options": [{"id": 1}], "answer": "accept", "accept": [1]}], {}, "DPOTrainer"),
    (LABELS, {}, "is it the right file"),
    ([{"id": 1, "outputs": {"a": "x", "b": "y"}, "feedback": [{"key": "k"}]}], {}, "--map response=a"),
    ([argilla(fields={"q": "p", "a": "r"}, x=1)], {}, r"--map response=KEY; keys with text: q, a"),
    ([argilla(q="good"), {"id": "y", "fields": 3, "responses": {}}], {}, "record 2: not a record of argilla"),
    (FLAT_TABLE, {}, "export the records as JSON"),
    (FOUR, {"names": ["respons=a"]}, "did you mean 'response'"),
    (FOUR, {"names": ["response"]}, "is not a pair"),
    (FOUR, {"names": ["score=stars"]}, "no rating 'stars'"),
    ([argilla(q=1), argilla("y", q=9)], {"scales": ["1..5"]}, "not on the scale 1 to 5, .*: 9"),
    ([argilla(q=1)], {"scales": ["stars=1..5"]}, r"no rating 'stars' .*its ratings: q"),
    ("", {"kind": "feedback", "scales": ["1..5"]}, "--scale is for tables and remarks, .* not for feedback"),
    ("", {}, "is empty"),
    ("", {"kind": "argilla"}, "no records"),
    ('{"colour": "red"}', {"kind": "slf5k"}, "record 1: no 'feedback'"),
    ('{"colour": "red"}', {"kind": "feedback"}, "record 1: id: Field required"),
    ("{}", {"kind": "handwriting"}, "unknown kind .*one of auto, feedback"),
]


def test_what_cannot_be_read_names_its_cure(tmp_path: Path) -> None:
    for content, options, problem in UNREADABLE:
        with pytest.raises(UserError, match=problem) as caught:
            read(tmp_path, content, "a.csv" if content == FLAT_TABLE else "a.json", **options)
        usage = bool(options.keys() & {"names", "scales"}) or "unknown" in problem
        assert caught.value.exit_code == (2 if usage else 1), problem


def test_a_folder_and_a_broken_configuration_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.xml").write_text("<View", encoding="utf-8")
    with pytest.raises(UserError, match=r"config.xml: not a labelling configuration: .*move it away"):
        read(tmp_path, [studio(whole("rating", 4))])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="none has no files of feedback"):
        import_feedback(tmp_path / "none")


def test_labels_may_be_said_to_praise_or_blame(tmp_path: Path) -> None:
    marks = region(0, 2, "It", "Typo"), region(3, 5, "is", "Nice"), region(6, 9, "due", "Date")
    row = studio(*marks, data={"text": D["response"]})
    plain = read(tmp_path, [row])
    assert plain.records[0].spans == () and "'Typo' (1), 'Nice' (1), 'Date' (1)" in "\n".join(plain.losses)
    mapped = read(tmp_path, [row], names=["poor=Typo", "good=Nice,poor=Date"])
    assert [(span.text, span.label) for span in mapped.records[0].spans] == [("It", -1), ("is", 1), ("due", -1)]


def test_a_conversation_is_its_last_answer_and_a_table_with_a_label_is_a_table(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        {"role": "assistant", "content": "No."},
    ]
    (record,) = read(tmp_path, [studio(whole("choices", ["bad"], to="chat"), data={"chat": turns})]).records
    assert (record.prompt[0].content, record.response, record.score) == ("When?", "No.", -1)
    found = read(tmp_path, "text,response,critique,label\nx,It is so.,No.,bad\n", "a.csv")
    assert (found.report.source, found.records[0].critique, found.ignored) == ("csv", "No.", ("text", "label"))
    row = {"text": "It is.", "spans": [{"start": 0, "end": 2, "label": "BAD"}], "options": [{"id": "good"}]}
    (record,) = read(tmp_path, json.dumps({**row, "accept": ["good"], "answer": "accept"}), "a.jsonl").records
    assert ([span.text for span in record.spans], record.score) == (["It"], 1), "marks and a choice of Prodigy"


def test_a_text_of_a_flat_file_that_nothing_declares_is_asked_for(tmp_path: Path) -> None:
    row = {**D, "id": 9, "annotation_id": 90, "annotator": 1, "lead_time": 1.0}
    row |= {"verdict": "Bad", "why": "Too late."}
    plain = read(tmp_path, [row, {**row, "annotator": 2, "verdict": "Good"}])
    assert [(record.score, record.critique) for record in plain.records] == [(-1, ""), (1, "")]
    assert any("why: kept in meta.aside" in loss and "--map critique=why" in loss for loss in plain.losses)
    mapped = read(tmp_path, [row], names=["critique=why"])
    assert (mapped.records[0].critique, mapped.losses) == ("Too late.", ())
