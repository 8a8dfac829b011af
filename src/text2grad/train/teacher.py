"""The policy as its own teacher: SDPO (arXiv 2601.20802), RLSD (2604.03128) and span routing (TRACE, 2605.10194).

An answer is read twice by the same model: as it was asked, and with what its critique says, and the first right
answer to the same prompt, in the last turn of the question. Where the two readings differ, the feedback has
something to say about a token. The ids are those that were sampled: the answer is never tokenised again, and what
stands in a critique is text (`policy.encode`). A row with nothing to show, or too long to show it, has no lesson
and is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Judgement, Message
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import encode_prompt
from text2grad.policy.model import Policy
from text2grad.rl import distill
from text2grad.rl import loss as losses
from text2grad.rl.advantage import masked_mean
from text2grad.tasks.base import prompt_version, read_prompt
from text2grad.train.passes import PassSize
from text2grad.train.rollout import Answered, Rollout
from text2grad.train.settings import PPOSettings, TeacherSettings

PROMPT = "teacher"
PREFIX = "teacher."
_HEADING = re.compile(r"^=== (\w+) ===\n", re.MULTILINE)


class Lesson(NamedTuple):
    """A row of a batch, and the token ids of the prompt under which the teacher reads its answer."""

    row: int
    prompt: list[int]


class Taught(NamedTuple):
    """What the teacher says of a batch: log-probabilities (B, T) and those of the support (B, T, K), 0 where it has
    not read; `rows` (B,) is True where it has."""

    logp: Tensor
    support: Tensor
    rows: Tensor


# What the teacher is shown ------------------------------------------------------------------------


@cache
def _parts() -> dict[str, str]:
    """The parts of the prompt file by name."""
    pieces = _HEADING.split(read_prompt(PROMPT))
    return {name: text.strip("\n") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def teacher_version() -> str:
    """`name@hash` of the prompt file."""
    return prompt_version(PROMPT)


def shown(prompt: Sequence[Message], solution: str, feedback: str) -> list[Message]:
    """A conversation whose last turn ends in a right answer (""; none) and in what was wrong with the own one."""
    parts = _parts()
    told = [
        *([parts["solution"].replace("{{solution}}", solution)] if solution else []),
        *([parts["feedback"].replace("{{feedback}}", feedback)] if feedback else []),
        parts["end"],
    ]
    last = prompt[-1]
    return [*prompt[:-1], last.model_copy(update={"content": "\n\n".join([last.content, *told])})]


def words_of(judgement: Judgement) -> str:
    """What a critique says in words; "" of a failure."""
    if not isinstance(judgement, Critique):
        return ""
    return "\n".join([judgement.text, *(f"- missing: {each}" for each in judgement.omissions)]).strip()


def succeeded(judgement: Judgement, least: float) -> bool:
    """Whether an answer was right, by its verdict."""
    return isinstance(judgement, Critique) and judgement.score is not None and judgement.score >= least


def sibling(row: int, right: Sequence[bool], size: int) -> int | None:
    """The first right answer, but itself, to the prompt of a row, of `size` answers each; None if there is none."""
    first = row // size * size
    return next((each for each in range(first, first + size) if right[each] and each != row), None)


def lessons(
    tokenizer: Any, answered: Answered, settings: TeacherSettings, size: int, context: int | None
) -> tuple[list[Lesson], int]:
    """The rows that there is something to show of, and how many more were left out as too long for the context.

    A right answer is shown no feedback: it is none of an unsuccessful attempt.
    """
    right = [succeeded(judgement, settings.success) for judgement in answered.judgements]
    found, too_long = [], 0
    for row, example in enumerate(answered.examples):
        other = sibling(row, right, size)
        solution = "" if other is None else answered.aligned[other].text
        feedback = "" if right[row] else words_of(answered.judgements[row])
        if not (solution.strip() or feedback):
            continue
        ids = encode_prompt(tokenizer, shown(example.prompt, solution, feedback))
        fits = context is None or len(ids) + len(answered.samples[row].ids) <= context
        too_long += not fits
        found += [Lesson(row, ids)] if fits else []
    return found, too_long


def refuse_unfit(policy: Policy, examples: Sequence[Example], settings: TeacherSettings, sharded: bool) -> None:
    """What a teacher cannot be made of, before anything is spent.

    Raises:
        UserError: weights are split, a prompt ends in no turn of the user, or `top_k` exceeds the vocabulary.
    """
    if sharded:
        raise UserError("a teacher reads with whole weights", "--run.parallel ddp, or ppo.teacher.kind none")
    ended = next((example for example in examples if example.prompt[-1].role != "user"), None)
    if ended is not None:
        raise UserError(
            f"prompt {ended.id!r} does not end in a turn of the user, where a teacher is shown its feedback",
            "leave it out, or ppo.teacher.kind none",
        )
    vocabulary = int(policy.model.get_output_embeddings().weight.shape[0])
    if settings.width > vocabulary:
        raise UserError(
            f"ppo.teacher.top_k {settings.width} exceeds the model's {vocabulary} tokens", "lower ppo.teacher.top_k"
        )


# The teacher's weights ----------------------------------------------------------------------------


class Teacher:
    """The weights of the teacher: a moving average of the policy's, or the policy's own where `ema` is 0.

    A part of `durable.state.Training`, so that a run that was stopped resumes bit for bit. Averages are in float32
    at least: in a half type a share of .05 would be rounded away.
    """

    def __init__(self, policy: Policy, settings: TeacherSettings) -> None:
        self.settings = settings
        self._policy = policy
        self._weights = {
            name: parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for name, parameter in self._trained().items()
            if settings.ema
        }

    def _trained(self) -> dict[str, Tensor]:
        return {name: each for name, each in self._policy.model.named_parameters() if each.requires_grad}

    def follow(self) -> None:
        """Take over a share `ema` of the policy's weights."""
        trained = self._trained()
        for name, average in self._weights.items():
            average.lerp_(trained[name].detach().to(average.dtype), self.settings.ema)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The policy has the teacher's weights, and its own again afterwards, bit for bit."""
        trained = self._trained()
        own = {name: trained[name].detach().clone() for name in self._weights}
        try:
            _put(trained, self._weights)
            yield
        finally:
            _put(trained, own)

    def tensors(self) -> dict[str, Tensor]:
        """The averages, by name."""
        return {PREFIX + name: average for name, average in self._weights.items()}

    def numbers(self) -> dict[str, Any]:
        """Nothing: a checkpoint has the averages, and the settings are the run's."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `tensors` gave."""
        for name, average in self._weights.items():
            average.copy_(tensors[PREFIX + name])


