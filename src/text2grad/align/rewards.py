"""Compute token rewards for any trainer: sampled ids and feedback in, one number per id out.

In a trajectory of several turns, tokens of tools and users get exactly 0. Word rewards and the
verdict are separate: an engine that compares the answers to a prompt compares verdicts, because
sums of token rewards grow with the length of an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align.credit import Credit, CreditSettings, credit, require_score
from text2grad.align.critic_queue import CriticFunction, CriticQueue, Question
from text2grad.align.tokens import Aligned, Offsets, TokenTable, get_table
from text2grad.align.trajectory import ForeignIdsError, PolicyTokens, Trajectory, read_policy_tokens
from text2grad.errors import CritiquesFailed, UserError
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Message,
    is_foreign,
    turns_of,
)

if TYPE_CHECKING:
    from text2grad.align.pieces import AnyTokenizer

Unit = Literal["trajectory", "turn"]
Rewards = NDArray[np.float32]
DEFAULTS = CreditSettings()
RECENT, MIN_RECENT = 128, 16
"""Trajectories over which the share of failures is computed, and the smallest such number."""
_NO_EXAMPLE = Example(id="-", prompt=(Message(role="user", content=""),))


@dataclass(frozen=True)
class ScoredTrajectory:
    """The credit of one trajectory of T ids, exactly 0 at ids that the policy did not sample.

    Use either `rewards`, or scores compared within a group plus word rewards. Where the critique
    failed, all three are None: leave the trajectory out of the loss.

    Attributes:
        word_rewards: (T,) float32, the rewards of tokens for spans, without verdicts.
        score: the verdict, which is compared within a group, or without a verdict on the response
            the mean over its turns; None if the critic gave none.
        rewards: (T,) float32, word rewards plus each verdict on the policy's last id of the text
            that it judges.
        failures: the reasons why there is no critique.
        foreign_quotes: number of quotes of text that a tool or a user wrote; they pay nothing.
        lost_quotes: number of quotes that occur nowhere in the trajectory; they pay nothing.
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
        tokenizer: of the package transformers or tokenizers. Its vocabulary is read once: a second
            aligner of the same tokenizer costs nothing.
        output_size: number of ids that the policy can sample, if known; larger ids are refused.
    """

    def __init__(self, tokenizer: AnyTokenizer | TokenTable, *, output_size: int | None = None) -> None:
        self._table, self._output_size = get_table(tokenizer), output_size

    def text(self, ids: Sequence[int], mask: Sequence[int] | None = None) -> str:
        """Return the text of the ids as sampled, which the critic must judge.

        Args:
            ids: (T,) after the prompt, special tokens included.
            mask: (T,) 1 where the policy sampled the id; None: everywhere.

        Returns:
            The policy's text; a `Transcript` if tools or users spoke in between.

        Raises:
            UserError: the mask does not fit, or the ids belong to another tokenizer.
        """
        return self._policy_tokens(ids, mask).response

    def align(self, ids: Sequence[int], mask: Sequence[int] | None = None) -> Aligned:
        """Return `text(ids, mask)`, and the characters in it of each of the policy's N ids.

        Args:
            ids: (T,) sampled token ids.
            mask: (T,) 1 for an id of the policy, 0 for others; None: all are the policy's.

        Returns:
            The policy's text, and the characters of each of its N ids.
        """
        return self._policy_tokens(ids, mask).aligned

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
            feedback: a critique of `text(ids, mask)`, or a record whose response is that text.
            ids: (T,) after the prompt, as sampled, special tokens included; they are never
                tokenised again. Ids beyond the vocabulary, which a model with a padded output layer
                may sample, have no text.
            mask: (T,) 1 where the policy sampled the id; None: everywhere.
            scheme: the name of a credit scheme, or `CreditSettings`.

        Returns:
            (T,) float32, exactly 0 where `mask` is 0; the verdict is paid on the last id that the
            policy sampled.

        Raises:
            UserError: the feedback is a failure, or has no score where the scheme pays nothing else
                (neither is a reward of 0: leave the trajectory out of the loss); the critique is of
                another text; the mask does not fit; or the ids belong to another tokenizer.
        """
        tokens, settings = self._policy_tokens(ids, mask), as_settings(scheme)
        if isinstance(feedback, Feedback):
            _refuse_edited(feedback.response, tokens.response)
        judgement = require_score(feedback.judgement() if isinstance(feedback, Feedback) else feedback, settings)
        if isinstance(judgement, Failure):
            raise UserError(
                f"the critique failed ({judgement.kind}): {judgement.message}", "leave the response out of the loss"
            )
        delta = _credit(judgement, tokens.aligned, settings).delta
        return _scatter(len(ids), [(tokens.positions, delta)])

    def _policy_tokens(self, ids: Sequence[int], mask: Sequence[int] | None) -> PolicyTokens:
        return read_policy_tokens(self._table, Trajectory(_NO_EXAMPLE, ids, mask), self._output_size)


