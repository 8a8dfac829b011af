"""From a critique to token rewards: span labels -> delta (paper, section 3.3), under a named credit
scheme.

A method is a (critic, credit scheme) pair. `spans` is Text2Grad, `last_token` scalar PPO,
`spread_score` the score on every token. `span_credit` takes the weights of tokens within a span,
for schemes of your own.
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
Shape = Callable[[Flags, Aligned, "CreditSettings"], Weights]
"""The weight of each token within each span, (S, T) or (T,), from the members of spans, (S, T)."""

_LEAST_SUM = 1e-9  # under the lightest token of any scheme; what a span without tokens is divided by


def _scheme_name(name: str) -> str:
    return check_name(name, SCHEMES, "module:name")


class CreditSettings(Settings):
    """How a critique becomes token rewards; the defaults won on the embedded task
    (docs/method.md)."""

    scheme: Annotated[str, AfterValidator(_scheme_name)] = Field(
        default="spans",
        description="spans: every token of a span (Text2Grad); last_token: the score there (scalar PPO);"
        " spread_score: the score on every token; module:name: a function of your own",
    )
    weighting: Weighting = Field(
        default="token", description="token: +-1 each (paper); span: a span's tokens share +-1; balanced: a label's"
    )
    poor_weight: float = Field(default=1.0, description="factor on the reward of poor spans")
    outcome_weight: float = Field(
        default=1.0, description="alpha: the verdict times this is added to the last token (span schemes)"
    )
    unlabelled: float = Field(default=0.0, description="reward of tokens in no span (span schemes)")

    @property
    def by_score(self) -> bool:
        """Whether only the score is rewarded."""
        return scheme_of(self.scheme).by_score


@dataclass(frozen=True)
class Credit:
    """The pseudo-reward delta of one response, float32 (T,), and what was counted on the way.

    `labelled`: tokens rewarded by a span or, in the score schemes, by the score. `cancelled`:
    tokens both good and poor, which get 0. `no_score`: 1 if a verdict is needed and the critique
    has none. `uncovered`: spans that cover no token. `whole`: the score alone was paid, so no token
    earned it more than another, wherever it stands in delta. `verdict`: what the score was worth,
    as far as it is paid; where only turns have scores, their mean. `verdict_rewards` is what of
    delta the verdicts are, (T,); None: nothing.
    """

    delta: NDArray[np.float32]
    labelled: int = 0
    cancelled: int = 0
    no_score: int = 0
    uncovered: int = 0
    whole: bool = False
    verdict: float | None = None
    verdict_rewards: NDArray[np.float32] | None = None

    @property
    def group_score(self) -> float:
        """What the response is worth beside others to its prompt: its verdict, or without one the
        sum of delta.

        By their sums a long answer that passes would be worth more than a short one.
        """
        return float(self.delta.sum()) if self.verdict is None else self.verdict

    @property
    def word_rewards(self) -> NDArray[np.float32]:
        """Delta without the verdicts: what tokens earned by themselves, (T,)."""
        if self.whole:
            return np.zeros_like(self.delta)
        return self.delta.copy() if self.verdict_rewards is None else self.delta - self.verdict_rewards

    @classmethod
    def nothing(cls, aligned: Aligned) -> Credit:
        """No reward anywhere: stands in for a failed critique; its response is masked out."""
        return cls(np.zeros(len(aligned), dtype=np.float32))


def credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """The reward of every sampled token under `settings.scheme`.

    The verdict on a turn is paid within its tokens as that on the whole is within all.

    Raises:
        ValueError: a span does not quote the response, or turns that it does not have are judged:
            the critique is of another text.
    """
    turns = len(aligned.turn_ends) or 1
    if len(critique.turn_scores) not in (0, turns):
        raise ValueError(f"verdicts on {len(critique.turn_scores)} turns, and the response has {turns}")
    for span in critique.spans:
        if aligned.text[span.start : span.end] != span.text:
            raise ValueError(f"the response does not read {span.text!r} at [{span.start}, {span.end})")
    delta = scheme_of(settings.scheme)(critique, aligned, settings)
    return delta if isinstance(delta, Credit) else _own_credit(delta, len(aligned), settings.scheme)


NUMBERS = "return one finite number for each token"
"""The duty of a scheme, as an error message says it."""


@dataclass(frozen=True)
class CreditScheme:
    """A named way to pay a critique: `function(critique, aligned, settings)` gives delta, float32
    (T,).

    Schemes of the package give a `Credit`, which counts as well. `by_score`: only the critique's
    score is paid, so its spans need not be there.
    """

    function: Callable[[Critique, Aligned, CreditSettings], Credit | NDArray[np.float32]]
    by_score: bool = False

    def __call__(
        self, critique: Critique, aligned: Aligned, settings: CreditSettings
    ) -> Credit | NDArray[np.float32]:
        """Delta of one response."""
        return call_user_code(NUMBERS, self.function, critique, aligned, settings)


@cache
def scheme_of(name: str) -> CreditScheme:
    """The scheme of this name: one of `SCHEMES`, or a function or `CreditScheme` of the user's, as
    `module:name`.

    Raises:
        UserError: there is no such module or function.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    found = load_named("credit scheme", name, kinds=(FunctionType, CreditScheme))
    return found if isinstance(found, CreditScheme) else CreditScheme(found)