@torch.no_grad()
def _put(trained: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        trained[name].copy_(weight)


def read(
    policy: Policy,
    found: Sequence[Lesson],
    answered: Answered,
    support: Tensor,
    temperature: float,
    size: PassSize,
) -> tuple[Tensor, Tensor]:
    """The log-probabilities of this process's share of the lessons, (N, T) and (N, T, K), 0 outside the responses.

    `support` (B, T, K) has the ids of the whole batch that the teacher is compared on.
    """
    share = size.ranks.share(len(found))
    mine = found[share]
    logp = torch.zeros((len(mine), support.shape[1]), device=support.device)
    tops = torch.zeros((len(mine), *support.shape[1:]), device=support.device)
    if not mine:
        return logp, tops
    batch = policy.pack([each.prompt for each in mine], [answered.samples[each.row].ids for each in mine])
    wanted = support[[each.row for each in mine]]

    def fill(rows_each: int) -> None:
        index = torch.arange(len(mine), device=support.device)
        for rows in batch.passes(index, rows_each, grouped=policy.reader.shares):
            _read_rows(policy, batch, rows, wanted, temperature, logp, tops)

    with policy.evaluating():
        size.fitting(fill, undo=lambda: None)
    return logp, tops


def _read_rows(
    policy: Policy, batch: TokenBatch, rows: Tensor, wanted: Tensor, temperature: float, logp: Tensor, tops: Tensor
) -> None:
    part = batch.rows(rows).trimmed()
    asked = wanted[rows, : part.width] if wanted.shape[-1] else None
    output = policy(part, temperature, valued=False, support=asked)
    logp[rows, : part.width] = output.logp
    if output.support is not None:
        tops[rows, : part.width] = output.support


# What is learned from it --------------------------------------------------------------------------


def spread(found: Sequence[Lesson], logp: Tensor, support: Tensor, count: int) -> Taught:
    """What was read of the lessons, (N, T) and (N, T, K), at their rows of a batch of `count`."""
    index = [each.row for each in found]
    rows = torch.zeros(count, dtype=torch.bool, device=logp.device)
    rows[index] = True
    taught = Taught(logp.new_zeros(count, *logp.shape[1:]), support.new_zeros(count, *support.shape[1:]), rows)
    taught.logp[index], taught.support[index] = logp, support
    return taught


def with_teacher(
    rollout: Rollout,
    taught: Taught,
    support: Tensor,
    answered: Answered,
    settings: PPOSettings,
    weight: float,
) -> Rollout:
    """A scored batch as its teacher changes it: what is learned, by which advantages, and what the loss compares.

    The advantages of SDPO are what the feedback says for each token; they are shown, the loss has its own. Rows
    without a lesson are learned by the verdict alone, and where there is none (SDPO) not at all. `weight` is that
    of the KL on spans (`weight_at`).
    """
    own = settings.teacher
    told = rollout.learned & taught.rows[:, None]
    gaps = distill.gap(rollout.old_logp, taught.logp, told)
    if own.width:
        rollout = replace(rollout, support=support, teacher_support=taught.support)
    if own.alone:
        return replace(rollout, learned=told, advantages=gaps, teacher=taught.logp)
    if own.kind == "spans":
        return replace(rollout, route=route_of(answered, told, own, weight))
    paid = rollout.delta - rollout.rewards  # beta kl, which is no verdict
    sized = distill.sized(rollout.advantages + paid, gaps, rollout.learned, own.size_clip)
    return replace(rollout, advantages=torch.where(rollout.learned, sized - paid, 0))


def weight_at(step: int, settings: PPOSettings) -> float:
    """The weight of a step's lessons: that of the KL on spans falls linearly to 0, where the verdict takes over."""
    own = settings.teacher
    if own.kind != "spans" or not own.anneal:
        return own.span_weight
    return own.span_weight * max(0.0, 1 - step / (own.anneal * settings.steps))


def route_of(answered: Answered, told: Tensor, settings: TeacherSettings, weight: float) -> Tensor:
    """-`weight` on the words that a critique blames, +`weight` on those it praises in right answers, 0 elsewhere.

    `told` and the result are (B, T); `told` is True on tokens that the teacher has read and that are learned from.
    """
    labels = labels_of(answered, told)
    right = torch.tensor([succeeded(each, settings.success) for each in answered.judgements], device=told.device)
    poor = (labels < 0) & told & (settings.spans != "good")
    good = (labels > 0) & told & right[:, None] & (settings.spans != "poor")
    return weight * (good.float() - poor.float())


def labels_of(answered: Answered, mask: Tensor) -> Tensor:
    """+1 on the words that a critique praises, -1 on those it blames, 0 elsewhere; shaped as `mask` (B, T)."""
    labels = torch.zeros(mask.shape, device=mask.device)
    for row, found in enumerate(answered.labels):
        labels[row, : len(found)] = torch.from_numpy(found.astype("float32"))
    return labels


def policy_terms(
    logp: Tensor, support: Tensor | None, part: Rollout, settings: PPOSettings
) -> tuple[Tensor, Tensor]:
    """The policy loss per token (B, T), and where the policy ratio was held back, a boolean (B, T)."""
    plain = losses.policy_loss(
        logp, part.old_logp, part.advantages, part.learned, settings.clip, settings.clip_high
    )
    limit = settings.teacher.ratio_limit
    ratio = distill.bounded_ratio(logp, part.old_logp, part.learned, limit)
    held = (ratio >= limit) & part.learned
    if support is None or part.teacher_support is None:
        if part.teacher is None:
            return plain
        return ratio * distill.sampled_loss(logp, part.teacher, part.learned), held
    reverse = distill.divergence(support, part.teacher_support, part.learned)
    if part.route is None:
        return ratio * reverse, held
    forward = distill.divergence(support, part.teacher_support, part.learned, "forward")
    towards = part.route.abs() * ratio * torch.where(part.route < 0, reverse, forward)
    routed = part.route != 0
    return torch.where(routed, towards, plain[0]), torch.where(routed, held, plain[1])


def describe_lessons(rollout: Rollout, taught: Taught, answered: Answered, too_long: int) -> dict[str, float]:
    """The metrics of a step's teacher; each name is explained in docs/metrics.md. `rollout` as it was scored."""
    count = len(answered.samples)
    told = rollout.learned & taught.rows[:, None]
    gaps = distill.gap(rollout.old_logp, taught.logp, told).abs()
    on_spans = torch.where(labels_of(answered, told) != 0, gaps, 0)
    return {
        "teacher_masked": 1 - float(taught.rows.sum()) / count,
        "teacher_too_long": too_long / count,
        "teacher_gap": float(masked_mean(gaps, told)),
        "teacher_gap_spans": float(on_spans.sum() / gaps.sum().clamp(min=torch.finfo(gaps.dtype).tiny)),
    }
