"""Credit of trajectories: every paid token is the policy's own, every quoted character covered,
nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from made_tokenizers import byte_level_tokenizer
from paid_words import check_paid, runs
from text2grad.align import CreditSettings, TokenTable, credit
from text2grad.align.rewards import Aligner, TokenCredit
from text2grad.align.trajectory import Trajectory, read_policy_tokens
from text2grad.chat import ScriptedChat
from text2grad.critics.prompted import PromptedCritic
from text2grad.errors import UserError
from text2grad.feedback import (
    BETWEEN_TURNS,
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Message,
    Source,
    Span,
    Transcript,
    conversation_of,
    turns_of,
)
from text2grad.tasks.base import read_prompt

Tables = dict[str, TokenTable]
Heard = tuple[TokenTable, Trajectory]
"""A trajectory of two turns, and the table of its tokenizer."""
EXAMPLE = Example(id="a", prompt=(Message(role="user", content="How far?"),))
FAILED = Failure(kind="truncated", message="cut")
WORDS = CreditSettings(outcome_weight=0.5)
PIECES = ("look up", "twenty miles", "é🙂", "会议", " ", "\n", "{}", "<tool>", "twenty")


class Says:
    """A critic that answers as a function of what it is shown."""

    source = Source(kind="program")

    def __init__(self, say: Callable[[str], Judgement]) -> None:
        self.say = say
        self.shown: list[tuple[Example, str]] = []
        self.calls: list[int] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.calls.append(len(responses))
        self.shown += zip(examples, responses, strict=True)
        return [self.say(response) for response in responses]


def blamed(quote: str, score: float | None = 1.0) -> Callable[[str], Judgement]:
    """Blames the first place of the quote, if it is there."""

    def say(text: str) -> Judgement:
        start = text.find(quote)
        if start < 0:
            return Critique(text="not there", score=score, lost=(quote,))
        return Critique(
            text="no", spans=(Span(start=start, end=start + len(quote), label=-1, text=quote),), score=score
        )

    return say


@pytest.fixture(scope="module")
def tokenizers_made(tokenizer: Any, sentencepiece_tokenizer: Any, word_piece: Any) -> dict[str, Any]:
    """Five kinds: byte-level BPE in two sizes, SentencePiece with byte fallback, WordPiece, and
    tokenizers' own."""
    kinds = {"bytes": tokenizer, "few bytes": byte_level_tokenizer(300), "plain": tokenizer.backend_tokenizer}
    return {**kinds, "pieces": sentencepiece_tokenizer, "words": word_piece}


@pytest.fixture(scope="module")
def tables(tokenizers_made: dict[str, Any]) -> Tables:
    return {kind: TokenTable(each) for kind, each in tokenizers_made.items()}


@st.composite
def trajectories(draw: st.DrawFn, tables: Tables) -> Heard:
    """Any ids, some beyond the vocabulary, under any mask."""
    table = tables[draw(st.sampled_from(sorted(tables)))]
    ids = draw(st.lists(st.integers(0, table.vocabulary + 3), max_size=20))
    mask = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
    return table, Trajectory(EXAMPLE, ids, mask)


@given(data=st.data())
def test_paid_are_the_policys_own_tokens_of_what_is_quoted(data: st.DataObject, tables: Tables) -> None:
    check_paid(data, *data.draw(trajectories(tables)))


@given(data=st.data())
def test_one_answer_is_a_trajectory_of_one_turn(data: st.DataObject, tables: Tables) -> None:
    table, trajectory = data.draw(trajectories(tables))
    text = table.align(trajectory.ids).text
    critique = blamed(text[:3])(text) if text else Critique(text="", score=1.0)
    assert isinstance(critique, Critique)
    whole = Aligner(table).rewards(critique, trajectory.ids, mask=[1] * len(trajectory.ids))
    assert whole.tolist() == Aligner(table).rewards(critique, trajectory.ids).tolist()
    assert Aligner(table).text(trajectory.ids) == text
    assert type(read_policy_tokens(table, Trajectory(EXAMPLE, trajectory.ids)).response) is str


