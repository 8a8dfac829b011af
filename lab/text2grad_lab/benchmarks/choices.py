"""Answer multiple-choice questions by likelihood, which shows knowledge lost in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.config import Config
from text2grad.durable.progress import progress_reporter
from text2grad.durable.state import seed_everything
from text2grad.eval.metrics import mean
from text2grad.feedback import Example
from text2grad.policy.encode import check_lengths
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.stages import Summary, inlined
from text2grad.stages.run_folder import RunFolder, heldout_prompts, target_name
from text2grad.stages.training import prepare
from text2grad_lab.benchmarks.arc import ANSWER, CHOICES

Row = dict[str, Any]
MEASURES = ("likelihood", "likelihood_normalised")


@dataclass(frozen=True, kw_only=True)
class ChoicesSummary(Summary):
    """Shares of correct choices by each of `MEASURES`, `total` questions, and the results file."""

    figures: Mapping[str, float] = inlined()
    out: str


def run_choices(config: Config, target: str) -> ChoicesSummary:
    """Measure a policy by the likelihood of each choice."""
    prepare(config)
    run = RunFolder.of(config)
    examples = heldout_prompts(run.task(), config.evaluate.limit)
    policy = load_frozen(run.policy(target))
    seed_everything(config.run.seed)
    rows = choose(policy, examples, config.generation.batch_size, progress_reporter("questions")(len(examples)))
    figures = {name: mean([row["scores"][name] for row in rows]) for name in MEASURES}
    figures["total"] = float(len(rows))
    return ChoicesSummary(figures=figures, out=str(run.write_results(target_name(target), figures, rows)))


def choose(
    policy: Policy,
    examples: Sequence[Example],
    batch_size: int,
    progress: Callable[[float], None] = lambda count: None,
) -> list[Row]:
    """Return the choice of a policy for each question; `progress` gets the number done.

    An answer's likelihood is the sum of log p over the tokens of " " + its text after the question,
    without a chat template. There are two choices: the most likely (`acc` in lm-evaluation-harness
    and lighteval), and the one with the highest log p per character of its text (`acc_norm`).

    Returns:
        For each question `id`, `response` (the second choice) and `scores`, 1 or 0 by each of
        `MEASURES`.

    Raises:
        UserError: a question is longer than the policy's context.
    """
    rows: list[Row] = []
    for example, likelihoods in zip(examples, _likelihoods(policy, examples, batch_size, progress), strict=True):
        texts: list[str] = example.meta[CHOICES]
        per_character = [value / len(text) for value, text in zip(likelihoods, texts, strict=True)]
        choices = likelihoods.index(max(likelihoods)), per_character.index(max(per_character))
        scores = {name: float(pick == example.meta[ANSWER]) for name, pick in zip(MEASURES, choices, strict=True)}
        rows.append({"id": example.id, "response": texts[choices[1]], "scores": scores})
    return rows


def _likelihoods(
    policy: Policy, examples: Sequence[Example], batch_size: int, progress: Callable[[float], None]
) -> Iterator[list[float]]:
    """Yield log p of each choice of each example.

    The choices of a question are read in one pass, which shares the question's text if the model
    supports it; questions of similar length form a batch.
    """
    encoded = [
        [_encoded(policy, example.prompt[-1].content, text) for text in example.meta[CHOICES]]
        for example in examples
    ]
    named = [(example.id, [*a, *b]) for example, pairs in zip(examples, encoded, strict=True) for a, b in pairs]
    check_lengths(named, policy.context, 0)
    likelihoods: dict[int, list[float]] = {}
    with policy.evaluating():
        for batch_indices in _in_batches(encoded, batch_size):
            pairs = [pair for i in batch_indices for pair in encoded[i]]
            batch = policy.pack([question for question, _ in pairs], [answer for _, answer in pairs])
            iterator = iter(policy(batch, valued=False).logp.sum(dim=1).double().cpu().tolist())
            likelihoods |= {i: [next(iterator) for _ in encoded[i]] for i in batch_indices}
            progress(len(likelihoods))
    yield from (likelihoods[i] for i in range(len(examples)))


def _in_batches(encoded: Sequence[Sequence[tuple[list[int], list[int]]]], batch_size: int) -> Iterator[list[int]]:
    """Yield indices of questions of similar length, up to about `batch_size` choices at a time."""
    order = sorted(range(len(encoded)), key=lambda i: max(len(a) + len(b) for a, b in encoded[i]))
    batch: list[int] = []
    for i in order:
        if batch and sum(len(encoded[j]) for j in batch) + len(encoded[i]) > batch_size:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _encoded(policy: Policy, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Return ids of the question and of the answer after it."""
    first, full = (list(policy.tokenizer(text)["input_ids"]) for text in (question, f"{question} {answer}"))
    return full[: len(first)], full[len(first) :]
