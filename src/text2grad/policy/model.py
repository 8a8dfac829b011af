"""The policy: a causal language model with its value function and its frozen reference.

All outputs are response-aligned: index t belongs to the t-th response token. Logits and values at t
are those of the state *before* that token was sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn

from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.encode import stop_ids
from text2grad.policy.forward.reader import Reader
from text2grad.rl.vocabulary import KLKind, LazyLogits, score_tokens
from text2grad.signals import stop_here

if TYPE_CHECKING:
    from text2grad.policy.heads.head import Head

POLICY_ADAPTER, REFERENCE_ADAPTER = "policy", "reference"


@dataclass(frozen=True)
class PolicyOutput:
    """Log-probabilities and values of a batch, 0 outside the mask.

    Attributes:
        logp: (B, T), of the response tokens.
        entropy: (B, T), on request.
        kl: (B, T), on request.
        values: (B, T), V(s_t); 0 if not requested.
        last_value: (B,), V of the state after the response; 0 if not requested.
        before: (B, H), the states before the responses, for heads.
        ref_logp: (B, T), log-probabilities of the reference, with `kl`.
        layers: (B, P+T, H) each, the embeddings and the output of each layer, on request.
    """

    logp: Tensor
    entropy: Tensor | None
    kl: Tensor | None
    values: Tensor
    last_value: Tensor
    before: Tensor
    ref_logp: Tensor | None = None
    layers: tuple[Tensor, ...] = ()


def _scatter(column: Tensor, mask: Tensor) -> Tensor:
    """Put (N,) numbers at the True positions of `mask` (B, T); 0 elsewhere."""
    return column.new_zeros(mask.shape).masked_scatter(mask, column)


class ValueHead(nn.Module):
    """Two layers from the trunk's last hidden state to V, which starts at zero."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        # V = 0 at first: GAE starts as the discounted rewards instead of noise.
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values (B, L) for states (B, L, H), in float32 for any type of the trunk."""
        inner = torch.tanh(self.inner(hidden.float()))
        value: Tensor = self.outer(inner).squeeze(-1)
        return value


def avoid_cudnn_attention(model: Any) -> None:
    """Disable cuDNN's attention on GPUs.

    With a mask, its gradients in half precision can be NaN at lengths of 64 modulo 128 (torch 2.11
    to 2.13; github.com/pytorch/pytorch/issues/196678).
    """
    if model.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def active_adapter(model: Any, name: str) -> Iterator[None]:
    """Activate a frozen adapter of a model, and the policy's adapter again afterwards."""
    model.base_model.set_adapter(name, inference_mode=True)
    try:
        yield
    finally:
        model.base_model.set_adapter(POLICY_ADAPTER)


class Reference:
    """The frozen policy from before training; the KL penalty is the distance to it.

    Without adapters it is a copy of the model. With adapters it is the same model with a frozen
    copy of the starting adapter (`adapter`), or with adapters disabled.
    """

    def __init__(self, model: Any, reader: Reader, adapter: str | None = None) -> None:
        self.model = model
        self.reader = reader
        self.adapter = adapter
        # A plain head has no adapter, so it is the same with and without the policy's. Switching
        # adapters visits all modules, which is slow for each chunk of tokens.
        self._has_plain_head = type(model.get_output_embeddings()) is nn.Linear

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Turn `model` into the reference within the context, without gradients."""
        weights: AbstractContextManager[None] = nullcontext()
        if isinstance(self.model, PeftModel):
            weights = active_adapter(self.model, self.adapter) if self.adapter else self.model.disable_adapter()
        with torch.no_grad(), weights:
            yield

    def view(self, batch: TokenBatch) -> LazyLogits:
        """Return the states and the head for its log-probabilities of response tokens."""
        with self.activate():
            view = self.reader(self.model, batch).view

        def head(states: Tensor) -> Tensor:
            with torch.no_grad() if self._has_plain_head else self.activate():
                return view.head(states)

        return view._replace(head=head)


def _copy_adapter(model: Any, name: str) -> None:
    """Add a frozen copy of the policy's adapter to a model, or update that copy."""
    if name not in model.peft_config:
        config = copy.deepcopy(model.peft_config[POLICY_ADAPTER])
        config.inference_mode = True
        with torch.random.fork_rng([]):  # peft draws random weights, which are then replaced
            model.add_adapter(name, config)
        model.base_model.set_adapter(POLICY_ADAPTER)
    weights = get_peft_model_state_dict(model, adapter_name=POLICY_ADAPTER, save_embedding_layers=False)
    set_peft_model_state_dict(model, weights, adapter_name=name)


