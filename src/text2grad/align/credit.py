"""Turn a critique into token rewards: span labels -> delta (paper, section 3.3).

A training method is a critic plus a credit scheme. The scheme `spans` is Text2Grad, `last_token` is
scalar PPO, `spread_score` pays the score on every token. `span_credit` accepts weights for the
tokens within a span, for custom schemes.

Shapes: S spans of a critique, T tokens of a response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from text2grad.align.tokens import Aligned
from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, Judgement, Place, Span
from text2grad.named import call_user_code, check_name, load_named
from text2grad.settings import Settings

Weighting = Literal["token", "span", "balanced"]
Weights = NDArray[np.float64]
Flags = NDArray[np.bool_]
TokenWeights = Callable[[Flags, Aligned, "CreditSettings"], Weights]
"""A function from span membership (S, T) to token weights within spans, (S, T) or (T,)."""

_MIN_SUM = 1e-9  # below the lightest token of any scheme; the divisor for a span without tokens


def _scheme_name(name: str) -> str:
    return check_name(name, SCHEMES, "module:name")


class CreditSettings(Settings):
    """Settings of the step from critiques to token rewards.

    The defaults won on the embedded task (docs/method.md).
    """

    scheme: Annotated[str, AfterValidator(_scheme_name)] = Field(
        default="spans",
        description="spans: every token of a span (Text2Grad); last_token: the score on the last token"
        " (scalar PPO); spread_score: the score on every token; module:name: your own function",
    )
    weighting: Weighting = Field(
        default="token",
        description="token: +-1 per token (paper); span: the tokens of a span share +-1; balanced: all good"
        " tokens share +1 and all poor ones -1",
    )
    poor_weight: float = Field(default=1.0, description="factor on the reward of poor spans")
    outcome_weight: float = Field(
        default=1.0, description="alpha: this times the verdict is added to the last token (span schemes)"
    )
    unlabelled: float = Field(default=0.0, description="reward of tokens outside all spans (span schemes)")

    @property
    def by_score(self) -> bool:
        """True if the scheme pays only the score."""
        return load_scheme(self.scheme).by_score


@dataclass(frozen=True)
class Credit:
    """The pseudo-reward delta of one response, with counts for the metrics.

    Attributes:
        delta: (T,) float32.
        labelled: tokens rewarded by a span or, in score schemes, by the score.
        cancelled: tokens in both good and poor spans, which get 0.
        no_score: 1 if the scheme needs a verdict and the critique has none, else 0.
        uncovered: spans that cover no token.
        by_score: only the score was paid, so `word_rewards` are 0.
        verdict: the score times its weight, or without a score of the response the mean score of
            its turns; None where no verdict is paid.
        verdict_rewards: (T,), the part of `delta` that pays verdicts.
    """

    delta: NDArray[np.float32]
    labelled: int = 0
    cancelled: int = 0
    no_score: int = 0
    uncovered: int = 0
    by_score: bool = False
    verdict: float | None = None
    verdict_rewards: NDArray[np.float32] | None = None

    @property
    def group_score(self) -> float:
        """The number compared within a group: the verdict, or without one the sum of delta.

        A verdict is preferred because sums favour long answers among those that pass.
        """
        return float(self.delta.sum()) if self.verdict is None else self.verdict

    @property
    def word_rewards(self) -> NDArray[np.float32]:
        """Delta without the verdicts, (T,)."""
        if self.by_score:
            return np.zeros_like(self.delta)
        return self.delta.copy() if self.verdict_rewards is None else self.delta - self.verdict_rewards

    @classmethod
    def zero(cls, aligned: Aligned) -> Credit:
        """Return a placeholder for a failed critique, whose response is masked out of the loss."""
        return cls(np.zeros(len(aligned), dtype=np.float32))


def credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Return the reward of every sampled token under `settings.scheme`.

    The verdict on a turn is paid within the tokens of that turn, in the same way as the verdict on
    the response is paid within all tokens.

    Raises:
        ValueError: the critique is of another text: a span does not quote the response, or the
            number of turn scores is not the number of turns.
    """
    turns = len(aligned.turn_ends) or 1
    if len(critique.turn_scores) not in (0, turns):
        raise ValueError(f"verdicts on {len(critique.turn_scores)} turns, but the response has {turns}")
    for span in critique.spans:
        if aligned.text[span.start : span.end] != span.text:
            raise ValueError(f"the response does not read {span.text!r} at [{span.start}, {span.end})")
    delta = load_scheme(settings.scheme)(critique, aligned, settings)
    return delta if isinstance(delta, Credit) else _check_numbers(delta, len(aligned), settings.scheme)


