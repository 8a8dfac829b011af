"""Words, signs and pieces in ten scripts, and what compares texts by them: no script reads as
nothing."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.tokenizers import DefaultTokenizer

from text2grad.critics.damage import CORRUPTIONS, corrupt_records
from text2grad.critics.reference import ReferenceCritic
from text2grad.data.spans.marks import diff_spans
from text2grad.eval.metrics import rouge
from text2grad.eval.texts import text_figures
from text2grad.feedback import Critique, Example, Feedback, Message, Source
from text2grad.unicode_words import RougeWords, folded, pieces, units, words

SAID = {
    "Chinese": ("苹果是红色的。", "苹果是黄色的。", ["红"]),
    "Japanese": ("会議は月曜日にあります。", "会議は金曜日にあります。", ["月"]),
    "Katakana": ("コーヒーを飲む", "コーラを飲む", ["ーヒー"]),
    "Russian": ("Отчёт готов в среду.", "Отчёт готов в пятницу.", ["среду"]),
    "German": ("Die Größe der Übung stimmt.", "Die Länge der Übung stimmt.", ["Größe"]),
    "Arabic": ("التقرير جاهز يوم الاثنين", "التقرير جاهز يوم الجمعة", ["الاثنين"]),
    "Thai": ("รายงานเสร็จวันจันทร์", "รายงานเสร็จวันศุกร์", ["จันทร์"]),
    "Hindi": ("रिपोर्ट सोमवार को तैयार है", "रिपोर्ट शुक्रवार को तैयार है", ["सोमवार"]),
    "Korean": ("보고서는 월요일에 나옵니다.", "보고서는 금요일에 나옵니다.", ["월요일에"]),
    "Turkish": ("İstanbul'da ışık var", "İzmir'de ışık var", ["İstanbul", "da"]),
    "emoji": ("ok 👍🏽 👩‍👩‍👧", "ok 👎🏽 👩‍👩‍👧", ["👍🏽"]),
    "Khmer": ("ភាសាខ្មែរ", "ភាសាថៃ", ["ខ្មែរ"]),
    "Myanmar": ("ကျွန်တော်", "ကျွန်မ", ["တော်"]),
}
"""An answer, a person's correction, and the words of the answer that are no more."""
CASES = pytest.mark.parametrize("said", SAID.values(), ids=SAID)
Words = tuple[str, str, list[str]]
WORDS = {
    "苹果是红色的": list("苹果是红色的"),
    "iPhone手机 コーヒー": ["iPhone", "手", "机", "コ", "ー", "ヒ", "ー"],
    "Größe Übung": ["Größe", "Übung"],
    "हिन्दी में": ["हिन्दी", "में"],
    "ที่นี่": ["ที่", "นี่"],
    "می‌خواهم بروم": ["می‌خواهم", "بروم"],
    "한국어 문장": ["한국어", "문장"],
    "👩‍👩‍👧 ok ❤️ 🇩🇪": ["👩‍👩‍👧", "ok", "❤️", "🇩🇪"],
    "don't x_y 3.5": ["don", "t", "x", "y", "3", "5"],
    "。、「」！ -- ©": [],
}


def test_words_by_hand() -> None:
    for text, expected in WORDS.items():
        assert [text[start:end] for start, end in words(text)] == expected
        composed, apart = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        assert len(list(words(apart))) == len(list(words(composed))), text
    assert len(list(units("苹果是红色的。"))) == 7


@given(st.text(max_size=40))
def test_units_and_pieces_are_all_of_a_text_but_its_white_space(text: str) -> None:
    for cut in (units, pieces):
        places = list(cut(text))
        assert "".join(text[a:b] for a, b in places) == "".join(text.split())
        assert all(first[1] <= second[0] for first, second in pairwise(places))


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=60), st.booleans())
def test_words_of_ascii_text_equal_the_published_rouge(text: str, stemmer: bool) -> None:
    assert RougeWords(stemmer).tokenize(text) == DefaultTokenizer(stemmer).tokenize(text)


def test_words_are_compared_composed_and_without_case() -> None:
    alike = {"Größe": unicodedata.normalize("NFD", "GRÖßE"), "Straße": "STRASSE", "İstanbul": "istanbul"}
    alike |= {"가": unicodedata.normalize("NFD", "가"), "ОТЧЁТ": "отчёт", "Σίσυφος": "ΣΊΣΥΦΟΣ"}
    assert [one for one, other in alike.items() if folded(one) != folded(other)] == []


# --- the reference critic


