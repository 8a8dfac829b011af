"""Preference pairs for TRL's trainers: the data, the settings, and `train-dpo` (paper, appendix N).

The trainers get our token ids, so that pairs are encoded as the policy samples them. TRL trains in
one process without resuming; batches count pairs.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import PeftModel
from pydantic import Field
from transformers import PrinterCallback
from trl import DPOConfig, DPOTrainer

from text2grad.config import Config, extra_settings
from text2grad.data.export import Pairs
from text2grad.data.files import hub_data
from text2grad.errors import UserError
from text2grad.feedback import Preference, Transcript
from text2grad.policy.episode import encode_turns
from text2grad.policy.files.save import write_policy
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.settings import Settings
from text2grad.stages import Summary, inlined
from text2grad.stages.reward_model.data import splits_of_task
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.training import prepare_training
from text2grad.tasks.base import assign_split, question_key, question_text
from text2grad.train.settings import SupervisedSettings
from text2grad_lab.readers.preference import read_pairs

METRICS = {
    "loss": "loss",
    "rewards/accuracies": "accuracy",
    "accuracy": "accuracy",
    "rewards/margins": "margin",
    "margin": "margin",
    "rewards/chosen": "chosen_reward",
    "rewards/rejected": "rejected_reward",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
}
"""Our names of the metrics that TRL logs."""


class PairSettings(SupervisedSettings):
    """Training on pairs of answers: one pass by default."""

    epochs: float = Field(default=1.0, gt=0, description="passes over the data")


class DPOTrainingSettings(PairSettings):
    """DPO's training: a tenth of the learning rate of other training."""

    lr: float = Field(default=1e-6, gt=0, description="learning rate at its peak")


class DPOSettings(Settings):
    """`extra.dpo`: direct preference optimisation (Rafailov et al. 2023)."""

    beta: float = Field(default=0.1, gt=0, description="strength of the KL to the SFT policy")
    training: DPOTrainingSettings = DPOTrainingSettings()


@dataclass(frozen=True)
class SplitPairs:
    """Training and held-out pairs without common questions, and unusable records by reason."""

    train: list[Preference]
    heldout: list[Preference]
    left_out: Counter[str]


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary(Summary):
    """Records read, pairs trained on and held out, unusable records by reason, last metrics of the
    training, figures on held-out pairs (`heldout_*`), and the folder of the model."""

    pairs: int
    trained_on: int
    heldout: int
    left_out: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = inlined()
    figures: Mapping[str, float] = inlined()
    out: str


def run_train_dpo(config: Config, name: str, data: str) -> PreferenceSummary:
    """Train the SFT policy by DPO on preference pairs; write `ppo/<name>`."""
    settings = extra_settings(config, "dpo", DPOSettings)
    stage = prepare_training(config, None, f"ppo/{name}", "restart")
    policy, pairs = policy_and_pairs(config, data)
    with stage.finalise().begin():
        arguments = trainer_arguments(DPOConfig, config, settings.training, stage.folder, beta=settings.beta)
        trainer = _DPOTrainer(
            model=policy.model,
            ref_model=reference_of(policy),
            args=arguments,
            train_dataset=dataset_of(policy, pairs.train),
            processing_class=policy.tokenizer,
        )
        metrics, figures = train_and_measure(trainer, dataset_of(policy, pairs.heldout), stage.folder)
        policy.continued = True
        write_policy(policy, stage.folder / "policy")
    return summary_of(pairs, metrics, figures, stage.folder)


def reference_of(policy: Policy) -> Any:
    """Return a frozen copy of the policy's model. In bfloat16 a merged adapter would be rounded."""
    model = copy.deepcopy(policy.model)
    plain = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers keep the adapter
    return plain.eval().requires_grad_(False)


