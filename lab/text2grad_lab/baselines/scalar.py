"""A scalar reward model, trained on preference pairs by TRL: `train-scalar`, and its critic (paper,
appendix N)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from trl import RewardConfig, RewardTrainer

from text2grad.config import Config, extra_settings
from text2grad.critics.spec import CriticSpec, Ready
from text2grad.durable.settings import CourseSettings
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Preference, Source
from text2grad.json_text import from_json
from text2grad.policy.episode import encode_turns
from text2grad.policy.files.save import write_policy
from text2grad.policy.heads.head import SCORE, Head
from text2grad.policy.model import Policy
from text2grad.settings import Settings
from text2grad.stages.run_folder import write_json
from text2grad.stages.training import prepare_training
from text2grad.train.optimizers import clip_gradient, learning_rate_factor
from text2grad_lab.baselines.pairs import (
    PairSettings,
    PreferenceSummary,
    dataset_of,
    policy_and_pairs,
    summary_of,
    train_and_measure,
    trainer_arguments,
)

SCALE_FILE = "scale.json"
"""Mean and spread of the scores of training answers, in the folder of the model."""
HEAD_FILE = "scalar_head.safetensors"
PAIRS_TO_STANDARDISE = 1000
"""The number of training pairs whose scores give mean and spread."""
BATCH_SIZE = 32


class ScalarModelSettings(Settings):
    """`extra.scalar_model`: the scalar reward model, its training and its use as a critic."""

    folder: Path | None = Field(default=None, description="the model's folder; null: the one of this run")
    training: PairSettings = PairSettings()


Optimizers = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]


class ScoreModel(nn.Module):
    """A policy's trunk with a score head on the last token, with the interface of RewardTrainer."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model, self.config = policy.model, policy.model.config
        self.head = Head(policy.hidden_size, SCORE).to(policy.device)

    def add_model_tags(self, tags: object) -> None:
        """Ignore TRL's tags for the hub."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SequenceClassifierOutput:
        """Return scores (B, 1) of ids (B, T) padded on the right."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        trunk = getattr(base, base.base_model_prefix)
        hidden = trunk(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        last = attention_mask.sum(dim=1) - 1
        scores = self.head(hidden[torch.arange(len(last), device=last.device), last])
        return SequenceClassifierOutput(logits=scores[:, None])

    def optimizers(self, settings: PairSettings, course: CourseSettings, steps: int) -> Optimizers:
        """Return AdamW and its schedule: the set rate for the trunk, a constant one for the head.

        Only the gradient of the trunk is clipped: that of the head, which starts at 0, is larger.
        """
        trunk = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": trunk, "weight_decay": course.weight_decay},
            {"params": list(self.head.parameters()), "lr": self.head.step / self.head.map.in_features},
        ]
        optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=0.0)

        def clip(*_: object) -> None:
            clip_gradient(trunk)

        optimizer.register_step_pre_hook(clip)
        factors = [learning_rate_factor(course.schedule, course.warmup, steps), lambda _: 1.0]
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factors)


class Scale(NamedTuple):
    """Mean and standard deviation of a model's scores of the answers it was trained on."""

    mean: float
    spread: float


