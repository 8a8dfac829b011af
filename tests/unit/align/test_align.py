"""From sampled ids to characters, and from labelled characters to token rewards."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from credit_cases import critique, delta, span, words
from made_tokenizers import word_piece_tokenizer
from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit, token_labels
from text2grad.align.credit import SCHEMES
from text2grad.align.tokens import align_by_prefixes
from text2grad.errors import UserError
from text2grad.feedback import Critique, Label, Span

SETTINGS = CreditSettings(weighting="token", outcome_weight=0.0)
Pair = tuple[TokenTable, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def byte(tokenizer: PreTrainedTokenizerFast) -> Pair:
    return TokenTable(tokenizer), tokenizer


@pytest.fixture(scope="module", params=["tokenizer", "sentencepiece_tokenizer"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Of a tokenizer of each kind, its table and itself."""
    made = request.getfixturevalue(request.param)
    return TokenTable(made), made


def cores(aligned: Aligned, chosen: Any) -> list[str]:
    """The visible text of the chosen tokens."""
    places = zip(aligned.core_starts[chosen], aligned.core_ends[chosen], strict=True)
    return [aligned.text[start:end] for start, end in places]


# --- ids -> characters


def oracle(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> list[set[int]]:
    """The characters each token touches, from its bytes alone, one byte at a time."""
    owners: list[int] = []
    data = b""
    for index, token in enumerate(ids):
        spelled = spelling(token, tokenizer)
        data += spelled
        owners += [index] * len(spelled)
    touched: list[set[int]] = [set() for _ in ids]
    for place, owner in enumerate(owners):
        before = data[: place + 1].decode("utf-8", errors="replace")
        touched[owner].add(len(before) - 1)
    return touched


def spelling(token: int, tokenizer: PreTrainedTokenizerFast) -> bytes:
    """A token's bytes, through the decoder: alone where it is whole text, else by elimination."""
    added = tokenizer.added_tokens_decoder.get(token)
    if added and added.special:
        return b""
    name = tokenizer.convert_ids_to_tokens(token)
    if name.startswith("<0x"):
        return bytes.fromhex(name[3:5])
    whole = tokenizer.decode([token])
    if "\ufffd" not in whole:
        return (" " + whole if name.startswith("▁") else whole).encode()
    return bytes(BYTES[character] for character in name)


def _bytes() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte, asked of the library itself."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    never = [0xC0, 0xC1, *range(0xF5, 0x100)]  # in no UTF-8 text; printable, so they stand for themselves
    found = {chr(byte): byte for byte in never}
    for code in [*range(0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x110000, 0x1000)]:
        letters = level.pre_tokenize_str(chr(code))[0][0]
        found.update(zip(letters, chr(code).encode(), strict=True))
    return found


BYTES = _bytes()
assert sorted(BYTES.values()) == list(range(256))


@given(data=st.data())
def test_any_ids_are_aligned(data: st.DataObject, pair: Pair) -> None:
    """Random ids: special tokens anywhere, characters cut anywhere, never what `encode` would
    give."""
    check(data.draw(st.lists(st.integers(0, len(pair[1]) - 1), max_size=24)), *pair)


@given(text=st.text(max_size=20), data=st.data())
def test_ids_that_are_not_the_canonical_ones(text: str, data: st.DataObject, pair: Pair) -> None:
    ids: list[int] = []
    cuts = [0, *sorted(data.draw(st.sets(st.integers(0, 20), max_size=4))), 20]
    for start, end in pairwise(cuts):
        ids += pair[1](text[start:end], add_special_tokens=False)["input_ids"]
    check(ids, *pair)


def check(ids: list[int], table: TokenTable, tokenizer: PreTrainedTokenizerFast) -> None:
    aligned = table.align(ids)
    blob = b"".join(spelling(token, tokenizer) for token in ids)
    assert aligned.text == blob.decode("utf-8", errors="replace")
    assert len(aligned) == len(ids)
    touched = oracle(ids, tokenizer)
    for index, characters in enumerate(touched):
        assert set(range(aligned.starts[index], aligned.ends[index])) == characters
        visible = sorted(place for place in characters if not aligned.text[place].isspace())
        core = range(aligned.core_starts[index], aligned.core_ends[index])
        assert ([core[0], core[-1]] == [visible[0], visible[-1]]) if visible else not core


ENCODED = ("def f(x):\n    return x\n", "会议改到星期五。", "so 👩‍👩‍👧 it is 🙂", "a  b\t\tc\n\n\nd", "Ünïcödé")


def test_the_text_is_what_was_encoded(pair: Pair) -> None:
    table, tokenizer = pair
    assert table.exact_bytes
    for text in ENCODED:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        aligned = table.align([*ids, tokenizer.eos_token_id])
        assert aligned.text.removeprefix(" ") == text == tokenizer.decode(ids)
        assert aligned.starts[-1] == aligned.ends[-1] == len(aligned.text)


def test_a_character_of_several_tokens_is_labelled_whole_and_may_be_cut(pair: Pair) -> None:
    table, tokenizer = pair
    aligned = table.align(tokenizer("no 🦔 no", add_special_tokens=False)["input_ids"])
    labels = token_labels([span(aligned.text, "🦔", -1)], aligned)
    assert labels.sum() <= -3 and set(cores(aligned, labels < 0)) == {"🦔"}
    cut = table.align(tokenizer("ok 🙂", add_special_tokens=False)["input_ids"][:-1])
    assert cut.text.endswith("ok \ufffd")
    assert cut.core_ends[-1] == len(cut.text) == cut.core_starts[-1] + 1


def test_a_tokenizer_saved_and_loaded_aligns_alike(model_folder: Path, byte: Pair) -> None:
    loaded = TokenTable(AutoTokenizer.from_pretrained(model_folder))
    aligned, expected = loaded.align(range(400)), byte[0].align(range(400))
    assert (aligned.text, aligned.starts.tolist()) == (expected.text, expected.starts.tolist())


def test_ids_beyond_the_vocabulary_are_no_text(byte: Pair) -> None:
    assert byte[0].align([10_000]).text == "" and len(byte[0].align([])) == 0


def test_a_text_nobody_sampled_keeps_its_own_offsets(pair: Pair) -> None:
    aligned = pair[0].align_text("the staff moved")
    assert aligned.text == "the staff moved"
    assert "".join(cores(aligned, token_labels([span(aligned.text, "staff", 1)], aligned) > 0)) == "staff"


def test_what_a_token_adds_may_depend_on_whether_it_is_the_first(word_piece: PreTrainedTokenizerFast) -> None:
    """WordPiece has no spaces: its decoder puts them between words."""
    table = TokenTable(word_piece)
    names = ["the", "s", "##u", "##m", "[SEP]", "s", "[SEP]"]
    aligned = table.align(word_piece.convert_tokens_to_ids(names))
    assert table.exact_bytes
    assert aligned.text == "the sum s"
    assert cores(aligned, np.full(7, True)) == ["the", "s", "u", "m", "", "s", ""]
    after = table.align(word_piece.convert_tokens_to_ids(["[SEP]", "##u", "the", "[SEP]"]))
    assert after.text == "##u the" and after.starts.tolist() == [0, 0, 3, 7]


def spaced_tokenizers() -> dict[str, Any]:
    """Tokenizers whose decoders put spaces between tokens, with and without what they tidy up."""
    core = word_piece_tokenizer().backend_tokenizer
    words = ["the", "n't", ".", ",", "do", "##s", "##", "é🦔", "'s", " ", "[UNK]"]
    made: dict[str, Any] = {"trained": word_piece_tokenizer(), "plain": core}
    for cleanup in (True, False):
        tidied = Tokenizer(models.WordPiece({word: 2 * n for n, word in enumerate(words)}, unk_token="[UNK]"))
        tidied.decoder = decoders.WordPiece(cleanup=cleanup)
        tidied.add_special_tokens(["[UNK]", "[SEP]"])
        tidied.add_tokens(["<think>", " so"])
        made[f"cleanup {cleanup}"] = PreTrainedTokenizerFast(tokenizer_object=tidied, unk_token="[UNK]")
    bare = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    bare.add_special_tokens(["[UNK]"])
    return {**made, "no decoder": bare}


SPACED = spaced_tokenizers()


@given(data=st.data())
def test_spaces_between_tokens_are_read_as_prefix_decoding_reads_them(data: st.DataObject) -> None:
    """Any ids: special ones, holes in the vocabulary, and beyond it."""
    tokenizer = SPACED[data.draw(st.sampled_from(sorted(SPACED)))]
    table = TokenTable(tokenizer)
    assert table.exact_bytes
    ids = data.draw(st.lists(st.integers(0, table.vocabulary + 2), max_size=16))
    fast, slow = table.align(ids), align_by_prefixes(tokenizer, ids)
    assert fast.text == slow.text
    for name in ("starts", "ends", "core_starts", "core_ends"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name


def test_a_tokenizer_that_looks_further_is_decoded_prefix_by_prefix() -> None:
    """Of CLIP's kind: what ends a word is a space, except at the end of the text."""
    core = Tokenizer(models.BPE({"a</w>": 0, "b": 1, "c</w>": 2}, [], end_of_word_suffix="</w>"))
    core.decoder = decoders.BPEDecoder()
    table = TokenTable(core)
    aligned = table.align([0, 1, 2])
    assert not table.exact_bytes and aligned.text == "a bc"
    assert cores(aligned, np.full(3, True)) == ["a", "b", "c"]


@given(text=st.text(max_size=20) | st.text("\ufffda é🦔", max_size=8), ends=st.booleans())
@example(text="\ufffd", ends=False)
def test_prefix_decoding_agrees_with_the_bytes(text: str, ends: bool, byte: Pair) -> None:
    """For whole characters; of a cut one the prefixes cannot say which of its bytes came when."""
    table, tokenizer = byte
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ends
    fast, slow = table.align(ids), align_by_prefixes(tokenizer, ids)
    assert slow.text == fast.text
    assert (slow.starts.tolist(), slow.ends.tolist()) == (fast.starts.tolist(), fast.ends.tolist())


def test_a_table_that_decodes_otherwise_is_not_used(sentencepiece_tokenizer: PreTrainedTokenizerFast) -> None:
    """A decoder of a known family with a step of its own: here it turns every `a` into `b`."""
    tokenizer = copy.deepcopy(sentencepiece_tokenizer)
    steps = [decoders.Replace("▁", " "), decoders.Replace("a", "b"), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(steps)
    table = TokenTable(tokenizer)
    assert not table.exact_bytes
    assert table.align(tokenizer("an ant", add_special_tokens=False)["input_ids"]).text == " bn bnt"


def test_a_space_put_in_front_of_a_text_touches_nothing_of_it(
    sentencepiece_tokenizer: PreTrainedTokenizerFast,
) -> None:
    aligned = TokenTable(sentencepiece_tokenizer).align_text("日 b")
    assert (aligned.starts[0], aligned.ends[0], aligned.ends[1]) == (0, 0, 1)


# --- characters -> labels


@st.composite
def labelled(draw: st.DrawFn) -> tuple[str, list[tuple[int, int, Label]], list[int]]:
    text = draw(st.text(alphabet=st.sampled_from("ab \n🙂中"), min_size=1, max_size=24))
    edges = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)), st.sampled_from((1, -1)))
    spans = [(min(a, b), max(a, b), label) for a, b, label in draw(st.lists(edges, max_size=5)) if a != b]
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=10))
    return text, spans, sorted(cuts)


