"""Grounded decoding: whatever a model would say, the answer ends in time, is readable, and quotes
what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from quotable_responses import HOSTILE, judged
from text2grad.chat import Completion, ScriptedChat
from text2grad.critics.prompted import PromptedCritic
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Message, Source, Span, Transcript
from text2grad.policy import grounded
from text2grad.policy.encode import encode_target, stop_ids
from text2grad.policy.grounded import GroundedAnswers, Row, Vocabulary, make_vocabulary
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import make_tokenizer
from text2grad.wire import parse, render
from text2grad.wire.quotable import drop_unresolved


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary(tokenizer, len(tokenizer))


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary(sentencepiece_tokenizer, len(sentencepiece_tokenizer))


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return load_policy(PolicySettings(model=str(model_folder)))


def write(
    vocabulary: Vocabulary, response: str, room: int, scores: Callable[[int], Tensor], temperature: float = 0.0
) -> bytes:
    """The answer of a model with these scores (V,) at each step, the likeliest token each time."""
    settings = GenerationSettings(max_new_tokens=room, temperature=temperature)
    grounded_answers, ids = GroundedAnswers(vocabulary, [response], settings), list[int]()
    for step in range(room):
        ids.append(int(grounded_answers([0], ids[-1:], scores(step)[None]).argmax()))
        if ids[-1] in vocabulary.stops:
            return b"".join(vocabulary.pieces[token] for token in ids[:-1])
    raise AssertionError(f"did not end: {ids}")


def draw(vocabulary: Vocabulary, response: str, room: int, seed: int, temperature: float = 0.0) -> str:
    """The answer of a model that has no idea, as the critic sees it: every score is random."""
    generator = torch.Generator().manual_seed(seed)
    z = write(vocabulary, response, room, lambda _: torch.randn(vocabulary.width, generator=generator), temperature)
    return drop_unresolved(z.decode(), response)


def assert_resolves(z: str, response: str) -> None:
    read = parse(z, response)
    assert isinstance(read, Critique), (z, read)
    assert (read.quotes.unmatched, read.quotes.ambiguous) == (0, 0), z


@pytest.mark.parametrize(("temperature", "room"), [(0.0, 64), (0.0, 150), (1.0, 150)])
def test_random_scores_write_what_resolves(vocabulary: Vocabulary, room: int, temperature: float) -> None:
    for response in HOSTILE.values():
        for seed in range(2):
            assert_resolves(draw(vocabulary, response, room, seed, temperature), response)


def test_random_scores_over_other_tokens(sentencepiece: Vocabulary) -> None:
    """SentencePiece, and tokens of several brackets: an answer that is closed near the limit takes
    single ones."""
    made = make_tokenizer(["a}]b", "a[]b"] * 50, 320)
    brackets = Vocabulary(made, len(made))
    assert b"}]" in brackets.pieces and b"[]" in brackets.pieces
    for response in HOSTILE.values():
        assert_resolves(draw(sentencepiece, response, 150, 0), response)
        assert_resolves(draw(brackets, response, 150, 1), response)


def test_the_smallest_room_in_which_an_answer_can_end(vocabulary: Vocabulary) -> None:
    closing = len(vocabulary.spell(b'{"critique": "", "good_spans": [], "poor_spans": []}')) + 8
    for room in range(closing, closing + 12):
        assert_resolves(draw(vocabulary, HOSTILE["repeats"], room, room), HOSTILE["repeats"])


FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"  # after its first half the next four bytes are settled
HALF = Critique(text="", spans=(Span(start=0, end=3, label=1, text=FAMILY[:3]),))
KEYS = '77", "reason": "'  # the quote 77 is written last, since this may follow it
LAST = Critique(text="", spans=(Span(start=0, end=2, label=1, text="77", reason="wrong"),))


@pytest.mark.parametrize("kind", ["vocabulary", "sentencepiece"])
@settings(max_examples=60)
@example(case=(HALF, FAMILY), spare=24)
@example(case=(LAST, KEYS), spare=24)
@given(case=judged(), spare=st.integers(24, 400))
def test_a_valid_answer_is_never_changed(
    request: pytest.FixtureRequest, kind: str, case: tuple[Critique, str], spare: int
) -> None:
    """A model that is sure of a rendered critique writes it token by token, were the room hardly
    more than that."""
    critique, response = case
    z = render(critique, response)
    tokens: Vocabulary = request.getfixturevalue(kind)
    ids = encode_target(request.getfixturevalue("tokenizer" if kind == "vocabulary" else f"{kind}_tokenizer"), z)
    if parse(z, response) != critique or tokens.stops != [ids[-1]]:
        return
    one_hot = torch.nn.functional.one_hot(torch.tensor(ids), tokens.width).float()
    written = write(tokens, response, len(ids) + spare, lambda step: one_hot[min(step, len(ids) - 1)])
    assert written == b"".join(tokens.pieces[token] for token in ids[:-1])
    assert drop_unresolved(z, response) == z


TALK = Transcript.of(
    [
        ((), "I look it up. 20 miles"),
        ([Message(role="tool", content="It is 30 kilometres.")], "miles, I said"),
        ((), "20 miles on"),
    ]
)


def test_of_a_conversation_the_policys_words_alone_are_quoted(vocabulary: Vocabulary) -> None:
    allowed = (
        '"I said"',
        '{"quote": "20 miles", "turn": 3, "reason": "no"}',
        '{"quote": "miles", "turn": 2, "occurrence": 1}',
        '{"quote": "mil", "occurrence": 3, "part": true}',
    )
    forbidden = ('"30 kilometres"', '"up. 20 miles\\n\\nmiles, I said"', '"mil"', '{"quote": "mil"}')
    for item in (*allowed, *forbidden):
        z = f'{{"critique": "", "good_spans": [{item}], "poor_spans": []}}'
        ids = vocabulary.spell(z.encode())
        valid = Row(vocabulary, TALK).matcher.validate_tokens(ids) == len(ids)
        assert valid == (item in allowed), item


@pytest.mark.parametrize("room", [64, 200])
def test_a_greedy_answer_is_the_likeliest_of_what_is_allowed(vocabulary: Vocabulary, room: int) -> None:
    """The oracle: the whole mask, made token by token, while there is room for anything."""
    generator = torch.Generator().manual_seed(room)
    for response in HOSTILE.values():
        row = Row(vocabulary, response)
        greedy = GroundedAnswers(vocabulary, [response], GenerationSettings(max_new_tokens=room, temperature=0.0))
        written: list[int] = []
        for left in range(room, row.reserve, -1):
            scores = torch.randn(vocabulary.width, generator=generator)
            mask = torch.from_numpy(vocabulary.masks([row.matcher])[0])
            mask[scores.argmax()] |= row.allows(int(scores.argmax()))
            chosen = int(greedy([0], written[-1:], scores[None]).argmax())
            assert chosen == int(scores.masked_fill(~mask, -torch.inf).argmax()), left
            row.advance(chosen)
            written.append(chosen)
            if row.ended:
                break


def test_a_row_is_forced_where_the_likeliest_token_leaves_no_room(vocabulary: Vocabulary) -> None:
    begun, rest = (
        vocabulary.spell(b'{"critique": "'),
        len(vocabulary.spell(b'", "good_spans": [], "poor_spans": []}')) + 1,
    )
    letter = vocabulary.spell(b"e")[0]
    for room, forced in ((300, False), (rest + 30, False), (rest // 2, True)):
        answers = GroundedAnswers(vocabulary, ["a b"], GenerationSettings(max_new_tokens=room + len(begun)))
        scores = torch.zeros(1, vocabulary.width).index_fill_(1, torch.tensor(letter), 2.0)
        for number in range(len(begun) + 1):  # it would rather write on than end
            masked = answers([0], begun[number - 1 : number], scores)
            if number < len(begun):
                answers._rows[0].forced = False
        assert (int(masked.argmax()) == letter, answers.forced) == (not forced, [forced])


def ask(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_the_critic_hands_over_the_responses_and_counts_closed_answers(policy: Policy) -> None:
    """An untrained model does not end by itself; a chat that cannot be grounded is asked as
    before."""
    settings = GenerationSettings(max_new_tokens=64, temperature=0.0, batch_size=3)
    chat = LocalChat(policy, settings, "untrained", make_vocabulary(policy, "on"))
    example = Example(id="1", prompt=tuple(ask("?")))
    responses = [HOSTILE["prose"], HOSTILE["code"], "a b", HOSTILE["repeats"]]
    critic = PromptedCritic(chat, "{{response}}", Source(kind="reward_model"))
    for judgement in critic.critique([example] * 4, responses):
        assert isinstance(judgement, Critique) and judgement.forced and not judgement.quotes.unmatched
    scripted = ScriptedChat(['{"critique": "", "good_spans": ["dog"], "poor_spans": []}'])
    (judgement,) = PromptedCritic(scripted, "{{response}}", Source(kind="llm")).critique([example], ["the cat"])
    assert isinstance(judgement, Critique) and judgement.quotes.unmatched == 1


def test_an_untrained_model_answers_a_batch(policy: Policy) -> None:
    """Rows of different lengths that end at different times; sampled, as a policy samples, and each
    as alone."""
    sampled = GenerationSettings(max_new_tokens=96, temperature=1.0, batch_size=8)
    responses = list(HOSTILE.values())
    questions = [ask("?" * (1 + len(text) % 40)) for text in responses]
    torch.manual_seed(0)
    grounded_chat = LocalChat(policy, sampled, "untrained", make_vocabulary(policy, "on"))
    for answer, response in zip(grounded_chat.complete_about(questions, responses), responses, strict=True):
        assert isinstance(answer, Completion) and not answer.truncated
        assert_resolves(answer.text, response)
    (plain,) = LocalChat(policy, sampled, "untrained").complete_about(questions[:1], responses[:1])
    assert isinstance(plain, Completion) and isinstance(parse(plain.text, responses[0]), Failure)
    greedy = LocalChat(policy, sampled.model_copy(update={"temperature": 0.0}), "", make_vocabulary(policy, "on"))
    some = [HOSTILE["prose"], HOSTILE["code"], "a"]
    together = greedy.complete_about([ask(text * 2) for text in some], some)
    assert together == [greedy.complete_about([ask(text * 2)], [text])[0] for text in some]


def test_what_cannot_be_grounded_is_said_once_or_refused(
    policy: Policy,
    word_piece: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert make_vocabulary(policy, "off") is None and capsys.readouterr().err == ""
    with pytest.raises(UserError, match="tokens that are byte strings"):
        Vocabulary(word_piece, len(word_piece))
    monkeypatch.setattr(grounded, "find_spec", lambda name: None)
    grounded.warn_once.cache_clear()
    assert make_vocabulary(policy, "auto") is make_vocabulary(policy, "auto") is None
    assert capsys.readouterr().err.count("pip install 'text2grad[grounded]'") == 1
    with pytest.raises(UserError, match="llguidance"):
        make_vocabulary(policy, "on")


def test_padding_and_stop_tokens_are_no_text_and_spelling_is_exact(tokenizer: PreTrainedTokenizerFast) -> None:
    wide = Vocabulary(tokenizer, len(tokenizer) + 7)
    mask = wide.masks([Row(wide, "a b").matcher])[0]
    assert not mask[len(tokenizer) :].any() and not mask[stop_ids(tokenizer)].any()
    text = 'naïve 🙂 "\\n'.encode()
    assert b"".join(wide.pieces[token] for token in wide.spell(text)) == text
