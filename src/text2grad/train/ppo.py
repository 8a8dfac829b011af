"""NL-gradient PPO (paper, section 3.5 and Algorithm 4): the loop is `train_ppo`, and it reads top to bottom.

One step: sample responses, have them critiqued, turn the spans into token rewards, subtract the KL penalty,
estimate advantages, take a few clipped gradient steps, log. The loop cannot tell Text2Grad from scalar PPO:
that difference is the credit scheme (`align.CreditSettings`).

Left out on purpose: beams, reward clipping, sequence packing. A response is never re-tokenised, and one whose
critique failed is masked out of the loss and counted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Failure, Judgement
from text2grad.policy.encode import check_lengths, encode_prompt
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy, TokenBatch, pack
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.rl import loss as losses
from text2grad.train.run import OnStep, RunLog, Stopwatch, learning_rate_factor, save_policy
from text2grad.train.settings import PPOSettings


@dataclass(frozen=True)
class Answered:
    """A batch of responses in words: what was asked, sampled, said about it, and the credit it got."""

    examples: list[Example]
    samples: list[Sample]
    aligned: list[Aligned]
    judgements: list[Judgement]
    credits: list[Credit]


@dataclass(frozen=True)
class Rollout:
    """The same batch in numbers. All (B, T), response-aligned; `learned` is `mask` without failed critiques."""

    batch: TokenBatch
    learned: Tensor
    delta: Tensor
    old_logp: Tensor
    kl: Tensor
    entropy: Tensor
    values: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass
class Optimizers:
    """One for the policy (with the shared trunk), one for what belongs to the value function alone."""

    policy: torch.optim.Optimizer
    value: torch.optim.Optimizer
    schedule: Any


def train_ppo(
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    settings: PPOSettings,
    credit_settings: CreditSettings,
    generation: GenerationSettings,
    folder: Path,
    seed: int,
    title: str = "ppo",
    on_step: OnStep | None = None,
) -> None:
    """Train `policy` in place against `critic`; write metrics, samples and the policy to `folder`.

    Raises:
        UserError: no examples, a prompt that does not fit, too many failed critiques, or a loss that is not
            a number.
    """
    if generation.temperature <= 0:
        raise UserError("PPO samples, so it needs a temperature above 0", "set generation.temperature")
    prompts = encode_examples(policy, examples, generation.max_new_tokens)
    table = TokenTable(policy.tokenizer)
    optimizers = make_optimizers(policy, settings)
    coefficient = settings.kl_coefficient
    order = prompt_order(len(examples), settings, random.Random(seed))
    policy.freeze_reference()
    policy.eval()  # dropout off: the first ratio of every step is exactly 1
    with RunLog(folder, title, settings.steps, ("score", "kl", "wrong_sign_rate")) as log:
        for step in range(settings.steps):
            watch = Stopwatch()
            chosen = next(order)
            samples = generate(policy, [prompts[i] for i in chosen], generation)
            watch.lap("generate")
            answered = judge([examples[i] for i in chosen], samples, table, critic, credit_settings)
            refuse_failures(answered.judgements, settings.max_failed)
            watch.lap("critique")
            batch = pack([prompts[i] for i in chosen], [s.ids for s in samples], pad_id(policy), policy.device)
            rollout = score(policy, batch, answered, settings, generation.temperature, coefficient)
            watch.lap("score")
            warming = step < settings.value_warmup
            metrics = describe(answered, rollout, coefficient)
            metrics |= update(policy, rollout, optimizers, settings, generation.temperature, warming)
            coefficient = next_coefficient(coefficient, metrics["kl"], settings)
            watch.lap("update")
            metrics |= watch.seconds
            if step % settings.samples_every == 0 or step == settings.steps - 1:
                for record in strips(step, answered, rollout, settings.samples_written):
                    log.sample(record)
            if on_step:
                on_step(step, metrics)
            log.metrics(step, metrics)
            if settings.checkpoint_every and (step + 1) % settings.checkpoint_every == 0:
                save_policy(policy, folder / f"checkpoint-{step + 1}")
    save_policy(policy, folder / "policy")


def pad_id(policy: Policy) -> int:
    """The padding id; what stands under it is never attended to nor scored."""
    return int(policy.tokenizer.pad_token_id)


def encode_examples(policy: Policy, examples: Sequence[Example], room: int) -> list[list[int]]:
    """Prompt ids of all examples, checked against the model's context before anything is spent."""
    if not examples:
        raise UserError("no prompts to train on", "check task.data, task.limit and the split")
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples]
    names = [example.id for example in examples]
    check_lengths(list(zip(names, prompts, strict=True)), policy.context, room)
    return prompts