def cut(text: str, cuts: list[int]) -> Aligned:
    edges = [0, *cuts, len(text)]
    return Aligned.of(text, np.array(edges[:-1]), np.array(edges[1:]))


@given(
    labelled(),
    st.randoms(),
    st.sampled_from(list(SCHEMES)),
    st.sampled_from(("token", "span", "balanced")),
)
def test_credit_never_exceeds_one_and_knows_no_order(case: Any, dice: Any, scheme: Any, weighting: Any) -> None:
    text, places, cuts = case
    aligned = cut(text, cuts)
    spans = [Span(start=a, end=b, label=label, text=text[a:b]) for a, b, label in places]
    settings = CreditSettings(scheme=scheme, weighting=weighting, outcome_weight=0.0)
    paid = credit(Critique(text="", spans=tuple(spans), score=-1.0), aligned, settings)
    assert paid.delta.dtype == np.float32 and paid.delta.shape == (len(aligned),)
    assert np.abs(paid.delta).max() <= 1
    if scheme not in ("last_token", "spread_score"):
        labels = token_labels(spans, aligned)
        assert np.sign(paid.delta).tolist() == labels.tolist()
        assert paid.labelled == np.count_nonzero(labels)
    dice.shuffle(spans)
    again = credit(Critique(text="", spans=tuple(spans), score=-1.0), aligned, settings)
    assert again.delta.tolist() == paid.delta.tolist()
    assert (again.labelled, again.cancelled, again.uncovered) == (paid.labelled, paid.cancelled, paid.uncovered)