SCHEME_CONTRACT = "return one finite number for each token"
"""The requirement on a scheme, as error messages state it."""


@dataclass(frozen=True)
class CreditScheme:
    """A function that turns a critique into delta.

    Attributes:
        function: called with critique, aligned response and settings; returns delta, float32 (T,),
            or a `Credit` with counts.
        by_score: the scheme pays only the score, so a critique needs no spans.
    """

    function: Callable[[Critique, Aligned, CreditSettings], Credit | NDArray[np.float32]]
    by_score: bool = False

    def __call__(
        self, critique: Critique, aligned: Aligned, settings: CreditSettings
    ) -> Credit | NDArray[np.float32]:
        """Return delta of one response."""
        return call_user_code(SCHEME_CONTRACT, self.function, critique, aligned, settings)


@cache
def load_scheme(name: str) -> CreditScheme:
    """Return the scheme `name` of `SCHEMES`, or load a function or `CreditScheme` `module:name`.

    Raises:
        UserError: there is no such module or function.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    scheme = load_named("credit scheme", name, kinds=(FunctionType, CreditScheme))
    return scheme if isinstance(scheme, CreditScheme) else CreditScheme(scheme)


def _check_numbers(delta: NDArray[np.float32], length: int, name: str) -> Credit:
    """Return the credit of a scheme that returned numbers only."""
    try:
        numbers = np.asarray(delta, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"credit.scheme {name!r} returned {type(delta).__name__}", SCHEME_CONTRACT) from error
    if numbers.shape == (length,) and np.isfinite(numbers).all():
        return Credit(numbers, labelled=int(np.count_nonzero(numbers)))
    problem = "a number that is not finite" if numbers.shape == (length,) else f"numbers of shape {numbers.shape}"
    raise UserError(
        f"credit.scheme {name!r} returned {problem}", f"return one finite number for each of {length} tokens"
    )


def require_score(judgement: Judgement, settings: CreditSettings) -> Judgement:
    """Return the judgement, or a failure if the scheme needs a score and it has none.

    A missing score is not a score of 0.
    """
    if not settings.by_score or isinstance(judgement, Failure) or _verdict(judgement) is not None:
        return judgement
    return Failure(kind="invalid", message="it has no score, and this credit.scheme rewards nothing else")


def token_labels(spans: Sequence[Span], aligned: Aligned) -> NDArray[np.int8]:
    """Return +1, -1 or 0 for each token, (T,): the sign of its span rewards before weighting."""
    return signed_union(membership(spans, aligned), span_labels(spans))


def signed_union(members: Flags, labels: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return +1, -1 or 0 for each token, (T,), from span membership (S, T) and labels (S,)."""
    good, poor = members[labels > 0].any(axis=0), members[labels < 0].any(axis=0)
    return np.subtract(good, poor, dtype=np.int8)  # (T,); a token of both gets 1 - 1 = 0


def _last_token_credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Pay the score on the last token (scalar PPO), turn scores on the last token of each turn."""
    return _score_credit(critique, _scores_at_ends(critique, aligned))


def _spread_credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Pay the score on every token, turn scores on every token of their turn.

    With a weighting other than `token`, the tokens share the score equally.
    """
    delta = np.zeros(len(aligned))
    for start, end, score in score_intervals(critique, aligned):
        delta[start:end] += score if settings.weighting == "token" else score / max(1, end - start)
    return _score_credit(critique, delta)


def _score_credit(critique: Critique, rewards: Weights) -> Credit:
    delta, verdict = rewards.astype(np.float32), _verdict(critique)
    labelled = int(np.count_nonzero(delta))
    return Credit(delta, labelled=labelled, no_score=int(verdict is None), by_score=True, verdict=verdict)


def _verdict(critique: Critique) -> float | None:
    """Return the score of the response, or without one the mean score of its turns."""
    if critique.score is not None:
        return critique.score
    scores = [score for score in critique.turn_scores if score is not None]
    return sum(scores) / len(scores) if scores else None


def score_intervals(critique: Critique, aligned: Aligned) -> Iterator[tuple[int, int, float]]:
    """Yield (start, end, score) for each score of a critique; it judges the tokens [start, end).

    The score of the response comes first. A response of one turn uses its turn score only where the
    response has no score.
    """
    ends = aligned.turn_ends or (len(aligned),)
    if critique.score is not None:
        yield 0, len(aligned), critique.score
        if len(ends) == 1:
            return
    for start, end, score in zip((0, *ends), ends, critique.turn_scores, strict=False):
        if score is not None:
            yield start, end, score


