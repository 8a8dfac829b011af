"""Token rewards for other trainers: exactly what our own trainer pays, and a line for everything
that cannot be."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from text2grad.align import CreditSettings, TokenTable, get_table, require_score
from text2grad.align.credit import SCHEMES, Weighting
from text2grad.align.rewards import Aligner, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, Source, Span
from text2grad.policy.generate import Sample
from text2grad.train.rollout import judge

TEXT = 'She asked: "Is it really twenty miles?" 🙂 Nobody knew.'
EXAMPLES = [Example(id=str(n), prompt=(Message(role="user", content="How far?"),)) for n in range(8)]
KINDS = ("byte", "piece", "word")
FAILED = Failure(kind="truncated", message="cut")
SOURCE = Source(kind="human")


class Says:
    """A critic that says what it is given, whatever it is shown."""

    source = SOURCE

    def __init__(self, *judgements: Any) -> None:
        self.judgements = list(judgements)
        self.shown: list[str] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.shown = list(responses)
        return self.judgements


def credited(
    critic: Says,
    examples: Sequence[Example],
    table: TokenTable,
    ids: Sequence[Sequence[int]],
    settings: CreditSettings = CreditSettings(),  # noqa: B008
) -> list[list[float] | None]:
    """What a critic's judgements of single answers pay."""
    batch = [Trajectory(example, each) for example, each in zip(examples, ids, strict=True)]
    outcomes = TokenCredit(critic, table, settings).score_batch(batch)
    return [None if each.rewards is None else each.rewards.tolist() for each in outcomes]


def rewards_of(
    tokenizer: Any,
    feedback: Any,
    ids: Sequence[int],
    settings: CreditSettings = CreditSettings(),  # noqa: B008
) -> list[float]:
    """Return the rewards of the ids of one answer."""
    rewards = Aligner(tokenizer).rewards(feedback, ids, scheme=settings)
    assert rewards.shape == (len(ids),) and rewards.dtype == np.float32
    return list(rewards.tolist())


@pytest.fixture(scope="module")
def byte(tokenizer: PreTrainedTokenizerFast) -> TokenTable:
    return TokenTable(tokenizer)


@pytest.fixture(scope="module")
def tables(byte: TokenTable, sentencepiece_tokenizer: Any, word_piece: Any) -> dict[str, TokenTable]:
    return {"byte": byte, "piece": TokenTable(sentencepiece_tokenizer), "word": TokenTable(word_piece)}


def span(text: str, start: int, end: int, label: Any = 1) -> Span:
    return Span(start=start, end=end, label=label, text=text[start:end])


def quoted(quote: str, label: Any = 1, text: str = TEXT) -> Critique:
    start = text.index(quote)
    return Critique(text="so", spans=(span(text, start, start + len(quote), label),), score=0.5)


@st.composite
def judged(draw: st.DrawFn, tables: dict[str, TokenTable]) -> tuple[TokenTable, list[int], Judgement]:
    """Ids that were sampled (any ids), and something that can be said of their text."""
    table = tables[draw(st.sampled_from(KINDS))]
    ids = draw(st.lists(st.integers(0, table.vocabulary - 1), max_size=16))
    text = table.align(ids).text
    edges = st.lists(st.integers(0, len(text)), min_size=2, max_size=2, unique=True).map(sorted)
    places = draw(st.lists(edges, max_size=4)) if text else []
    spans = tuple(span(text, *place, draw(st.sampled_from([1, -1]))) for place in places)
    score = draw(st.none() | st.floats(-1, 1))
    failed = draw(st.booleans()) and draw(st.booleans())
    return table, ids, FAILED if failed else Critique(text="so", spans=spans, score=score)


SETTINGS = st.builds(
    CreditSettings,
    scheme=st.sampled_from(list(SCHEMES)),
    weighting=st.sampled_from(get_args(Weighting)),
    outcome_weight=st.floats(-2, 2),
    unlabelled=st.sampled_from([0.0, 0.1]),
)


@given(data=st.data(), settings=SETTINGS)
def test_the_rewards_are_those_of_our_own_trainer(
    data: st.DataObject, settings: CreditSettings, tables: dict[str, TokenTable]
) -> None:
    table, ids, judgement = data.draw(judged(tables))
    critic = Says(judgement)
    answered = judge(EXAMPLES[:1], [Sample(ids, False)], table, critic, settings)
    (found,) = credited(critic, EXAMPLES[:1], table, [ids], settings)
    if isinstance(answered.judgements[0], Failure):
        assert found is None
        with pytest.raises(UserError, match="the critique failed"):
            rewards_of(table, judgement, ids, settings)
    else:
        assert found == answered.credits[0].delta.tolist() == rewards_of(table, judgement, ids, settings)
        assert len(found) == len(ids)