def _own_credit(delta: NDArray[np.float32], length: int, name: str) -> Credit:
    """The credit of a scheme that gives numbers alone.

    Raises:
        UserError: they are not one finite number for each token.
    """
    try:
        numbers = np.asarray(delta, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"credit.scheme {name!r} gave {type(delta).__name__}", NUMBERS) from error
    if numbers.shape != (length,) or not np.isfinite(numbers).all():
        what = f"numbers of shape {numbers.shape}" if numbers.shape != (length,) else "a number that is not finite"
        raise UserError(f"credit.scheme {name!r} gave {what}", f"one finite number for each of {length} tokens")
    return Credit(numbers, labelled=int(np.count_nonzero(numbers)))


def scored(judgement: Judgement, settings: CreditSettings) -> Judgement:
    """The judgement; where the score is all that is rewarded, a critique without one is a failure
    and not a 0."""
    if not settings.by_score or isinstance(judgement, Failure) or _verdict_of(judgement) is not None:
        return judgement
    return Failure(kind="invalid", message="it has no score, and this credit.scheme rewards nothing else")


def token_labels(spans: Sequence[Span], aligned: Aligned) -> NDArray[np.int8]:
    """+1, -1 or 0 of each token (T,): the signs of `credit`, before any weighting."""
    return signed_union(membership(spans, aligned), labels_of(spans))


def signed_union(members: Flags, labels: NDArray[np.int64]) -> NDArray[np.int8]:
    """+1, -1 or 0 of each token, (T,), from the spans it is in, (S, T), and their labels, (S,)."""
    good, poor = members[labels > 0].any(axis=0), members[labels < 0].any(axis=0)
    return np.subtract(good, poor, dtype=np.int8)


def _last_token_credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """The score on the last token (scalar PPO), those of turns on the last token of each."""
    return _of_scores(critique, _at_ends(critique, aligned))


def _spread_credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """The score on every token, or with another weighting than `token` an equal share of it; those
    of turns alike on the tokens of each."""
    delta = np.zeros(len(aligned))
    for start, end, score in scored_parts(critique, aligned):
        delta[start:end] += score if settings.weighting == "token" else score / max(1, end - start)
    return _of_scores(critique, delta)


def _of_scores(critique: Critique, paid: Weights) -> Credit:
    delta, verdict = paid.astype(np.float32), _verdict_of(critique)
    labelled = int(np.count_nonzero(delta))
    return Credit(delta, labelled=labelled, no_score=int(verdict is None), whole=True, verdict=verdict)


def _verdict_of(critique: Critique) -> float | None:
    """The score of the whole, or without one the mean of those of turns."""
    if critique.score is not None:
        return critique.score
    scores = [score for score in critique.turn_scores if score is not None]
    return sum(scores) / len(scores) if scores else None


def scored_parts(critique: Critique, aligned: Aligned) -> Iterator[tuple[int, int, float]]:
    """The tokens [start, end) that each score of a critique is of, and the score: all, and those of
    single turns where there are several."""
    ends = aligned.turn_ends or (len(aligned),)
    if critique.score is not None:
        yield 0, len(aligned), critique.score
        if len(ends) == 1:
            return
    for start, end, score in zip((0, *ends), ends, critique.turn_scores, strict=False):
        if score is not None:
            yield start, end, score