def as_settings(scheme: str | CreditSettings) -> CreditSettings:
    """Return a credit scheme with its weights; a scheme given by name gets the default weights."""
    return scheme if isinstance(scheme, CreditSettings) else CreditSettings(scheme=scheme)


class TokenCredit:
    """Asks a critic about trajectories and turns its critiques into token rewards, for any engine.

    With `unit="trajectory"` the critic judges the policy's turns together, as a `Transcript` that
    also holds the messages in between. Critics over a chat model, such as the reward model, see it
    as a conversation. A critic that treats the response as plain text reads only the policy's
    words. With `unit="turn"` each turn is judged as the answer to the conversation before it, which
    every critic supports.

    Args:
        critic: a `Critic`, or a function of an example and a response that returns (or awaits) a
            `Critique` or a `Failure`.
        tokenizer: the policy's tokenizer.
        scheme: the name of a credit scheme, or `CreditSettings`.
        unit: the text that one critique judges, the trajectory or a turn.
        timeout: seconds that a request to the critic may take.
        retries: number of times that a request that raised is sent again.
        max_in_flight: trajectories in one request to a critic, or concurrent calls of a function.
        max_failed: share of failed critiques, over the last 128, above which a `CritiquesFailed`
            ends the run.
        output_size: number of ids that the policy can sample; a trajectory with a larger id fails.
            The TRL plug-in sets it.

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
        self.table, self.settings = get_table(tokenizer), as_settings(scheme)
        self.unit, self.max_failed, self.output_size = unit, max_failed, output_size
        self._queue = CriticQueue(critic, timeout, retries, max_in_flight)
        self._failed: deque[bool] = deque(maxlen=RECENT)

    async def score(self, batch: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """Score rollouts that end one by one; requests to a busy critic form its next batch.

        Args:
            batch: trajectories of T_i ids each, of any lengths.

        Returns:
            One result for each trajectory, in the same order. It is `failed` if the critique failed
            or does not fit the text, or if the ids belong to another tokenizer.

        Raises:
            UserError: a mask does not fit its ids, or the critic raised a `UserError`.
            CritiquesFailed: more than `max_failed` of the last trajectories failed.
        """
        # Threads keep the event loop free for the rollouts that are still sampling.
        pending = await asyncio.to_thread(self._prepare, batch)
        judgements = await asyncio.wrap_future(self._queue.submit(_all_questions(pending)))
        return await asyncio.to_thread(self._score, pending, judgements)

    def score_batch(self, batch: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """Score a batch and wait for the result: `score` for synchronous trainers.

        The critic is asked about `max_in_flight` trajectories at a time.

        Args:
            batch: trajectories of T_i ids each, of any lengths.

        Returns:
            One result for each trajectory, in the same order.
        """
        pending = self._prepare(batch)
        return self._score(pending, self._queue.submit(_all_questions(pending)).result())

    def _prepare(self, batch: Sequence[Trajectory]) -> list[_Pending | Failure]:
        """Return the policy's tokens of each trajectory, and the questions about it."""
        pending: list[_Pending | Failure] = []
        for trajectory in batch:
            try:
                tokens = read_policy_tokens(self.table, trajectory, self.output_size)
            except ForeignIdsError as error:
                pending.append(Failure(kind="invalid", message=str(error)))
            else:
                questions = _build_questions(trajectory, tokens, self.unit)
                pending.append(_Pending(len(trajectory.ids), tokens, questions))
        return pending

    def _score(
        self, pending: Sequence[_Pending | Failure], judgements: Sequence[Judgement]
    ) -> list[ScoredTrajectory]:
        """Match judgements, in the order of the questions, with their trajectories."""
        answers = iter(judgements)
        results = []
        for item in pending:
            if isinstance(item, Failure):
                results.append(ScoredTrajectory(failures=(item,)))
                continue
            item_answers = [require_score(next(answers), self.settings) for _ in item.questions]
            try:
                result = self._score_one(item, item_answers)
            except UserError as error:  # for example a span beyond the end of the text
                result = ScoredTrajectory(failures=(Failure(kind="invalid", message=str(error)),))
            results.append(result)
        self._refuse_failures(results)
        return results

    def _refuse_failures(self, results: Sequence[ScoredTrajectory]) -> None:
        self._failed.extend(result.failed for result in results)
        failed = sum(self._failed)
        # The minimum keeps a failure among the first few from ending the run.
        if failed > self.max_failed * max(len(self._failed), MIN_RECENT):
            failure = next(result.failures[0] for result in reversed(results) if result.failed)
            raise CritiquesFailed(
                f"{failed} of the last {len(self._failed)} critiques failed, the last: {failure.kind}:"
                f" {failure.message}",
                "fix the critic, or raise TokenCredit(..., max_failed=...)",
            )

    def _score_one(self, item: _Pending, judgements: Sequence[Judgement]) -> ScoredTrajectory:
        tokens = item.tokens
        critiques = [judgement for judgement in judgements if isinstance(judgement, Critique)]
        unmatched = [quote for critique in critiques for quote in critique.lost]
        foreign = sum(is_foreign(quote, tokens.response) for quote in unmatched)
        failures = tuple(judgement for judgement in judgements if isinstance(judgement, Failure))
        if not judgements:
            failures = (Failure(kind="invalid", message="the policy sampled no id of the trajectory"),)
        # One failed turn leaves the trajectory without rewards: 0 at its tokens would be a
        # judgement, neutral.
        if failures:
            return ScoredTrajectory(failures=failures, foreign_quotes=foreign, lost_quotes=len(unmatched) - foreign)
        pieces = [(tokens.aligned, tokens.positions)]
        if self.unit == "turn":
            pieces = [tokens.select_turn(number) for number in range(len(judgements))]
        credits = [
            (positions, _credit(critique, aligned, self.settings))
            for critique, (aligned, positions) in zip(critiques, pieces, strict=True)
        ]
        verdicts = [piece.verdict for _, piece in credits if piece.verdict is not None]
        return ScoredTrajectory(
            word_rewards=_scatter(item.length, ((positions, piece.word_rewards) for positions, piece in credits)),
            score=sum(verdicts) / len(verdicts) if verdicts else None,
            rewards=_scatter(item.length, ((positions, piece.delta) for positions, piece in credits)),
            foreign_quotes=foreign,
            lost_quotes=len(unmatched) - foreign,
        )