@given(data=st.data())
def test_a_turns_verdict_is_paid_within_its_turn(data: st.DataObject, tables: Tables) -> None:
    """The oracle: what the whole is paid without turns' verdicts, and each of these at its turn's
    own ids."""
    table, trajectory = data.draw(trajectories(tables))
    scheme = data.draw(st.sampled_from(["spans", "last_token", "spread_score"]))
    settings = CreditSettings(scheme=scheme)
    own = runs(trajectory.mask)
    some = st.none() | st.sampled_from([-1.0, 0.5, 0.25])
    scores = data.draw(st.lists(some, min_size=len(own), max_size=len(own)))
    whole = data.draw(st.sampled_from([1.0, -0.5]))
    critique = Critique(text="", score=whole)
    judged = critique.model_copy(update={"turn_scores": tuple(scores)})
    (plain,) = TokenCredit(Says(lambda _: critique), table, settings).score_batch([trajectory])
    (paid,) = TokenCredit(Says(lambda _: judged), table, settings).score_batch([trajectory])
    if not own:
        assert paid.rewards is None or not len(paid.rewards)
        return
    assert plain.rewards is not None and paid.rewards is not None
    expected = plain.rewards.copy()
    for run, score in zip(own, scores, strict=True) if len(own) > 1 else ():  # of one turn the whole is said
        expected[run if scheme == "spread_score" else run[-1:]] += score or 0.0
    assert paid.rewards.tolist() == expected.tolist()
    assert paid.score == whole and paid.word_rewards is not None and not paid.word_rewards.any()
    rewards = Aligner(table).rewards(judged, trajectory.ids, mask=trajectory.mask, scheme=settings)
    assert rewards.tolist() == paid.rewards.tolist()


@pytest.mark.parametrize(("scheme", "weight"), [("spans", 0.5), ("last_token", 1.0)])
def test_without_a_verdict_on_the_whole_a_group_compares_the_mean_of_its_turns(
    scheme: str, weight: float, heard: Heard
) -> None:
    table, trajectory = heard
    settings = CreditSettings(scheme=scheme, outcome_weight=0.5)
    for scores, total, count in (((1.0, 0.0), 1.0, 2), ((None, -0.5), -0.5, 1)):
        critique = Critique(text="", turn_scores=scores)
        (paid,) = TokenCredit(Says(lambda _, said=critique: said), table, settings).score_batch([trajectory])  # type: ignore[misc]
        assert paid.score == weight * total / count and paid.failures == ()
        assert paid.rewards is not None and paid.rewards.sum() == weight * total


BETWEEN_SMOLLM2 = "<|im_end|>\n<|im_start|>tool\n{}<|im_end|>\n<|im_start|>assistant\n"
"""What SmolLM2's template (ChatML) writes from the end of one turn to the beginning of the next."""


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """The words of some turns of the policy, and what a tool answered after each: often the same
    words."""
    words = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
    count = draw(st.integers(1, 4))
    return tuple(draw(st.lists(words, min_size=count, max_size=count)) for _ in range(2))  # type: ignore[return-value]


def sampled(tokenizer: Any, between: str, turns: list[str], tools: list[str]) -> Trajectory:
    """A rollout: each turn encoded by itself, as it was sampled, and what the template writes
    `between` turns."""
    ids: list[int] = []
    mask: list[int] = []

    def add(text: str, own: bool) -> None:
        found = getattr(tokenizer, "backend_tokenizer", tokenizer).encode(text, add_special_tokens=False).ids
        ids.extend(found)
        mask.extend([int(own)] * len(found))

    for said, heard in zip(turns, tools, strict=True):
        add(said, True)
        add(between.format(heard), False)
    return Trajectory(EXAMPLE, ids, mask)


