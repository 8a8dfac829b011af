"""The credit schemes of the baselines, with literal numbers."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from credit_cases import critique, delta, words
from text2grad.align import Aligned, CreditSettings, TokenTable, credit
from text2grad.feedback import Critique, Span
from text2grad_lab.baselines.schemes import content_characters, noun_and_verb_characters

SCHEMES = "text2grad_lab.baselines.schemes:"
TEXT = "The quick red fox , and a dog"  # 8 words, and an end-of-text token


def test_linear_decay() -> None:
    case = critique(TEXT, good=("quick red fox ,",), poor=("dog",))
    rewards = delta(TEXT, case, scheme=SCHEMES + "linear_decay", weighting="token")
    assert rewards == [0, 1, 0.7, 0.4, 0.1, 0, 0, -1, 0]


def test_token_importance() -> None:
    case = critique(TEXT, poor=("fox , and a dog",))
    rewards = delta(TEXT, case, scheme=SCHEMES + "token_importance", weighting="token")
    assert rewards == [0, 0, 0, -1, -0.2, -0.2, -0.2, -1, 0]


def test_token_importance_weighs_complete_words() -> None:
    """The `a` in `staff` is not an article."""
    spelled = Aligned.of("staff", np.arange(5), np.arange(1, 6))
    settings = CreditSettings(scheme=SCHEMES + "token_importance", weighting="token")
    assert credit(critique("staff", good=("staff",)), spelled, settings).delta.tolist() == [1] * 5
    assert delta("a b", critique("a b", good=("a b",)), **settings.model_dump()) == [0.2, 1, 0]


def test_token_importance_by_part_of_speech() -> None:
    """The paper gives full weight to nouns and verbs, not to adjectives and adverbs."""
    pytest.importorskip("textblob")
    text = "The quick dog barked loudly , and 走った"
    case = critique(text, poor=(text,))
    expected = [-0.2, -0.2, -1, -1, -0.2, -0.2, -0.2, -1, 0]
    assert delta(text, case, scheme=SCHEMES + "nouns_verbs", weighting="token") == expected
    assert delta(text, case, scheme=SCHEMES + "token_importance", weighting="token")[1] == -1


@given(st.text(max_size=30))
@example("a/b  \u2028 x\r\ny \x1c z")
def test_any_text_has_parts_of_speech(text: str) -> None:
    pytest.importorskip("textblob")
    flags = noun_and_verb_characters(text)
    assert len(flags) == len(text)
    assert not any(flag for flag, char in zip(flags, text, strict=True) if char.isspace())


def test_dense_labels_reward_each_token_with_its_label_only() -> None:
    """Settings for spans have no effect: labels per token have no span to share or weigh."""
    case = critique(TEXT, good=("quick red",), poor=("red fox",), score=0.9)
    others = {"weighting": "span", "outcome_weight": 1.0, "unlabelled": 1.0}
    result = credit(
        case, words(TEXT), CreditSettings.model_validate({"scheme": SCHEMES + "dense_labels", **others})
    )
    assert result.delta.tolist() == [0, 1, 0, -1, 0, 0, 0, 0, 0]
    assert (result.labelled, result.cancelled, result.no_score, result.by_score) == (2, 1, 0, False)
    assert delta(TEXT, case, scheme="spread_score") != result.delta.tolist()


def test_step_end_rewards_only_the_last_token_of_a_step() -> None:
    case = critique(TEXT, good=("quick red",), poor=("fox , and a",), score=0.9)
    others = {"weighting": "span", "outcome_weight": 1.0, "unlabelled": 1.0, "poor_weight": 2.0}
    result = credit(case, words(TEXT), CreditSettings.model_validate({"scheme": SCHEMES + "step_end", **others}))
    assert result.delta.tolist() == [0, 0, 1, 0, 0, 0, -1, 0, 0]
    assert (result.labelled, result.cancelled, result.no_score, result.by_score) == (2, 0, 0, False)


def test_steps_with_the_same_last_token_are_rewarded_once_or_cancel() -> None:
    settings = CreditSettings(scheme=SCHEMES + "step_end")
    agreed = credit(critique(TEXT, poor=("red fox", "fox")), words(TEXT), settings)
    assert (agreed.delta.tolist(), agreed.labelled) == ([0, 0, 0, -1, 0, 0, 0, 0, 0], 1)
    case = critique(TEXT, good=("red fox",), poor=("fox",))
    opposed = credit(case, words(TEXT), settings)
    assert (opposed.delta.any(), opposed.labelled, opposed.cancelled) == (False, 0, 1)


@given(data=st.data())
def test_step_end_equals_a_slow_oracle(tokenizer: PreTrainedTokenizerFast, data: st.DataObject) -> None:
    table = TokenTable(tokenizer)
    aligned = table.align_text(data.draw(st.text(min_size=1, max_size=20)))
    edges = st.integers(0, len(aligned.text) - 1)
    spans = [
        Span(start=min(a, b), end=max(a, b) + 1, label=sign, text=aligned.text[min(a, b) : max(a, b) + 1])
        for a, b, sign in data.draw(st.lists(st.tuples(edges, edges, st.sampled_from((1, -1))), max_size=4))
    ]
    labels_by_token: dict[int, set[int]] = {}
    uncovered = 0
    for span in spans:
        for index in reversed(range(len(aligned))):
            here = set(range(aligned.starts[index], aligned.ends[index]))
            visible = [i for i in range(span.start, span.end) if not aligned.text[i].isspace()]
            if here & set(range(visible[0], visible[-1] + 1) if visible else range(span.start, span.end)):
                labels_by_token.setdefault(index, set()).add(span.label)
                break
        else:
            uncovered += 1
    result = credit(Critique(text="", spans=tuple(spans)), aligned, CreditSettings(scheme=SCHEMES + "step_end"))
    assert result.delta.tolist() == [float(sum(labels_by_token.get(index, ()))) for index in range(len(aligned))]
    assert result.uncovered == uncovered


def test_content_words_of_other_scripts_are_content() -> None:
    for text in ("हिन्दी", "苹果", "Übung", unicodedata.normalize("NFD", "Übung")):
        assert content_characters(text).all()
    assert not content_characters("THE don’t 。").any()


def test_turn_end_rewards_the_last_token_of_each_turn() -> None:
    aligned = replace(words(TEXT), turn_ends=(3, 5, 7, 9))
    case = critique(TEXT, good=("quick", "red fox"), poor=("fox", "dog"), score=0.5)
    settings = CreditSettings(scheme=SCHEMES + "turn_end", outcome_weight=2.0)
    result = credit(case, aligned, settings)
    assert result.delta.tolist() == [0, 0, 1, 0, -1, 0, 0, 0, -1 + 2 * 0.5], "no number where nothing is marked"
    assert result.word_rewards.tolist() == [0, 0, 1, 0, -1, 0, 0, 0, -1]
    assert (result.verdict, result.group_score, result.labelled) == (1.0, 1.0, 3)
    assert credit(critique(TEXT, good=("red",)), words(TEXT), settings).delta.tolist() == [0] * 8 + [1]


def test_turn_tokens_rewards_every_token_of_a_turn_alike() -> None:
    aligned = replace(words(TEXT), turn_ends=(3, 5, 7, 9))
    case = critique(TEXT, good=("quick", "red fox"), poor=("fox", "dog"), score=0.5)
    result = credit(case, aligned, CreditSettings(scheme=SCHEMES + "turn_tokens"))
    assert result.word_rewards.tolist() == [1, 1, 1, -1, -1, 0, 0, -1, -1]