def test_a_token_that_a_span_covers_in_part_belongs_to_it() -> None:
    inside = [Span(start=0, end=6, label=1, text="the st")]
    assert token_labels(inside, words("the staff moved")).tolist() == [1, 1, 0, 0]


# --- labels -> rewards (literal numbers)

TEXT = "The quick red fox , and a dog"  # 8 words, and an end-of-text token
PAID: dict[str, tuple[dict[str, Any], dict[str, Any], list[float]]] = {
    "one on each token": (
        {"good": ("quick red",), "poor": ("dog",)}, {"weighting": "token"}, [0, 1, 1, 0, 0, 0, 0, -1, 0]
    ),
    "a span shares one": (
        {"good": ("quick red fox ,",), "poor": ("a dog",)}, {}, [0, 0.25, 0.25, 0.25, 0.25, 0, -0.5, -0.5, 0]
    ),
    "balanced: good and poor have the same mass": (
        {"good": ("quick", "red fox ,"), "poor": ("dog",)}, {"weighting": "balanced"},
        [0, 0.25, 0.25, 0.25, 0.25, 0, 0, -1, 0],
    ),
    "good and poor cancel": (
        {"good": ("quick red",), "poor": ("red fox",)}, {"weighting": "token"}, [0, 1, 0, -1, 0, 0, 0, 0, 0]
    ),
    "one sign is a union": (
        {"good": ("quick red", "red fox , and")}, {"weighting": "token"}, [0, 1, 1, 1, 1, 1, 0, 0, 0]
    ),
    "with the larger share": ({"good": ("quick red", "red fox , and")}, {}, [0, 0.5, 0.5, *[0.25] * 3, 0, 0, 0]),
    "the weight of poor spans": (
        {"good": ("fox",), "poor": ("dog",)}, {"poor_weight": 2.0, "unlabelled": 0.05},
        [0.05, 0.05, 0.05, 1.0, 0.05, 0.05, 0.05, -2.0, 0.05],
    ),
    "a cancelled token is not an unlabelled one": (
        {"good": ("fox",), "poor": ("fox",)}, {"unlabelled": 0.5}, [0.5, 0.5, 0.5, 0, *[0.5] * 5]
    ),
    "the last id that was sampled": (
        {"good": ("fox",), "score": -0.5}, {"scheme": "last_token"}, [0, 0, 0, 0, 0, 0, 0, 0, -0.5]
    ),
    "the outcome is added to the last token": (
        {"poor": ("dog",), "score": 0.5}, {"outcome_weight": 2.0}, [0, 0, 0, 0, 0, 0, 0, -1, 1]
    ),
    "a score on each token": ({"score": 0.9}, {"scheme": "spread_score", "weighting": "token"}, [0.9] * 9),
    "a score shared by the tokens": ({"score": 0.9}, {"scheme": "spread_score"}, [0.1] * 9),
    "a score shared, balanced": ({"score": 0.9}, {"scheme": "spread_score", "weighting": "balanced"}, [0.1] * 9),
}  # fmt: skip