def make_optimizers(policy: Policy, settings: PPOSettings) -> Optimizers:
    """AdamW for both; the value function may have a learning rate of its own."""
    decay = settings.weight_decay
    trunk = torch.optim.AdamW(policy.policy_parameters(), lr=settings.lr, weight_decay=decay)
    head = torch.optim.AdamW(policy.value_parameters(), lr=settings.value_lr or settings.lr, weight_decay=decay)
    updates = max(1, settings.steps - settings.value_warmup) * settings.epochs * settings.mini_batches
    factor = learning_rate_factor(settings.schedule, 0.0, updates)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, factor))


def prompt_order(count: int, settings: PPOSettings, rng: random.Random) -> Iterator[list[int]]:
    """Indices of the prompts of each step: every prompt once per pass, each `samples_per_prompt` times."""

    def endless() -> Iterator[int]:
        while True:
            yield from rng.sample(range(count), count)

    stream = endless()
    distinct = max(1, settings.rollouts // settings.samples_per_prompt)
    while True:
        chosen = list(itertools.islice(stream, distinct))
        yield [index for index in chosen for _ in range(settings.samples_per_prompt)]


def judge(
    examples: list[Example],
    samples: list[Sample],
    table: TokenTable,
    critic: Critic,
    settings: CreditSettings,
) -> Answered:
    """Show the critic the text of the sampled ids, and tie what it says to those ids."""
    aligned = [table.align(sample.ids) for sample in samples]
    judgements = critic.critique(examples, [item.text for item in aligned])
    credits = [
        credit(judgement, item, settings) if not isinstance(judgement, Failure) else Credit.nothing(item)
        for judgement, item in zip(judgements, aligned, strict=True)
    ]
    return Answered(examples, samples, aligned, judgements, credits)


def refuse_failures(judgements: Sequence[Judgement], limit: float) -> None:
    """Stop when more than a share `limit` of the critiques failed: a policy cannot learn from silence."""
    failures = [judgement for judgement in judgements if isinstance(judgement, Failure)]
    if len(failures) > limit * len(judgements):
        raise UserError(
            f"{len(failures)} of {len(judgements)} critiques failed, the first: {failures[0].kind}:"
            f" {failures[0].message}",
            "mend the critic, or raise ppo.max_failed",
        )


def score(
    policy: Policy,
    batch: TokenBatch,
    answered: Answered,
    settings: PPOSettings,
    temperature: float,
    coefficient: float,
) -> Rollout:
    """Log-probabilities, KL, values, rewards and advantages of a batch under the policy that sampled it."""
    with policy.evaluating():
        size = settings.micro_batch_size
        rows = [slice(start, start + size) for start in range(0, len(answered.samples), size)]
        parts = [_score_rows(policy, batch.rows(index), settings, temperature) for index in rows]
        old_logp, kl, entropy, values, last_value = (torch.cat(column) for column in zip(*parts, strict=True))
        delta = _delta(answered.credits, batch)
        failed = torch.tensor([isinstance(j, Failure) for j in answered.judgements], device=batch.mask.device)
        cut = torch.tensor([sample.truncated for sample in answered.samples], device=batch.mask.device)
        learned = batch.mask & ~failed[:, None]
        bootstrap = torch.where(cut, last_value, torch.zeros_like(last_value))
        rewards = adv.token_rewards(delta, kl, coefficient, batch.mask)
        advantages, returns = adv.gae(rewards, values, batch.mask, settings.gamma, settings.lam, bootstrap)
        if settings.value_target == "mc":
            returns = adv.mc_returns(rewards, batch.mask, settings.gamma, bootstrap)
        advantages = adv.normalise(advantages, learned, settings.normalisation)
    return Rollout(batch, learned, delta, old_logp, kl, entropy, values, rewards, advantages, returns)


def _score_rows(policy: Policy, batch: TokenBatch, settings: PPOSettings, temperature: float) -> tuple[Tensor, ...]:
    output = policy(batch)
    reference = policy.reference_logits(batch)
    logp = adv.token_logps(output.logits, batch.response_ids, temperature)
    if settings.kl == "full":
        kl = adv.kl_full(output.logits, reference, temperature)
    else:
        estimator = adv.kl_k1 if settings.kl == "k1" else adv.kl_k3
        kl = estimator(logp, adv.token_logps(reference, batch.response_ids, temperature))
    entropy = adv.entropy(output.logits, temperature)
    columns = (logp, kl, entropy, output.values)
    return *(column.masked_fill(~batch.mask, 0.0) for column in columns), output.last_value


def _delta(credits: Sequence[Credit], batch: TokenBatch) -> Tensor:
    delta = torch.zeros(batch.mask.shape, device=batch.mask.device)
    for row, item in enumerate(credits):
        delta[row, : len(item.delta)] = torch.from_numpy(item.delta)
    return delta


def update(
    policy: Policy,
    rollout: Rollout,
    optimizers: Optimizers,
    settings: PPOSettings,
    temperature: float,
    warming: bool,
) -> dict[str, float]:
    """Epochs of mini-batches over one rollout. While `warming`, only the value function learns."""
    totals: dict[str, float] = {}
    updates = 0
    for _ in range(settings.epochs):
        shuffled = torch.randperm(len(rollout.learned), device=rollout.learned.device)
        for index in shuffled.chunk(settings.mini_batches):
            if not rollout.learned[index].any():
                continue
            terms = accumulate_gradient(policy, rollout, index, settings, temperature, warming)
            terms["grad_norm"] = apply_gradient(policy, optimizers, settings, warming)
            totals = {name: totals.get(name, 0.0) + value for name, value in terms.items()}
            updates += 1
    return {name: value / max(1, updates) for name, value in totals.items()}


def accumulate_gradient(
    policy: Policy, rollout: Rollout, index: Tensor, settings: PPOSettings, temperature: float, warming: bool
) -> dict[str, float]:
    """Gradient of one mini-batch, in passes of `micro_batch_size` responses of similar length.

    The denominators are those of the whole mini-batch, so that the size of a pass changes nothing.
    """
    learned = rollout.learned[index]
    tokens = float(learned.sum())
    weight = tokens if settings.loss_average == "token" else float(learned.any(dim=1).sum())
    by_length = index[rollout.batch.mask[index].sum(dim=1).argsort()]
    totals: dict[str, float] = {}
    for rows in torch.split(by_length, settings.micro_batch_size):
        part = take_rows(rollout, rows)
        terms = loss_terms(policy, part, settings, temperature)
        shares = {
            name: losses.average(term, part.learned, settings.loss_average, weight) for name, term in terms.items()
        }
        value_share = settings.value_coefficient * shares["value_loss"]
        loss = value_share if warming else shares["policy_loss"] + shares["entropy_loss"] + value_share
        loss.backward()  # type: ignore[no-untyped-call]
        totals = {n: totals.get(n, 0.0) + float(share.detach()) for n, share in shares.items()}
    return totals


def take_rows(rollout: Rollout, rows: Tensor) -> Rollout:
    """Some rows of a rollout, without the columns that are padding in all of them."""
    width = int(rollout.batch.mask[rows].sum(dim=1).max())
    surplus = rollout.batch.width - width
    batch = rollout.batch.rows(rows)
    whole = int(batch.input_ids.shape[1]) - surplus
    first = int((batch.attention_mask[:, :whole] == 0).all(dim=0).int().argmin())
    cut = slice(first, whole)
    narrow = TokenBatch(
        batch.input_ids[:, cut],
        batch.attention_mask[:, cut],
        batch.position_ids[:, cut],
        batch.response_ids[:, :width],
        batch.mask[:, :width],
    )
    tensors = {name: value[rows, :width] for name, value in vars(rollout).items() if isinstance(value, Tensor)}
    return replace(rollout, batch=narrow, **tensors)


def loss_terms(policy: Policy, part: Rollout, settings: PPOSettings, temperature: float) -> dict[str, Tensor]:
    """The terms of the objective per token (B, T): policy, entropy and value, and what is logged beside them."""
    output = policy(part.batch)
    logp = adv.token_logps(output.logits, part.batch.response_ids, temperature)
    policy_loss, clipped = losses.policy_loss(logp, part.old_logp, part.advantages, part.learned, settings.clip)
    if settings.entropy_coefficient:
        entropy = adv.entropy(output.logits, temperature)
        entropy_loss = losses.entropy_term(entropy, settings.entropy_coefficient, settings.entropy_sign)
    else:
        entropy_loss = torch.zeros_like(policy_loss)
    return {
        "policy_loss": policy_loss,
        "entropy_loss": entropy_loss,
        "value_loss": losses.value_loss(output.values, part.values, part.returns, settings.value_clip),
        "clip_fraction": clipped.float(),
        "ratio_change": ((logp - part.old_logp).detach().exp() - 1).abs(),
    }


def apply_gradient(policy: Policy, optimizers: Optimizers, settings: PPOSettings, warming: bool) -> float:
    """Clip, step, clear; returns the norm before clipping. A gradient that is not a number changes nothing.

    Raises:
        UserError: the gradient is not a number.
    """
    trained = policy.value_parameters() if warming else policy.policy_parameters() + policy.value_parameters()
    norm = float(torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm))
    if norm != norm or norm == float("inf"):
        raise UserError("the gradient is not a number; no parameter was changed", "lower ppo.lr")
    optimizers.value.step()
    if not warming:
        optimizers.policy.step()
        optimizers.schedule.step()
    policy.zero_grad(set_to_none=True)
    return norm