def critique(response: str, reference: str) -> Critique:
    example = Example(id="a", prompt=(Message(role="user", content="?"),), reference=reference)
    (found,) = ReferenceCritic().critique([example], [response])
    assert isinstance(found, Critique)
    assert all(response[span.start : span.end] == span.text for span in found.spans)
    return found


@CASES
def test_an_answer_is_right_where_it_equals_its_reference_and_poor_where_it_differs(said: Words) -> None:
    response, reference, wrong = said
    for text in (response, reference):
        for form in ("NFC", "NFD"):
            found = critique(unicodedata.normalize(form, text), text)
            assert (found.score, found.omissions) == (1.0, ())
            assert {span.label for span in found.spans} == {1}
    found = critique(response, reference)
    marked = {place for span in found.spans if span.label < 0 for place in range(span.start, span.end)}
    poor = {place for place in marked if response[place] != "'"}
    gone = [range(response.index(word), response.index(word) + len(word)) for word in wrong]
    assert found.score is not None and -1 < found.score < 1
    assert poor and poor <= {place for each in gone for place in each}
    assert found.omissions or said is SAID["Katakana"]


def test_a_character_may_be_repeated() -> None:
    assert [span.label for span in critique("妈妈谢谢你", "妈妈谢谢你").spans] == [1]
    assert critique("谢谢谢谢谢谢谢谢你", "谢谢你").spans[-1].label == 1
    assert any(span.label < 0 for span in critique("谢谢谢谢谢谢谢谢你", "谢谢你").spans)


# --- ROUGE and BLEU


@CASES
def test_equal_texts_score_one_in_some_measure(said: Words) -> None:
    right, near = rouge([said[0]], [said[0]]), rouge([said[1]], [said[0]])
    assert right["rouge_l_unicode"] == right["rouge1_unicode"] == 1.0
    assert 0 < near["rouge_l_unicode"] < 1
    figures = text_figures([said[0]], [said[0]])
    whole = len(list(units(said[0]))) >= 4 and said is not SAID["Turkish"]  # of three words there is no BLEU
    assert figures.get("bleu_unicode", figures["bleu"]) == pytest.approx(float(whole))


def test_the_published_rouge_is_unchanged() -> None:
    assert rouge(["Größe Übung"], ["Gr e bung"]) == {
        **dict.fromkeys(("rouge1", "rouge2", "rouge_l"), 1.0),
        **dict.fromkeys(("rouge1_unicode", "rouge2_unicode", "rouge_l_unicode"), 0.0),
    }
    assert rouge(["the cat sat"], ["the cat"]).keys() == {"rouge1", "rouge2", "rouge_l"}
    mixed = rouge(["the cat", "苹果"], ["the dog", "苹果"])
    assert (mixed["rouge_l"], mixed["rouge_l_unicode"]) == (0.25, 1.0)


@pytest.mark.parametrize("text", ["苹果是红色的", "会議は月曜日にあります。", "รายงานเสร็จวันจันทร์"])
def test_bleu_of_scripts_without_spaces(text: str) -> None:
    figures = text_figures([text, "the cat sat down"], [text, "the cat sat down"])
    assert figures["bleu_unicode"] == figures["sentence_bleu_unicode"] == pytest.approx(1)
    assert "bleu_unicode" not in text_figures(["Größe"], ["Größe"])


# --- corrections


@CASES
def test_a_correction_is_poor_where_it_differs(said: Words) -> None:
    """Another composition of the same text is none; what it puts in is an omission."""
    response, corrected, wrong = said
    spans, omissions = diff_spans(response, corrected)
    assert "".join(span.text for span in spans) in "".join(wrong) and spans
    assert all(response[span.start : span.end] == span.text and span.label == -1 for span in spans)
    assert not any(len(each) > len(corrected) / 2 for each in omissions)
    for text in (response, corrected):
        apart = unicodedata.normalize("NFD", text)
        assert diff_spans(text, apart) == diff_spans(apart, text) == ((), ())
    assert diff_spans("会议在周五。", "会议改在周五下午。") == ((), ("改", "下午"))


# --- damage, steps, content words, counts


@pytest.mark.parametrize("language", ["Chinese", "Japanese", "Thai", "German"])
def test_answers_in_every_script_can_be_corrupted(language: str) -> None:
    text = SAID[language][0]
    turns = (Message(role="user", content="?"),)
    record = Feedback(id="a", prompt=turns, response=text, source=Source(kind="human"))
    made = corrupt_records([record], 9, 0)
    assert {damaged.meta["damage"] for damaged in made} == set(CORRUPTIONS)
    for damaged in made:
        assert damaged.response != text
        assert (" " in damaged.response) == (" " in text)
