"""Token rewards for any trainer: sampled ids and feedback in, one number per sampled id out.

Of a trajectory of several turns, what others wrote is paid exactly 0. The words of a critique and
its verdict are kept apart: an engine that compares the answers to a prompt compares verdicts, and a
sum of token rewards would grow with the length of an answer.
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
class ScoredTrajectory:
    """The credit of one trajectory of T ids, exactly 0 at ids that the policy did not sample.

    Compare scores within a group and add word rewards, or take `rewards`, never both. Where the
    critique failed, the first three are None: leave the trajectory out of the loss.

    Attributes:
        word_rewards: (T,) float32, the rewards of tokens for spans, without verdicts.
        score: the verdict, which a group compares; the mean over turns where only turns have
            verdicts; None also if the critic gave none.
        rewards: (T,) float32, word rewards plus each verdict on the policy's last id of the text
            that it judges.
        failures: why there is no critique.
        foreign_quotes: how many quotes are of what a tool or a user said; they pay nothing.
        lost_quotes: how many quotes are nowhere in the trajectory; they pay nothing.
    """

    word_rewards: Rewards | None = None
    score: float | None = None
    rewards: Rewards | None = None
    failures: tuple[Failure, ...] = ()
    foreign_quotes: int = 0
    lost_quotes: int = 0

    @property
    def failed(self) -> bool:
        """True if there is no critique."""
        return bool(self.failures)


class Aligner:
    """A tokenizer's ids as text, and critiques of that text as rewards of the ids.

    Args:
        tokenizer: of transformers, or of the package tokenizers. What is read off its vocabulary is
            kept: a second aligner of the same tokenizer costs nothing.
        output_size: how many ids the policy can sample, if that is known; those beyond are refused.
    """

    def __init__(self, tokenizer: AnyTokenizer | TokenTable, *, output_size: int | None = None) -> None:
        self._table, self._output_size = table_of(tokenizer), output_size

    def text(self, ids: Sequence[int], mask: Sequence[int] | None = None) -> str:
        """Return the text of the ids as they were sampled, which a critic must be shown.

        Args:
            ids: (T,) after the prompt, special tokens included.
            mask: (T,) 1 where the policy sampled the id; without it, everywhere.

        Returns:
            The policy's own words; where others spoke between them, a `Transcript`.

        Raises:
            UserError: the mask does not fit, or the ids are not of this tokenizer.
        """
        return self._own(ids, mask).response

    def align(self, ids: Sequence[int], mask: Sequence[int] | None = None) -> Aligned:
        """Return the characters of `text(ids, mask)` that each of the policy's own N ids wrote.

        Args:
            ids: (T,) after the prompt, special tokens included.
            mask: (T,) 1 where the policy sampled the id; without it, everywhere.

        Returns:
            The text, and (N,) offsets into it.

        Raises:
            UserError: the mask does not fit, or the ids are not of this tokenizer.
        """
        return self._own(ids, mask).aligned

    def rewards(
        self,
        feedback: Critique | Feedback | Failure,
        ids: Sequence[int],
        *,
        mask: Sequence[int] | None = None,
        scheme: str | CreditSettings = DEFAULTS,
    ) -> Rewards:
        """Return the reward of every id of an answer or a trajectory (paper, section 3.3).

        Args:
            feedback: a critique of `text(ids, mask)`, or a record, whose response is compared with
                it.
            ids: (T,) after the prompt, as they were sampled, special tokens included; they are
                never tokenised again. Those beyond the vocabulary, which a model with a padded
                output layer samples, have no text.
            mask: (T,) 1 where the policy sampled the id; without it, everywhere.
            scheme: a credit scheme by its name, or `CreditSettings`.

        Returns:
            (T,) float32, exactly 0 where `mask` is 0; the verdict stands on the last id that the
            policy sampled.

        Raises:
            UserError: the feedback is a failure, or has no score where the scheme pays nothing else
                (neither is a reward of 0: leave the trajectory out of the loss); the critique is of
                another text; the mask does not fit; or the ids are not of this tokenizer.
        """
        own, settings = self._own(ids, mask), settings_of(scheme)
        if isinstance(feedback, Feedback):
            _refuse_edited(feedback.response, own.response)
        judgement = scored(feedback.judgement() if isinstance(feedback, Feedback) else feedback, settings)
        if isinstance(judgement, Failure):
            raise UserError(
                f"the critique failed ({judgement.kind}): {judgement.message}", "leave the response out of the loss"
            )
        delta = _credit(judgement, own.aligned, settings).delta
        return _scattered(len(ids), [(own.places, delta)])

    def _own(self, ids: Sequence[int], mask: Sequence[int] | None) -> OwnTokens:
        return own_tokens(self._table, Trajectory(_NOBODY, ids, mask), self._output_size)


def settings_of(scheme: str | CreditSettings) -> CreditSettings:
    """Return a credit scheme with its weights; one that is named has the weights of the
    defaults."""
    return scheme if isinstance(scheme, CreditSettings) else CreditSettings(scheme=scheme)


class TokenCredit:
    """A critic's words as token rewards, for any engine: trajectories in, a `ScoredTrajectory` for
    each out.

    With `unit="trajectory"` the critic gives one critique of the whole: its response is the
    policy's own words, and as a `Transcript` says what others said between them. Critics over a
    chat model, a reward model among them, are shown that as a conversation; one that takes the
    response for plain text reads the policy's own words alone. With `unit="turn"` it judges each
    turn by itself, as the answer to the conversation before it, and every critic can do that.

    Args:
        critic: a `Critic`, or a function of an example and a response that returns (or awaits) a
            `Critique` or a `Failure`.
        tokenizer: the policy's.
        scheme: how words become rewards: a credit scheme by its name, or `CreditSettings`.
        unit: what the critic judges, the whole trajectory or each of its turns.
        timeout: seconds that a request to the critic may take.
        retries: how often a request that raised is sent again.
        max_in_flight: trajectories in one request to a critic, or calls of a function at once.
        max_failed: share of failed critiques, over the last 128, above which a `CritiquesFailed`
            ends the run.
        output_size: how many ids the policy can sample; a trajectory with one beyond fails. TRL's
            plug-in knows it.

    Raises:
        UserError: the critic is neither a `Critic` nor a function.
    """

    def __init__(
        self,
        critic: Critic | CriticFunction,
        tokenizer: AnyTokenizer | TokenTable,
        scheme: str | CreditSettings = DEFAULTS,
        unit: Unit = "trajectory",
        *,
        timeout: float = 120.0,
        retries: int = 2,
        max_in_flight: int = 64,
        max_failed: float = 0.2,
        output_size: int | None = None,
    ) -> None:
        self.table, self.settings = table_of(tokenizer), settings_of(scheme)
        self.unit, self.max_failed, self.output_size = unit, max_failed, output_size
        self._queue = CriticQueue(critic, timeout, retries, max_in_flight)
        self._failed: deque[bool] = deque(maxlen=RECENT)

    async def score(self, batch: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """Score rollouts that end one by one: what is asked while the critic is busy is its next
        batch.

        Args:
            batch: the trajectories, of T ids each.

        Returns:
            One result for each, in their order. A trajectory is `failed` if its critique failed or
            does not fit its text, or if its ids are of another tokenizer.

        Raises:
            UserError: a mask does not fit its ids, or the critic raised a mistake of its set-up.
            CritiquesFailed: more than `max_failed` of the last trajectories failed.
        """
        readings = await asyncio.to_thread(self._read, batch)
        judgements = await asyncio.wrap_future(self._queue.submit(_all_questions(readings)))
        return await asyncio.to_thread(self._scored, batch, readings, judgements)

    def score_batch(self, batch: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """Score a batch and wait for it: `score` for trainers that are not asynchronous.

        Args:
            batch: the trajectories, of T ids each. The critic is asked about `max_in_flight` of
                them at a time.

        Returns:
            As `score`.

        Raises:
            UserError: as `score`.
            CritiquesFailed: as `score`.
        """
        readings = self._read(batch)
        return self._scored(batch, readings, self._queue.submit(_all_questions(readings)).result())

    def _read(self, batch: Sequence[Trajectory]) -> list[_Reading | Failure]:
        readings: list[_Reading | Failure] = []
        for trajectory in batch:
            try:
                tokens = own_tokens(self.table, trajectory, self.output_size)
            except StrangeIdsError as error:
                readings.append(Failure(kind="invalid", message=str(error)))
            else:
                readings.append(_Reading(tokens, _questions(trajectory, tokens, self.unit)))
        return readings

    def _scored(
        self, batch: Sequence[Trajectory], readings: Sequence[_Reading | Failure], judgements: Sequence[Judgement]
    ) -> list[ScoredTrajectory]:
        answers = iter(judgements)
        outcomes = []
        for trajectory, reading in zip(batch, readings, strict=True):
            if isinstance(reading, Failure):
                outcomes.append(ScoredTrajectory(failures=(reading,)))
                continue
            judged = [next(answers) for _ in reading.questions]
            outcomes.append(self._outcome(len(trajectory.ids), reading.tokens, judged))
        self._refuse_failures(outcomes)
        return outcomes

    def _refuse_failures(self, outcomes: Sequence[ScoredTrajectory]) -> None:
        self._failed.extend(outcome.failed for outcome in outcomes)
        failed = sum(self._failed)
        if failed > self.max_failed * max(len(self._failed), FEWEST):
            failure = next(outcome.failures[0] for outcome in reversed(outcomes) if outcome.failed)
            raise CritiquesFailed(
                f"{failed} of the last {len(self._failed)} critiques failed, the last: {failure.kind}:"
                f" {failure.message}",
                "fix the critic, or raise TokenCredit(..., max_failed=...)",
            )

    def _outcome(self, length: int, own: OwnTokens, answers: Sequence[Judgement]) -> ScoredTrajectory:
        try:
            return self._outcome_of(length, own, [scored(answer, self.settings) for answer in answers])
        except UserError as error:  # a span beyond the text, say
            return ScoredTrajectory(failures=(Failure(kind="invalid", message=str(error)),))

    def _outcome_of(self, length: int, own: OwnTokens, judgements: Sequence[Judgement]) -> ScoredTrajectory:
        lost_quotes = [quote for item in judgements if isinstance(item, Critique) for quote in item.lost]
        foreign = _foreign(own.response, lost_quotes)
        lost = len(lost_quotes) - foreign
        failures = tuple(item for item in judgements if isinstance(item, Failure))
        if not judgements:
            failures = (Failure(kind="invalid", message="no id of the trajectory is the policy's own"),)
        if failures:
            return ScoredTrajectory(failures=failures, foreign_quotes=foreign, lost_quotes=lost)
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
        return ScoredTrajectory(
            word_rewards=_scattered(length, zip(places, [each.word_rewards for each in found], strict=True)),
            score=sum(verdicts) / len(verdicts) if verdicts else None,
            rewards=_scattered(length, zip(places, [each.delta for each in found], strict=True)),
            foreign_quotes=foreign,
            lost_quotes=lost,
        )


class _Reading(NamedTuple):
    """The policy's own tokens of a trajectory, and the questions to the critic about them."""

    tokens: OwnTokens
    questions: list[Question]


def _all_questions(readings: Iterable[_Reading | Failure]) -> list[Question]:
    return [question for reading in readings if isinstance(reading, _Reading) for question in reading.questions]


def _questions(trajectory: Trajectory, own: OwnTokens, unit: Unit) -> list[Question]:
    """What a critic is asked about one trajectory: the whole, or each turn as an answer to what
    stands before it."""
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
    """Numbers of the policy's own tokens at their places among all ids, (T,), and 0 at the
    others."""
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
    """Return the table of a tokenizer: itself if it is one, else made once for as long as no token
    is added."""
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
    return UserError(message, "show the critic the text of the ids: Aligner(tokenizer).text(ids)")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