def _at_ends(critique: Critique, aligned: Aligned) -> Weights:
    """Every score on the last token of what it is of, (T,)."""
    paid = np.zeros(len(aligned))
    for start, end, score in scored_parts(critique, aligned):
        if start < end:
            paid[end - 1] += score
    return paid


def span_credit(
    critique: Critique, aligned: Aligned, settings: CreditSettings, shape: Shape | None = None
) -> Credit:
    """Good spans pay +1 a token, poor ones -1, where they meet nothing; the verdict is added to the
    last token.

    `shape` weighs the tokens within each span.
    """
    members = membership(critique.spans, aligned)
    labels = labels_of(critique.spans)
    sureness = np.array([span.weight for span in critique.spans], dtype=np.float64)
    weights = _within_spans(members, sureness, aligned, settings, shape)
    good, poor = _strongest(weights[labels > 0]), _strongest(weights[labels < 0])
    is_good, is_poor = good > 0, poor > 0
    alone = is_good ^ is_poor
    if settings.weighting == "balanced":
        good, poor = _to_sum_one(good * alone), _to_sum_one(poor * alone)
    delta = np.where(alone, good - settings.poor_weight * poor, 0.0)
    if settings.unlabelled:
        improvable = members[labels == 0].any(axis=0)  # labelled, with nothing
        delta[~(is_good | is_poor | improvable)] = settings.unlabelled
    verdict = paid = None
    if settings.outcome_weight and (score := _verdict_of(critique)) is not None:
        verdict, paid = settings.outcome_weight * score, settings.outcome_weight * _at_ends(critique, aligned)
        delta += paid
    return Credit(
        delta.astype(np.float32),
        labelled=int(np.count_nonzero(alone)),
        cancelled=int(np.count_nonzero(is_good & is_poor)),
        no_score=int(_verdict_of(critique) is None and bool(settings.outcome_weight)),
        uncovered=len(members) - int(np.count_nonzero(members.any(axis=1))),
        verdict=verdict,
        verdict_rewards=None if paid is None else paid.astype(np.float32),
    )


def labels_of(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the label of each span, (S,)."""
    return np.array([span.label for span in spans], dtype=np.int64)


def membership(spans: Sequence[Span], aligned: Aligned) -> Flags:
    """Membership of tokens in spans, (S, T): a token belongs to each span of which it wrote a
    character.

    Interior whitespace belongs to the span, whitespace at its edges does not. A token without text
    belongs to none.
    """
    edges = np.array([edge for span in spans for edge in _solid_edges(span)], dtype=np.int64).reshape(-1, 2)
    first, last = edges[:, :1], edges[:, 1:]
    starts, ends = aligned.starts, aligned.ends
    return np.asarray((starts < last) & (ends > first) & (ends > starts))


def _solid_edges(span: Span) -> Place:
    """Where a span begins and ends without the white space at its edges; one of white space alone
    stays whole."""
    solid = span.text.strip()
    if not solid or len(solid) == len(span.text):
        return span.start, span.end
    start = span.start + span.text.index(solid)
    return start, start + len(solid)


def _within_spans(
    members: Flags, sureness: Weights, aligned: Aligned, settings: CreditSettings, shape: Shape | None
) -> Weights:
    """The weight of each token in each span, (S, T), before good and poor meet; `sureness` is
    (S,)."""
    weights = members.astype(np.float64)
    if shape:
        weights *= shape(members, aligned, settings)
    if settings.weighting == "span":
        sureness = sureness / np.maximum(weights.sum(axis=1), _LEAST_SUM)
    weights *= sureness[:, None]
    return weights


def _strongest(weights: Weights) -> Weights:
    """Union of same-sign spans, (S, T) -> (T,): a token in several takes its largest weight, never
    a sum."""
    return np.asarray(np.maximum.reduce(weights, axis=0, initial=0))


def _to_sum_one(weights: Weights) -> Weights:
    total = weights.sum()
    return weights / total if total else weights


SCHEMES: Mapping[str, CreditScheme] = {
    "spans": CreditScheme(span_credit),
    "last_token": CreditScheme(_last_token_credit, by_score=True),
    "spread_score": CreditScheme(_spread_credit, by_score=True),
}
"""The schemes of the package by their names."""
