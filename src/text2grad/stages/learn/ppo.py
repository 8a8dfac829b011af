"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from text2grad.config import Config
from text2grad.critics.probes import ProbedCritic
from text2grad.durable.run import OnStep, ResumeMode
from text2grad.errors import UserError
from text2grad.feedback import Critic
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.sandbox import Runner
from text2grad.stages.judge.critics import admitted, critic_inputs, open_critic, refuse_unfit, runner_of
from text2grad.stages.learn.gate import refuse_unfit_reward_model
from text2grad.stages.learn.on_step import counts_of, heldout_curve, probes_of
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.prompts import task_of
from text2grad.stages.run.settle import facts_of_prompts
from text2grad.stages.run.summary import Summary
from text2grad.stages.run.training import TrainingRun, training
from text2grad.tasks.base import Task, environment_of
from text2grad.train.ppo import train_ppo
from text2grad.train.watch import combined
from text2grad.train.watch.kept import kept_policies
from text2grad.train.watch.length import length_watched
from text2grad.train.watch.variety import variety_watched


@dataclass(frozen=True, kw_only=True)
class TrainSummary(Summary):
    """Number of steps, and the folder of the policy."""

    steps: int
    out: str


def run_train(config: Config, name: str, resume: ResumeMode = "auto") -> TrainSummary:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or resumes an unfinished one."""
    with training(config, "ppo", f"ppo/{name}", resume) as stage, ExitStack() as stack:
        ranks, runner = stage.ranks, stack.enter_context(runner_of(config))
        with stage.preparing():
            if config.ppo.still:
                raise UserError(config.ppo.still, f"--ppo.value_warmup {config.ppo.steps // 4}, or more steps")
            task = task_of(config)
            examples = task.examples("train")
            refuse_unfit(config.critic.kind, examples)
            refuse_unfit_reward_model(config, tell=ranks.first)
            if config.critic.kind == "program" and ranks.first:
                examples = admitted(config, "program", examples, runner)
        if config.critic.kind == "program":  # all train on the same tasks, whatever ran out of time in one process
            examples, runner.gates = ranks.broadcast((examples, runner.gates))
        with ranks.barrier():
            policy = load_policy(start_policy(config))
        run = stage.settle(policy, facts_of_prompts(policy, examples))
        with ranks.barrier():
            critic = stack.enter_context(critic_in_training(run, task, runner, policy))
        beside = watchers(run, critic, task, runner, policy)
        with run.begin(inputs=critic_inputs(run.config), on_step=beside, with_run=True) as options:
            settings = run.config
            how = settings.ppo, settings.credit, settings.generation
            train_ppo(policy, examples, critic, *how, options, environment_of(task))
    return TrainSummary(steps=run.config.ppo.steps, out=str(stage.place / "policy"))


@contextmanager
def critic_in_training(run: TrainingRun, task: Task, runner: Runner, policy: Policy) -> Iterator[Critic]:
    """The critic of a run, with a journal for each process; a reward model's is probed (`ppo.probe_every`)."""
    config, ranks = run.config, run.stage.ranks
    journal = run.stage.place / f"critic.{ranks.rank}.journal"
    probed = config.critic.kind == "reward_model" and config.ppo.probe_every and not ranks.sharded
    with open_critic(config, config.critic.kind, task, runner, policy, journal) as critic:
        yield ProbedCritic(critic, config.run.seed) if probed else critic


def watchers(run: TrainingRun, critic: Critic, task: Task, runner: Runner, policy: Policy) -> OnStep | None:
    """What looks at each step."""
    config, ranks = run.config, run.stage.ranks
    return combined(
        counts_of(critic.critic if isinstance(critic, ProbedCritic) else critic, ranks),
        heldout_curve(config, task, policy, runner, ranks),
        kept_policies(config.ppo.keep_every, policy, run.stage.place, ranks),
        probes_of(critic, config.ppo.probe_every, ranks),
        length_watched(ranks),
        variety_watched(config.ppo, ranks),
    )
