"""SDPO by TRL's trainer (arXiv 2601.20802), also for episodes: `train-sdpo`.

The teacher of an answer is the same model, given feedback on the answer or an answer to the same
prompt that passed. TRL's trainer supports neither environments nor tools: its rollouts are one
turn, its prompts must end with a user turn, feedback is a column of the data, and one mask serves
attention and loss. So two methods are replaced: `policy.episode` samples episodes, the critic
writes their feedback, and the tokens of tools are read but not in the loss. Teacher, loss and
optimizer are TRL's.

The teacher has the policy's present weights (`live`). TRL's moving average starts from an adapter
of zeros, which would be the model before SFT.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback

from text2grad.align import get_table
from text2grad.config import Config
from text2grad.feedback import Critic, Critique, Example, get_judgements
from text2grad.policy.encode import encode_prompts
from text2grad.policy.episode import decode_sample
from text2grad.policy.files.save import write_policy
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_factory
from text2grad.stages.train import load_prompts
from text2grad.stages.training import facts_of_prompts, prepare_training
from text2grad.tasks.base import get_environment_factory
from text2grad.train.passes import largest_divisor
from text2grad.train.rollout import sample_responses

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its warning that the API may change
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

MAX_FEEDBACK = 2048
"""Tokens of the teacher's prompt."""
TOP_TOKENS = 20
"""Tokens whose probabilities are compared (the paper's K)."""
Sampler = Callable[[Sequence[Example]], list[Sample]]


@dataclass(frozen=True)
class Rollouts:
    """A source of judged answers.

    Attributes:
        examples: the prompts by id.
        sample: samples an answer, or an episode, for each example.
    """

    policy: Policy
    examples: dict[str, Example]
    critic: Critic
    sample: Sampler

    def judged(self, rows: Sequence[dict[str, Any]]) -> list[Sample]:
        """Sample an answer for each row; write its verdict, and feedback if it failed, to it."""
        examples = [self.examples[row["id"]] for row in rows]
        samples, table = self.sample(examples), get_table(self.policy.tokenizer)
        texts = [decode_sample(table, *pair)[0] for pair in zip(examples, samples, strict=True)]
        for row, judgement in zip(rows, get_judgements(self.critic, examples, texts), strict=True):
            score = judgement.score if isinstance(judgement, Critique) else None
            row["verdict"] = score
            row["privileged_context"] = judgement.text if isinstance(judgement, Critique) and score != 1 else None
        return samples


class EpisodeTrainer(SDPOTrainer):  # type: ignore[misc]
    """TRL's trainer on judged answers of one or several turns."""

    def __init__(self, rollouts: Rollouts, **arguments: Any) -> None:
        self.rollouts = rollouts
        self.lengths: list[float] = []
        super().__init__(reward_funcs=_verdicts, **arguments)

    def sample_rollouts(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return sampled ids and two masks: all ids, and those of the policy."""
        samples = self.rollouts.judged(inputs)
        masks = [sample.mask or [True] * len(sample.ids) for sample in samples]
        self.lengths.append(sum(map(sum, masks)) / len(masks))
        padding = self._tokenizer.pad_token_id
        prompts = [torch.tensor(sample.prompt) for sample in samples]
        answers = [torch.tensor(sample.ids) for sample in samples]
        batch = {
            "prompt_ids": pad_sequence(prompts, True, padding, "left"),
            "prompt_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], True, 0, "left"),
            "completion_ids": pad_sequence(answers, True, padding),
            "completion_mask": pad_sequence([torch.ones_like(ids) for ids in answers], True, 0),
            "policy_mask": pad_sequence([torch.tensor(mask, dtype=torch.long) for mask in masks], True, 0),
            "raw_completion_lengths": torch.tensor([len(ids) for ids in answers]),
        }
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    def _compute_teacher_student_logits(self, model: Any, teacher_model: Any, inputs: dict[str, Tensor]) -> Any:
        logits = super()._compute_teacher_student_logits(model, teacher_model, inputs)
        return replace(logits, loss_mask=logits.loss_mask * inputs["policy_mask"])


def _verdicts(verdict: list[float | None], **_: Any) -> list[float | None]:
    return verdict


def run_train_sdpo(config: Config, name: str) -> dict[str, Any]:
    """Train the SFT policy by SDPO against the configured critic; write `ppo/<name>`.

    Rollouts, groups, steps and rate are those of the section `ppo`, derived as for `train`.
    """
    stage = prepare_training(config, "ppo", f"ppo/{name}", "restart")
    with critic_factory(config) as factory:
        task, examples = load_prompts(stage, factory)
        policy = load_policy(stage.run.policy())
        stage = stage.finalise(policy, facts_of_prompts(policy, examples))
        config, ppo = stage.config, stage.config.ppo
        with factory.open(task, policy, stage.folder / "critic.journal") as critic, stage.begin():
            rows = largest_divisor(ppo.rollouts, ppo.micro_batch_size)
            arguments = SDPOConfig(
                output_dir=str(stage.folder),
                max_steps=ppo.steps,
                learning_rate=ppo.lr,
                lr_scheduler_type=ppo.schedule,
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=ppo.rollouts // rows,
                num_generations=ppo.samples_per_prompt,
                temperature=config.generation.temperature,
                teacher_model_kind="live",
                include_environment_feedback=True,
                distillation_mode="topk_logits",
                distillation_topk=TOP_TOKENS,
                distillation_add_tail=True,
                max_reprompt_len=MAX_FEEDBACK,
                activation_checkpointing=False,
                seed=config.run.seed,
                bf16=False,  # the weights keep their own type
                use_cpu=policy.device.type == "cpu",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = EpisodeTrainer(
                Rollouts(
                    policy, {example.id: example for example in examples}, critic, _sampler(config, policy, task)
                ),
                model=policy.model,
                args=arguments,
                train_dataset=Dataset.from_list([_row(example) for example in examples]),
                processing_class=policy.tokenizer,
            )
            trainer.remove_callback(PrinterCallback)  # stdout is for the summary
            trainer.train()
            _write_metrics(trainer, stage.folder)
            policy.continued = True
            write_policy(policy.eval(), stage.folder / "policy")
    return {"steps": ppo.steps, "out": str(stage.folder / "policy")}


def _sampler(config: Config, policy: Policy, task: Any) -> Sampler:
    """Return a function that samples answers, or episodes of a task with an environment."""
    make, generation = get_environment_factory(task), config.generation

    def sample(examples: Sequence[Example]) -> list[Sample]:
        prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
        samples = sample_responses(policy, prompts, generation, None, make, examples)
        return [replace(s, prompt=s.prompt or prompt) for s, prompt in zip(samples, prompts, strict=True)]

    return sample


def _row(example: Example) -> dict[str, Any]:
    return {
        "id": example.id,
        "prompt": [message.model_dump(include={"role", "content"}) for message in example.prompt],
        "verdict": None,
        "privileged_context": None,
    }


def _write_metrics(trainer: EpisodeTrainer, folder: Any) -> None:
    """Write loss, verdict, shares with feedback and a solution, and the policy's tokens by step."""
    names = {
        "loss": "loss",
        "self_distillation/reward_mean": "score",
        "self_distillation/feedback_used_fraction": "with_feedback",
        "self_distillation/success_sample_fraction": "with_solution",
    }
    logged = [row for row in trainer.state.log_history if "loss" in row]
    rows = [
        {"step": step, "response_length": length, **{ours: row[key] for key, ours in names.items() if key in row}}
        for step, (row, length) in enumerate(zip(logged, trainer.lengths, strict=True))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