@given(data=st.data())
def test_what_a_critic_quotes_by_turn_is_paid_at_the_policys_own_tokens(
    data: st.DataObject, tokenizers_made: dict[str, Any], tables: Tables
) -> None:
    """From z to tokens: every quoted character is covered by paid tokens of its turn, and nothing
    else is paid."""
    kind = data.draw(st.sampled_from([*sorted(tables), "smollm2"]))
    name = "bytes" if kind == "smollm2" else kind
    turns, tools = data.draw(conversations())
    table, tokenizer = tables[name], tokenizers_made[name]
    trajectory = sampled(tokenizer, BETWEEN_SMOLLM2 if kind == "smollm2" else "|{}|", turns, tools)
    own = read_policy_tokens(table, trajectory)
    spoken = [turn for turn in turns_of(own.response) if own.response[turn.start : turn.end].strip()]
    if not spoken:
        return
    turn = data.draw(st.sampled_from(spoken))
    number, text = turns_of(own.response).index(turn) + 1, str(own.response)[turn.start : turn.end]
    start = data.draw(st.sampled_from([place for place, char in enumerate(text) if not char.isspace()]))
    end = data.draw(st.sampled_from([p + 1 for p, char in enumerate(text) if p >= start and not char.isspace()]))
    quote = text[start:end]
    starts = [place for place in range(len(text)) if text.startswith(quote, place)]
    item = {"quote": quote, "turn": number, "part": True, "occurrence": starts.index(start) + 1}
    heard = [message.content for message in conversation_of(own.response) if message.role == "tool"]
    others = [{"quote": content[:300], "part": True} for content in set(heard) if content not in str(own.response)]
    z = json.dumps({"critique": "", "good_spans": [item], "poor_spans": others})
    critic = PromptedCritic(ScriptedChat([z]), "{{response}}", Says.source)
    (paid,) = TokenCredit(critic, table, CreditSettings(outcome_weight=0.0)).score_batch([trajectory])
    assert paid.rewards is not None and paid.foreign_quotes == len(others)
    expected = np.zeros(len(trajectory.ids))
    run = runs(trajectory.mask)[number - 1]
    aligned = table.align([trajectory.ids[index] for index in run])
    covered = set()
    for index, first, last in zip(run, aligned.starts, aligned.ends, strict=True):
        if first < end and last > start and last > first:
            expected[index] = 1.0
            covered |= set(range(first, last))
    assert paid.rewards.tolist() == expected.tolist()
    assert covered >= set(range(start, end)) and np.array(trajectory.mask)[paid.rewards != 0].all()


@pytest.mark.parametrize("kind", ["bytes", "pieces", "words"])
def test_turns_that_were_not_sampled_end_at_tokens_too(kind: str, tables: Tables) -> None:
    said = Transcript.of([((), "It is thirty miles."), ((), ""), ((), "Or twenty")])
    aligned = tables[kind].align_text(said)
    critique = Critique(text="", turn_scores=(1.0, None, -1.0))
    found = credit(critique, aligned, CreditSettings(scheme="last_token"))
    ends = [aligned.text[: aligned.ends[place]].rstrip() for place in np.flatnonzero(found.delta)]
    assert ends == ["It is thirty miles.", str(said)] and found.verdict == 0.0


def talk(table: TokenTable, tokenizer: Any, *turns: str) -> tuple[list[int], list[int]]:
    """Ids and mask of turns: the policy's first, then others and the policy in turn."""
    ids: list[int] = []
    mask: list[int] = []
    for number, text in enumerate(turns):
        said = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += said
        mask += [1 - number % 2] * len(said)
    return ids, mask


TALK = ("call look_up(Ely)", "<result>Ely: twenty miles</result>", "It is thirty miles.")


@pytest.fixture(scope="module")
def heard(tokenizer: PreTrainedTokenizerFast) -> Heard:
    table = TokenTable(tokenizer)
    ids, mask = talk(table, tokenizer, *TALK)
    return table, Trajectory(EXAMPLE, ids, mask)


