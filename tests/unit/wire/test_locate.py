"""Quotes that are not in the response to the letter: what is found, where, and what is not."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotable_responses import judged
from text2grad.align import CreditSettings, TokenTable, credit
from text2grad.chat import Completion
from text2grad.critics.prompted import Reader
from text2grad.feedback import Critique, Failure, Span, Tolerance
from text2grad.wire import parse, render

RESPONSE = "She said: “Don’t go…” — twice, in Straße 7.\n\nThe  fair\tends on the 5th. Don’t go again."
SEARCH: Tolerance = "normalised"


def found(quote: Any, search: Tolerance = SEARCH, response: str = RESPONSE) -> Critique:
    z = json.dumps({"critique": "c", "good_spans": quote if isinstance(quote, list) else [quote], "poor_spans": []})
    critique = parse(z, response, search)
    assert isinstance(critique, Critique)
    assert all(response[s.start : s.end] == s.text for s in critique.spans)
    return critique


FOUND: list[tuple[str, str, str]] = [
    # other quotes, dashes and spaces lead to the response's own characters
    ('"Don\'t go..."', RESPONSE, "“Don’t go…”"),
    ("- twice", RESPONSE, "— twice"),
    ("The fair ends", RESPONSE, "The  fair\tends"),
    ("7. The fair", RESPONSE, "7.\n\nThe  fair"),
    ("  ends on ", RESPONSE, "ends on"),
    # one letter in two forms is one letter
    ("caf\u00e9", "a cafe\u0301.", "cafe\u0301"),
    ("cafe\u0301", "a caf\u00e9.", "caf\u00e9"),
    ("e\u0323\u0302", "x e\u0302\u0323 y", "e\u0302\u0323"),
    ("\u1ec7", "x e\u0302\u0323 y", "e\u0302\u0323"),
    ("\u1161e\u0301", " \u1161\u00e9", "\u1161\u00e9"),  # a vowel that stands alone
    ("\uac01", "x \u1100\u1161\u11a8 y", "\u1100\u1161\u11a8"),
    ("\u1100\u1161\u11a8", "x \uac01 y", "\uac01"),
    ("\u212b", "5 \u00c5", "\u00c5"),
    ("A,B", "\uff21\uff0c\uff22", "\uff21\uff0c\uff22"),
    ("\uff11\uff10", "10 kg", "10"),
    ("\u30ac", "x \uff76\uff9e y", "\uff76\uff9e"),
    ("file", "a \ufb01le", "\ufb01le"),
]
NOT_FOUND: list[tuple[str, str]] = [
    # another text, or part of a word
    *((quote, RESPONSE) for quote in ("the FAIR ends", "go..", "fai", "The fair ends on the 5th!", "’t", " \n ")),
    # half of a letter
    *(("cafe", text) for text in ("a cafe\u0301.", "a caf\u00e9.")),
    *((quote, "x \uac01 y") for quote in ("\uac00", "\u1100\u1161")),
    ("\u0301", "a caf\u00e9."),
    ("x2", "x\u00b2"),
]


def test_another_form_of_a_text_leads_to_the_responses_own_characters() -> None:
    for quote, response, there in FOUND:
        critique = found(quote, SEARCH, response)
        assert ([span.text for span in critique.spans], critique.quotes.normalised) == ([there], 1), quote
        exact = found(quote, "exact", response)
        assert (exact.quotes.unmatched, exact.lost) == (1, (quote,))
    for quote, response in NOT_FOUND:
        critique = found(quote, SEARCH, response)
        counts = critique.quotes
        assert critique.spans == () and counts.unmatched + counts.ambiguous == 1 and not counts.normalised, quote


def test_capitals_count_unless_they_are_said_not_to() -> None:
    """Other capitals are looked for only where the quote is not found as it is."""
    text = "Us and US, the us of old: Polish polish."
    search: Tolerance = "any_case"
    assert [s.text for s in found("the FAIR ends", search).spans] == ["The  fair\tends"]
    assert [s.text for s in found("STRASSE", search).spans] == ["Straße"]
    assert found("ends on the.", search).quotes.unmatched == 1
    assert [s.start for s in found("US", search, text).spans] == [text.index("US")]
    assert [s.start for s in found("polish", search, text).spans] == [text.rindex("polish")]
    assert found("uS", search, text).quotes.ambiguous == 1


@given(st.text(alphabet="ae\u00e9\u0301\u0323\u1ea1 \uac01\u1100\u1161\u11a8.", min_size=1, max_size=12), st.data())
def test_any_words_are_found_in_the_other_normal_form(response: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(response) - 1))
    quote = response[start : data.draw(st.integers(start + 1, len(response)))]
    for form in ("NFC", "NFD"):
        other = unicodedata.normalize(form, response)  # type: ignore[arg-type]
        for span in found({"quote": quote, "occurrence": 1}, SEARCH, other).spans:
            same = [" ".join(unicodedata.normalize("NFC", text).split()) for text in (span.text, quote)]
            assert same[0] == same[1] and other[span.start : span.end] == span.text
        whole = unicodedata.normalize("NFC", response)
        if response.strip() and "\u0301" not in whole and "\u0323" not in whole:
            assert found({"quote": response.strip(), "occurrence": 1}, SEARCH, other).spans


@given(judged())
def test_tolerance_changes_nothing_of_what_is_quoted_as_it_is(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    assert parse(z, response, "any_case") == parse(z, response, "normalised") == parse(z, response)


def test_repeats_go_by_order_or_by_index_here_too() -> None:
    places = [i for i in range(len(RESPONSE)) if RESPONSE.startswith("Don’t go", i)]
    assert [span.start for span in found(["Don't go", "Don't go"]).spans] == places
    assert [span.start for span in found({"quote": "Don't go", "occurrence": 2}).spans] == places[1:]
    assert found("Don't go").quotes.ambiguous == 1


PIECES = st.sampled_from(["word", "Don’t", "“", "”", " ", "\n", "…", "—", "5", ".", "🙂", "\u00a0", "ß"])


@given(st.lists(PIECES, max_size=30), st.integers(0, 60), st.integers(1, 30))
def test_the_plain_form_of_any_quote_leads_back_to_it(pieces: list[str], start: int, length: int) -> None:
    response = "".join(pieces)
    quote = response[start : start + length]
    plain = quote.replace("’", "'").replace("“", '"').replace("”", '"').replace("…", "...").replace("—", "-")
    plain = " ".join(plain.split())
    z = json.dumps({"critique": "", "good_spans": [{"quote": plain, "occurrence": 1}], "poor_spans": []})
    critique = parse(z, response, "normalised")
    assert isinstance(critique, Critique)
    for span in critique.spans:
        assert response[span.start : span.end] == span.text and span.text.strip() == span.text


def test_validation() -> None:
    absent = Completion(text='{"critique": "c", "good_spans": ["zzz", "word"], "poor_spans": []}')
    for annotator in (False, True):
        reader = Reader(annotator)
        judgement = reader.read(absent, "word")
        assert reader.needs_retry(judgement) is annotator
        assert isinstance(reader.validate(judgement), Failure if annotator else Critique)


def test_a_weight_is_a_factor_of_the_spans_rewards(tokenizer: Any) -> None:
    aligned = TokenTable(tokenizer).align_text("good words and poor words")
    whole = Critique(text="", spans=(Span(start=0, end=10, label=1, text="good words"),))
    half = whole.model_copy(update={"spans": (whole.spans[0].model_copy(update={"weight": 0.5}),)})
    for weighting in ("token", "span"):
        settings = CreditSettings(weighting=weighting)  # type: ignore[arg-type]
        full = credit(whole, aligned, settings).delta
        assert full.any() and (credit(half, aligned, settings).delta == 0.5 * full).all()
    assert "weight" not in whole.spans[0].model_dump_json() and '"weight":0.5' in half.spans[0].model_dump_json()


SCRIPTS = {
    "Arabic": ("هذا منزل كبير", "منزل", "من"),
    "Hebrew": ("לאט לא", "לא", "ל"),
    "Hindi": ("कि क्या", "कि", "क"),
    "Persian": ("می\u200cخواهم بروم", "می\u200cخواهم", "خواهم"),
    "Amharic": ("ሰላም ዓለም", "ሰላም", "ሰላ"),
    "Thai": ("รายงานที่นี่", "งาน", "ท"),
    "Chinese": ("苹果是红色的", "红", ""),
    "Korean": ("보고서는 월요일에", "보고서", "\u1107"),
    "flags": ("a 🇩🇪🇫🇷 b", "🇩🇪", "🇩"),
    "a family": ("👩\u200d👩\u200d👧 👍🏽", "👍🏽", "👩"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_and_characters_of_every_script_are_not_cut(script: str) -> None:
    response, whole, half = SCRIPTS[script]
    for tolerance in ("exact", "normalised"):
        assert [span.text for span in found(whole, tolerance, response).spans] == [whole]
        assert not half or found(half, tolerance, response).spans == ()


def test_invisible_characters_of_a_browser_do_not_hide_a_quote() -> None:
    for control in "\u061c\u200e\u200f\u202a\u202e\u2066\u2069":
        assert [span.text for span in found(f"{control}fair{control}").spans] == ["fair"]
        response = f"לא {control}טוב{control} כן"
        (span,) = found("טוב כן", response=response).spans
        assert (span.start, span.text) == (response.index("ט"), f"טוב{control} כן")
    assert [span.text for span in found("❤", response="ok ❤\ufe0f").spans] == ["❤\ufe0f"]
