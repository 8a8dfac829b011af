"""A `GRPOTrainer` that trains as `train.ppo` does: TRL samples and reads, everything between is
ours.

TRL's part is what needs an engine: `_generate_single_turn` (transformers, vLLM, continuous
batching), `_get_per_token_logps_and_entropies`, and transformers' loop around DDP, FSDP and
DeepSpeed. Credit, rewards, advantages and loss are the functions of the local loop, on the batch of
all processes, so that nothing depends on how it was shared.
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

from text2grad.align import CreditSettings, TokenTable
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
KL_OF = {"k1": adv.kl_k1, "k3": adv.kl_k3}


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
    """One step: its batch, of all processes, and what its updates have counted so far.

    `coefficient` is beta, of the KL. `watch` has the seconds of its phases. `tokens` are the
    learned ones of each mini-batch in this epoch, `passes` the rows of each of this process's
    passes over them.
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
    """The rows of each step as `train.ppo.prompt_order` draws them, repeated for each of its
    passes.

    transformers fetches a batch for each pass, and TRL takes the first one of a step.
    """

    def __init__(self, steps: Iterator[list[int]], count: int, repeats: int, rollouts: int) -> None:
        self.order, self.count, self.repeats, self.rollouts = steps, count, repeats, rollouts

    def __len__(self) -> int:
        return self.count * self.repeats * self.rollouts

    def __iter__(self) -> Iterator[int]:
        for _, rows in zip(range(self.count), self.order, strict=False):
            for _ in range(self.repeats):
                yield from rows


def agreed(work: Callable[[], T]) -> T:
    """Do this process's part of some work; if it fails in one process it fails in all.

    Raises:
        UserError, FloatingPointError: another process failed, and how.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    words = None if failure is None else (isinstance(failure, FloatingPointError), first_line(failure))
    failures = gather_object([words])
    if failure is not None:
        raise failure
    for process, other in enumerate(failures):
        if other is not None:
            line = f"process {process} of {len(failures)}: {other[1]}"
            raise FloatingPointError(line) if other[0] else UserError(line)
    return result  # type: ignore[return-value]


def as_number(norm: Any) -> float:
    """The norm of a gradient as accelerate has it."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm or 0.0)


