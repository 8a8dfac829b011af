"""Questions with given answers, answered by likelihood: what a policy knew before training, and knows still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from text2grad.eval.metrics import mean
from text2grad.feedback import Example
from text2grad.policy.encode import check_lengths
from text2grad.policy.model import Policy
from text2grad.tasks.arc import ANSWER, CHOICES

Row = dict[str, Any]
MEASURES = ("likelihood", "likelihood_normalised")


def has_choices(example: Example) -> bool:
    """Whether an example is a question with given answers."""
    return CHOICES in example.meta


def choose(policy: Policy, examples: Sequence[Example], batch_size: int) -> list[Row]:
    """The choice of a policy for each question, `batch_size` answers at a time.

    An answer's likelihood is the sum of log p over the tokens of " " + its text after the words of the question,
    which are read as they are, without a chat template. Two choices: the likeliest (`acc` in lm-evaluation-harness
    and lighteval), and the one with the highest log p per character of its text (`acc_norm` in both).

    Returns:
        For each question `id`, `response` (the second choice) and `scores`, 1 or 0 by each of `MEASURES`.

    Raises:
        UserError: a question is longer than the policy's context.
    """
    rows: list[Row] = []
    for example, found in zip(examples, _likelihoods(policy, examples, batch_size), strict=True):
        texts: list[str] = example.meta[CHOICES]
        each = [value / len(text) for value, text in zip(found, texts, strict=True)]
        chosen = found.index(max(found)), each.index(max(each))
        scores = {name: float(pick == example.meta[ANSWER]) for name, pick in zip(MEASURES, chosen, strict=True)}
        rows.append({"id": example.id, "response": texts[chosen[1]], "scores": scores})
    return rows


def choice_figures(rows: Sequence[Row]) -> dict[str, float]:
    """The share of right choices by each of `MEASURES`, and `total`, the number of questions."""
    shares = {name: mean([row["scores"][name] for row in rows]) for name in MEASURES}
    return {**shares, "total": float(len(rows))}


def forgetting(before: Mapping[str, float], after: Mapping[str, float], measure: str = MEASURES[1]) -> float:
    """Points (of 100) that a policy lost between two evaluations on the same questions; below 0 it gained.

    Raises:
        ValueError: they are of different numbers of questions.
    """
    if before["total"] != after["total"]:
        raise ValueError(f"{before['total']:g} questions before and {after['total']:g} after cannot be compared")
    return 100 * (before[measure] - after[measure])


def _likelihoods(policy: Policy, examples: Sequence[Example], batch_size: int) -> Iterator[list[float]]:
    """log p of each choice of each example; answers of similar length are read together."""
    pairs = [_encoded(policy, example.prompt[-1].content, text) for example in examples for text in _texts(example)]
    ids = [example.id for example in examples for _ in _texts(example)]
    check_lengths([(id, [*a, *b]) for id, (a, b) in zip(ids, pairs, strict=True)], policy.context, 0)
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]))
    found = torch.zeros(len(pairs), dtype=torch.float64)
    with policy.evaluating():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = policy.pack([pairs[i][0] for i in chosen], [pairs[i][1] for i in chosen])
            found[chosen] = policy(batch, valued=False).logp.sum(dim=1).double().cpu()
    flat = iter(found.tolist())
    yield from ([next(flat) for _ in _texts(example)] for example in examples)


def _texts(example: Example) -> list[str]:
    texts: list[str] = example.meta[CHOICES]
    return texts


def _encoded(policy: Policy, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Ids of the question and of the answer after it, cut where the question alone ends."""
    first, both = (list(policy.tokenizer(text)["input_ids"]) for text in (question, f"{question} {answer}"))
    return both[: len(first)], both[len(first) :]
