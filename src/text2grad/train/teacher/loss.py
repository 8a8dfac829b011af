"""What is learned from the teacher: the columns that it adds to a rollout, and its loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from text2grad.rl import distill
from text2grad.rl.advantage import masked_mean
from text2grad.train.ppo_settings import PPOSettings, TeacherSettings
from text2grad.train.rollout import Responses, Rollout
from text2grad.train.teacher.model import TeacherScores
from text2grad.train.teacher.prompt import succeeded


def with_teacher(
    rollout: Rollout,
    scores: TeacherScores,
    support: Tensor,
    responses: Responses,
    settings: PPOSettings,
    weight: float,
) -> Rollout:
    """A scored batch as its teacher changes it: the tokens in the loss, their advantages, and what is compared.

    The advantages of SDPO are the gaps between teacher and policy, for the report alone: its loss compares the two
    itself. Rows without a lesson are learned from the verdict alone; with SDPO, which uses none, not at all.
    `weight` is that of the KL on spans (`weight_at`).
    """
    own = settings.teacher
    read = rollout.learned & scores.rows[:, None]
    gaps = distill.gap(rollout.old_logp, scores.logp, read)  # (B, T), teacher minus policy, 0 outside
    if own.width:
        rollout = replace(rollout, support=support, teacher_support=scores.support)
    if own.alone:
        return replace(rollout, learned=read, advantages=gaps, teacher=scores.logp)
    if own.kind == "spans":
        return replace(rollout, route=route_of(responses, read, own, weight))
    paid = rollout.delta - rollout.rewards  # beta kl (B, T), which the teacher must not rescale
    sized = distill.sized(rollout.advantages + paid, gaps, rollout.learned, own.size_clip)
    return replace(rollout, advantages=torch.where(rollout.learned, sized - paid, 0))


def weight_at(step: int, settings: PPOSettings) -> float:
    """The weight of a step's lessons: that of the KL on spans falls linearly to 0, where the verdict takes over."""
    own = settings.teacher
    if own.kind != "spans" or not own.anneal:
        return 1.0
    return max(0.0, 1 - step / (own.anneal * settings.steps))


def route_of(responses: Responses, read: Tensor, settings: TeacherSettings, weight: float) -> Tensor:
    """-`weight` on the words that a critique blames, +`weight` on those it praises in right answers, 0 elsewhere.

    `read` and the result are (B, T); `read` is True on the tokens of the loss that the teacher has read.
    """
    labels = labels_of(responses, read)
    right = torch.tensor([succeeded(each, settings.success) for each in responses.judgements], device=read.device)
    poor = (labels < 0) & read & (settings.spans != "good")
    good = (labels > 0) & read & right[:, None] & (settings.spans != "poor")
    return weight * (good.float() - poor.float())


def labels_of(responses: Responses, mask: Tensor) -> Tensor:
    """+1 on the words that a critique praises, -1 on those it blames, 0 elsewhere; shaped as `mask` (B, T)."""
    labels = torch.zeros(mask.shape, device=mask.device)
    for row, signs in enumerate(responses.labels):
        labels[row, : len(signs)] = torch.from_numpy(signs.astype("float32"))
    return labels


def teacher_loss(
    logp: Tensor, support: Tensor | None, part: Rollout, settings: TeacherSettings
) -> tuple[Tensor, Tensor]:
    """The loss towards the teacher per token (B, T), and where the policy ratio was held back, a boolean (B, T).

    `support` (B, T, K): the policy's log-probabilities of the ids that are compared; None: the sampled token alone.
    """
    ratio = distill.bounded_ratio(logp, part.old_logp, part.learned, settings.ratio_limit)  # (B, T)
    held = (ratio >= settings.ratio_limit) & part.learned
    if support is None or part.teacher_support is None:
        assert part.teacher is not None
        return ratio * distill.sampled_loss(logp, part.teacher, part.learned), held
    reverse = distill.divergence(support, part.teacher_support, part.learned)  # (B, T), KL(policy || teacher)
    if part.route is None:
        return ratio * reverse, held
    forward = distill.divergence(support, part.teacher_support, part.learned, "forward")
    return part.route.abs() * ratio * torch.where(part.route < 0, reverse, forward), held


def describe_lessons(
    rollout: Rollout, scores: TeacherScores, responses: Responses, too_long: int
) -> dict[str, float]:
    """The metrics of a step's teacher; each name is explained in docs/metrics.md. `rollout` as it was scored."""
    count = len(responses.samples)
    read = rollout.learned & scores.rows[:, None]
    gaps = distill.gap(rollout.old_logp, scores.logp, read).abs()
    on_spans = torch.where(labels_of(responses, read) != 0, gaps, 0)
    return {
        "teacher_masked": 1 - float(scores.rows.sum()) / count,
        "teacher_too_long": too_long / count,
        "teacher_gap": float(masked_mean(gaps, read)),
        "teacher_gap_spans": float(on_spans.sum() / gaps.sum().clamp(min=torch.finfo(gaps.dtype).tiny)),
    }