def paid_text(table: TokenTable, trajectory: Trajectory, paid: Any) -> str:
    """The text of the tokens that earned something by their words."""
    return "".join(table.align([trajectory.ids[place]]).text for place in np.flatnonzero(paid.word_rewards)).strip()


def test_the_critic_of_a_trajectory_sees_who_said_what(heard: Heard) -> None:
    table, trajectory = heard
    critic = Says(blamed("thirty"))
    (paid,) = TokenCredit(critic, table, WORDS).score_batch([trajectory])
    ((example, response),) = critic.shown
    assert example == EXAMPLE and response == TALK[0] + BETWEEN_TURNS + TALK[2] and isinstance(response, Transcript)
    said = [(message.role, message.content) for message in conversation_of(response)]
    assert said == [("assistant", TALK[0]), ("tool", TALK[1]), ("assistant", TALK[2])]
    assert paid.word_rewards is not None and paid.rewards is not None and paid.score == 0.5
    assert set(paid.word_rewards.tolist()) == {0.0, -1.0} and paid_text(table, trajectory, paid) == "thirty"
    assert paid.rewards[-1] == 0.5 and not (paid.rewards - paid.word_rewards)[:-1].any()
    named = [[], [Message(role="user", content="Are you sure?")], []]  # messages between turns may be given
    TokenCredit(critic, table, WORDS).score_batch([Trajectory(EXAMPLE, trajectory.ids, trajectory.mask, named)])
    shown = [message.content for message in conversation_of(critic.shown[1][1])]
    assert shown == [TALK[0], "Are you sure?", TALK[2]]


def test_a_critic_over_a_chat_model_is_shown_the_conversation(heard: Heard) -> None:
    table, trajectory = heard
    poor = [{"quote": "thirty", "turn": 2}, "Ely: twenty"]
    z = {"critique": "c", "good_spans": [], "poor_spans": poor, "score": 1}
    chat = ScriptedChat([json.dumps({**z, "turn_scores": [{"turn": 1, "score": 0.5}]})])
    critic = PromptedCritic(chat, read_prompt("qa_plain"), Says.source)
    (paid,) = TokenCredit(critic, table, WORDS).score_batch([trajectory])
    shown = chat.asked[0][-1].content
    assert f'<message from="tool">\n{TALK[1]}\n</message>\n<turn number="2">\n{TALK[2]}\n</turn>' in shown
    assert paid.word_rewards is not None and paid.rewards is not None and trajectory.mask is not None
    assert paid_text(table, trajectory, paid) == "thirty" and paid.foreign_quotes == 1 and paid.score == 0.5
    end_of_first = trajectory.mask.index(0) - 1
    assert np.flatnonzero(paid.rewards - paid.word_rewards).tolist() == [end_of_first, len(trajectory.ids) - 1]
    assert paid.rewards[end_of_first] == 0.25


def test_a_turn_that_was_edited_after_it_was_sampled_is_refused(heard: Heard) -> None:
    """A record of the same words is paid, whoever spoke between them."""
    table, trajectory = heard

    def rewards(*turns: tuple[Sequence[Message], str]) -> Any:
        said = Transcript.of(turns)
        record = Feedback(id="1", prompt=EXAMPLE.prompt, response=said, source=Says.source, score=1.0)
        return Aligner(table).rewards(record, trajectory.ids, mask=trajectory.mask)

    with pytest.raises(UserError, match=r"'It is thirty miles.' in turn 2, .* 'It is forty") as error:
        rewards(((), TALK[0]), ((), "It is forty miles."))
    assert "\n" not in str(error.value) and "show the critic the text of the ids" in str(error.value)
    with pytest.raises(UserError, match="the ids have 2 turns, the record's response 1"):
        rewards(((), TALK[0]))
    assert rewards(((), TALK[0]), ([Message(role="user", content="so?")], TALK[2]))[-1] == 1.0