class _DPOTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer for tokenised data."""

    def _prepare_dataset(self, dataset: Dataset, *args: object) -> Dataset:
        return dataset


def trainer_arguments(kind: Any, config: Config, settings: SupervisedSettings, folder: Path, **more: Any) -> Any:
    """Return the arguments of a TRL trainer: our settings and seed, nothing saved and nothing
    reported."""
    course = config.training
    rows = min(settings.micro_batch_size, settings.batch_size)
    return kind(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=rows,
        per_device_eval_batch_size=1,  # a smaller last batch would have the weight of a full one
        gradient_accumulation_steps=max(1, settings.batch_size // rows),
        learning_rate=settings.lr,
        lr_scheduler_type=course.schedule,
        warmup_steps=course.warmup,
        weight_decay=course.weight_decay,
        seed=config.run.seed,
        use_cpu=config.policy.device == "cpu",
        max_length=None,
        bf16=False,  # the weights keep their own type
        activation_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )


def train_and_measure(trainer: Any, heldout: Dataset, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Train and write `metrics.jsonl`; return the last metrics, and loss and accuracy on the
    held-out pairs.

    `heldout` has the columns of the trainer's own training data.
    """
    trainer.remove_callback(PrinterCallback)  # stdout is for the summary
    trainer.train()
    rows = [
        {"step": row["step"] - 1, **{METRICS[name]: value for name, value in row.items() if name in METRICS}}
        for row in trainer.state.log_history
        if "loss" in row
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    figures: dict[str, float] = {}
    if len(heldout):
        evaluated = trainer.evaluate(heldout)
        figures = {METRICS[key]: value for name, value in evaluated.items() if (key := name[5:]) in METRICS}
    trainer.model.eval()
    return {name: value for name, value in rows[-1].items() if name != "step"}, figures


def dataset_of(policy: Policy, pairs: Sequence[Preference]) -> Dataset:
    """Return the pairs as token ids in the columns of TRL's DPO trainer."""
    rows = []
    for pair in pairs:
        chosen, rejected = (
            encode_turns(policy.tokenizer, pair.prompt, side) for side in (pair.chosen, pair.rejected)
        )
        rows.append({"prompt_ids": chosen.prompt, "chosen_ids": chosen.ids, "rejected_ids": rejected.ids})
    return Dataset.from_list(rows)


def policy_and_pairs(config: Config, data: str) -> tuple[Policy, SplitPairs]:
    """Return the policy to train and the pairs that fit it; the pairs are read first."""
    pairs = preference_data(config, data)
    policy = load_policy(RunFolder.of(config).policy())

    def tokens(part: Sequence[Preference]) -> list[int]:
        rows = dataset_of(policy, part)
        return [len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows]

    return policy, drop_long_pairs(pairs, tokens, policy.context)


def drop_long_pairs(
    pairs: SplitPairs, tokens: Callable[[Sequence[Preference]], Sequence[int]], limit: int | None
) -> SplitPairs:
    """Return the pairs that fit into the context, and report the others.

    Truncated answers would teach the model to stop early.
    """

    def fitting(data: Sequence[Preference]) -> list[Preference]:
        return [pair for pair, count in zip(data, tokens(data), strict=True) if limit is None or count <= limit]

    train, heldout = fitting(pairs.train), fitting(pairs.heldout)
    too_long = len(pairs.train) + len(pairs.heldout) - len(train) - len(heldout)
    left_out = pairs.left_out + Counter({"too_long": too_long})
    if left_out:
        words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items())
        print(f"left out of the pairs: {words}", file=sys.stderr)
    return SplitPairs(train, heldout, left_out)


def preference_data(config: Config, data: str) -> SplitPairs:
    """Return the pairs of a file or hub data set, split by question with the task's rule.

    Pairs of `pairs_heldout.jsonl` next to `pairs.jsonl`, or of a data set's held-out split, are
    held out; without them, a share of the questions (`task.heldout_share`), unless the file is in
    a run whose feedback `annotate` has split. With `task.split` or
    `task.heldout_data` the held-out questions of the task are held out too.

    Raises:
        UserError: all pairs are held out, or answers have several turns.
    """
    pairs, heldout_file, run = read_pairs(data), heldout_companion(data), RunFolder.of(config)
    splits = splits_of_task(run)
    # `annotate` has held out its questions already, and all methods learn from the others.
    is_split = heldout_file is not None or (Path(data).parent == run.path and bool(run.heldout_feedback()))
    heldout_pairs = list(heldout_file.pairs) if heldout_file else []
    if any(isinstance(side, Transcript) for pair in pairs.pairs for side in (pair.chosen, pair.rejected)):
        raise UserError(f"{data} has answers of several turns", "the lab's trainers learn from single answers")
    heldout = {question_key(pair) for pair in heldout_pairs}
    for pair in pairs.pairs:
        rule = "train" if is_split else assign_split(question_text(pair), config.task)
        if splits.get(question_key(pair), rule) == "heldout":
            heldout.add(question_key(pair))
    train = [pair for pair in pairs.pairs if question_key(pair) not in heldout]
    if not train:
        raise UserError(f"{data}: all {len(pairs.pairs)} pairs are held out", "lower task.heldout_share")
    return SplitPairs(
        train,
        [pair for pair in pairs.pairs if question_key(pair) in heldout] + heldout_pairs,
        Counter(pairs.left_out),
    )


def heldout_companion(data: str) -> Pairs | None:
    """Return the held-out pairs that come with a file or hub data set."""
    path = Path(data)
    name, dot, endings = path.name.partition(".")
    heldout_path = path.with_name(f"{name}_heldout{dot}{endings}")
    if path.exists():
        return read_pairs(str(heldout_path)) if heldout_path.is_file() and heldout_path.stat().st_size else None
    return read_pairs(data, split) if (split := hub_data(data).heldout) else None


def summary_of(
    pairs: SplitPairs, metrics: Mapping[str, float], figures: Mapping[str, float], place: Path
) -> PreferenceSummary:
    """Return what was read, trained and measured."""
    return PreferenceSummary(
        pairs=len(pairs.train) + len(pairs.heldout) + pairs.left_out.total(),
        trained_on=len(pairs.train),
        heldout=len(pairs.heldout),
        left_out=dict(pairs.left_out) or None,
        metrics=metrics,
        figures={f"heldout_{name}": value for name, value in figures.items()},
        out=str(place / "policy"),
    )