def test_what_each_token_is_paid() -> None:
    paid = {name: delta(TEXT, critique(TEXT, **case), **settings) for name, (case, settings, _) in PAID.items()}
    assert paid == {name: numbers for name, (_, _, numbers) in PAID.items()}


def test_cancelled_and_uncovered_spans_are_counted() -> None:
    paid = credit(critique(TEXT, good=("quick red",), poor=("red fox",)), words(TEXT), SETTINGS)
    assert (paid.labelled, paid.cancelled) == (2, 1)
    case = critique(TEXT, good=("he quick r", "fox"), poor=("og",))
    assert credit(case, words(TEXT), SETTINGS).uncovered == 0
    unwritten = Aligned.of(TEXT, np.array([0]), np.array([3]))  # one token, which wrote "The"
    assert credit(case, unwritten, SETTINGS).uncovered == 2


@pytest.mark.parametrize("weighting", ["token", "span", "balanced"])
def test_what_could_be_better_pays_nothing(weighting: Any) -> None:
    """Beside other spans, under them and alone: as if it were not there, but that it is not
    unlabelled."""
    aligned = words(TEXT)
    plain = critique(TEXT, good=("The quick",), poor=("fox",), score=1.0)
    suggested = span(TEXT, " ".join(TEXT.split()[1:]), 0)
    both = plain.model_copy(update={"spans": (*plain.spans, suggested)})
    assert token_labels([suggested], aligned).tolist() == [0] * len(aligned)
    settings = CreditSettings(weighting=weighting, unlabelled=0.5)
    with_it, without = (credit(case, aligned, CreditSettings(weighting=weighting)) for case in (both, plain))
    assert with_it.delta.tolist() == without.delta.tolist() and with_it.cancelled == without.cancelled
    alone = credit(Critique(text="", spans=(suggested,)), aligned, settings).delta.tolist()
    assert alone == [0.5, *[0.0] * (len(aligned) - 2), 0.5], "the first word and the end of the text are in no span"