class _Pending(NamedTuple):
    """A trajectory of `length` ids that waits for answers to its questions."""

    length: int
    tokens: PolicyTokens
    questions: list[Question]


def _all_questions(pending: Iterable[_Pending | Failure]) -> list[Question]:
    return [question for item in pending if isinstance(item, _Pending) for question in item.questions]


def _build_questions(trajectory: Trajectory, tokens: PolicyTokens, unit: Unit) -> list[Question]:
    """Return the questions about one trajectory: one, or one per turn.

    A turn is judged as the answer to the conversation before it.
    """
    example = trajectory.example
    if len(trajectory.ids) and not len(tokens.positions):
        return []
    if unit == "trajectory":
        return [(example, tokens.response)]
    questions: list[Question] = []
    conversation = [*example.prompt]
    for turn in turns_of(tokens.response):
        conversation += turn.messages
        text = tokens.response[turn.start : turn.end]
        questions.append((example.model_copy(update={"prompt": tuple(conversation)}), text))
        conversation.append(Message(role="assistant", content=text))
    return questions


def _scatter(length: int, pieces: Iterable[tuple[Offsets, Rewards]]) -> Rewards:
    """Place the numbers of the policy's tokens at their positions among all ids, (T,), else 0."""
    scattered = np.zeros(length, dtype=np.float32)
    for positions, numbers in pieces:
        scattered[positions] = numbers
    return scattered


def _refuse_edited(recorded: str, sampled: str) -> None:
    """Refuse a record whose response differs from the sampled text.

    Only the policy's words are compared, not the messages in between.
    """
    if str(recorded) == str(sampled):
        return
    ours, theirs = ([text[turn.start : turn.end] for turn in turns_of(text)] for text in (sampled, recorded))
    if len(ours) != len(theirs):
        raise _wrong_text_error(f"the ids have {len(ours)} turns, the record's response {len(theirs)}")
    index = next(index for index, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
    turn = f" in turn {index + 1}" if len(ours) > 1 else ""
    raise _wrong_text_error(
        f"the ids read {_shorten(ours[index])}{turn}, the record's response is {_shorten(theirs[index])}"
    )


def _credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    try:
        return credit(critique, aligned, settings)
    except ValueError as error:
        raise _wrong_text_error(str(error)) from error


def _wrong_text_error(detail: str) -> UserError:
    message = f"a critique of another text, or ids of another tokenizer: {detail}"
    return UserError(message, "show the critic the text of the ids: Aligner(tokenizer).text(ids)")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
