"""A `GRPOTrainer` that trains like `train.ppo`.

TRL samples (`_generate_single_turn`: transformers, vLLM, continuous batching), computes
log-probabilities (`_get_per_token_logps_and_entropies`) and runs transformers' loop with DDP, FSDP
or DeepSpeed. Credit, rewards, advantages and loss are the local loop's functions on the batch of
all processes, so results do not depend on how it is divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import Sampler
from transformers import PrinterCallback
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from text2grad.align import CreditSettings, get_table
from text2grad.durable.log import Stopwatch
from text2grad.errors import UserError, first_line
from text2grad.feedback import Critic, Example, get_overlap
from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.episode import MakeEnvironment, play
from text2grad.policy.generate import Sample
from text2grad.policy.model import Policy, PolicyOutput
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.rl.loss import average
from text2grad.train.learner import critique_and_score
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    build_rollout,
    judge,
    merge_responses,
    refuse_diverged,
    refuse_failures,
    take_rows,
)
from text2grad.train.update import loss_terms

T = TypeVar("T")
KL_ESTIMATORS = {"k1": adv.kl_k1, "k3": adv.kl_k3}


@dataclass(frozen=True)
class Recipe:
    """The arguments of `train.ppo.train_ppo`: a policy, its data, its critic and its settings."""

    policy: Policy
    examples: Sequence[Example]
    prompts: Sequence[Sequence[int]]
    critic: Critic
    settings: PPOSettings
    credit: CreditSettings
    generation: GenerationSettings
    seed: int
    environment: MakeEnvironment | None = None


@dataclass
class Step:
    """One step: the batch of all processes and the sums of its updates so far.

    Attributes:
        coefficient: the KL coefficient beta.
        terms: the sums of the loss terms over the updates.
        tokens: the number of learned tokens in each mini-batch of this epoch.
        passes: the rows of each of this process's passes in this epoch.
        updates: the number of updates that changed the policy.
    """

    number: int
    coefficient: float
    responses: Responses
    rollout: Rollout
    watch: Stopwatch
    terms: dict[str, float] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    passes: list[Tensor] = field(default_factory=list)
    updates: int = 0


class PromptOrder(Sampler[int]):
    """Yields the rows of each step (`train.ppo.prompt_order`), repeated for each of its passes.

    transformers fetches a batch for each pass, and TRL uses the first one of a step.
    """

    def __init__(self, steps: Iterator[list[int]], count: int, repeats: int, rollouts: int) -> None:
        self.order, self.count, self.repeats, self.rollouts = steps, count, repeats, rollouts

    def __len__(self) -> int:
        return self.count * self.repeats * self.rollouts

    def __iter__(self) -> Iterator[int]:
        for _, rows in zip(range(self.count), self.order, strict=False):
            for _ in range(self.repeats):
                yield from rows


def fail_together(work: Callable[[], T]) -> T:
    """Do work in all processes; if it fails in one process, raise an error in all.

    Raises:
        UserError, FloatingPointError: another process failed; names it and its error.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    message = None if failure is None else (isinstance(failure, FloatingPointError), first_line(failure))
    failures = gather_object([message])
    if failure is not None:
        raise failure
    for process, other in enumerate(failures):
        if other is not None:
            line = f"process {process} of {len(failures)}: {other[1]}"
            raise FloatingPointError(line) if other[0] else UserError(line)
    return result  # type: ignore[return-value]