def _scores_at_ends(critique: Critique, aligned: Aligned) -> Weights:
    """Return each score on the last token of the interval it judges, (T,)."""
    rewards = np.zeros(len(aligned))
    for start, end, score in score_intervals(critique, aligned):
        if start < end:
            rewards[end - 1] += score
    return rewards


def span_credit(
    critique: Critique, aligned: Aligned, settings: CreditSettings, token_weights: TokenWeights | None = None
) -> Credit:
    """Pay +1 per token of good spans and -1 per token of poor ones; add the verdict at the end.

    delta_t in {-1, 0, +1} (section 3.3), times the weights of `settings`. Tokens in both good and
    poor spans get 0. `token_weights` weighs the tokens within each span.
    """
    members = membership(critique.spans, aligned)  # (S, T)
    labels = span_labels(critique.spans)  # (S,)
    weights = _span_weights(critique.spans, members, aligned, settings, token_weights)
    # Spans of one sign form a union, (S, T) -> (T,): a token takes its largest weight, never a sum.
    good = np.maximum.reduce(weights[labels > 0], axis=0, initial=0)
    poor = np.maximum.reduce(weights[labels < 0], axis=0, initial=0)
    is_good, is_poor = good > 0, poor > 0
    one_sign = is_good ^ is_poor
    if settings.weighting == "balanced":
        # Both sums are 1 at any length: a longer answer earns no more.
        good, poor = _normalise_sum(good * one_sign), _normalise_sum(poor * one_sign)
    delta = np.where(one_sign, good - settings.poor_weight * poor, 0.0)
    if settings.unlabelled:
        # Label 0 is a remark that is neither praise nor blame; its tokens are not unlabelled.
        neutral = members[labels == 0].any(axis=0)
        delta[~(is_good | is_poor | neutral)] = settings.unlabelled
    score = _verdict(critique)
    verdict = verdict_rewards = None
    if settings.outcome_weight and score is not None:
        verdict = settings.outcome_weight * score
        verdict_rewards = settings.outcome_weight * _scores_at_ends(critique, aligned)
        delta += verdict_rewards
    return Credit(
        delta.astype(np.float32),
        labelled=int(np.count_nonzero(one_sign)),
        cancelled=int(np.count_nonzero(is_good & is_poor)),
        no_score=int(score is None and bool(settings.outcome_weight)),
        uncovered=len(members) - int(np.count_nonzero(members.any(axis=1))),
        verdict=verdict,
        verdict_rewards=None if verdict_rewards is None else verdict_rewards.astype(np.float32),
    )


def span_labels(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the label of each span, (S,)."""
    return np.array([span.label for span in spans], dtype=np.int64)


def membership(spans: Sequence[Span], aligned: Aligned) -> Flags:
    """Return which tokens belong to which spans, (S, T).

    A token belongs to a span if it wrote at least one of its characters. Interior whitespace
    belongs to the span, whitespace at its edges does not. A token without text belongs to no span.
    """
    edges = np.array([edge for span in spans for edge in _trim(span)], dtype=np.int64).reshape(-1, 2)
    first, last = edges[:, :1], edges[:, 1:]  # (S, 1) each, to broadcast against (T,)
    starts, ends = aligned.starts, aligned.ends
    # Half-open intervals that overlap, (S, 1) against (T,). Special tokens, start == end, never do.
    return np.asarray((starts < last) & (ends > first) & (ends > starts))


def _trim(span: Span) -> Place:
    """Return the interval of a span without whitespace at its edges; keep a blank span as it is."""
    solid = span.text.strip()
    if not solid or len(solid) == len(span.text):
        return span.start, span.end
    start = span.start + span.text.index(solid)
    return start, start + len(solid)


def _span_weights(
    spans: Sequence[Span],
    members: Flags,
    aligned: Aligned,
    settings: CreditSettings,
    token_weights: TokenWeights | None,
) -> Weights:
    """Return the weight of each token in each span, (S, T), before good and poor spans merge."""
    weights = members.astype(np.float64)
    if token_weights:
        weights *= token_weights(members, aligned, settings)
    confidences = np.array([span.weight for span in spans], dtype=np.float64)  # (S,)
    if settings.weighting == "span":
        # The tokens of a span share its reward: a long quote pays no more than a short one.
        confidences = confidences / np.maximum(weights.sum(axis=1), _MIN_SUM)
    weights *= confidences[:, None]
    return weights


def _normalise_sum(weights: Weights) -> Weights:
    total = weights.sum()
    return weights / total if total else weights


SCHEMES: Mapping[str, CreditScheme] = {
    "spans": CreditScheme(span_credit),
    "last_token": CreditScheme(_last_token_credit, by_score=True),
    "spread_score": CreditScheme(_spread_credit, by_score=True),
}
"""The credit schemes of the package, by name."""
