"""A reward model's judgement of a policy's answers in numbers: the token reward that training raises. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.align import Aligned, CreditSettings, credit, token_labels
from text2grad.eval.metrics import mean
from text2grad.feedback import Failure, Judgement


def reward_report(
    judgements: Sequence[Judgement], aligned: Sequence[Aligned], settings: CreditSettings
) -> dict[str, float]:
    """Means over the answers whose critique could be read; see docs/metrics.md.

    Returns:
        `token_reward`: mean delta of a token (all tokens of all answers alike), the verdict's share included;
        `span_reward`: the same of the spans alone, without the verdict;
        `answer_reward`: mean over answers of their summed delta;
        `good_tokens`, `poor_tokens`: shares of the tokens that a good, a poor span touches;
        `verdict`: mean score; `length`: mean tokens of an answer (the first four fall or rise with it);
        `critic_failed`: share of answers whose critique could not be read, which the others leave out;
        `unmatched`: quotes an answer that are not in it.

    Raises:
        ValueError: nothing was judged.
    """
    if not judgements:
        raise ValueError("no answers were judged")
    pairs = list(zip(judgements, aligned, strict=True))
    read = [(said, place) for said, place in pairs if not isinstance(said, Failure)]
    tokens = max(1, sum(len(place) for _, place in read))
    spans_only = settings.model_copy(update={"outcome_weight": 0.0})
    summed = [float(credit(said, place, settings).delta.sum()) for said, place in read]
    of_spans = [float(credit(said, place, spans_only).delta.sum()) for said, place in read]
    labels = [token_labels(said.spans, place, settings.membership) for said, place in read]
    return {
        "token_reward": sum(summed) / tokens,
        "span_reward": sum(of_spans) / tokens,
        "answer_reward": sum(summed) / max(1, len(read)),
        "good_tokens": sum(int((each == 1).sum()) for each in labels) / tokens,
        "poor_tokens": sum(int((each == -1).sum()) for each in labels) / tokens,
        "verdict": mean([said.score for said, _ in read if said.score is not None]),
        "length": mean([float(len(place)) for _, place in read]),
        "critic_failed": 1 - len(read) / len(pairs),
        "unmatched": sum(said.quotes.unmatched for said, _ in read) / max(1, len(read)),
    }
