"""The commands of the baselines: refine, imitate, reflect, train-units, train-dpo, train-sdpo,
train-scalar."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from text2grad.commands.base import (
    ConfiguredAsDemo,
    ConfiguredAsRun,
    Resumable,
    Stage,
    Work,
    argument,
    command,
    option,
)
from text2grad.commands.judge import RECORDS, START


@command("refine")
class Refine(Stage, ConfiguredAsDemo):
    """Revise answers by their critiques.

    For every criticised answer in FILE, the policy writes extra.refine.samples revisions, given the
    question, the answer and the critique; the critic judges them. Revisions that copy the answer or
    repeat words of the instruction are refused and counted. Imitating the best ones is ILF.

    \b
    Example:
      python -m text2grad_lab refine feedback.jsonl --config mine.yaml --out refined.jsonl
      python -m text2grad_lab imitate refined.jsonl --config mine.yaml --best --name ilf
    """

    source: Path = argument(*RECORDS)
    out: Path | None = option("--out FILE", "Where to write. [default: <run.folder>/refined.jsonl]")
    start: str = option(*START, "")

    def work(self) -> Work:
        config = self.configuration()
        from text2grad_lab.baselines.refine import run_refine

        return Work(partial(run_refine, config, self.source, self.out, self.start))


@command("imitate")
class Imitate(Stage, ConfiguredAsDemo, Resumable):
    """Fine-tune the SFT policy on recorded answers with a passing score.

    With --best on several samples per prompt this is rejection sampling, on refinements ILF. With
    --revise the policy learns to refine (refine --from NAME), which is
    needed for models too small to revise from a prompt. Training uses the settings of sft.

    \b
    Examples:
      python -m text2grad_lab imitate feedback.jsonl --config mine.yaml --best --name best_of_4
      python -m text2grad_lab imitate feedback.jsonl --config mine.yaml --revise --name refiner
    """

    source: Path = argument(*RECORDS)
    best: bool = option("--best", "Only the best answer per prompt.", False)
    above: float = option("--above SCORE", "Only answers with a higher score.", 0.0)
    revise: bool = option("--revise", "Learn to revise poor answers into passing ones.", False)
    name: str = option("--name NAME", "Its folder in <run.folder>/ppo.", "imitation")
    start: str = option(*START, "")

    def work(self) -> Work:
        config, mode = self.configuration(), self.mode()
        from text2grad.stages.run_folder import refuse_run_name
        from text2grad_lab.baselines.imitate import Choice, run_imitate

        refuse_run_name(self.name)
        choice = Choice(self.best, self.above, self.revise)
        return Work(partial(run_imitate, config, self.source, self.name, choice, self.start, mode))


@command("reflect")
class Reflect(Stage, ConfiguredAsRun):
    """Measure a policy that revises its answers by the critic's feedback.

    Nothing is trained: the policy answers, the critic (prompted or reward_model, which see neither
    reference nor tests) criticises the answer, and the policy revises it.

    \b
    Example:
      python -m text2grad_lab reflect sft --config mine.yaml
    """

    target: str = argument("TARGET", "A run's name (sft, text2grad, ...), a model folder or a hub name.", "sft")

    def work(self) -> Work:
        config = self.configuration()
        from text2grad_lab.baselines.reflect import run_reflect

        return Work(partial(run_reflect, config, self.target))


@command("train-units")
class TrainUnits(Stage, ConfiguredAsDemo, Resumable):
    """Train a model that labels the steps or the tokens of an answer.

    Steps (statements of a program, sentences and clauses) are right or wrong; tokens are good, poor
    or neither. The model learns from <run.folder>/feedback.jsonl and writes no text. To use it
    in PPO: train --config text2grad_lab:prm for steps, --config text2grad_lab:dense for tokens.

    \b
    Example:
      python -m text2grad_lab train-units steps --config mine.yaml
    """

    units: Literal["steps", "tokens"] = argument("steps|tokens", "The units that the model labels.")

    def work(self) -> Work:
        config, mode = self.configuration(), self.mode()
        from text2grad_lab.baselines.train_units import run_train_units

        return Work(partial(run_train_units, config, self.units, mode))


PAIRS = ("FILE", "Preference pairs: a file, or a data set on the hub.")


@command("train-dpo")
class TrainDpo(Stage, ConfiguredAsDemo):
    """Train the SFT policy by direct preference optimisation (DPO), with TRL.

    It learns from chosen and rejected answers without a critic or sampling. The settings are in
    extra.dpo.

    \b
    Example:
      text2grad export feedback.jsonl --as preference --out pairs.jsonl
      python -m text2grad_lab train-dpo pairs.jsonl --config mine.yaml
    """

    data: str = argument(*PAIRS)
    name: str = option("--name NAME", "Its folder in <run.folder>/ppo.", "dpo")

    def work(self) -> Work:
        config = self.configuration()
        from text2grad.stages.run_folder import refuse_run_name
        from text2grad_lab.baselines.pairs import run_train_dpo

        refuse_run_name(self.name)
        return Work(partial(run_train_dpo, config, self.name, self.data))


@command("train-sdpo")
class TrainSdpo(Stage, ConfiguredAsDemo):
    """Train the SFT policy by self-distillation (SDPO), with TRL.

    The teacher is the same policy, given the critique of an answer, or an answer to the same prompt
    that passed. Answers may have several turns. Critic, rollouts, groups, steps and rate are those
    of critic and ppo.

    \b
    Example:
      python -m text2grad_lab train-sdpo --config text2grad_lab:lookup_smollm2
    """

    name: str = option("--name NAME", "Its folder in <run.folder>/ppo.", "sdpo")

    def work(self) -> Work:
        config = self.configuration()
        from text2grad.stages.run_folder import refuse_run_name
        from text2grad_lab.baselines.sdpo import run_train_sdpo

        refuse_run_name(self.name)
        return Work(partial(run_train_sdpo, config, self.name))


@command("train-scalar")
class TrainScalar(Stage, ConfiguredAsDemo):
    """Train a scalar reward model on preference pairs, with TRL.

    It gives one number per answer. To use it in PPO: train --config text2grad_lab:scalar_rm. The
    settings are in extra.scalar_model.

    \b
    Example:
      python -m text2grad_lab train-scalar pairs.jsonl --config mine.yaml
    """

    data: str = argument(*PAIRS)

    def work(self) -> Work:
        config = self.configuration()
        from text2grad_lab.baselines.scalar import run_train_scalar

        return Work(partial(run_train_scalar, config, self.data))