class WholeWeights:
    """A base of trainers: weights gathered from all processes, and no model card."""

    accelerator: Any
    model_wrapped: Any
    is_fsdp_enabled: bool
    is_deepspeed_enabled: bool

    @property
    def split(self) -> bool:
        """True where no process has all weights: FSDP, and DeepSpeed's ZeRO-3."""
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        return bool(self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))

    def gathered_weights(self) -> Any:
        """Return all weights, in the first process, where no process has them all, else None; all
        must call."""
        return self.accelerator.get_state_dict(self.model_wrapped) if self.split else None

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write none: a checkpoint is no model to be published."""


class RecipeTrainer(WholeWeights, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, which takes our steps. `recipe.policy` is trained in place.

    `coefficient` is beta of the next step; `step` the one in progress.
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
            reward_funcs=[lambda **_: []],  # never called: rewards are those of the recipe
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(recipe.examples), "row": rows}),
            processing_class=policy.tokenizer,
        )
        self.remove_callback(PrinterCallback)
        self.eos_token_ids = policy.stop_ids
        if not self.use_vllm:
            self.generation_config.eos_token_id = self.generation_kwargs["eos_token_id"] = policy.stop_ids
        self._prepare_reference()
        self._table = TokenTable(policy.tokenizer)

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.recipe.settings.epochs * self.recipe.settings.mini_batches

    def _prepare_reference(self) -> None:
        """Place a frozen copy of the model as TRL places its own; a reference of adapters is in the
        model."""
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
        """Begin a step with its first pass, an epoch with the first pass of each; the rows of this
        pass."""
        passes = self.args.steps_per_generation
        if self._step % (passes * self.recipe.settings.epochs) == 0:
            self.step = self._begin([record["row"] for record in generation_batch])
        assert self.step is not None
        if self._step % passes == 0:
            self._shuffle(self.step, self._step // passes % self.recipe.settings.epochs)
        return {"pass": self._step % passes}

    def _begin(self, rows: Sequence[int]) -> Step:
        """Sample, judge and score: y ~ pi(x), critique -> delta_t, log pi and the KL -> A_t."""
        recipe, watch = self.recipe, Stopwatch()
        examples = [recipe.examples[row] for row in rows]
        draw = partial(self._sample, examples, [list(recipe.prompts[row]) for row in rows])
        samples, sampled = draw() if recipe.environment is None else agreed(draw)  # one environment may fail alone
        prompts = [sample.prompt or recipe.prompts[row] for sample, row in zip(samples, rows, strict=True)]
        watch.lap("generate")
        critique = partial(judge, examples, samples, self._table, recipe.critic, recipe.credit)
        measure = partial(self._measure, prompts, samples)
        if get_overlap(recipe.critic) == "helps" and not self.split:
            responses, stats = agreed(partial(critique_and_score, critique, measure, True, watch))
        else:  # passes of split weights are made by all or none, so a critic must have answered in all
            responses, stats = critique_and_score(partial(agreed, critique), measure, False, watch)
        responses, prompts, stats, logps = gather_rows(responses, prompts, stats, sampled)
        batch = self._packed(prompts, responses.samples, "cpu")
        refuse_failures(responses.judgements, recipe.settings.max_failed)
        rollout = build_rollout(batch, responses, stats, recipe.settings, self.coefficient)
        refuse_diverged(rollout, recipe.settings.max_kl)
        if logps is not None and self.vllm_importance_sampling_correction:
            # An id counts less by the ratio in which it is likelier in the program that sampled it.
            weight = (rollout.old_logp - logps).exp().clamp(max=self.vllm_importance_sampling_clip_max)
            rollout.advantages.mul_(torch.where(logps.isnan(), 1, weight))
        watch.lap("score")
        return Step(self.state.global_step // self.updates, self.coefficient, responses, rollout, watch)

    def _sample(
        self, examples: Sequence[Example], prompts: list[list[int]]
    ) -> tuple[list[Sample], list[Any] | None]:
        """Sample with TRL; return the samples, and their log-probabilities where another program
        says them."""
        recipe = self.recipe
        if recipe.environment is not None:
            return play(
                recipe.policy, examples, recipe.environment, recipe.generation, sample_turns=self._turns
            ), None
        ids, logps = self._generate_single_turn(prompts, None, {}, self.num_generations)
        return self._as_samples(ids), logps

    def _turns(self, policy: Policy, prompts: list[list[int]], *_: Any, **__: Any) -> list[Sample]:
        """Sample one turn of some episodes, whose prompts differ."""
        return self._as_samples(self._generate_single_turn(prompts, None, {}, 1)[0])

    def _as_samples(self, sampled: Sequence[Sequence[int]]) -> list[Sample]:
        stops = set(self.eos_token_ids)
        return [Sample(list(ids), truncated=not ids or ids[-1] not in stops) for ids in sampled]

    def _packed(self, prompts: Sequence[Sequence[int]], samples: Sequence[Sample], device: Any) -> TokenBatch:
        pad = int(self.recipe.policy.tokenizer.pad_token_id)
        ids, masks = [sample.ids for sample in samples], [sample.mask for sample in samples]
        return pack(prompts, ids, pad, device, masks)

    def _measure(self, prompts: Sequence[Sequence[int]], samples: Sequence[Sample]) -> PolicyStats:
        """Measure policy and reference on this process's rows."""
        policy = self.recipe.policy
        batch = self._packed(prompts, samples, self.accelerator.device)
        assert policy.reference is not None
        kwargs = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(self.model, kwargs):
            logp, entropy = self._read(self.model, batch, entropy=True)
            with policy.reference.activate():
                ref_logp, _ = self._read(self.ref_model or self.model, batch)
        nothing = torch.zeros_like(logp)
        kl = torch.where(batch.mask, KL_OF[self.recipe.settings.kl](logp, ref_logp), 0)
        return PolicyStats(logp, ref_logp, kl, entropy, nothing, nothing[:, 0])

    def _read(self, model: Any, batch: TokenBatch, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy (B, T), 0 outside the mask, as TRL computes them."""
        inputs = batch.input_ids, batch.attention_mask, batch.width
        rows = self.args.per_device_train_batch_size
        logp, entropies, _ = self._get_per_token_logps_and_entropies(model, *inputs, rows, compute_entropy=entropy)
        logp = torch.where(batch.mask, logp.float(), 0)
        return logp, torch.where(batch.mask, entropies.float(), 0) if entropy else logp.detach()

    # Its updates --------------------------------------------------------------------------------

    def _shuffle(self, step: Step, epoch: int) -> None:
        """Draw the mini-batches of an epoch, and this process's passes over each: short responses
        first."""
        rollout, processes = step.rollout, self.accelerator.num_processes
        rollout.ratio.zero_()
        step.tokens, step.passes = [], []
        order = np.random.default_rng([self.recipe.seed, step.number, epoch]).permutation(len(rollout.loss_mask))
        for index in torch.from_numpy(order).tensor_split(self.recipe.settings.mini_batches):
            step.tokens.append(int(rollout.loss_mask[index].sum()))
            (by_length,) = rollout.batch.passes(index, len(index))
            mine = by_length[self.accelerator.process_index :: processes]
            step.passes += torch.split(mine, self.args.per_device_train_batch_size)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return this pass's share of the loss of its mini-batch; all shares add up to the local
        loop's loss."""
        step, settings, processes = self.step, self.recipe.settings, self.accelerator.num_processes
        assert step is not None
        rows, tokens = step.passes[inputs["pass"]], self._learned_tokens(inputs["pass"])
        part = moved(take_rows(step.rollout, rows), self.accelerator.device)

        def read_again(batch: TokenBatch, *_: Any, **__: Any) -> PolicyOutput:
            logp = self._read(model, batch)[0]
            nothing = torch.zeros_like(logp)
            return PolicyOutput(logp, None, None, nothing, nothing[:, 0], nothing)

        columns = loss_terms(read_again, part, settings, self.recipe.generation.temperature)
        step.rollout.ratio[rows, : part.batch.width] = columns.pop("ratio").cpu()
        shares = {name: average(term, part.loss_mask, "token", max(1, tokens)) for name, term in columns.items()}
        if tokens:
            for name, share in shares.items():
                step.terms[name] = step.terms.get(name, 0.0) + float(share.detach())
        # Gradients of several processes are averaged, and shares are to be added up.
        return shares["policy_loss"] * float(processes)

    def _learned_tokens(self, place: int) -> int:
        """The learned tokens, in all processes, of the mini-batch that a pass belongs to."""
        assert self.step is not None
        return self.step.tokens[place // int(self.args.gradient_accumulation_steps)]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Check the gradient before an optimizer step; a mini-batch without learned tokens changes
        nothing.

        DeepSpeed's engine has made the step by then.

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        before = super()._get_grad_norm(model, grad_norm=grad_norm)
        norm = as_number(before)
        assert self.step is not None
        if not math.isfinite(norm):
            raise FloatingPointError("the gradient is not finite, no parameter was changed by it")
        if self._learned_tokens((self._step - 1) % self.args.steps_per_generation):
            self.step.updates += 1
            self.step.terms["grad_norm"] = self.step.terms.get("grad_norm", 0.0) + norm
        else:  # all critiques of this mini-batch failed: moments of earlier ones would still move the weights
            model.zero_grad(set_to_none=True)
        return norm

    def means_of_step(self) -> dict[str, float]:
        """Return the mean terms of a finished step's updates, and fill its ratios from all
        processes; all call."""
        step = self.step
        assert step is not None
        if self.accelerator.num_processes > 1:
            step.rollout.ratio.copy_(torch.stack(gather_object([step.rollout.ratio])).amax(dim=0))
        shares = gather_object([step.terms])
        sums = {name: sum(share[name] for share in shares) for name in step.terms}
        if "grad_norm" in sums:  # of all processes' gradients critique_and_score, and the same in each
            sums["grad_norm"] = step.terms["grad_norm"]
        step.watch.lap("update")
        return {name: value / max(1, step.updates) for name, value in sums.items()}


def gather_rows(
    responses: Responses, prompts: list[Sequence[int]], stats: PolicyStats, sampled: list[Any] | None
) -> tuple[Responses, list[Sequence[int]], PolicyStats, Tensor | None]:
    """Gather the rows of all processes, one share after the other, on the CPU; all must call.

    `sampled`, where it is given, becomes (B, T): NaN where it is unknown.
    """
    columns = PolicyStats(*(column.cpu() for column in stats))
    shares = gather_object([(responses, prompts, columns, sampled)])
    all_responses, all_prompts, all_stats, all_sampled = zip(*shares, strict=True)
    width = max(len(sample.ids) for part in all_responses for sample in part.samples)
    joined = PolicyStats(*(joined_rows(parts, width) for parts in zip(*all_stats, strict=True)))
    logps = [row for part in all_sampled if part is not None for row in part]
    sampled_logp = torch.full(joined.logp.shape, torch.nan) if logps else None
    if sampled_logp is not None:
        for place, row in enumerate(logps):
            sampled_logp[place, : len(row)] = torch.tensor([torch.nan if logp is None else logp for logp in row])
    return merge_responses(all_responses), [row for part in all_prompts for row in part], joined, sampled_logp


def joined_rows(parts: Sequence[Tensor], width: int) -> Tensor:
    """Return rows of several processes under each other: (B, T) padded with 0 to a common width, or
    (B,)."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])


def moved(rollout: Rollout, device: Any) -> Rollout:
    """Return a rollout on a device."""
    batch = TokenBatch(*(column.to(device) for column in vars(rollout.batch).values()))
    columns = {name: column.to(device) for name, column in vars(rollout).items() if isinstance(column, Tensor)}
    return Rollout(batch=batch, **columns)
