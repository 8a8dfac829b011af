"""ROUGE and BLEU by hand, and as those who published them computed them."""

from __future__ import annotations

from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer

from published import published, published_text
from text2grad import errors
from text2grad.eval import texts
from text2grad.eval.metrics import rouge
from text2grad.eval.texts import bleu, text_figures
from text2grad.tasks.base import rouge_scores


def lines(file: str) -> list[str]:
    return published_text("bleu_fixtures", file).removesuffix("\n").split("\n")


def number(value: object) -> float:
    assert isinstance(value, float)
    return value


def test_an_empty_text_scores_zero_and_is_counted() -> None:
    found = text_figures(["the cat sat down", "rain"], ["the cat sat down", " "])
    assert (found["rouge1"], found["rouge2"], found["rouge_l"], found["empty"]) == (0.5, 0.5, 0.5, 1.0)


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="a reference is empty"):
        text_figures(["a", " "], ["a", "b"])


def test_bleu_by_hand() -> None:
    """4 of 4, 3 of 3, 2 of 2, 1 of 1 n-grams and 4 words of 5: only the brevity counts, exp(1 - 5 /
    4)."""
    pytest.importorskip("sacrebleu")
    found = bleu(["a b c d e", "x y"], ["a b c d", "x y"])
    assert found["bleu"] == pytest.approx(2.718281828 ** -(1 / 6), rel=1e-6), "6 words of 7"
    assert found["sentence_bleu"] == pytest.approx((2.718281828**-0.25 + 1) / 2, rel=1e-6)
    assert "tok:13a" in str(found["bleu_signature"])


def test_without_sacrebleu_bleu_is_null_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics.bleu", None)
    errors.warn_once.cache_clear()
    assert [bleu(["a"], ["a"]) for _ in range(2)] == [dict.fromkeys(texts.BLEU_FIGURES)] * 2
    assert capsys.readouterr().err == "no BLEU without sacrebleu: pip install 'text2grad[evaluate]'\n"


def test_rouge_as_the_perl_script_printed_it() -> None:
    for case in published("rouge_perl_fixtures", "rouge155_cases.json")["perl_cases"]:
        if case["metric"] == "rougeLsum":  # of texts in lines; no figure of ours
            scorer = RougeScorer(["rougeLsum"], use_stemmer=case["use_stemmer"])
            found = scorer.score(case["reference"], case["prediction"])["rougeLsum"].fmeasure
            assert found == pytest.approx(case["fmeasure"], abs=5.1e-6), case["name"]
            continue
        name = {"rougeL": "rouge_l"}.get(case["metric"], case["metric"])
        found = rouge([case["reference"]], [case["prediction"]], stemmer=case["use_stemmer"])[name]
        assert found == pytest.approx(case["fmeasure"], abs=5.1e-6), case["name"]
        if case["use_stemmer"]:
            assert rouge_scores(case["reference"], case["prediction"])[name] == found


def test_corpus_bleu_as_sacrebleu_and_moses_publish_it() -> None:
    pytest.importorskip("sacrebleu")
    reference, detokenised = lines("ted.ref.eng"), lines("ted.ref.detok.eng")
    expected = published("bleu_fixtures", "compare_mt_expected.json")["computed_here_sacrebleu_2.6.0"]
    own: dict[str, Any] = {}
    for system in ("sys1", "sys2"):
        found = bleu(reference, lines(f"ted.{system}.eng"), tokenize="none", force=True)
        own[system] = found
        assert found["bleu"] == pytest.approx(expected[f"{system} tokenize=none force"] / 100, abs=1e-9)
        found = bleu(detokenised, lines(f"ted.{system}.detok.eng"))
        assert found["bleu"] == pytest.approx(expected[f"{system} detok 13a"] / 100, abs=1e-9)
    assert round(number(own["sys1"]["bleu"]), 4) == 0.2244, "multi-bleu.pl"


def test_sentences_of_sacrebleus_own_tests() -> None:
    pytest.importorskip("sacrebleu")
    known = published("bleu_fixtures", "sacrebleu_expected.json")
    for case in known["floor_0.01"]:
        found = bleu(case["ref"], case["hyp"], smooth_method="floor", smooth_value=0.01)
        assert number(found["sentence_bleu"]) == pytest.approx(case["bleu"], abs=1e-9)
    told = known["statistics"]
    one = bleu([told["ref"]], [told["hyp"]], smooth_method="none")
    assert number(one["bleu"]) * 100 == pytest.approx(told["bleu_no_smoothing"], abs=1e-9)
    floor = bleu([told["ref"]], [told["hyp"]], smooth_method="floor")
    assert number(floor["bleu"]) == pytest.approx(told["bleu_floor_default"], abs=1e-9)