def test_every_critic_can_judge_turn_by_turn(heard: Heard) -> None:
    table, trajectory = heard
    critic = Says(lambda text: blamed("miles", -1.0 if "miles" in text else 0.5)(text))
    (paid,) = TokenCredit(critic, table, WORDS, unit="turn").score_batch([trajectory])
    assert [response for _, response in critic.shown] == [TALK[0], TALK[2]]
    assert [message.content for message in critic.shown[1][0].prompt] == ["How far?", TALK[0], TALK[1]]
    assert paid.rewards is not None and paid.word_rewards is not None and trajectory.mask is not None
    assert paid.score == -0.125, "the mean of its turns"
    end_of_first = trajectory.mask.index(0) - 1
    assert paid.rewards[end_of_first] == 0.25 and paid.rewards[-1] == -0.5 and paid.word_rewards[end_of_first] == 0


def test_a_tools_words_pay_nothing_however_payable(tokenizer: PreTrainedTokenizerFast) -> None:
    table = TokenTable(tokenizer)
    stuffed = ("I look it up.", "wrong! " * 40, "Ely is near.")
    ids, mask = talk(table, tokenizer, *stuffed, "wrong! after the last turn")
    (paid,) = TokenCredit(Says(blamed("wrong!")), table, WORDS).score_batch([Trajectory(EXAMPLE, ids, mask)])
    assert paid.foreign_quotes == 1 and paid.word_rewards is not None and not paid.word_rewards.any()
    assert paid.rewards is not None
    last = max(np.flatnonzero(mask))
    assert np.flatnonzero(paid.rewards).tolist() == [last], "the verdict is on the last id of the policy's own"
    quoted_twice = ("I call it wrong!", "wrong!", "Done.")
    ids, mask = talk(table, tokenizer, *quoted_twice)
    (paid,) = TokenCredit(Says(blamed("wrong!")), table, WORDS).score_batch([Trajectory(EXAMPLE, ids, mask)])
    assert paid.word_rewards is not None and paid.word_rewards.min() == -1 and paid.foreign_quotes == 0


@pytest.mark.parametrize("unit", ["trajectory", "turn"])
def test_a_failed_critique_pays_none_and_is_counted(unit: Any, heard: Heard) -> None:
    table, trajectory = heard
    critic = Says(lambda text: FAILED if "miles" in text else Critique(text="", score=1.0))
    (paid,) = TokenCredit(critic, table, WORDS, unit).score_batch([trajectory])
    assert (paid.rewards, paid.word_rewards, paid.score, paid.failures) == (None, None, None, (FAILED,))
    nobodys = Trajectory(EXAMPLE, trajectory.ids, [0] * len(trajectory.ids))
    (paid,) = TokenCredit(critic, table, WORDS, unit).score_batch([nobodys])
    assert paid.rewards is None and "no id" in paid.failures[0].message
    by_score = TokenCredit(
        Says(lambda text: Critique(text="fine")), table, CreditSettings(scheme="last_token"), unit
    )
    (paid,) = by_score.score_batch([trajectory])
    assert paid.rewards is None and "it has no score" in paid.failures[0].message


def test_without_a_verdict_there_is_none_and_not_0(heard: Heard) -> None:
    table, trajectory = heard
    (paid,) = TokenCredit(Says(blamed("thirty", None)), table, WORDS).score_batch([trajectory])
    assert paid.score is None and paid.word_rewards is not None and paid.word_rewards.min() == -1


def test_what_does_not_fit_is_one_line(heard: Heard) -> None:
    table, trajectory = heard
    for change, problem in (
        ({"mask": [1, 0]}, "a mask of 2 for .* ids"),
        ({"between": [[]]}, "`between` has 1 lists of messages"),
    ):
        whole = {"example": EXAMPLE, "ids": trajectory.ids, "mask": trajectory.mask}
        with pytest.raises(UserError, match=problem):
            TokenCredit(Says(blamed("thirty")), table).score_batch([Trajectory(**{**whole, **change})])  # type: ignore[arg-type]
