"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from text2grad.config import Config, with_tiny_rates
from text2grad.critics.probes import ProbedCritic
from text2grad.critics.table import spec_of
from text2grad.durable.run import ResumeMode
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.policy.load import load_policy
from text2grad.stages.critics import admitted, critic_inputs, open_critic, refuse_unfit, runner_of
from text2grad.stages.folder import note_settings, prepare, processes, run_inputs, run_options, start_policy
from text2grad.stages.gate import refuse_unfit_reward_model
from text2grad.stages.on_step import (
    counts_of,
    heldout_curve,
    kept_policies,
    length_watched,
    on_step_of,
    probes_of,
    variety_watched,
)
from text2grad.stages.prompts import task_of
from text2grad.stages.settle import facts_of_prompts, settled
from text2grad.stages.summary import Summary
from text2grad.train.ppo import train_ppo


@dataclass(frozen=True, kw_only=True)
class TrainSummary(Summary):
    """Steps that were trained, the policy's folder, and the processes where another program started them."""

    steps: int
    out: str
    workers: int | None = None


def run_train(config: Config, name: str, resume: ResumeMode = "auto") -> TrainSummary:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or resumes an unfinished one."""
    with processes(config) as ranks, ExitStack() as stack:
        runner = stack.enter_context(runner_of(config))
        with ranks.barrier():
            folder = prepare(config)
            if config.ppo.still:
                raise UserError(config.ppo.still, f"--ppo.value_warmup {config.ppo.steps // 4}, or more steps")
            task = task_of(config)
            examples = task.examples("train")
            refuse_unfit(config.critic.kind, examples)
            refuse_unfit_reward_model(config, tell=ranks.first)
            if config.critic.kind == "program" and ranks.first:
                examples = admitted(config, "program", examples[: config.ppo.prompts], runner)
        if config.critic.kind == "program":  # all train on the same tasks, whatever ran out of time in one process
            examples, runner.gates = ranks.broadcast((examples, runner.gates))
        with ranks.barrier():
            policy = load_policy(start_policy(config))
        place, data = folder / "ppo" / name, facts_of_prompts(policy, examples[: config.ppo.prompts])
        config = settled(config, "ppo", place, policy, data, resume, ranks)
        with ranks.barrier():
            seed_everything(config.run.seed)
            journal = place / f"critic.{ranks.rank}.journal"
            opened = stack.enter_context(open_critic(config, config.critic.kind, task, runner, policy, journal))
            trained = spec_of(config.critic.kind).kind == "reward_model"
            probed = trained and config.ppo.probe_every and not ranks.sharded
            critic = ProbedCritic(opened, config.run.seed) if probed else opened
            if ranks.first:
                for each in (folder, place):
                    note_settings(config, each, begins=True)
        inputs = run_inputs(config, config.policy, **critic_inputs(config))
        beside = on_step_of(
            counts_of(opened, ranks),
            heldout_curve(config, task, policy, runner, ranks),
            kept_policies(config, policy, place, ranks),
            probes_of(critic, config.ppo.probe_every, ranks),
            length_watched(ranks),
            variety_watched(config, ranks),
        )
        options = run_options(config, place, name, resume, ranks, inputs, beside)
        ppo = with_tiny_rates(config).ppo
        train_ppo(policy, examples, critic, ppo, config.credit, config.generation, options)
        if ranks.first:
            note_settings(config, place)
    return TrainSummary(steps=config.ppo.steps, out=str(place / "policy"))
