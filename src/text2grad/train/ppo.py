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
from functools import partial
from pathlib import Path

from text2grad.align import CreditSettings, TokenTable
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, record_json
from text2grad.policy.encode import check_lengths, encode_prompt
from text2grad.policy.model import Policy, pack
from text2grad.policy.settings import GenerationSettings
from text2grad.policy.shard import gathered
from text2grad.train.account import describe, strips
from text2grad.train.guard import PassSize
from text2grad.train.overlap import overlaps, together
from text2grad.train.ranks import ALONE, Ranks
from text2grad.train.rollout import (
    draws_of,
    judge,
    measure,
    merge,
    refuse_diverged,
    refuse_failures,
    refuse_not_finite,
    respond,
    score,
)
from text2grad.train.run import AUTO, OnStep, Resume, Run, Stopwatch
from text2grad.train.settings import PPOSettings
from text2grad.train.state import Training, digest_of_reference, digest_of_texts, flatten
from text2grad.train.update import make_optimizers, next_coefficient, update

UNCHECKED = {"ppo.checkpoint_every", "ppo.max_failed", "ppo.max_kl", "ppo.overlap", "ppo.prompts"}
"""What a run may change when it is resumed: it does not change what is learned, or (prompts) has a digest."""


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
    resume: Resume = AUTO,
    ranks: Ranks = ALONE,
) -> None:
    """Train `policy` in place against `critic`; write metrics, samples and the policy to `folder`.

    Of several processes (`ranks`) each calls this with the same arguments; a step is what it is with one that draws
    `by_row`.

    An unfinished run in `folder` is gone on with; on one CPU it ends as if it had never stopped, bit for bit.

    Raises:
        UserError: no examples, a prompt that does not fit, too many failed critiques, a loss that is not a
            number, a policy that has diverged, or what `train.run.Run` refuses.
    """
    if generation.temperature <= 0:
        raise UserError("PPO samples, so it needs a temperature above 0", "set generation.temperature")
    overlap = overlaps(critic, settings.overlap, ranks.sharded)
    examples = examples[: settings.prompts]
    prompts = encode_examples(policy, examples, generation.max_new_tokens)
    refuse_idle_processes(settings, ranks)
    table = TokenTable(policy.tokenizer)
    identity = {
        **flatten(UNCHECKED, ppo=settings, credit=credit_settings, generation=generation),
        **identity_of(policy, examples, prompts, critic, seed),
    }
    policy.freeze_reference()
    ranks.spread(policy)
    optimizers = make_optimizers(policy, settings)
    training = Training(policy, (optimizers.policy, optimizers.value), optimizers.schedule, settings.kl_coefficient)
    size = PassSize(settings.micro_batch_size, "ppo.micro_batch_size", fixed=ranks.sharded)
    policy.eval()  # dropout off: the first ratio of every step is exactly 1
    with Run(
        *(folder, title, settings.steps, training, identity, resume),
        every=settings.checkpoint_every,
        memory=f"lower ppo.micro_batch_size ({settings.micro_batch_size}) or"
        f" generation.batch_size ({generation.batch_size})",
        numbers=f"lower ppo.lr ({settings.lr:g}), or raise ppo.kl_coefficient ({settings.kl_coefficient:g})",
        show=("score", "kl", "wrong_sign_rate"),
        ranks=ranks,
    ) as run:
        order = prompt_order(len(examples), settings, random.Random(seed))
        for step, chosen in run.steps(order):
            watch = Stopwatch()
            with run.unchanged():
                mine = ranks.share(len(chosen))
                draws = draws_of(seed, step, mine, generation.max_new_tokens) if ranks.by_row else None
                with gathered(policy), ranks.agreeing():
                    said = respond(policy, [prompts[i] for i in chosen[mine]], generation, draws)
                samples = list(itertools.chain.from_iterable(ranks.everyones(said)))
                watch.lap("generate")
                batch = pack([prompts[i] for i in chosen], [s.ids for s in samples], pad_id(policy), policy.device)
                asked = [examples[i] for i in chosen[mine]]
                part, measured = together(
                    # A critic may be made of the policy's weights, which it needs whole.
                    gathered(policy)(partial(judge, asked, said, table, critic, credit_settings)),
                    partial(measure, policy, batch, settings, generation.temperature, ranks, size),
                    *(overlap, watch, ranks),
                )
                answered = merge(ranks.everyones(part))
                refuse_failures(answered.judgements, settings.max_failed)
                beta, columns = training.kl_coefficient, ranks.joined_rows(measured)
                rollout = score(policy, batch, answered, settings, generation.temperature, beta, columns)
                watch.lap("score")
            metrics = describe(answered, rollout, training.kl_coefficient)
            shown = partial(
                strips, step, answered, rollout, valued=settings.valued, as_marked=credit_settings.as_marked
            )
            with run.keeping(partial(shown, len(samples))):
                refuse_not_finite(rollout)
                refuse_diverged(rollout, settings.max_kl)
                warming = step < settings.warmup_steps
                metrics |= update(
                    policy, rollout, optimizers, settings, generation.temperature, warming, ranks, size
                )
            training.kl_coefficient = next_coefficient(training.kl_coefficient, metrics["kl"], settings)
            watch.lap("update")
            metrics |= watch.seconds
            if step % settings.samples_every == 0 or step == settings.steps - 1:
                for record in shown(settings.samples_written):
                    run.log.sample(record)
            if on_step:
                on_step(step, metrics)
            run.log.metrics(step, metrics)


def identity_of(
    policy: Policy, examples: Sequence[Example], prompts: Sequence[Sequence[int]], critic: Critic, seed: int
) -> dict[str, str]:
    """What a run depends on beside its settings, by name; large things as digests."""
    return {
        "run.seed": str(seed),
        "the starting policy": digest_of_reference(policy),
        "the prompts": digest_of_texts([*(record_json(example) for example in examples), *map(str, prompts)]),
        "the critic": f"{critic.source.kind} {critic.source.prompt_version}",
    }


def refuse_idle_processes(settings: PPOSettings, ranks: Ranks) -> None:
    """Every process needs a response of every step.

    Raises:
        UserError: there are more processes than responses.
    """
    if settings.rollouts < ranks.count:
        raise UserError(
            f"{ranks.count} processes share ppo.rollouts {settings.rollouts}", "start fewer, or raise ppo.rollouts"
        )


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
    while True:
        chosen = list(itertools.islice(stream, settings.rollouts // settings.samples_per_prompt))
        yield [index for index in chosen for _ in range(settings.samples_per_prompt)]
