"""Token rewards for any trainer: sampled ids and feedback in, one number per sampled id out.

Of a trajectory of several turns, what others wrote is paid exactly 0. The words of a critique and its verdict
are kept apart: an engine that compares the answers to a prompt compares verdicts, and a sum of token rewards
would grow with the length of an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align.credit import Credit, CreditSettings, credit, scored
from text2grad.align.critic_queue import CriticFunction, CriticQueue, Question
from text2grad.align.pieces import is_plain
from text2grad.align.tokens import Aligned, Offsets, TokenTable
from text2grad.align.trajectory import OwnTokens, StrangeIdsError, Trajectory, own_tokens
from text2grad.errors import CritiquesFailed, UserError
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Message,
    conversation_of,
    turns_of,
)

if TYPE_CHECKING:
    from text2grad.align.pieces import AnyTokenizer

Unit = Literal["trajectory", "turn"]
Rewards = NDArray[np.float32]
DEFAULTS = CreditSettings()
RECENT, FEWEST = 128, 16
"""Trajectories over which the share of failures is taken, and the fewest that it is taken over."""
_NOBODY = Example(id="-", prompt=(Message(role="user", content=""),))


@dataclass(frozen=True)
class Payment:
    """What one trajectory of T ids is paid, exactly 0 at ids that the policy did not sample.

    `words` (T,) is what tokens earned by themselves and `verdict` what the trajectory is worth beside others to
    its prompt (the mean of its turns', where only they are judged); None if no critic gave one. `rewards` (T,) is
    all: each verdict, a turn's too, stands on the last own id of what it is about. Compare verdicts and add words,
    or take rewards, never both.
    All are None where a critique failed (`failures`): leave the trajectory out of the loss. `foreign` counts
    quotes of what a tool or a user said, `lost` those that are nowhere in the trajectory; neither pays anything.
    """

    words: Rewards | None = None
    verdict: float | None = None
    rewards: Rewards | None = None
    failures: tuple[Failure, ...] = ()
    foreign: int = 0
    lost: int = 0


def token_rewards(
    feedback: Critique | Feedback | Failure,
    tokenizer: AnyTokenizer | TokenTable,
    ids: Sequence[int],
    settings: CreditSettings = DEFAULTS,
) -> list[float]:
    """`trajectory_rewards` of one answer, all of whose ids the policy sampled: one number for each."""
    return trajectory_rewards(feedback, tokenizer, ids, None, settings)


def trajectory_rewards(
    feedback: Critique | Feedback | Failure,
    tokenizer: AnyTokenizer | TokenTable,
    ids: Sequence[int],
    mask: Sequence[int] | None = None,
    settings: CreditSettings = DEFAULTS,
) -> list[float]:
    """The pseudo-reward delta of every id of a trajectory (paper, section 3.3), exactly 0 where `mask` is 0.

    `ids` stand after the prompt, as they were sampled and fed, special tokens included; they are never
    tokenised again. Those beyond the vocabulary, which a model with a padded output layer samples, have no
    text. `mask` is 1 where the policy sampled the id; without it, everywhere. The critique must be of the text
    that `own_tokens(...).response` reads off them; of a record, the response is compared with it. The verdict
    stands on the last id of the policy's own. `tokenizer` is one of transformers or of the package tokenizers;
    its `TokenTable` is made at the first call.

    Raises:
        UserError: the feedback is a failure, or has no score where `settings.scheme` pays nothing else (neither is
            a reward of 0: leave the trajectory out of the loss); the critique is of another text; the mask does
            not fit; or the ids are not of this tokenizer.
    """
    own = own_tokens(table_of(tokenizer), Trajectory(_NOBODY, ids, mask))
    if isinstance(feedback, Feedback):
        _refuse_edited(feedback.response, own.response)
    judgement = scored(feedback.judgement() if isinstance(feedback, Feedback) else feedback, settings)
    if isinstance(judgement, Failure):
        raise UserError(
            f"the critique failed ({judgement.kind}): {judgement.message}", "leave the response out of the loss"
        )
    found = _credit(judgement, own.aligned, settings)
    return [float(reward) for reward in _scattered(len(ids), [(own.places, found.delta)])]


class TokenCredit:
    """A critic's words as token rewards, for any engine: a batch of trajectories in, what each is paid out.

    With `unit="trajectory"` the critic gives one critique of the whole: its response is the policy's own words,
    and as a `Transcript` says what others said between them. Critics over a chat model, a reward model among them,
    are shown that as a conversation; one that takes the response for plain text reads the policy's own words
    alone. With `unit="turn"` it judges each turn by itself, as the answer to the conversation before it, and every
    critic can do that.

    Args:
        critic: a `Critic`, or a function of an example and a response that returns (or awaits) a `Critique` or a
            `Failure`.
        tokenizer: the policy's.
        settings: how words become rewards.
        unit: what the critic judges, the whole trajectory or each of its turns.
        timeout: seconds that a request to the critic may take.
        retries: how often a request that raised is sent again.
        max_in_flight: trajectories in one request to a critic, or calls of a function at once.
        max_failed: share of failed critiques, over the last 128, above which a `CritiquesFailed` ends the run.
    """

    def __init__(
        self,
        critic: Critic | CriticFunction,
        tokenizer: AnyTokenizer | TokenTable,
        settings: CreditSettings = DEFAULTS,
        unit: Unit = "trajectory",
        *,
        timeout: float = 120.0,
        retries: int = 2,
        max_in_flight: int = 64,
        max_failed: float = 0.2,
    ) -> None:
        self.table, self.settings, self.unit, self.max_failed = table_of(tokenizer), settings, unit, max_failed
        self._queue = CriticQueue(critic, timeout, retries, max_in_flight)
        self._failed: deque[bool] = deque(maxlen=RECENT)

    def of(self, batch: Sequence[Trajectory]) -> list[Payment]:
        """Return what each trajectory is paid. The critic is asked about `max_in_flight` of them at a time.

        A trajectory whose critique failed, or does not fit its text, or whose ids are of another tokenizer, is
        paid None, and no other is.

        Raises:
            UserError: a mask does not fit its ids, or the critic raised a mistake of its set-up.
            CritiquesFailed: more than `max_failed` of the last trajectories failed.
        """
        readings = self._read(batch)
        judgements = self._queue.submit(_all_questions(readings)).result()
        return self._paid(batch, readings, judgements)

    async def aof(self, batch: Sequence[Trajectory]) -> list[Payment]:
        """As `of`, for rollouts that end one by one: what is asked while the critic is busy is its next batch."""
        readings = await asyncio.to_thread(self._read, batch)
        judgements = await asyncio.wrap_future(self._queue.submit(_all_questions(readings)))
        return await asyncio.to_thread(self._paid, batch, readings, judgements)

    def _read(self, batch: Sequence[Trajectory]) -> list[_Reading | Failure]:
        readings: list[_Reading | Failure] = []
        for trajectory in batch:
            try:
                tokens = own_tokens(self.table, trajectory)
            except StrangeIdsError as error:
                readings.append(Failure(kind="invalid", message=str(error)))
            else:
                readings.append(_Reading(tokens, _questions(trajectory, tokens, self.unit)))
        return readings

    def _paid(
        self, batch: Sequence[Trajectory], readings: Sequence[_Reading | Failure], judgements: Sequence[Judgement]
    ) -> list[Payment]:
        answers = iter(judgements)
        payments = []
        for trajectory, reading in zip(batch, readings, strict=True):
            if isinstance(reading, Failure):
                payments.append(Payment(failures=(reading,)))
                continue
            judged = [next(answers) for _ in reading.questions]
            payments.append(self._payment(len(trajectory.ids), reading.tokens, judged))
        self._refuse_failures(payments)
        return payments

    def _refuse_failures(self, payments: Sequence[Payment]) -> None:
        self._failed.extend(bool(payment.failures) for payment in payments)
        failed = sum(self._failed)
        if failed > self.max_failed * max(len(self._failed), FEWEST):
            failure = next(payment.failures[0] for payment in reversed(payments) if payment.failures)
            raise CritiquesFailed(
                f"{failed} of the last {len(self._failed)} critiques failed, the last: {failure.kind}:"
                f" {failure.message}",
                "fix the critic, or raise TokenCredit(..., max_failed=...)",
            )

    def _payment(self, length: int, own: OwnTokens, answers: Sequence[Judgement]) -> Payment:
        try:
            return self._payment_of(length, own, [scored(answer, self.settings) for answer in answers])
        except UserError as error:  # a span beyond the text, say
            return Payment(failures=(Failure(kind="invalid", message=str(error)),))

    def _payment_of(self, length: int, own: OwnTokens, judgements: Sequence[Judgement]) -> Payment:
        lost_quotes = [quote for item in judgements if isinstance(item, Critique) for quote in item.lost]
        foreign = _foreign(own.response, lost_quotes)
        lost = len(lost_quotes) - foreign
        failures = tuple(item for item in judgements if isinstance(item, Failure))
        if not judgements:
            failures = (Failure(kind="invalid", message="no id of the trajectory is the policy's own"),)
        if failures:
            return Payment(failures=failures, foreign=foreign, lost=lost)
        pieces = [(own.aligned, own.places)]
        if self.unit == "turn":
            pieces = [own.of_turn(number) for number in range(len(judgements))]
        found = [
            _credit(judgement, aligned, self.settings)
            for judgement, (aligned, _) in zip(judgements, pieces, strict=True)
            if isinstance(judgement, Critique)
        ]
        places = [each for _, each in pieces]
        verdicts = [each.verdict for each in found if each.verdict is not None]
        return Payment(
            words=_scattered(length, zip(places, [each.of_words for each in found], strict=True)),
            verdict=sum(verdicts) / len(verdicts) if verdicts else None,
            rewards=_scattered(length, zip(places, [each.delta for each in found], strict=True)),
            foreign=foreign,
            lost=lost,
        )


class _Reading(NamedTuple):
    """The policy's own tokens of a trajectory, and the questions to the critic about them."""

    tokens: OwnTokens
    questions: list[Question]


def _all_questions(readings: Iterable[_Reading | Failure]) -> list[Question]:
    return [question for reading in readings if isinstance(reading, _Reading) for question in reading.questions]


def _questions(trajectory: Trajectory, own: OwnTokens, unit: Unit) -> list[Question]:
    """What a critic is asked about one trajectory: the whole, or each turn as an answer to what stands before
    it."""
    example = trajectory.example
    if len(trajectory.ids) and not len(own.places):
        return []
    if unit == "trajectory":
        return [(example, own.response)]
    asked: list[Question] = []
    said = [*example.prompt]
    for turn in turns_of(own.response):
        said += turn.messages
        words = own.response[turn.start : turn.end]
        asked.append((example.model_copy(update={"prompt": tuple(said)}), words))
        said.append(Message(role="assistant", content=words))
    return asked


def _foreign(response: str, lost: Iterable[str]) -> int:
    """How many of the quotes that the policy's own words do not have are of what others said."""
    others = [message.content for message in conversation_of(response) if message.role != "assistant"]
    return sum(any(quote in content for content in others) for quote in lost)


def _scattered(length: int, pieces: Iterable[tuple[Offsets, Rewards]]) -> Rewards:
    """Numbers of the policy's own tokens at their places among all ids, (T,), and 0 at the others."""
    found = np.zeros(length, dtype=np.float32)
    for places, numbers in pieces:
        found[places] = numbers
    return found


def _refuse_edited(judged: str, sampled: str) -> None:
    """The words alone count, not what others said between them."""
    if str(judged) == str(sampled):
        return
    ours, theirs = ([text[turn.start : turn.end] for turn in turns_of(text)] for text in (sampled, judged))
    if len(ours) != len(theirs):
        raise _of_another_text(f"the ids have {len(ours)} turns, the record's response {len(theirs)}")
    place = next(place for place, (read, told) in enumerate(zip(ours, theirs, strict=True)) if read != told)
    turn = f" in turn {place + 1}" if len(ours) > 1 else ""
    read, told = _shown(ours[place]), _shown(theirs[place])
    raise _of_another_text(f"the ids read {read}{turn}, the record's response is {told}")


def table_of(tokenizer: AnyTokenizer | TokenTable) -> TokenTable:
    """Return the table of a tokenizer: itself if it is one, else made once for as long as no token is added."""
    if isinstance(tokenizer, TokenTable):
        return tokenizer
    sized: Any = tokenizer
    size = sized.get_vocab_size() if is_plain(tokenizer) else len(sized)
    return _table_of_size(tokenizer, size)


@lru_cache(maxsize=4)
def _table_of_size(tokenizer: AnyTokenizer, size: int) -> TokenTable:
    """Make the table of a tokenizer that has `size` tokens now: tokens may be added to it later."""
    return TokenTable(tokenizer)


def _credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    try:
        return credit(critique, aligned, settings)
    except ValueError as error:
        raise _of_another_text(str(error)) from error


def _of_another_text(detail: str) -> UserError:
    message = f"a critique of another text, or ids of another tokenizer: {detail}"
    return UserError(message, "show the critic the text of the ids: TokenTable(tokenizer).align(ids).text")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
