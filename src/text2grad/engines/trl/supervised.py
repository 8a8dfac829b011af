"""SFT with TRL's `SFTTrainer`, but our token ids, batches, optimizer and learning rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl.trainer.sft_trainer import SFTTrainer

from text2grad.durable.identity import flatten
from text2grad.durable.run import Cures, RunOptions
from text2grad.engines.processes import join_processes
from text2grad.engines.trl.fields import PassShape, make_sft_args, shared_fields
from text2grad.engines.trl.run import (
    EngineRun,
    lock_in_first_process,
    refuse_differing_processes,
    refuse_rounded_steps,
)
from text2grad.engines.trl.trainer import GatheredWeights, fail_together, norm_as_float
from text2grad.errors import UsageError, first_line
from text2grad.policy.model import Policy
from text2grad.signals import StopRequest
from text2grad.train.optimizers import learning_rate_factor
from text2grad.train.pairs import EncodedPair, Pair, encode_pairs, plan_batches, supervised_identity
from text2grad.train.settings import SFTSettings
from text2grad.train.supervised import (
    CHECKPOINT_EVERY,
    data_identity,
    plain_optimizer,
    refuse_diverged,
    refuse_empty,
)
from text2grad.train.watch.steps import LossFloor

IGNORED = -100
"""The label of a token that is excluded from the loss."""


def train_sft_trl(
    policy: Policy,
    pairs: Sequence[Pair],
    settings: SFTSettings,
    options: RunOptions,
    stopping: LossFloor | None = None,
    *,
    fields: Mapping[str, Any],
) -> dict[str, float]:
    """Train `policy` in place with TRL's trainer, like `train.supervised.train_supervised`.

    All processes call this with the same arguments and share each step; the first one writes.

    Args:
        fields: fields of TRL's `GRPOConfig`; those that `SFTConfig` lacks are ignored.

    Returns:
        The last metrics.

    Raises:
        UserError: as `train_supervised`; or updates of the weights would be rounded away.
    """
    refuse_empty(pairs, options)
    processes = join_processes(policy.device).num_processes
    encoded = encode_pairs(policy, pairs)
    loop = {
        "run.processes": str(processes),
        **supervised_identity(policy, settings, "sft", data_identity(policy, pairs)),
        **flatten(training=options.course),
    }
    refuse_differing_processes(identity := options.identity(loop))
    batches = list(plan_batches(encoded, settings, options.seed))
    shape = plan_sft_passes(settings, processes)
    args = make_sft_args(fields, settings, len(batches), shared_fields(options, shape, policy.device))
    refuse_rounded_steps(policy, args)
    places = {id(item): place for place, item in enumerate(encoded)}
    order = list(order_rows(batches, places, shape.rows * shape.passes * processes))
    try:
        trainer = SFT(policy, settings, options, args, encoded, order)
    except (ImportError, ValueError) as error:
        raise UsageError(f"engine.trl: {first_line(error)}", "see TRL's SFTTrainer") from error
    with lock_in_first_process(options.folder), StopRequest() as stop:
        run = SFTRun(trainer, options, identity, stop, stopping)
        run.train()
    policy.eval()
    policy.continued = True
    return run.last


def plan_sft_passes(settings: SFTSettings, processes: int) -> PassShape:
    """Divide a batch into equal numbers of passes in each process."""
    share = math.ceil(settings.batch_size / processes)
    passes = math.ceil(share / settings.micro_batch_size)
    return PassShape(math.ceil(share / passes), passes)


def order_rows(batches: Sequence[Sequence[EncodedPair]], places: Mapping[int, int], size: int) -> Iterator[int]:
    """Yield the indices of the pairs of each batch, short ones first, padded to `size` rows.

    The padding is the index after the last pair, a row without learned tokens.
    """
    for batch in batches:
        ordered = sorted(batch, key=lambda item: item.tokens)
        yield from (places[id(item)] for item in ordered)
        yield from itertools.repeat(len(places), size - len(batch))


def make_dataset(encoded: Sequence[EncodedPair], pad: int) -> Dataset:
    """Return ids and labels of the pairs, and a final row without learned tokens."""
    labels = [
        [IGNORED] * len(item.prompt)
        + [token if is_learned else IGNORED for token, is_learned in zip(item.target, item.weights, strict=True)]
        for item in encoded
    ]
    ids = [item.ids for item in encoded]
    return Dataset.from_dict({"input_ids": [*ids, [pad, pad]], "labels": [*labels, [IGNORED, IGNORED]]})


class SFT(GatheredWeights, SFTTrainer):  # type: ignore[misc]
    """TRL's trainer with the steps of `train_batches`; `policy` is trained in place.

    Attributes:
        shares: the shares of the loss of the current step, one per pass.
        terms: the metrics of the last step.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        policy: Policy,
        settings: SFTSettings,
        options: RunOptions,
        args: Any,
        encoded: Sequence[EncodedPair],
        order: Sequence[int],
    ) -> None:
        self.policy, self.settings, self.course, self.order = policy, settings, options.course, order
        self.shares: list[Tensor] = []
        self.terms: dict[str, float] = {}
        rows = make_dataset(encoded, int(policy.tokenizer.pad_token_id))
        super().__init__(model=policy.model, args=args, train_dataset=rows, processing_class=policy.tokenizer)
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True  # divides the loss by the tokens of the whole batch

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return self.order

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimizer of `sft.optimizer`, unless DeepSpeed's configuration has one."""
        if self.optimizer is None:
            self.optimizer = plain_optimizer(self.policy, self.settings, self.course.weight_decay)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the learning-rate schedule of the section `training`."""
        if self.lr_scheduler is None:
            factor = learning_rate_factor(self.course.schedule, self.course.warmup, num_training_steps)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Return this pass's share of the batch's mean loss, times the number of processes."""
        loss = super().compute_loss(*args, **kwargs)
        self._metrics["train"].clear()  # TRL's metrics are not used
        self.shares.append(loss.detach())
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Check loss and gradient before an optimizer step.

        Raises:
            FloatingPointError: loss or gradient diverged. DeepSpeed has already made the step.
        """
        norm = norm_as_float(super()._get_grad_norm(model, grad_norm=grad_norm))
        loss, self.shares = float(torch.stack(self.shares).sum()), []
        losses = gather_object([loss])
        self.terms = {"loss": sum(losses) / len(losses), "grad_norm": norm}
        refuse_diverged(self.terms, math.log(len(self.policy.tokenizer)))
        return norm


class SFTRun(EngineRun):
    """A run of SFT: logs the metrics of each step, and ends early if `stopping` requests it."""

    def __init__(
        self,
        trainer: SFT,
        options: RunOptions,
        identity: Mapping[str, str],
        stop: StopRequest,
        stopping: LossFloor | None,
    ) -> None:
        settings, self.stopping = trainer.settings, stopping
        self.last: dict[str, float] = {}
        memory = f"lower sft.micro_batch_size ({settings.micro_batch_size})"
        cures = Cures(memory, f"lower sft.lr ({settings.lr:g})")
        super().__init__(
            trainer,
            trainer.policy,
            options,
            identity,
            stop,
            total=trainer.args.max_steps,
            every=CHECKPOINT_EVERY,
            show=("loss",),
            cures=cures,
        )

    def state(self) -> dict[str, Any]:
        """Return the losses that decide about the end."""
        return self.stopping.numbers() if self.stopping else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the losses."""
        if self.stopping:
            self.stopping.restore(state)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the learning rate of this step before the schedule advances."""
        self.trainer.terms["lr"] = float(self.trainer.optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log a step, and request saving or stopping."""
        self.last = dict(self.trainer.terms)
        fail_together(partial(self.write_metrics, self.done, self.last))
        if self.stopping:
            self.stopping.add(self.last["loss"])
            self.last["steps"] = self.done + 1
        self.end_step(control)
        if self.stopping and self.stopping.reached:
            self.stopped, control.should_training_stop, control.should_save = 0, True, False