@pytest.mark.parametrize("name", ["tokenizer", "sentencepiece_tokenizer", "word_piece"])
def test_plain_tokenizers_and_those_of_transformers_give_the_same(
    name: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(name)
    plain = made.backend_tokenizer
    ids = [*plain.encode(TEXT, add_special_tokens=False).ids, 1]
    text = TokenTable(made).align(ids).text
    said = quoted("really", -1, text)
    rewards = rewards_of(made, said, ids)
    assert TokenTable(plain).align(ids).text == text
    assert rewards == rewards_of(plain, said, ids) and -1.0 in rewards and len(rewards) == len(ids)


def test_what_was_judged_is_the_text_of_the_ids(byte: TokenTable, tokenizer: Any) -> None:
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    miles = quoted("twenty miles")
    critic = Says(miles, quoted("asked"))
    credited(critic, EXAMPLES[:2], byte, [ids, ids])
    assert critic.shown == [TEXT, TEXT]
    record, other = (Feedback.of(EXAMPLES[0], text, miles, SOURCE) for text in (TEXT, TEXT + " No."))
    assert rewards_of(byte, record, ids) == rewards_of(byte, miles, ids)
    with pytest.raises(UserError, match=r"a critique of another text.*No\.'"):
        rewards_of(byte, other, ids)
    with pytest.raises(UserError, match=r"a critique of another text.*does not read 'twenty miles'") as caught:
        rewards_of(byte, miles, tokenizer("Nobody asked.", add_special_tokens=False)["input_ids"])
    assert "\n" not in str(caught.value)


def test_ids_of_a_padded_output_layer_are_tokens_without_text(tables: dict[str, TokenTable]) -> None:
    """They stand anywhere in a response, and the verdict is paid on the last id, whatever it is."""
    for table in tables.values():
        plain = [index for index in range(table.vocabulary) if table.align([index]).text.strip().isalpha()][:3]
        text, beyond = table.align(plain).text, table.vocabulary
        for ids in ([*plain, beyond], [beyond + 400, *plain], [plain[0], 10_000, *plain[1:]], [beyond]):
            inside = [index for index in ids if index < table.vocabulary]
            said = quoted(text, -1, text) if inside else Critique(text="so", score=0.5)
            rewards = rewards_of(table, said, ids, CreditSettings(outcome_weight=0.5))
            wanted = [-1.0 if index < table.vocabulary else 0.0 for index in ids]
            wanted[-1] += 0.25
            assert rewards == wanted
            assert credited(Says(said), EXAMPLES[:1], table, [ids]) == [rewards_of(table, said, ids)]


def test_ids_of_another_tokenizer_are_one_line(byte: TokenTable) -> None:
    for strange in (-1, 600_000):
        problem = f"ids of another tokenizer: {strange} is not among the .* ids"
        with pytest.raises(UserError, match=problem):
            rewards_of(byte, Critique(text=""), [5, strange])


def test_a_failure_is_no_score(byte: TokenTable) -> None:
    for failed, ids in ((FAILED, [1, 2]), (Feedback.of(EXAMPLES[0], "", FAILED, SOURCE), [])):
        with pytest.raises(UserError, match=r"the critique failed \(truncated\): cut"):
            rewards_of(byte, failed, ids)
    critic = Says(Critique(text="", score=1.0), FAILED)
    assert credited(critic, EXAMPLES[:2], byte, [[4, 5], [6]]) == [[0.0, 1.0], None]


def test_a_critic_that_gives_too_few_judgements_is_one_line(byte: TokenTable) -> None:
    samples = [Sample([4], False), Sample([5], False)]
    said: list[tuple[list[Any], str]] = [([FAILED] * n, f"{n} judgements") for n in (0, 1, 3)]
    for judgements, problem in [*said, ([FAILED, None], "list of Failure, NoneType")]:
        with pytest.raises(UserError, match=f"Says.*{problem}"):
            judge(EXAMPLES[:2], samples, byte, Says(*judgements), CreditSettings())


def test_without_a_score_a_critique_is_a_failure_where_only_scores_pay() -> None:
    last = CreditSettings(scheme="last_token")
    assert last.by_score and not CreditSettings().by_score
    good, bare = Critique(text="", score=0.0), Critique(text="fine")
    assert (
        require_score(good, last) is good
        and require_score(FAILED, last) is FAILED
        and require_score(bare, CreditSettings()) is bare
    )
    found = require_score(bare, last)
    assert isinstance(found, Failure) and "it has no score" in found.message


def test_a_table_is_made_once_for_as_long_as_the_tokenizer_stays(tokenizer: PreTrainedTokenizerFast) -> None:
    growing = copy.deepcopy(tokenizer)
    first = get_table(growing)
    assert get_table(growing) is first
    growing.add_tokens(["another"])
    assert get_table(growing).vocabulary > first.vocabulary