def next_coefficient(coefficient: float, kl: float, settings: PPOSettings) -> float:
    """The adaptive controller (Ziegler et al. 2019) on the mean KL of a sequence; fixed without a target."""
    if settings.kl_target is None:
        return coefficient
    return adv.adaptive_kl(coefficient, kl, settings.kl_target, settings.kl_horizon, settings.rollouts)


def describe(answered: Answered, rollout: Rollout, coefficient: float) -> dict[str, float]:
    """Everything METHOD asks to see at every step; each name is explained in docs/metrics.md."""
    mask, learned = rollout.batch.mask, rollout.learned
    lengths = mask.sum(dim=1).float()
    sums = rollout.delta.sum(dim=1)
    good = [judgement for judgement in answered.judgements if not isinstance(judgement, Failure)]
    scores = [judgement.score for judgement in good if judgement.score is not None]
    count = len(answered.samples)
    return {
        "score": sum(scores) / max(1, len(scores)),
        "delta_sum": float(sums.mean()),
        "reward_sum": float(rollout.rewards.sum(dim=1).mean()),
        "labelled": float((rollout.delta != 0).sum() / mask.sum()),
        "critic_failed": 1 - len(good) / count,
        "unmatched": sum(judgement.unmatched for judgement in good) / count,
        "ambiguous": sum(judgement.ambiguous for judgement in good) / count,
        "cancelled": sum(item.cancelled for item in answered.credits) / count,
        "truncated": sum(sample.truncated for sample in answered.samples) / count,
        "response_length": float(lengths.mean()),
        "kl": float(rollout.kl.sum(dim=1).mean()),
        "kl_coefficient": coefficient,
        "entropy": float(adv.masked_mean(rollout.entropy, mask)),
        "value": float(adv.masked_mean(rollout.values, mask)),
        "explained_variance": float(adv.explained_variance(rollout.returns, rollout.values, learned)),
        "wrong_sign_rate": float(adv.wrong_sign_rate(rollout.delta, rollout.advantages, learned)),
        "reward_length_correlation": float(adv.reward_length_correlation(sums, lengths)),
    }


