"""The quality report: its figures from records counted by hand, and a page that shows them harmlessly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from text2grad.chat.prices import cost_by
from text2grad.errors import UserError
from text2grad.feedback import Feedback, write_jsonl
from text2grad.report.quality import report_quality, token_alpha

RESPONSE = "One two three four. Five six <b>seven</b>."  # 16 words and signs


def record(id: str, *quotes: tuple[str, int], **more: Any) -> Feedback:
    spans = [
        {"start": RESPONSE.index(q), "end": RESPONSE.index(q) + len(q), "label": label, "text": q}
        for q, label in quotes
    ]
    base = {"id": id, "prompt": [{"role": "user", "content": "Count."}], "response": RESPONSE, "spans": spans}
    return Feedback.model_validate({**base, "source": {"kind": "llm"}, **more})


RECORDS = [
    record("a", ("One two", 1), ("six", -1), usage={"prompt_tokens": 100, "completion_tokens": 10, "usd": 0.5}),
    record("a", ("One two", 1), ("six", -1), meta={"unmatched": 1, "normalised": 1, "annotator": "anna"}),
    record("b", ("One two three", 1), meta={"ambiguous": 2, "omissions": ["eight"]}),
    record("c", error={"kind": "refused", "message": "no"}),
    record("d", error={"kind": "invalid", "message": "quotes"}, meta={"unmatched": 1, "dropped_spans": 1}),
]


def test_figures(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    write_jsonl(file, RECORDS)
    found = report_quality(file)
    # 5 spans and 1 dropped, 2 ambiguous quotes: 8 found, one of them normalised; 2 of 10 quotes are absent.
    assert {
        name: found[name] for name in ("records", "spans", "exact", "normalised", "unmatched", "ambiguous")
    } == {
        "records": 5,
        "spans": 5,
        "exact": 7,
        "normalised": 1,
        "unmatched": 2,
        "ambiguous": 2,
    }
    assert found["unmatched_rate"] == 0.2 and found["failed"] == {"invalid": 1, "refused": 1}
    assert (found["refused"], found["repeated_records"], found["omissions"]) == (1, 1, 1)
    assert (found["tokens_per_response"], found["dense_tokens_per_record"]) == (16, 32)
    assert found["annotation_tokens_per_record"] == pytest.approx((5 + 5 + 4) / 3, abs=1e-4)
    assert found["labelled_share"] == pytest.approx(9 / 48, abs=1e-4) and found["good_share"] == round(7 / 9, 4)
    assert (found["usd"], found["usd_per_record"], found["input_tokens"]) == (0.5, 0.5, 100)
    good = found["good_spans"]
    assert (good["count"], good["min"], good["q1"], good["q2"], good["q3"], good["max"]) == (3, 2, 2, 2, 2.5, 3)
    assert good["position"] == [3, 0, 0, 0, 0] and found["poor_spans"]["position"] == [0, 0, 0, 2, 0]
    assert (found["annotation_tokens"], found["dense_tokens"]) == (14, 96)
    # a and a again (anna) and b are about one response; the first it was met by names it.
    assert found["several_annotators"] == 1 and found["agreement"] == {"a": found["agreement_alpha"]}


def test_one_record_twice_is_one_opinion_and_the_least_agreement_comes_first(tmp_path: Path) -> None:
    other = RESPONSE + " Eight."
    said = [
        *[record("same", ("six", 1))] * 2,
        record("x", ("One", 1), response=other),
        record("x", ("Five", 1), response=other, meta={"annotator": "bert"}),
        record("y", ("One", 1), response=other + "!"),
        record("y", ("One", 1), response=other + "!", source={"kind": "human"}),
    ]
    file = tmp_path / "f.jsonl"
    write_jsonl(file, said)
    found = report_quality(file, tmp_path / "page.html")
    assert (found["several_annotators"], list(found["agreement"])) == (2, ["x", "y"])
    assert found["agreement"]["x"] < 0 < found["agreement"]["y"] == 1 and found["repeated_records"] == 3
    assert list(report_quality(file, named=1)["agreement"]) == ["x"]
    page = (tmp_path / "page.html").read_text()
    assert "Agreement by response" in page
    assert page.count('<details class="example" open>') == 6 and '<mark class="good" title="">One</mark>' in page


def test_a_dense_annotation_is_priced_at_the_discount_the_record_had(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    usage = {"prompt_tokens": 1000.0, "completion_tokens": 100.0, "usd": 0.00175}  # half of gpt-4o's price
    one = record("a", ("One two", 1), usage=usage, source={"kind": "llm", "model": "gpt-4o"})
    unknown = record("b", usage=usage, source={"kind": "llm", "model": "nobody's"})
    write_jsonl(file, [one, unknown])
    # 3 tokens were written for the span, 32 would be for every token.
    dense = (1000 * 2.5 + (100 + 32 - 3) * 10) / 1e6 / 2
    assert report_quality(file, cost=cost_by(None))["usd_dense_per_record"] == pytest.approx(dense, abs=1e-6)
    assert report_quality(file)["usd_dense_per_record"] is None


def test_alpha_by_hand() -> None:
    # Nominal alpha: 1 - (n - 1) * disagreeing pairs / expected ones; here 1 of 4 units differs.
    assert token_alpha([[0, 0, 1, 1], [0, 0, 1, 0]]) == pytest.approx(1 - 7 * 2 / (2 * 5 * 3))
    assert token_alpha([[0, 1], [0, 1]]) == 1.0
    assert token_alpha([[0, 0], [0, 0]]) is None


@pytest.mark.parametrize(
    ("expected", "quotes", "moved"),
    [
        ([("six", -1)], [("six", -1)], 0),
        ([("six", -1)], [("six", 1)], 1),
        ([("six", -1)], [], 1),
        ([("One two three", 1)], [("One two", 1)], 0),
        ([("One two three", 1)], [("One", 1)], 1),
        ([], [(RESPONSE, 1)], 1),
        ([], [], 0),
    ],
)
def test_a_canary_whose_labels_moved_is_counted(tmp_path: Path, expected: Any, quotes: Any, moved: int) -> None:
    known = [
        {"start": RESPONSE.index(q), "end": RESPONSE.index(q) + len(q), "label": label} for q, label in expected
    ]
    file = tmp_path / "f.jsonl"
    write_jsonl(file, [record("a", *quotes, meta={"canary": known})])
    found = report_quality(file)
    assert (found["canaries"], found["canaries_moved"]) == (1, moved)
    write_jsonl(tmp_path / "plain.jsonl", RECORDS)
    beside = report_quality(tmp_path / "plain.jsonl", canaries=file)
    assert (beside["records"], beside["canaries"], beside["canaries_moved"]) == (5, 1, moved)


def test_the_page_is_inert(tmp_path: Path) -> None:
    file = tmp_path / "<script>alert(1)<.jsonl".replace("/", "")
    write_jsonl(file, RECORDS)
    page = tmp_path / "page.html"
    assert report_quality(file, page)["out"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert (
        "<script" not in text
        and "default-src &#39;none&#39;" in text
        and "unmatched rate" in text
        and "0.2" in text
    )


def test_nothing_to_report(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").touch()
    with pytest.raises(UserError, match="holds no records"):
        report_quality(tmp_path / "f.jsonl")