def context_length(model: Any) -> int | None:
    """Return the longest sequence of a model in tokens, or None if its configuration has none."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


class Policy(nn.Module):
    """A causal language model with a value head.

    Args:
        model: a model of transformers, or of peft if it has an adapter.
        tokenizer: the tokenizer that belongs to it.
        value_head: reads the trunk (`shared`), the trunk without gradients (`detached`) or its own
            trunk (`separate`).
        value_trunk: a saved separate trunk; None: a copy of `model`.
        continued: True if the model's adapter was trained before, so that the reference is a frozen
            copy of it.

    Attributes:
        adapter: the adapter's name if this is a view of another policy's model (`policy.adapters`).
        exact: the float32 values of rounded half-precision weights by name, until optimizers take
            them over.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        value_head: str = "shared",
        value_trunk: Any = None,
        continued: bool = False,
    ) -> None:
        super().__init__()
        avoid_cudnn_attention(model)
        self.model = model
        self.tokenizer = tokenizer
        self.value_kind = value_head
        self.value_head = ValueHead(self.hidden_size).to(model.device)
        separate = value_head == "separate"
        self.value_trunk = (value_trunk or copy.deepcopy(model)) if separate else None
        self.label_head: Head | None = None  # only in the training of a reward model
        self.span_head: Head | None = None  # of a reward model that labels tokens
        self.score_head: Head | None = None  # of a reward model that scores responses
        self.reader = Reader(model)
        self.reference: Reference | None = None
        self.continued = continued
        self.exact: dict[str, Tensor] = {}
        self.adapter: str | None = None

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.model.device
        return device

    @property
    def hidden_size(self) -> int:
        """The width H of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def context(self) -> int | None:
        """The longest sequence of the model in tokens, or None if its configuration has none."""
        return context_length(self.model)

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end a response (see `policy.encode.stop_ids`)."""
        return stop_ids(self.tokenizer, self.model)

    def pack(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        masks: Sequence[Sequence[bool] | None] | None = None,
    ) -> TokenBatch:
        """Pad prompt and response ids to a batch on the model's device (see `pack`)."""
        return pack(prompts, responses, int(self.tokenizer.pad_token_id), self.device, masks)

    def forward(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        kl: KLKind | None = None,
        fixed: bool = False,
        valued: bool = True,
        layers: bool = False,
        entropy: bool = False,
    ) -> PolicyOutput:
        """Compute log-probabilities and values of response tokens in one pass over the trunk.

        The head reads response tokens a few at a time (`rl.vocabulary`), so the logits of the whole
        batch are never in memory. A stop signal is obeyed before the pass.

        Args:
            kl: the KL divergence to compute, which makes the reference read the batch too.
            fixed: pass gradients to the value function's own parameters only.
            valued: compute values.
            layers: return the states of all tokens in all layers.
        """
        stop_here()
        # fixed: the trunk keeps no activations; only the value function's own parameters learn.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
            hidden, view, states = self.reader(self.model, batch, layers)  # hidden (B, T+1, H)
            if kl and self.reference is None:
                raise RuntimeError("freeze_reference() was not called before training")
            reference = self.reference.view(batch) if kl and self.reference else None
            ids = batch.response_ids[batch.mask]  # (N,), all response tokens without padding
            scores = score_tokens(view, ids, temperature, reference=reference, kl=kl or "full", entropy=entropy)
        values = self._values(hidden, batch) if valued else hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
        lengths = batch.lengths[:, None]  # (B, 1), the index of the state after the response
        return PolicyOutput(
            logp=_scatter(scores.logp, batch.mask),
            entropy=None if scores.entropy is None else _scatter(scores.entropy, batch.mask),
            kl=None if scores.kl is None else _scatter(scores.kl, batch.mask),
            values=values[:, :-1],  # (B, T), V(s_t) before token t
            last_value=values.gather(1, lengths).squeeze(1),
            before=hidden[:, 0],
            ref_logp=None if scores.ref_logp is None else _scatter(scores.ref_logp, batch.mask),
            layers=states if layers else (),
        )

    def _values(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Return values (B, T+1) of the states before and after each response token."""
        if self.value_kind == "detached":
            # The error of V then does not change the states that the policy reads.
            hidden = hidden.detach()
        elif self.value_trunk is not None:
            hidden = self.reader(self.value_trunk, batch).hidden
        values: Tensor = self.value_head(hidden)
        return values

    def freeze_reference(self) -> None:
        """Make the current weights the reference, without copying frozen base weights.

        For a loaded adapter the reference is a frozen copy of the adapter, for a new one the model
        with adapters disabled.
        """
        # A new adapter adds 0 (LoRA's B starts at 0): disabled, the model is its own reference.
        model, adapter = self.model, None
        if not isinstance(model, PeftModel):
            model = copy.deepcopy(model).eval().requires_grad_(False)
        elif self.continued:
            _copy_adapter(model, REFERENCE_ADAPTER)
            adapter = REFERENCE_ADAPTER
        self.reference = Reference(model, self.reader, adapter)

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Return all trainable parameters by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the policy loss trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that only the value function uses."""
        trunk = list(self.value_trunk.parameters()) if self.value_trunk is not None else []
        return [*self.value_head.parameters(), *(p for p in trunk if p.requires_grad)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Disable dropout and gradients, and activate a view's own adapter, within the context."""
        was_training = self.model.training
        self.eval()
        try:
            with torch.no_grad(), active_adapter(self.model, self.adapter) if self.adapter else nullcontext():
                yield
        finally:
            self.train(was_training)