def strips(step: int, answered: Answered, rollout: Rollout, count: int) -> Iterator[dict[str, Any]]:
    """Token strips of the first `count` responses: everything that is known about each token, side by side."""
    for row in range(min(count, len(answered.samples))):
        judgement, aligned = answered.judgements[row], answered.aligned[row]
        example, length = answered.examples[row], len(answered.samples[row].ids)
        failed = isinstance(judgement, Failure)
        yield {
            "step": step,
            "id": example.id,
            "prompt": [message.model_dump() for message in example.prompt],
            "response": aligned.text,
            "critique": "" if isinstance(judgement, Failure) else judgement.text,
            "spans": [] if isinstance(judgement, Failure) else [s.model_dump() for s in judgement.spans],
            "score": None if isinstance(judgement, Failure) else judgement.score,
            "failure": judgement.model_dump() if failed else None,
            "tokens": [aligned.text[a:b] for a, b in zip(aligned.starts, aligned.ends, strict=True)],
            "starts": [int(start) for start in aligned.starts],
            "ends": [int(end) for end in aligned.ends],
            "delta": _row(rollout.delta, row, length),
            "kl": _row(rollout.kl, row, length),
            "value": _row(rollout.values, row, length),
            "advantage": _row(rollout.advantages, row, length),
            "reward": _row(rollout.rewards, row, length),
            "logp": _row(rollout.old_logp, row, length),
        }


def _row(column: Tensor, row: int, length: int) -> list[float]:
    return [round(value, 5) for value in column[row, :length].tolist()]
