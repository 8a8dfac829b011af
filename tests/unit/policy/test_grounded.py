"""Grounded decoding: whatever a model would say, the answer ends in time, is readable, and quotes what is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from quotable_responses import HOSTILE, judged
from text2grad.chat import Completion, ScriptedChat
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.run import RunOptions
from text2grad.durable.settings import CourseSettings
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Message, Source, Span, Transcript
from text2grad.policy import grounded
from text2grad.policy.encode import encode_prompt, encode_target, stop_ids
from text2grad.policy.generate import generate
from text2grad.policy.grounded import GroundedAnswers, Row, Vocabulary, vocabulary_for
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.train.pairs import Pair
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import train_supervised
from text2grad.wire import parse, render


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary(tokenizer, len(tokenizer))


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary(sentencepiece_tokenizer, len(sentencepiece_tokenizer))


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return load_policy(PolicySettings(model=str(model_folder)))


def draw(vocabulary: Vocabulary, response: str, room: int, seed: int, greedy: bool) -> bytes:
    """The answer of a model that has no idea: every score is random. It must have ended."""
    rng = np.random.default_rng(seed)
    row, written = Row(vocabulary, response, greedy), b""
    for left in range(room, 0, -1):
        scores = rng.normal(size=vocabulary.width).astype(np.float32)
        token = int(np.where(row.allowed(scores, left), scores, -np.inf).argmax())
        row.take(token)
        if row.ended:
            return written
        written += vocabulary.pieces[token]
    raise AssertionError(f"did not end: {written!r}")


def assert_resolves(z: str, response: str) -> None:
    read = parse(z, response)
    assert isinstance(read, Critique), (z, read)
    assert (read.quotes.unmatched, read.quotes.ambiguous) == (0, 0), z


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("room", [64, 150])
@pytest.mark.parametrize("name", HOSTILE)
def test_random_scores_write_what_resolves(vocabulary: Vocabulary, name: str, room: int, greedy: bool) -> None:
    for seed in range(3):
        assert_resolves(draw(vocabulary, HOSTILE[name], room, seed, greedy).decode(), HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_random_scores_over_sentencepiece_tokens(sentencepiece: Vocabulary, name: str) -> None:
    assert_resolves(draw(sentencepiece, HOSTILE[name], 150, 0, False).decode(), HOSTILE[name])


def test_the_smallest_room_in_which_an_answer_can_end(vocabulary: Vocabulary) -> None:
    closing = len(vocabulary.spell(b'{"critique": "", "good_spans": [], "poor_spans": []}')) + 1
    for room in range(closing, closing + 12):
        for seed in range(4):
            assert_resolves(draw(vocabulary, HOSTILE["repeats"], room, seed, False).decode(), HOSTILE["repeats"])


FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"  # after its first half the next four bytes are settled
HALF = Critique(text="", spans=(Span(start=0, end=3, label=1, text=FAMILY[:3]),))


@pytest.mark.parametrize("kind", ["vocabulary", "sentencepiece"])
@settings(max_examples=60)
@example(case=(HALF, FAMILY), spare=24)
@given(case=judged(), spare=st.integers(24, 400))
def test_a_valid_answer_is_never_changed(
    request: pytest.FixtureRequest, kind: str, case: tuple[Critique, str], spare: int
) -> None:
    """A model that is sure of a rendered critique writes it token by token, were the room hardly more than that."""
    critique, response = case
    z = render(critique, response)
    tokens: Vocabulary = request.getfixturevalue(kind)
    ids = encode_target(request.getfixturevalue("tokenizer" if kind == "vocabulary" else f"{kind}_tokenizer"), z)
    if parse(z, response) != critique or tokens.stops != [ids[-1]]:
        return
    row = Row(tokens, response, greedy=True)
    for left, token in zip(range(len(ids) + spare, 0, -1), ids, strict=False):
        scores = np.zeros(tokens.width, dtype=np.float32)
        scores[token] = 1.0
        assert row.allowed(scores, left)[token], (z, tokens.pieces[token])
        row.take(token)
    assert row.ended


TALK = Transcript.of(
    [
        ((), "I look it up. 20 miles"),
        ([Message(role="tool", content="It is 30 kilometres.")], "miles, I said"),
        ((), "20 miles on"),
    ]
)


@pytest.mark.parametrize(
    ("item", "resolves"),
    [
        ('"I said"', True),
        ('{"quote": "20 miles", "turn": 1}', True),
        ('{"quote": "20 miles", "turn": 3, "reason": "no"}', True),
        ('{"quote": "miles", "turn": 2, "occurrence": 1}', True),
        ('{"quote": "miles", "occurrence": 3}', True),
        ('"20 miles"', False),
        ('{"quote": "20 miles", "turn": 2}', False),
        ('{"quote": "said", "turn": 4}', False),
        ('"30 kilometres"', False),
        ('"up. 20 miles\\n\\nmiles, I said"', False),
        ('{"quote": "miles\\n", "turn": 1}', False),
        ('{"quote": "30", "turn": 1}', False),
    ],
)
def test_of_a_conversation_the_policys_words_alone_are_quoted(
    vocabulary: Vocabulary, item: str, resolves: bool
) -> None:
    row, allowed = Row(vocabulary, TALK, greedy=False), True
    z = f'{{"critique": "", "good_spans": [{item}], "poor_spans": []}}'
    for left, token in zip(range(500, 0, -1), vocabulary.spell(z.encode()), strict=False):
        allowed = bool(row.allowed(np.zeros(vocabulary.width, dtype=np.float32), left)[token])
        if not allowed:
            break
        row.take(token)
    assert allowed == resolves


@pytest.mark.parametrize("room", [64, 200])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_greedy_answer_is_the_likeliest_of_what_is_allowed(vocabulary: Vocabulary, name: str, room: int) -> None:
    """The oracle: the whole mask, made token by token."""
    rng = np.random.default_rng(len(name) + room)
    row = Row(vocabulary, HOSTILE[name], greedy=True)
    for left in range(room, 0, -1):
        scores = rng.normal(size=vocabulary.width).astype(np.float32)
        mask = row.allowed(scores, left)
        likeliest = int(scores.argmax())
        chosen = likeliest
        if not row.takes(likeliest, left):
            chosen = row.likeliest(vocabulary.masks([row.matcher])[0], scores, left)
        assert chosen == int(np.where(mask, scores, -np.inf).argmax()), left
        row.take(chosen)
        if row.ended:
            break
    assert row.ended


@pytest.mark.parametrize("greedy", [True, False])
def test_a_row_is_forced_where_the_likeliest_token_leaves_no_room(vocabulary: Vocabulary, greedy: bool) -> None:
    rest = vocabulary.cost(b'", "good_spans": [], "poor_spans": []}') + 1
    for room, forced in ((300, False), (rest + 1, False), (rest, True)):
        row = Row(vocabulary, "a b", greedy)
        for token in vocabulary.spell(b'{"critique": "'):
            row.take(token)
        scores = np.zeros(vocabulary.width, dtype=np.float32)
        scores[vocabulary.spelled[b"e"][0]] = 2.0  # it would rather write on than end
        assert row.allowed(scores, room)[vocabulary.spelled[b"e"][0]] is np.bool_(not forced)
        assert row.forced is forced


def test_answers_that_the_limit_closed_are_counted(policy: Policy) -> None:
    """An untrained model does not end by itself."""
    settings = GenerationSettings(max_new_tokens=64, temperature=0.0, batch_size=3)
    chat = LocalChat(policy, settings, "untrained", vocabulary_for(policy, "on"))
    responses = [HOSTILE["prose"], HOSTILE["code"], "a b", HOSTILE["repeats"]]
    answers = chat.complete_about([ask(text) for text in responses], responses)
    assert all(isinstance(answer, Completion) and answer.forced for answer in answers)
    critic = PromptedCritic(chat, "{{response}}", Source(kind="reward_model"))
    example = Example(id="1", prompt=(Message(role="user", content="?"),))
    assert [said.forced for said in critic.critique([example], ["the cat"]) if isinstance(said, Critique)] == [1]


def ask(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_an_untrained_model_answers_a_batch(policy: Policy) -> None:
    """Rows of different lengths that end at different times; sampled, as a policy samples."""
    sampled = GenerationSettings(max_new_tokens=96, temperature=1.0, batch_size=8)
    chat = LocalChat(policy, sampled, "untrained", vocabulary_for(policy, "on"))
    responses = list(HOSTILE.values())
    torch.manual_seed(0)
    answers = chat.complete_about([ask("?" * (1 + len(text) % 40)) for text in responses], responses)
    for answer, response in zip(answers, responses, strict=True):
        assert isinstance(answer, Completion) and not answer.truncated
        assert_resolves(answer.text, response)


def test_without_the_mask_it_does_not(policy: Policy) -> None:
    """The test above would see it."""
    greedy = GenerationSettings(max_new_tokens=96, temperature=0.0)
    chat = LocalChat(policy, greedy, "untrained")
    (answer,) = chat.complete_about([ask("x")], ["a b"])
    assert isinstance(answer, Completion) and isinstance(parse(answer.text, "a b"), Failure)


def test_whole_quotes_keep_how_likely_a_quote_goes_on(vocabulary: Vocabulary) -> None:
    """The oracle: of the allowed tokens those that stay in the quote are as likely together as before the mask."""
    row = Row(vocabulary, "the quick brown fox jumps", greedy=True)
    for token in vocabulary.spell(b'{"critique": "", "good_spans": ["the quick'):
        row.take(token)
    scores = np.random.default_rng(0).normal(size=vocabulary.width).astype(np.float32)
    mask = row.allowed(scores, 200)
    inside = [bool(piece) and b'"' not in piece for piece in vocabulary.pieces]
    before = np.exp(scores[np.array(inside)]).sum()
    carried = scores.copy()
    row.carry(carried, mask)
    assert np.exp(carried[mask & inside]).sum() == pytest.approx(before, rel=1e-4)
    ends = mask & ~np.array(inside)
    assert ends.any() and (carried[ends] == scores[ends]).all()
    assert (carried[~mask] == scores[~mask]).all()


def test_outside_quotes_nothing_is_carried(vocabulary: Vocabulary) -> None:
    row = Row(vocabulary, "the quick brown fox jumps", greedy=True)
    for written in (b'{"critique": "the', b'", "good_spans": [', b'"'):
        for token in vocabulary.spell(written):
            row.take(token)
        scores = np.random.default_rng(0).normal(size=vocabulary.width).astype(np.float32)
        carried = scores.copy()
        row.carry(carried, row.allowed(scores, 200))
        assert (carried == scores).all()


def test_whole_quotes_resolve_as_all_grounded_ones(policy: Policy) -> None:
    vocabulary = vocabulary_for(policy, "on")
    generation = GenerationSettings(max_new_tokens=150, temperature=1.0, batch_size=4)
    chat = LocalChat(policy, generation, "x", vocabulary, whole_quotes=True)
    texts = list(HOSTILE.values())[:8]
    answers = chat.complete_about([(Message(role="user", content="?"),)] * len(texts), texts)
    for text, answer in zip(texts, answers, strict=True):
        if isinstance(answer, Completion):
            assert_resolves(answer.text, text)
    assert any(isinstance(answer, Completion) for answer in answers)


def test_a_row_does_not_depend_on_its_neighbours(policy: Policy) -> None:
    greedy = GenerationSettings(max_new_tokens=64, temperature=0.0)
    chat = LocalChat(policy, greedy, "untrained", vocabulary_for(policy, "on"))
    responses = [HOSTILE["prose"], HOSTILE["code"], "a"]
    together = chat.complete_about([ask(text * 2) for text in responses], responses)
    alone = [chat.complete_about([ask(text * 2)], [text])[0] for text in responses]
    assert together == alone


def test_a_trained_models_valid_answers_stay_as_they_were(
    policy: Policy, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Greedy answers with and without the mask, the mask at the very limit of the room, are the same ids."""
    cases = [
        ("Judge the cat.", "the cat sat", '{"critique": "Good.", "good_spans": ["the cat"], "poor_spans": []}'),
        ("Judge x.", "x = x + 1", '{"critique": "No.", "good_spans": [], "poor_spans": ["+ 1"], "score": -1.0}'),
    ]
    training = SupervisedSettings(epochs=60, batch_size=2, micro_batch_size=2, lr=1e-2)
    pairs = [Pair(question, tuple(ask(question)), z) for question, _, z in cases]
    options = RunOptions(tmp_path, "test", course=CourseSettings(schedule="constant"))
    train_supervised(policy, pairs, training, options)
    prompts = [encode_prompt(tokenizer, ask(question)) for question, _, _ in cases]
    longest = max(len(encode_target(tokenizer, z)) for _, _, z in cases)
    greedy = GenerationSettings(max_new_tokens=longest, temperature=0.0)
    plain = generate(policy, prompts, greedy)
    assert [tokenizer.decode(sample.ids[:-1]) for sample in plain] == [z for _, _, z in cases]
    tokens = Vocabulary(tokenizer, len(tokenizer))
    texts = [text for _, text, _ in cases]
    grounded = GroundedAnswers(tokens, texts, greedy)
    assert generate(policy, prompts, greedy, grounded) == plain
    assert grounded.forced == [False, False]


