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
from pathlib import Path

from text2grad.align import CreditSettings, TokenTable
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example
from text2grad.policy.encode import check_lengths, encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy, pack
from text2grad.policy.settings import GenerationSettings
from text2grad.train.account import describe, strips
from text2grad.train.rollout import judge, refuse_failures, score
from text2grad.train.run import OnStep, RunLog, Stopwatch, save_policy
from text2grad.train.settings import PPOSettings
from text2grad.train.update import make_optimizers, next_coefficient, update


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
