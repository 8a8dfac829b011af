"""BERTScore: the formula against a slow oracle and published scores; batches of an encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import RobertaConfig, RobertaModel

from published import published
from text2grad.errors import UserError
from text2grad_lab.measures.bertscore import (
    MODELS,
    EncodedText,
    Encoder,
    Match,
    bert_figures,
    match_tokens,
    rescale,
)

TEXTS = ["the cat sat on the mat", "a dog ran away", "rain", "", "the cat sat"]


def encoded(states: Tensor, *weights: float) -> EncodedText:
    return EncodedText(states, torch.tensor(weights) if weights else torch.ones(len(states)))


def slow(text: EncodedText, reference: EncodedText) -> tuple[float, float]:
    """Return precision and recall, computed one pair of tokens at a time."""

    def best(one: EncodedText, other: EncodedText) -> float:
        total = count = 0.0
        for state, weight in zip(one.states, one.weights, strict=True):
            cosines = [float(torch.cosine_similarity(state, candidate, dim=0)) for candidate in other.states]
            total, count = total + float(weight) * max(cosines), count + float(weight)
        return total / count

    return best(text, reference), best(reference, text)


def test_each_token_is_matched_with_the_most_similar_one() -> None:
    torch.manual_seed(0)
    text, reference = encoded(torch.randn(4, 6), 0, 1, 2, 0), encoded(torch.randn(7, 6), 0, 1, 1, 1, 1, 0.5, 0)
    match, (precision, recall) = match_tokens(text, reference), slow(text, reference)
    assert match[:2] == pytest.approx((precision, recall), abs=1e-6)
    assert match.f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-6)


def test_precision_and_recall_by_hand() -> None:
    """Orthogonal states: one of two tokens has a match; the reference's only token has one."""
    text, reference = encoded(torch.tensor([[2.0, 0.0], [0.0, 3.0]])), encoded(torch.tensor([[5.0, 0.0]]))
    assert match_tokens(text, reference) == pytest.approx((0.5, 1.0, 2 / 3))
    assert match_tokens(encoded(torch.ones(2, 2), 0, 0), reference) == (0, 0, 0), "all weights are 0"


def test_published_scores_are_rescaled_as_published() -> None:
    """The scores themselves need the weights of roberta-large and are not computed."""
    expected = published("bertscore_expected", "bertscore_expected.json")
    _, baseline = MODELS["roberta-large"]
    for kind in ("no_idf", "idf"):
        raw, rescaled = expected[kind], expected[f"{kind}_rescaled"]
        for n in range(len(expected["cands"])):
            match = rescale(Match(raw["P"][n], raw["R"][n], raw["F"][n]), baseline)
            assert match == pytest.approx((rescaled["P"][n], rescaled["R"][n], rescaled["F"][n]), abs=2e-5)
            if kind == "no_idf":
                precision, recall = raw["P"][n], raw["R"][n]
                assert 2 * precision * recall / (precision + recall) == pytest.approx(raw["F"][n], abs=1e-6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random RoBERTa of three layers with a RoBERTa tokenizer."""
    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(TEXTS * 9, 320, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(folder))
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    places = {"max_position_embeddings": 34, "vocab_size": 320, "pad_token_id": 1}
    RobertaModel(RobertaConfig(**shape, **places)).eval().save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    return folder


def test_batches_padding_and_empty_texts_change_nothing(model: Path) -> None:
    encoders = [Encoder(str(model), batch_size=size) for size in (1, 5)]
    other = encoders[0].encode(["the cat"])[0]
    one, many = (
        [match_tokens(encoded_text, other) for encoded_text in encoder.encode(TEXTS)] for encoder in encoders
    )
    assert [value for match in one for value in match] == pytest.approx([v for m in many for v in m], abs=1e-5)
    assert one[3] == (0, 0, 0), "the empty text"
    figures = bert_figures(encoders[0], TEXTS[:3], ["the cat sat on the mat", "", "rain"])
    assert figures["bertscore_f1"] == pytest.approx(2 / 3, abs=1e-5)
    assert figures["bertscore_f1_rescaled"] is None


def test_the_first_word_has_the_tokens_of_a_later_one(model: Path) -> None:
    """ "cat" alone has the tokens of " cat" in a sentence, as in RoBERTa's published scores."""
    encoder = Encoder(str(model))
    alone, inside = encoder.encode(["cat", "the cat"])
    assert int(inside.weights.sum()) - int(alone.weights.sum()) == 1
    ids = encoder._tokenizer("cat")["input_ids"]
    assert encoder._tokenizer("the cat")["input_ids"][-len(ids) + 1 :] == ids[1:]


def test_rescaled_figures_name_layer_and_baseline(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Encoder(str(model)).name.endswith("layer 3, baseline none"), "the last layer"
    monkeypatch.setitem(MODELS, str(model), (2, (0.5, 0.5, 0.5)))
    encoder = Encoder(str(model))
    assert encoder.name.endswith("layer 2, baseline 0.5/0.5/0.5")
    figures = bert_figures(encoder, ["rain", "rain"], ["rain", ""])
    assert figures["bertscore_f1"] == figures["bertscore_f1_rescaled"] == pytest.approx(0.5, abs=1e-5)


def test_long_texts_are_truncated_to_the_model_length(model: Path) -> None:
    encoder = Encoder(str(model))
    assert encoder.longest == 32
    assert len(encoder.encode(["rain " * 99])[0].weights) == 32


def test_an_encoder_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no encoder .*--bertscore"):
        Encoder(str(tmp_path))
