"""`TokenCredit` with critics that are slow, raise, answer nonsense or are functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from text2grad.align import CreditSettings, TokenTable
from text2grad.align.rewards import Aligner, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import CritiquesFailed, UserError
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source, Span

TEXTS = [f"answer {number} is fine" for number in range(8)]
SETTINGS = CreditSettings(outcome_weight=0.0)


@pytest.fixture(scope="module")
def table(tokenizer: PreTrainedTokenizerFast) -> TokenTable:
    return TokenTable(tokenizer)


@pytest.fixture(scope="module")
def batch(tokenizer: PreTrainedTokenizerFast) -> list[Trajectory]:
    prompt = (Message(role="user", content="How is it?"),)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    return [Trajectory(Example(id=str(at), prompt=prompt), each) for at, each in enumerate(ids)]


def praise(example: Example, response: str) -> Judgement:
    start = response.index("fine")
    return Critique(text="", spans=(Span(start=start, end=start + 4, label=1, text="fine"),), score=1.0)


class Asked:
    """A critic that answers by `answer`, and remembers the size of every request."""

    source = Source(kind="program")

    def __init__(self, answer: Callable[[Example, str], Any] = praise, seconds: float = 0.0) -> None:
        self.answer, self.seconds, self.sizes = answer, seconds, list[int]()

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.sizes.append(len(responses))
        time.sleep(self.seconds)
        return [self.answer(*each) for each in zip(examples, responses, strict=True)]


def poisoned(example: Example, response: str) -> Any:
    """Answers every question but the fourth."""
    if example.id == "3":
        raise RuntimeError("cannot read it")
    return praise(example, response)


def beyond(example: Example, response: str) -> Any:
    """Marks a span that ends beyond the fourth answer."""
    end = len(response) + 5
    wrong = Critique(text="", spans=(Span(start=end - 1, end=end, label=1, text="?"),))
    return wrong if example.id == "3" else praise(example, response)


def failed_rows(outcomes: Sequence[Any]) -> list[int]:
    return [row for row, outcome in enumerate(outcomes) if outcome.failures]


def misplaced(example: Example, response: str) -> Any:
    """Reads another program's answer, whose offsets are beyond the fourth answer."""
    end = len(response) + 5 if example.id == "3" else response.index("fine") + 4
    return Critique.from_dict({"spans": [{"start": end - 4, "end": end, "label": 1}], "score": 1.0}, response)


def exhausted(example: Example, response: str) -> Any:
    """Takes from an iterator that is at its end, for the fourth answer."""
    return next(iter([])) if example.id == "3" else praise(example, response)


@pytest.mark.parametrize(
    "answer",
    [poisoned, beyond, misplaced, exhausted, lambda *asked: None if asked[0].id == "3" else praise(*asked)],
)
def test_what_is_wrong_with_one_row_fails_that_row(
    answer: Callable[..., Any], table: TokenTable, batch: list[Trajectory]
) -> None:
    for critic in (Asked(answer), answer):
        outcomes = TokenCredit(critic, table, SETTINGS, retries=1).score_batch(batch)
        assert failed_rows(outcomes) == [3]
        assert "no critique within" not in outcomes[3].failures[0].message
        assert all(
            outcome.word_rewards is not None and outcome.word_rewards.any()
            for outcome in outcomes
            if not outcome.failures
        )


def test_a_function_may_return_what_it_awaits(table: TokenTable, batch: list[Trajectory]) -> None:
    async def later(example: Example, response: str) -> Judgement:
        return praise(example, response)

    assert failed_rows(TokenCredit(lambda *asked: later(*asked), table, SETTINGS).score_batch(batch)) == []


def test_ids_of_another_tokenizer_fail_their_row(table: TokenTable, batch: list[Trajectory]) -> None:
    strange = Trajectory(batch[0].example, [600_000])
    assert failed_rows(TokenCredit(Asked(), table, SETTINGS).score_batch([*batch, strange])) == [8]


def test_a_request_that_raises_is_sent_again(table: TokenTable, batch: list[Trajectory]) -> None:
    calls = iter([True, True, False])

    def shaky(example: Example, response: str) -> Judgement:
        if next(calls, False):
            raise ConnectionError("reset")
        return praise(example, response)

    critic = Asked(shaky)
    assert failed_rows(TokenCredit(critic, table, SETTINGS).score_batch(batch)) == []
    assert critic.sizes == [8, 8, 8]


def test_a_critic_that_is_too_slow_fails_and_is_given_up(table: TokenTable, batch: list[Trajectory]) -> None:
    credit = TokenCredit(Asked(seconds=5.0), table, SETTINGS, timeout=0.05, max_failed=1.0)
    start = time.monotonic()
    assert failed_rows(credit.score_batch(batch)) == [*range(8)]
    assert time.monotonic() - start < 4.0