def test_the_critic_hands_over_the_responses(policy: Policy) -> None:
    greedy = GenerationSettings(max_new_tokens=80, temperature=0.0)
    chat = LocalChat(policy, greedy, "untrained", vocabulary_for(policy, "on"))
    critic = PromptedCritic(chat, "{{response}}", Source(kind="reward_model"))
    example = Example(id="1", prompt=(Message(role="user", content="?"),))
    judged_ones = critic.critique([example] * 2, ["the cat", "a dog"])
    assert all(isinstance(judgement, Critique) and not judgement.quotes.unmatched for judgement in judged_ones)


def test_a_chat_that_cannot_be_grounded_is_asked_as_before() -> None:
    chat = ScriptedChat(['{"critique": "", "good_spans": ["dog"], "poor_spans": []}'])
    critic = PromptedCritic(chat, "{{response}}", Source(kind="llm"))
    example = Example(id="1", prompt=(Message(role="user", content="?"),))
    (judgement,) = critic.critique([example], ["the cat"])
    assert isinstance(judgement, Critique) and judgement.quotes.unmatched == 1


def missing(name: str) -> None:
    return None


def test_without_the_package_it_says_so_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grounded, "find_spec", missing)
    grounded.warn_once.cache_clear()
    assert vocabulary_for(policy, "auto") is None
    assert vocabulary_for(policy, "auto") is None
    assert capsys.readouterr().err.count("pip install 'text2grad[grounded]'") == 1
    with pytest.raises(UserError, match="llguidance"):
        vocabulary_for(policy, "on")


def test_off_is_off(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    assert vocabulary_for(policy, "off") is None
    assert capsys.readouterr().err == ""


def test_a_tokenizer_without_bytes_is_refused(word_piece: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="no bytes"):
        Vocabulary(word_piece, len(word_piece))


def test_padding_of_the_output_layer_is_never_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    wide = Vocabulary(tokenizer, len(tokenizer) + 7)
    scores = np.zeros(wide.width, dtype=np.float32)
    assert not Row(wide, "a b", True).allowed(scores, 500)[len(tokenizer) :].any()


def test_spelling_is_exact(vocabulary: Vocabulary) -> None:
    text = 'naïve 🙂 "\\n'.encode()
    assert b"".join(vocabulary.pieces[token] for token in vocabulary.spell(text)) == text
    assert b"".join(vocabulary.pieces[token] for token in vocabulary.spell(text)) == text  # remembered


def test_stop_tokens_are_no_text(vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerFast) -> None:
    scores = np.zeros(vocabulary.width, dtype=np.float32)
    assert not Row(vocabulary, "a b", True).allowed(scores, 500)[stop_ids(tokenizer)].any()
