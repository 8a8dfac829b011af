"""Train with NL-gradient PPO (paper, section 3.5 and Algorithm 4); `ppo_step` is the method.

A step samples responses, has them critiqued, turns the spans into token rewards, subtracts the KL
penalty, estimates advantages and takes a few clipped gradient steps. The same step does Text2Grad
and scalar PPO: the difference is the credit scheme (`align.CreditSettings`). `train_ppo` repeats
the step, with a folder and checkpoints (`durable`). `examples/minimal_loop.py` is the same method
on one page.

Left out on purpose: beams, reward clipping, sequence packing. A response is never tokenised again,
and one whose critique failed is masked out of the loss and counted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial

from text2grad.align import CreditSettings
from text2grad.durable.identity import flatten, hash_custom_code, hash_data, hash_starting_weights
from text2grad.durable.run import Cures, Run, RunOptions
from text2grad.durable.state import Training
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example
from text2grad.json_text import record_json
from text2grad.policy.encode import encode_prompts
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.train.learner import Learner
from text2grad.train.optimizers import make_optimizers
from text2grad.train.ppo_settings import PPOSettings, refuse_greedy
from text2grad.train.report import compute_metrics, is_due
from text2grad.train.rollout import build_rollout, pack_samples, refuse_diverged, refuse_failures
from text2grad.train.update import next_coefficient
from text2grad.train.watch.probes import Probes

CHECKPOINT_EVERY, SAMPLES_EVERY = 20, 5
"""Steps between checkpoints, unless the run sets them, and between written token strips."""
STRIPS = 8
"""Token strips written at a time."""
PRINTED = ("score", "kl", "wrong_sign_rate")
"""Metrics in the progress line."""


def ppo_step(
    learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]], step: int, beta: float
) -> dict[str, float]:
    """Take one step on a batch of prompts and return its metrics.

    Args:
        prompts: their token ids.
        beta: coefficient of the KL penalty.

    Raises:
        CritiquesFailed: more critiques failed than `ppo.max_failed` allows.
        FloatingPointError: a number is not finite, or the policy has diverged from its reference.
    """
    samples = learner.sample(examples, prompts)  # y ~ pi(x)
    batch = pack_samples(learner.policy, prompts, samples)
    # Critique -> spans -> delta_t, and in parallel log pi, the KL to the reference, and V.
    responses, stats = learner.judge_and_measure(examples, samples, batch)
    refuse_failures(responses.judgements, learner.settings.max_failed)
    # r_t = delta_t - beta kl_t -> A_t
    rollout = build_rollout(batch, responses, stats, learner.settings, beta)
    learner.watch.lap("score")
    learner.batch = responses, rollout
    refuse_diverged(rollout, learner.settings.max_kl)
    metrics = compute_metrics(responses, rollout, beta)
    metrics |= learner.update(rollout, step)  # the clipped objective
    learner.watch.lap("update")
    return metrics | learner.watch.seconds


def train_ppo(
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    settings: PPOSettings,
    credit: CreditSettings,
    generation: GenerationSettings,
    options: RunOptions,
    environment: MakeEnvironment | None = None,
) -> None:
    """Train `policy` in place against `critic`; write metrics, samples and policy to a folder.

    An unfinished run in the folder is resumed; on one CPU the result equals that of an
    uninterrupted run bit for bit.

    With `environment`, which makes an environment that answers the policy, a response is an episode
    (`policy.episode`). The environment's text is in no loss and no mean.

    Args:
        policy: the policy, with its frozen reference.
        examples: the prompts to sample answers to.
        critic: judges the answers.
        settings: of PPO.
        credit: how a critique becomes token rewards.
        generation: how answers are sampled.
        options: the folder of the run, and what is logged.
        environment: makes an environment for each episode; None: an answer is one turn.

    Raises:
        UserError: there are no examples, a prompt does not fit, too many critiques failed, the loss
            is not finite, the policy has diverged, or an error of `durable.run.Run`.
    """
    refuse_greedy(generation)
    prompts, identity = prepare_prompts(policy, examples, critic, settings, credit, generation)
    policy.freeze_reference()
    policy.eval()  # dropout off: the first ratio of every step is exactly 1
    optimizers = make_optimizers(policy, settings)
    training = Training(policy, (optimizers.policy, optimizers.value), optimizers.schedule, settings.kl_coefficient)
    learner = Learner(policy, critic, settings, credit, generation, optimizers, environment)
    probes = Probes(learner, examples, prompts, options.seed)
    cures = Cures(
        memory=f"lower ppo.micro_batch_size ({settings.micro_batch_size})"
        f" or generation.batch_size ({generation.batch_size})",
        numbers=f"lower ppo.lr ({settings.lr:g}), or raise ppo.kl_coefficient ({settings.kl_coefficient:g})",
    )
    with Run(options, settings.steps, training, identity, cures, CHECKPOINT_EVERY, PRINTED) as run:
        learner.begin_phase, learner.prepare_update = run.begin_phase, run.prepare_update
        for step, rows in run.steps(prompt_order(len(examples), settings, random.Random(options.seed))):
            beta = training.kl_coefficient
            with run.guard_step(partial(learner.strips, step)):
                probe_records, seconds = probes.answers(step, beta)
                metrics = ppo_step(learner, [examples[i] for i in rows], [prompts[i] for i in rows], step, beta)
            # After the step: all rewards of a batch have the same beta.
            training.kl_coefficient = next_coefficient(beta, metrics["kl"], settings)
            if is_due(step, settings.steps, SAMPLES_EVERY):
                for record in learner.strips(step, STRIPS) or ():
                    run.log.sample(record)
            for record in probe_records:
                run.log.sample(record)
            run.record_metrics(step, metrics | seconds)


def prepare_prompts(
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    settings: PPOSettings,
    credit: CreditSettings,
    generation: GenerationSettings,
) -> tuple[list[list[int]], dict[str, str]]:
    """Encode the prompts; also return the settings and inputs by name, large ones as digests.

    Raises:
        UserError: there are no examples, or a prompt does not fit.
    """
    if not examples:
        raise UserError("no prompts to train on", "check task.data, task.limit and the split")
    prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
    turns = itertools.chain.from_iterable(example.prompt for example in examples)
    return prompts, {
        **flatten(ppo=settings, credit=credit, generation=generation),
        **hash_custom_code("the credit scheme", credit.scheme),
        "the starting policy": hash_starting_weights(policy),
        "the prompts": hash_data(policy, map(record_json, examples), turns),
        "the critic": f"{critic.source.kind} {critic.source.prompt_version}",
    }


def prompt_order(count: int, settings: PPOSettings, rng: random.Random) -> Iterator[list[int]]:
    """Yield the indices of each step's prompts, forever.

    Every prompt is drawn once per pass and repeated `samples_per_prompt` times in its step.
    """
    stream = itertools.chain.from_iterable(rng.sample(range(count), count) for _ in itertools.count())
    while True:
        indices = list(itertools.islice(stream, settings.rollouts // settings.samples_per_prompt))
        # Answers to one prompt are consecutive rows, as group advantages expect.
        yield [index for index in indices for _ in range(settings.samples_per_prompt)]