def test_what_words_earn_and_the_verdict_are_told_apart_for_those_who_compare_answers() -> None:
    """In delta both stand on the last token, where the response has no end of text."""
    case, spelled = critique(TEXT, good=("fox",), poor=("dog",), score=-0.5), words(TEXT)
    cut = Aligned.of(TEXT, spelled.starts[:-1], spelled.ends[:-1])
    paid = credit(case, cut, CreditSettings(outcome_weight=2.0))
    assert (paid.verdict, paid.group_score, paid.delta[-1], paid.word_rewards[-1]) == (-1.0, -1.0, -2.0, -1.0)
    paid = credit(case, spelled, CreditSettings(outcome_weight=2.0))
    assert paid.word_rewards.tolist() == delta(TEXT, case, outcome_weight=0.0)
    unpaid = credit(case, words(TEXT), CreditSettings(outcome_weight=0.0))
    assert (unpaid.verdict, unpaid.group_score) == (None, float(unpaid.delta.sum()))
    for scheme in ("last_token", "spread_score"):
        whole = credit(case, words(TEXT), CreditSettings.model_validate({"scheme": scheme}))
        assert whole.group_score == -0.5 and not whole.word_rewards.any() and whole.delta.any()
    assert credit(critique(TEXT), words(TEXT), CreditSettings(scheme="last_token")).group_score == 0


@pytest.mark.parametrize("scheme", ["spans", "last_token", "spread_score"])
def test_a_missing_score_is_counted_and_pays_nothing(scheme: Any) -> None:
    paid = credit(Critique(text=""), words(TEXT), CreditSettings(scheme=scheme, outcome_weight=1.0))
    assert (paid.no_score, paid.delta.any()) == (1, False)
    assert credit(critique(TEXT, good=("fox",)), words(TEXT), SETTINGS).no_score == 0, "none is wanted"


def test_a_critique_of_another_text_is_refused() -> None:
    with pytest.raises(ValueError):
        credit(critique("Une renarde", good=("Une",)), words(TEXT), SETTINGS)


def test_a_failed_critique_and_an_empty_response_pay_nothing() -> None:
    assert Credit.zero(words(TEXT)).delta.tolist() == [0] * 9
    empty = Aligned.of("", np.array([], np.int64), np.array([], np.int64))
    for scheme in ("spans", "last_token", "spread_score"):
        settings = CreditSettings.model_validate({"scheme": scheme, "outcome_weight": 1.0})
        assert credit(Critique(text="", score=1.0), empty, settings).delta.shape == (0,)


OWN_SCHEME = """
import numpy as np
from text2grad.align import CreditScheme

def halves(critique, aligned, settings):
    return np.full(len(aligned), 0.5)

def short(critique, aligned, settings):
    return [1.0]

def endless(critique, aligned, settings):
    return np.full(len(aligned), np.inf)

verdict = CreditScheme(lambda critique, aligned, settings: np.full(len(aligned), critique.score), by_score=True)
number = 3
"""


@pytest.fixture
def own_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with schemes, another one in each test."""
    name = f"own_scheme_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN_SCHEME)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_scheme_of_ones_own_pays_what_it_gives(own_scheme: str) -> None:
    settings = CreditSettings(scheme=f"{own_scheme}:halves")
    assert not settings.by_score
    paid = credit(critique(TEXT, score=1.0), words(TEXT), settings)
    assert paid.delta.tolist() == [0.5] * 9 and paid.delta.dtype == np.float32 and paid.labelled == 9
    assert delta(TEXT, critique(TEXT, score=0.25), scheme=f"{own_scheme}:verdict") == [0.25] * 9
    assert CreditSettings(scheme=f"{own_scheme}:verdict").by_score


def test_a_scheme_that_is_none_is_the_users_mistake(own_scheme: str) -> None:
    cases = {
        "short": r"'own_scheme_\d+:short' returned numbers of shape \(1,\)",
        "endless": "not finite",
        "number": "number of own_scheme_.* is not a credit scheme",
        "haves": "has no haves .did you mean 'halves'",
    }
    for name, problem in cases.items():
        with pytest.raises(UserError, match=problem):
            credit(critique(TEXT), words(TEXT), CreditSettings(scheme=f"{own_scheme}:{name}"))
    with pytest.raises(ValueError, match=r"did you mean 'spans'\? one of spans, last_token, .*, or module:name"):
        CreditSettings(scheme="span")