def test_too_many_failures_end_the_run(table: TokenTable, batch: list[Trajectory]) -> None:
    def half(example: Example, response: str) -> Any:
        return praise(example, response) if int(example.id) % 2 else Failure(kind="refused", message="no")

    with pytest.raises(CritiquesFailed, match="4 of the last 8 critiques failed, the last: refused: no"):
        TokenCredit(Asked(half), table, SETTINGS).score_batch(batch)
    lenient = TokenCredit(Asked(half), table, SETTINGS, max_failed=0.5)
    for _ in range(10):
        assert failed_rows(lenient.score_batch(batch)) == [0, 2, 4, 6]


def test_a_mistake_of_the_set_up_is_raised_at_once(table: TokenTable, batch: list[Trajectory]) -> None:
    def unset(example: Example, response: str) -> Judgement:
        raise UserError("no API key", "export OPENAI_API_KEY")

    critic = Asked(unset)
    with pytest.raises(UserError, match="no API key"):
        TokenCredit(critic, table, SETTINGS).score_batch(batch)
    assert critic.sizes == [8]


def test_what_is_asked_while_the_critic_is_busy_is_its_next_batch(
    table: TokenTable, batch: list[Trajectory]
) -> None:
    critic = Asked(seconds=0.3)
    credit = TokenCredit(critic, table, SETTINGS)

    async def rollouts() -> list[Any]:
        first = asyncio.ensure_future(credit.score(batch[:1]))
        await asyncio.sleep(0.15)
        rest = await asyncio.gather(*(credit.score([trajectory]) for trajectory in batch[1:]))
        return [await first, *rest]

    found = asyncio.run(rollouts())
    assert critic.sizes == [1, 7] and all(outcome.word_rewards is not None for (outcome,) in found)


def test_a_batch_has_at_most_so_many(table: TokenTable, batch: list[Trajectory]) -> None:
    critic = Asked()
    TokenCredit(critic, table, SETTINGS, max_in_flight=3).score_batch(batch)
    assert critic.sizes == [3, 3, 2]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_function_is_called_for_each_and_for_several_at_once(
    asynchronous: bool, table: TokenTable, batch: list[Trajectory]
) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def enter(change: int) -> None:
        with lock:
            running[0] += change
            most[0] = max(most[0], running[0])

    def judge(example: Example, response: str) -> Judgement:
        enter(1)
        time.sleep(0.05)
        enter(-1)
        return praise(example, response)

    async def judge_later(example: Example, response: str) -> Judgement:
        enter(1)
        await asyncio.sleep(0.05)
        enter(-1)
        return praise(example, response)

    credit = TokenCredit(judge_later if asynchronous else judge, table, SETTINGS, max_in_flight=3)
    assert failed_rows(credit.score_batch(batch)) == [] and most == [3]


def test_who_stops_waiting_stops_nobody_else(table: TokenTable, batch: list[Trajectory]) -> None:
    credit = TokenCredit(Asked(seconds=0.1), table, SETTINGS)

    async def one_leaves() -> Any:
        leaving, staying = (asyncio.ensure_future(credit.score([trajectory])) for trajectory in batch[:2])
        await asyncio.sleep(0.01)
        leaving.cancel()
        return await asyncio.wait_for(staying, 30)

    async def leaves() -> None:
        asyncio.ensure_future(credit.score(batch[:1]))  # noqa: RUF006 - its loop ends before it does
        await asyncio.sleep(0.01)

    assert asyncio.run(one_leaves())[0].word_rewards is not None
    asyncio.run(leaves())
    assert asyncio.run(credit.score(batch[:1]))[0].word_rewards is not None


@pytest.mark.parametrize("critic", [None, "judge", 3, object(), Asked])
def test_what_is_no_critic_is_refused_at_once(critic: Any, table: TokenTable) -> None:
    with pytest.raises(UserError, match=r"^[^\n]* is not a critic [^\n]*$"):
        TokenCredit(critic, table)


def test_an_id_that_the_model_cannot_sample_fails_its_trajectory(
    table: TokenTable, batch: list[Trajectory]
) -> None:
    """Ids beyond the vocabulary are of a padded output layer, as far as that goes."""
    size = table.vocabulary + 8
    padded, strange = (Trajectory(batch[0].example, [*batch[0].ids, size + more]) for more in (-1, 0))
    assert failed_rows(TokenCredit(Asked(), table, output_size=size).score_batch([padded, strange, *batch])) == [1]
    assert failed_rows(TokenCredit(Asked(), table).score_batch([padded, strange, *batch])) == []
    with pytest.raises(UserError, match=rf"{size} is not among the {size:,} ids that the model can sample"):
        Aligner(table, output_size=size).text(strange.ids)