class ScalarCritic:
    """A scalar reward model as a critic; its verdict is 2 sigmoid(z) - 1, z the standardised score.

    sigmoid(z) is the model's probability that the answer is preferred to an average one. `meta` has
    the score (`reward`) and z (`standardised`).
    """

    def __init__(self, policy: Policy, model: ScoreModel, scale: Scale, source: Source) -> None:
        self.source = source
        self.tokens = 0.0  # read so far
        self._policy, self._model, self._scale = policy, model, scale

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Score all responses; those that are too long or have no finite score are failures."""
        scores = self.scores([example.prompt for example in examples], responses)
        return [self._judgement(score) for score in scores]

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        """Return the score of `answers[i]` to `prompts[i]`; None if the two exceed the model's
        context."""
        pairs = zip(prompts, answers, strict=True)
        threads = [encode_turns(self._policy.tokenizer, prompt, answer) for prompt, answer in pairs]
        rows = [[*thread.prompt, *thread.ids] for thread in threads]
        context = self._policy.context or math.inf
        fitting = sorted((i for i, row in enumerate(rows) if len(row) <= context), key=lambda i: len(rows[i]))
        scores: list[float | None] = [None] * len(rows)
        for start in range(0, len(fitting), BATCH_SIZE):
            batch = fitting[start : start + BATCH_SIZE]
            self.tokens += sum(len(rows[i]) for i in batch)
            for i, score in zip(batch, self._score_batch([rows[i] for i in batch]), strict=True):
                scores[i] = score
        return scores

    def _score_batch(self, rows: Sequence[Sequence[int]]) -> list[float]:
        padded = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(padded.shape[1])[None] < lengths[:, None]).long()
        with self._policy.evaluating():
            output = self._model(padded.to(self._policy.device), mask.to(self._policy.device))
        batch_scores: list[float] = output.logits[:, 0].tolist()
        return batch_scores

    def _judgement(self, score: float | None) -> Judgement:
        if score is None:
            return Failure(kind="unsupported", message="prompt and response are longer than the model's context")
        if not math.isfinite(score):
            return Failure(kind="invalid", message=f"the score is {score}")
        standardised = (score - self._scale.mean) / self._scale.spread
        meta = {"reward": score, "standardised": standardised}
        return Critique(text="", score=math.tanh(standardised / 2), meta=meta)


def run_train_scalar(config: Config, data: str) -> PreferenceSummary:
    """Train a scalar reward model on preference pairs; write `scalar_model/policy` and its
    scale."""
    settings = extra_settings(config, "scalar_model", ScalarModelSettings).training
    stage = prepare_training(config, None, "scalar_model", "restart")
    policy, pairs = policy_and_pairs(config, data)
    with stage.finalise().begin():
        model = ScoreModel(policy)
        model.config.num_labels = 1
        steps = math.ceil(settings.epochs * math.ceil(len(pairs.train) / settings.batch_size))
        trainer = RewardTrainer(
            model=model,
            args=trainer_arguments(RewardConfig, config, settings, stage.folder, max_grad_norm=0.0),
            train_dataset=full_sequences(policy, pairs.train),
            processing_class=policy.tokenizer,
            optimizers=model.optimizers(settings, config.training, steps),
        )
        metrics, figures = train_and_measure(trainer, full_sequences(policy, pairs.heldout), stage.folder)
        place = stage.folder / "policy"
        write_policy(policy, place)
        save_file(dict(model.head.state_dict()), str(place / HEAD_FILE))
        write_json(place / SCALE_FILE, scale_of(policy, model, pairs.train)._asdict())
    return summary_of(pairs, metrics, figures, stage.folder)


def full_sequences(policy: Policy, pairs: Sequence[Preference]) -> Dataset:
    """Return prompts with answers as token ids in the columns of TRL's reward trainer."""
    sides = ("chosen_ids", "rejected_ids")
    rows = [{side: row["prompt_ids"] + row[side] for side in sides} for row in dataset_of(policy, pairs)]
    return Dataset.from_list(rows)


def scale_of(policy: Policy, model: ScoreModel, pairs: Sequence[Preference]) -> Scale:
    """Return mean and spread of the scores of training answers.

    Raises:
        UserError: all scores are equal.
    """
    critic = ScalarCritic(policy, model, Scale(0.0, 1.0), Source(kind="reward_model"))
    first = pairs[:PAIRS_TO_STANDARDISE]
    answers = [pair.chosen for pair in first] + [pair.rejected for pair in first]
    prompts = [pair.prompt for pair in first] * 2
    scores = [score for score in critic.scores(prompts, answers) if score is not None]
    if not (spread := statistics.pstdev(scores)):
        problem = "the scalar model gives all answers the same score"
        raise UserError(problem, "raise extra.scalar_model.training.lr or epochs")
    return Scale(statistics.fmean(scores), spread)


def model_folder(settings: ScalarModelSettings, run: Path) -> Path:
    """Return the folder of the trained model: the configured one, or this run's own."""
    return settings.folder or run / "scalar_model" / "policy"


def make_critic(settings: ScalarModelSettings, ready: Ready) -> ScalarCritic:
    """Load the scalar reward model of the run.

    Raises:
        UserError: there is no trained model.
    """
    folder = model_folder(settings, ready.run.path)
    file = folder / SCALE_FILE
    if not file.is_file():
        cure = f"python -m text2grad_lab train-scalar FILE --run.folder {ready.run.path}"
        raise UserError(f"no scalar reward model in {folder}", cure)
    policy = ready.run.load_model(folder)
    model = ScoreModel(policy)
    model.head.load_state_dict(load_file(str(folder / HEAD_FILE)))
    source = Source(kind="reward_model", model=str(folder), prompt_version="scalar")
    scale = Scale(**from_json(file.read_text(encoding="utf-8")))
    return ScalarCritic(policy, model.requires_grad_(False).eval(), scale, source)


SCALAR_MODEL = CriticSpec(
    "scalar_model",
    make=make_critic,
    settings=ScalarModelSettings,
    operational=("training",),
    files=lambda settings, run: {"the scalar reward model": model_folder(settings, run)},
    source="reward_model",
    about="trained on preference pairs, gives a verdict without spans",
)
