"""Commands that train: sft, train-reward and train."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from text2grad.commands.base import ConfiguredAsDemo, Resumable, Stage, Work, command, option
from text2grad.commands.console import show_reward_model, show_sft, show_trained
from text2grad.errors import UsageError


def engine_override(engine: str) -> list[str]:
    """Return the setting that `--engine` is short for."""
    return ["--engine.name", engine] if engine else []


@command("sft")
class Sft(Stage, ConfiguredAsDemo, Resumable):
    """Fine-tune the policy on reference answers.

    Supervised training before any feedback. The result is where training from feedback starts, and
    the reference that the KL penalty keeps it close to. If the command is stopped or killed, run it
    again to resume. Reports how many held-out answers are reproduced word for word: if nearly all
    are, train has little to improve.

    \b
    Example:
      text2grad sft --config mine.yaml --sft.epochs 1
    """

    engine: str = option(
        "--engine NAME", "The trainer: local or trl; short for --engine.name. [default: local]", ""
    )

    def work(self) -> Work:
        if self.engine == "verl":
            raise UsageError("verl cannot run sft", "--engine local or trl")
        config, mode = self.configuration(under=engine_override(self.engine)), self.mode()
        from text2grad.stages.sft import run_sft

        return Work(partial(run_sft, config, mode), partial(show_sft, config.run.folder))


@command("train-reward")
class TrainReward(Stage, ConfiguredAsDemo, Resumable):
    """Train the reward model.

    The reward model is a chat model that writes a critique and marks words. It learns from
    <run.folder>/feedback.jsonl, which import and annotate write. Reports how well it marks held-out
    answers, shows its critiques of fresh answers, and decides if it is fit to train against; train
    refuses one that is not. If the command is stopped or killed, run it again to resume. Fewer than
    about 200 comments teach it little; use train --offline for those.

    \b
    Examples:
      text2grad train-reward --config mine.yaml --reward_model.training.lr 1e-5
    """

    def work(self) -> Work:
        config, mode = self.configuration(), self.mode()
        from text2grad.stages.reward_model.train import run_train_reward

        return Work(partial(run_train_reward, config, mode), partial(show_reward_model, config.run.folder))


@command("train")
class Train(Stage, ConfiguredAsDemo, Resumable):
    """Train the policy from feedback.

    NL-gradient PPO with the critic in the loop. Each step samples answers, has them criticised,
    turns the marked words into token rewards, and updates the policy. Add --config scalar for
    ordinary PPO with one score per answer, or --config paper for the settings of the paper.

    With --offline FILE nothing is sampled and no critic is asked: training makes the marked words
    of the recorded answers more or less likely. With fewer than about 200 comments, start with
    this. Its settings are in the section offline.

    Ctrl-C and SIGTERM drop the current step and end the run (exit codes 130 and 143). Run the same
    command again to resume, before that step, or from the last checkpoint if the run was killed.
    The result equals that of an uninterrupted run.

    \b
    Examples:
      text2grad train --config mine.yaml --config scalar --name scalar_ppo
      text2grad train --config mine.yaml --config paper --name as_in_the_paper
      text2grad train --config mine.yaml --offline feedback.jsonl
    """

    name: str = option(
        "--name NAME",
        "The name of the trained policy, and its folder in <run.folder>/ppo. [default: text2grad or offline]",
        "",
    )
    offline: Path | None = option("--offline FILE", "Learn from the annotated answers in FILE, without sampling.")
    engine: str = option(
        "--engine NAME", "The trainer: local, trl or verl; short for --engine.name. [default: local]", ""
    )
    plan: bool = option("--plan", "With --engine verl: write and print what would run, and exit.", False)

    def work(self) -> Work:
        from text2grad.stages.run_folder import refuse_run_name

        name = self.name or ("offline" if self.offline else "text2grad")
        refuse_run_name(name)
        config, mode = self.configuration(under=engine_override(self.engine)), self.mode()
        show = partial(show_trained, config, name)
        if self.offline is not None:
            from text2grad.stages.train import run_train_offline

            return Work(partial(run_train_offline, config, self.offline, name, mode), show)
        from text2grad.stages.train import run_train

        if self.plan:
            return Work(partial(run_train, config, name, mode, True), lambda summary: None)
        return Work(partial(run_train, config, name, mode), show)
