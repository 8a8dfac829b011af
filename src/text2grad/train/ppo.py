"""NL-gradient PPO (paper, section 3.5 and Algorithm 4): the method is `ppo_step`, and it reads top
to bottom.

A step samples responses, has them critiqued, turns the spans into token rewards, subtracts the KL
penalty, estimates advantages and takes a few clipped gradient steps. It cannot tell Text2Grad from
scalar PPO: that difference is the credit scheme (`align.CreditSettings`). `train_ppo` repeats the
step, with a folder and checkpoints around it (`durable`); `examples/minimal_loop.py` is the same
method on one page.

Left out on purpose: beams, reward clipping, sequence packing. A response is never re-tokenised, and
one whose critique failed is masked out of the loss and counted.
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
from text2grad.train.account import describe, due
from text2grad.train.learner import Learner
from text2grad.train.optimizers import make_optimizers
from text2grad.train.ppo_settings import PPOSettings, refuse_greedy
from text2grad.train.rollout import packed, refuse_diverged, refuse_failures, score
from text2grad.train.update import next_coefficient
from text2grad.train.watch.probes import Probes

CHECKPOINT_EVERY, SAMPLES_EVERY = 20, 5
"""Steps between checkpoints, where a run does not say, and between written token strips."""
STRIPS = 8
"""Token strips written at a time."""


def ppo_step(
    learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]], step: int, beta: float
) -> dict[str, float]:
    """One step on a batch of prompts, `prompts` being their token ids; returns its metrics.

    Args:
        learner: the policy, its critic and the settings; the policy is changed in place.
        step: number of the step, from 0.
        beta: coefficient of the KL penalty.

    Raises:
        CritiquesFailed: more critiques failed than `ppo.max_failed` allows.
        FloatingPointError: a number is not finite, or the policy has diverged from its reference.
    """
    samples = learner.sample(examples, prompts)  # y ~ pi(x)
    batch = packed(learner.policy, prompts, samples)
    # Critique -> spans -> delta_t, and in the meantime log pi, the KL to the reference, and V.
    responses, stats = learner.judge_and_measure(examples, samples, batch)
    refuse_failures(responses.judgements, learner.settings.max_failed)
    rollout = score(batch, responses, stats, learner.settings, beta)  # r_t = delta_t - beta kl_t -> A_t
    learner.watch.lap("score")
    learner.batch = responses, rollout
    refuse_diverged(rollout, learner.settings.max_kl)
    metrics = describe(responses, rollout, beta) | learner.update(rollout, step)  # the clipped objective
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
    """Train `policy` in place against `critic`; write metrics, samples and the policy to the run's
    folder.

    An unfinished run in the folder is resumed; on one CPU it ends as if it had never stopped, bit
    for bit.

    Args:
        policy: what is trained.
        examples: its prompts.
        critic: who judges its answers.
        settings: of the algorithm.
        credit: how words become rewards.
        generation: how answers are sampled.
        options: the place and manner of the run.
        environment: makes what answers the policy; a response is then an episode
            (`policy.episode`), and what the environment says is in no loss and no mean.

    Raises:
        UserError: no examples, a prompt that does not fit, too many failed critiques, a loss that
            is not finite, a policy that has diverged, or what `durable.run.Run` refuses.
    """
    if not examples:
        raise UserError("no prompts to train on", "check task.data, task.limit and the split")
    refuse_greedy(generation)
    prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
    identity = {
        **flatten(ppo=settings, credit=credit, generation=generation),
        **hash_custom_code("the credit scheme", credit.scheme),
        **identity_of(policy, examples, critic),
    }
    policy.freeze_reference()
    policy.eval()  # dropout off: the first ratio of every step is exactly 1
    optimizers = make_optimizers(policy, settings)
    both = optimizers.policy, optimizers.value
    training = Training(policy, both, optimizers.schedule, settings.kl_coefficient)
    learner = Learner(policy, critic, settings, credit, generation, optimizers, environment)
    probes = Probes(learner, examples, prompts, options.seed)
    cures = _cures(settings, generation)
    shown = ("score", "kl", "wrong_sign_rate")
    with Run(options, settings.steps, training, identity, cures, CHECKPOINT_EVERY, shown) as run:
        learner.begin_phase, learner.prepare_update = run.begin_phase, run.prepare_update
        for step, chosen in run.steps(prompt_order(len(examples), settings, random.Random(options.seed))):
            beta = training.kl_coefficient
            with run.guard_step(partial(learner.strips, step)):
                followed, seconds = probes.answers(step, beta)
                metrics = ppo_step(learner, [examples[i] for i in chosen], [prompts[i] for i in chosen], step, beta)
            training.kl_coefficient = next_coefficient(beta, metrics["kl"], settings)
            if due(step, settings.steps, SAMPLES_EVERY):
                for strip in learner.strips(step, STRIPS) or ():
                    run.log.sample(strip)
            for strip in followed:
                run.log.sample(strip)
            run.record_metrics(step, metrics | seconds)


def _cures(settings: PPOSettings, generation: GenerationSettings) -> Cures:
    memory = (
        f"ppo.micro_batch_size ({settings.micro_batch_size}) or generation.batch_size ({generation.batch_size})"
    )
    numbers = f"lower ppo.lr ({settings.lr:g}), or raise ppo.kl_coefficient ({settings.kl_coefficient:g})"
    return Cures(memory=f"lower {memory}", numbers=numbers)


def identity_of(policy: Policy, examples: Sequence[Example], critic: Critic) -> dict[str, str]:
    """What a run depends on beside its settings, by name; large things as digests."""
    turns = itertools.chain.from_iterable(example.prompt for example in examples)
    return {
        "the starting policy": hash_starting_weights(policy),
        "the prompts": hash_data(policy, map(record_json, examples), turns),
        "the critic": f"{critic.source.kind} {critic.source.prompt_version}",
    }


def prompt_order(count: int, settings: PPOSettings, rng: random.Random) -> Iterator[list[int]]:
    """Indices of the prompts of each step: every prompt once per pass, each `samples_per_prompt`
    times."""
    stream = itertools.chain.from_iterable(rng.sample(range(count), count) for _ in itertools.count())
    while True:
        chosen = list(itertools.islice(stream, settings.rollouts // settings.samples_per_prompt))
        yield [index for index in chosen for _ in range(settings.samples_per_prompt)]
