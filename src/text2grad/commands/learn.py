"""Commands that train: the policy on answers, the reward model on feedback, the policy from
feedback."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from text2grad.commands.base import ConfiguredAsDemo, Resumable, Stage, Work, command, option
from text2grad.commands.console import show_reward_model, show_sft, show_trained
from text2grad.errors import UsageError


def named(engine: str) -> list[str]:
    """The setting that `--engine` is short for."""
    return ["--engine.name", engine] if engine else []


@command("sft")
class Sft(Stage, ConfiguredAsDemo, Resumable):
    """Fine-tune the policy on reference answers.

    Supervised training, before any feedback. The result is both the start of training from feedback
    and the reference that the KL penalty keeps it close to. If stopped or killed, run the same
    command to resume. Reports how many held-out answers it writes word for word: where that is
    nearly all, train can hardly gain.

    \b
    Example:
      text2grad sft --config mine.yaml --sft.epochs 1
    """

    engine: str = option(
        "--engine NAME", "The trainer: local or trl; short for --engine.name. [default: local]", ""
    )

    def work(self) -> Work:
        if self.engine == "verl":
            raise UsageError("verl is for train, and has no sft", "--engine local or trl")
        config, mode = self.configuration(under=named(self.engine)), self.mode()
        from text2grad.stages.sft import run_sft

        return Work(partial(run_sft, config, mode), partial(show_sft, config.run.folder))


@command("train-reward")
class TrainReward(Stage, ConfiguredAsDemo, Resumable):
    """Train the reward model.

    The reward model is a chat model that writes the critique and marks the words. It learns from
    <run.folder>/feedback.jsonl, which import and annotate write. Reports how well it marks held-out
    answers, shows its critiques of fresh answers of the policy, and says whether it is fit to train
    against: train refuses one that is not. If stopped or killed, run the same command to resume.
    From fewer than some 200 remarks it learns little: train --offline learns from them directly.

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
    ordinary PPO with one score for the whole answer, or --config paper for the settings of the
    paper.

    With --offline FILE nothing is sampled and no critic is asked: marked words of the recorded
    answers become more or less likely themselves. Up to some 200 remarks try this first, and a
    reward model second. Its settings are in the section offline.

    Ctrl-C and SIGTERM drop the current step and end the run (exit codes 130 and 143). If stopped,
    run the same command to resume before that step, if killed from the last checkpoint; the result
    is the same as that of an uninterrupted run.

    \b
    Examples:
      text2grad train --config mine.yaml --config scalar --name scalar_ppo
      text2grad train --config mine.yaml --config paper --name as_in_the_paper
      text2grad train --config mine.yaml --offline feedback.jsonl
    """

    name: str = option(
        "--name NAME",
        "Name of this run: its folder in <run.folder>/ppo. [default: text2grad or offline]",
        "",
    )
    offline: Path | None = option("--offline FILE", "Learn from these annotated answers alone.")
    engine: str = option(
        "--engine NAME", "The trainer: local, trl or verl; short for --engine.name. [default: local]", ""
    )
    plan: bool = option("--plan", "Of --engine verl: write and print what would run, and run nothing.", False)

    def work(self) -> Work:
        from text2grad.stages.run_folder import refuse_run_name

        name = self.name or ("offline" if self.offline else "text2grad")
        refuse_run_name(name)
        config, mode = self.configuration(under=named(self.engine)), self.mode()
        show = partial(show_trained, config, name)
        if self.offline is not None:
            from text2grad.stages.train import run_train_offline

            return Work(partial(run_train_offline, config, self.offline, name, mode), show)
        from text2grad.stages.train import run_train

        if self.plan:
            return Work(partial(run_train, config, name, mode, True), lambda summary: None)
        return Work(partial(run_train, config, name, mode), show)