def norm_as_float(norm: Any) -> float:
    """Return accelerate's norm of a gradient as a number."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm or 0.0)


class GatheredWeights:
    """A base of trainers that gathers sharded weights and writes no model card."""

    accelerator: Any
    model_wrapped: Any
    is_fsdp_enabled: bool
    is_deepspeed_enabled: bool

    @property
    def split(self) -> bool:
        """True if the weights are sharded (FSDP, DeepSpeed's ZeRO-3)."""
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        return bool(self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))

    def gathered_weights(self) -> Any:
        """Return sharded weights in the first process, else None; all processes must call."""
        return self.accelerator.get_state_dict(self.model_wrapped) if self.split else None

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write no model card: checkpoints are not published."""


class RecipeTrainer(GatheredWeights, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with the steps of `train.ppo`; `recipe.policy` is trained in place.

    Attributes:
        coefficient: the KL coefficient beta of the next step.
    """

    def __init__(self, recipe: Recipe, args: Any, order: Iterator[list[int]], coefficient: float) -> None:
        policy = recipe.policy
        self.recipe, self.coefficient = recipe, coefficient
        self.step: Step | None = None
        self._order = order
        policy.freeze_reference()
        rows = list(range(len(recipe.examples)))
        super().__init__(
            model=policy.model,
            reward_funcs=[lambda **_: []],  # never called: the recipe has the rewards
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(recipe.examples), "row": rows}),
            processing_class=policy.tokenizer,
        )
        self.remove_callback(PrinterCallback)
        self.eos_token_ids = policy.stop_ids
        if not self.use_vllm:
            self.generation_config.eos_token_id = self.generation_kwargs["eos_token_id"] = policy.stop_ids
        self._prepare_reference()
        self._table = get_table(policy.tokenizer)

    @property
    def updates(self) -> int:
        """The number of optimizer steps in a step."""
        return self.recipe.settings.epochs * self.recipe.settings.mini_batches

    def _prepare_reference(self) -> None:
        """Prepare a copied reference model as TRL does; with adapters there is no copy."""
        assert self.recipe.policy.reference is not None
        model = self.recipe.policy.reference.model
        if model is self.recipe.policy.model:
            return
        disable_dropout_in_model(model)
        add_fused_lm_head(model, temperature=self.temperature)
        if self.is_deepspeed_enabled:
            self.ref_model = prepare_deepspeed(model, self.accelerator)
        elif self.is_fsdp_enabled:
            self.ref_model = prepare_fsdp(model, self.accelerator)
        else:
            self.ref_model = self.accelerator.prepare_model(model, evaluation_mode=True)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        passes, rollouts = self.args.steps_per_generation, self.recipe.settings.rollouts
        settings = self.recipe.settings
        return PromptOrder(self._order, settings.steps, passes * settings.epochs, rollouts)

    # One step -----------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Start a new step or epoch if due, and return the number of this pass."""
        passes = self.args.steps_per_generation
        if self._step % (passes * self.recipe.settings.epochs) == 0:
            self.step = self._begin([record["row"] for record in generation_batch])
        assert self.step is not None
        if self._step % passes == 0:
            self._shuffle(self.step, self._step // passes % self.recipe.settings.epochs)
        return {"pass": self._step % passes}

    def _begin(self, rows: Sequence[int]) -> Step:
        """Sample, judge and score: y ~ pi(x); critique -> delta_t; log pi and KL -> A_t."""
        recipe, watch = self.recipe, Stopwatch()
        examples = [recipe.examples[row] for row in rows]
        draw = partial(self._sample, examples, [list(recipe.prompts[row]) for row in rows])
        # An environment may fail in one process only.
        samples, sampled = draw() if recipe.environment is None else fail_together(draw)
        prompts = [sample.prompt or recipe.prompts[row] for sample, row in zip(samples, rows, strict=True)]
        watch.lap("generate")
        critique = partial(judge, examples, samples, self._table, recipe.critic, recipe.credit)
        measure = partial(self._measure, prompts, samples)
        if get_overlap(recipe.critic) == "helps" and not self.split:
            responses, stats = fail_together(partial(critique_and_score, critique, measure, True, watch))
        else:  # passes over sharded weights need all processes, so every critic must have answered
            responses, stats = critique_and_score(partial(fail_together, critique), measure, False, watch)
        responses, prompts, stats, logps = gather_rows(responses, prompts, stats, sampled)
        batch = self._pack(prompts, responses.samples, "cpu")
        refuse_failures(responses.judgements, recipe.settings.max_failed)
        rollout = build_rollout(batch, responses, stats, recipe.settings, self.coefficient)
        refuse_diverged(rollout, recipe.settings.max_kl)
        if logps is not None and self.vllm_importance_sampling_correction:
            # Truncated importance sampling: pi(token) in this program over that in the sampler.
            weight = (rollout.old_logp - logps).exp().clamp(max=self.vllm_importance_sampling_clip_max)
            rollout.advantages.mul_(torch.where(logps.isnan(), 1, weight))
        watch.lap("score")
        return Step(self.state.global_step // self.updates, self.coefficient, responses, rollout, watch)

    def _sample(
        self, examples: Sequence[Example], prompts: list[list[int]]
    ) -> tuple[list[Sample], list[Any] | None]:
        """Sample with TRL; return the samples, and the log-probabilities of an external sampler."""
        recipe = self.recipe
        if recipe.environment is not None:
            return play(
                recipe.policy, examples, recipe.environment, recipe.generation, sample_turns=self._sample_turns
            ), None
        ids, logps = self._generate_single_turn(prompts, None, {}, self.num_generations)
        return self._as_samples(ids), logps

    def _sample_turns(self, policy: Policy, prompts: list[list[int]], *_: Any, **__: Any) -> list[Sample]:
        """Sample one turn for each of some episodes."""
        return self._as_samples(self._generate_single_turn(prompts, None, {}, 1)[0])

    def _as_samples(self, sampled: Sequence[Sequence[int]]) -> list[Sample]:
        stops = set(self.eos_token_ids)
        return [Sample(list(ids), truncated=not ids or ids[-1] not in stops) for ids in sampled]

    def _pack(self, prompts: Sequence[Sequence[int]], samples: Sequence[Sample], device: Any) -> TokenBatch:
        pad = int(self.recipe.policy.tokenizer.pad_token_id)
        ids, masks = [sample.ids for sample in samples], [sample.mask for sample in samples]
        return pack(prompts, ids, pad, device, masks)

    def _measure(self, prompts: Sequence[Sequence[int]], samples: Sequence[Sample]) -> PolicyStats:
        """Compute the statistics of policy and reference for this process's rows."""
        policy = self.recipe.policy
        batch = self._pack(prompts, samples, self.accelerator.device)
        assert policy.reference is not None
        kwargs = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(self.model, kwargs):
            logp, entropy = self._compute_logps(self.model, batch, entropy=True)
            with policy.reference.activate():
                ref_logp, _ = self._compute_logps(self.ref_model or self.model, batch)
        zeros = torch.zeros_like(logp)  # there is no value function
        kl = torch.where(batch.mask, KL_ESTIMATORS[self.recipe.settings.kl](logp, ref_logp), 0)
        return PolicyStats(logp, ref_logp, kl, entropy, zeros, zeros[:, 0])

    def _compute_logps(self, model: Any, batch: TokenBatch, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Return TRL's log-probabilities and entropy (B, T), 0 outside the mask."""
        inputs = batch.input_ids, batch.attention_mask, batch.width
        rows = self.args.per_device_train_batch_size
        logp, entropies, _ = self._get_per_token_logps_and_entropies(model, *inputs, rows, compute_entropy=entropy)
        logp = torch.where(batch.mask, logp.float(), 0)
        return logp, torch.where(batch.mask, entropies.float(), 0) if entropy else logp.detach()

    # Updates ------------------------------------------------------------------------------------

    def _shuffle(self, step: Step, epoch: int) -> None:
        """Draw the mini-batches of an epoch and this process's passes, short responses first."""
        rollout, processes = step.rollout, self.accelerator.num_processes
        rollout.ratio.zero_()
        step.tokens, step.passes = [], []
        order = np.random.default_rng([self.recipe.seed, step.number, epoch]).permutation(len(rollout.loss_mask))
        for index in torch.from_numpy(order).tensor_split(self.recipe.settings.mini_batches):
            step.tokens.append(int(rollout.loss_mask[index].sum()))
            (by_length,) = rollout.batch.passes(index, len(index))
            process_rows = by_length[self.accelerator.process_index :: processes]
            step.passes += torch.split(process_rows, self.args.per_device_train_batch_size)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return this pass's share of the mini-batch's loss; the shares sum to the local loop's."""
        step, settings, processes = self.step, self.recipe.settings, self.accelerator.num_processes
        assert step is not None
        rows, tokens = step.passes[inputs["pass"]], self._learned_tokens(inputs["pass"])
        part = move_rollout(take_rows(step.rollout, rows), self.accelerator.device)

        def forward(batch: TokenBatch, *_: Any, **__: Any) -> PolicyOutput:
            logp = self._compute_logps(model, batch)[0]
            zeros = torch.zeros_like(logp)
            return PolicyOutput(logp, None, None, zeros, zeros[:, 0], zeros)

        columns = loss_terms(forward, part, settings, self.recipe.generation.temperature)
        step.rollout.ratio[rows, : part.batch.width] = columns.pop("ratio").cpu()
        shares = {name: average(term, part.loss_mask, max(1, tokens)) for name, term in columns.items()}
        if tokens:
            for name, share in shares.items():
                step.terms[name] = step.terms.get(name, 0.0) + float(share.detach())
        # Gradients are averaged over the processes, but the shares must be summed.
        return shares["policy_loss"] * float(processes)

    def _learned_tokens(self, number: int) -> int:
        """Return the learned tokens of all processes in the mini-batch of a pass."""
        assert self.step is not None
        return self.step.tokens[number // int(self.args.gradient_accumulation_steps)]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Check the gradient before an optimizer step; skip mini-batches without learned tokens.

        DeepSpeed has already made the step.
        """
        norm = norm_as_float(super()._get_grad_norm(model, grad_norm=grad_norm))
        assert self.step is not None
        if not math.isfinite(norm):
            raise FloatingPointError("the gradient is not finite; it changed no parameter")
        if self._learned_tokens((self._step - 1) % self.args.steps_per_generation):
            self.step.updates += 1
            self.step.terms["grad_norm"] = self.step.terms.get("grad_norm", 0.0) + norm
        else:  # without gradients the optimizer's moments do not move the weights either
            model.zero_grad(set_to_none=True)
        return norm

    def average_terms(self) -> dict[str, float]:
        """Return the mean terms of a step's updates, and gather its ratios; all processes call."""
        step = self.step
        assert step is not None
        if self.accelerator.num_processes > 1:
            step.rollout.ratio.copy_(torch.stack(gather_object([step.rollout.ratio])).amax(dim=0))
        shares = gather_object([step.terms])
        sums = {name: sum(share[name] for share in shares) for name in step.terms}
        if "grad_norm" in sums:  # the norm of the averaged gradient, equal in all processes
            sums["grad_norm"] = step.terms["grad_norm"]
        step.watch.lap("update")
        return {name: value / max(1, step.updates) for name, value in sums.items()}


def gather_rows(
    responses: Responses, prompts: list[Sequence[int]], stats: PolicyStats, sampled: list[Any] | None
) -> tuple[Responses, list[Sequence[int]], PolicyStats, Tensor | None]:
    """Gather the rows of all processes on the CPU, in the order of the processes; all must call.

    The sampler's log-probabilities `sampled`, if any, become (B, T) with NaN for missing ones.
    """
    columns = PolicyStats(*(column.cpu() for column in stats))
    shares = gather_object([(responses, prompts, columns, sampled)])
    all_responses, all_prompts, all_stats, all_sampled = zip(*shares, strict=True)
    width = max(len(sample.ids) for part in all_responses for sample in part.samples)
    all_columns = PolicyStats(*(stack_rows(parts, width) for parts in zip(*all_stats, strict=True)))
    logps = [row for part in all_sampled if part is not None for row in part]
    sampled_logp = torch.full(all_columns.logp.shape, torch.nan) if logps else None
    if sampled_logp is not None:
        for index, row in enumerate(logps):
            sampled_logp[index, : len(row)] = torch.tensor([torch.nan if logp is None else logp for logp in row])
    return merge_responses(all_responses), [row for part in all_prompts for row in part], all_columns, sampled_logp


def stack_rows(parts: Sequence[Tensor], width: int) -> Tensor:
    """Concatenate rows of several processes: (B,), or (B, T) padded with 0 to a common width."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])


def move_rollout(rollout: Rollout, device: Any) -> Rollout:
    """Return a rollout moved to a device."""
    batch = TokenBatch(*(column.to(device) for column in vars(rollout.batch).values()))
    columns = {name: column.to(device) for name, column in vars(rollout).items() if isinstance(column, Tensor)}
    return Rollout(batch=batch, **columns)
