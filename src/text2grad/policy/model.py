"""The policy: a causal language model with its value function and its frozen reference.

Everything leaves this file response-aligned: index t belongs to the t-th response token, and the
logits and the value at t are those of the state *before* that token was sampled.
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
    """Log-probabilities and values of a batch: 0 outside the mask, None if not asked for.

    `logp`, `entropy`, `kl` and with it `ref_logp` (B, T); `values` (B, T) = V(s_t); `last_value`
    (B,) = V of the state after the response; all values are 0 if the value function is not asked.
    `before` (B, H): the states before the responses, for a head to read. `layers` (B, P+T, H): the
    embeddings and the output of each layer.
    """

    logp: Tensor
    entropy: Tensor | None
    kl: Tensor | None
    values: Tensor
    last_value: Tensor
    before: Tensor
    ref_logp: Tensor | None = None
    layers: tuple[Tensor, ...] = ()


def _spread(column: Tensor, mask: Tensor) -> Tensor:
    """Put (N,) numbers at the True positions of `mask` (B, T); 0 elsewhere."""
    return column.new_zeros(mask.shape).masked_scatter(mask, column)


class ValueHead(nn.Module):
    """Two layers from the trunk's last hidden state to one number. The output layer starts at zero,
    so V = 0."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, H) -> (B, L), in float32 whatever the trunk's type."""
        inner = torch.tanh(self.inner(hidden.float()))
        value: Tensor = self.outer(inner).squeeze(-1)
        return value


def avoid_cudnn_attention(model: Any) -> None:
    """Stop torch from choosing cuDNN's attention on a GPU.

    With a mask its gradient can be NaN at lengths of 64 modulo 128 in half precision (torch 2.11 to
    2.13; github.com/pytorch/pytorch/issues/196678).
    """
    if model.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def adapter_in_force(model: Any, name: str) -> Iterator[None]:
    """Activate a frozen adapter of a model, and the policy's again afterwards."""
    model.base_model.set_adapter(name, inference_mode=True)
    try:
        yield
    finally:
        model.base_model.set_adapter(POLICY_ADAPTER)


class Reference:
    """The policy as it was before training: the KL penalty measures the distance to it.

    A frozen copy of the model; with adapters the same model, with a frozen copy of the adapter that
    the policy started from (`adapter`) or with adapters off. No gradient reaches it.
    """

    def __init__(self, model: Any, reader: Reader, adapter: str | None = None) -> None:
        self.model = model
        self.reader = reader
        self.adapter = adapter

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make `model` the reference within the context, without gradients."""
        weights: AbstractContextManager[None] = nullcontext()
        if isinstance(self.model, PeftModel):
            weights = adapter_in_force(self.model, self.adapter) if self.adapter else self.model.disable_adapter()
        with torch.no_grad(), weights:
            yield

    def view(self, batch: TokenBatch) -> LazyLogits:
        """Return the states and the head that give its log-probabilities of a batch's response
        tokens."""
        with self.in_force():
            view = self.reader(self.model, batch).view

        def head(states: Tensor) -> Tensor:
            with self.in_force():
                return view.head(states)

        return view._replace(head=head)


def _copy_adapter(model: Any, name: str) -> None:
    """Add a frozen copy of the policy's adapter to a model, or update the copy that is there."""
    if name not in model.peft_config:
        config = copy.deepcopy(model.peft_config[POLICY_ADAPTER])
        config.inference_mode = True
        with torch.random.fork_rng([]):  # peft draws weights, which are replaced
            model.add_adapter(name, config)
        model.base_model.set_adapter(POLICY_ADAPTER)
    weights = get_peft_model_state_dict(model, adapter_name=POLICY_ADAPTER, save_embedding_layers=False)
    set_peft_model_state_dict(model, weights, adapter_name=name)


def context_of(model: Any) -> int | None:
    """Return the longest sequence a model reads, in tokens, if its configuration says so."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


class Policy(nn.Module):
    """A causal LM with a value head on its trunk (`shared`), on a detached trunk, or on a trunk of
    its own.

    Args:
        model: of transformers, or of peft where it has an adapter.
        tokenizer: the model's.
        value_head: `shared`, `detached` or `separate`.
        value_trunk: a saved trunk for a head of its own; None: a copy of `model`.
        continued: the model's adapter was trained before, and the reference is a frozen copy of it.

    `adapter` names the adapter of a view of another policy's model (`policy.adapters`). `exact` has
    the float32 values of weights that a half type has rounded, by name, until optimizers take them
    over.
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
        self.label_head: Head | None = None  # only while a reward model is trained with it
        self.span_head: Head | None = None  # only of a reward model that marks a response by it
        self.score_head: Head | None = None  # only of a scalar model, or a reward model that gives a verdict by it
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
        """H, the width of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def context(self) -> int | None:
        """The longest sequence the model reads, in tokens, if its configuration says so."""
        return context_of(self.model)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a response: the template's, the tokenizer's and those of the model's
        generation config."""
        return stop_ids(self.tokenizer, self.model)

    def pack(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        masks: Sequence[Sequence[bool] | None] | None = None,
    ) -> TokenBatch:
        """Return prompt and response ids as one batch on the model's device (see
        `policy.batch.pack`)."""
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
        """Return log-probabilities of the sampled tokens, and their values, in one pass over the
        trunk.

        The head reads only response tokens, a few at a time (`rl.vocabulary`): logits of the
        prompt, of padding or of the whole batch are never in memory. With `kl` the reference reads
        the batch too. With `fixed` gradients reach only the parameters of the value function.
        Without `valued` the value function is not asked. `layers` asks for the states of all tokens
        in all layers, `entropy` for the entropy. A stop signal is obeyed before the pass.
        """
        stop_here()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
            hidden, view, states = self.reader(self.model, batch, layers)  # hidden (B, T+1, H)
            if kl and self.reference is None:
                raise RuntimeError("freeze_reference() was not called before training")
            reference = self.reference.view(batch) if kl and self.reference else None
            ids = batch.response_ids[batch.mask]  # (N,), of the N response tokens, without padding
            scores = score_tokens(view, ids, temperature, reference=reference, kl=kl or "full", entropy=entropy)
        values = self._values(hidden, batch) if valued else hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
        lengths = batch.lengths[:, None]  # (B, 1): where the state after the response stands
        return PolicyOutput(
            logp=_spread(scores.logp, batch.mask),
            entropy=None if scores.entropy is None else _spread(scores.entropy, batch.mask),
            kl=None if scores.kl is None else _spread(scores.kl, batch.mask),
            values=values[:, :-1],
            last_value=values.gather(1, lengths).squeeze(1),
            before=hidden[:, 0],
            ref_logp=None if scores.ref_logp is None else _spread(scores.ref_logp, batch.mask),
            layers=states if layers else (),
        )

    def _values(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Return values (B, T+1) of the states before and after every response token."""
        if self.value_kind == "detached":
            hidden = hidden.detach()
        elif self.value_trunk is not None:
            hidden = self.reader(self.value_trunk, batch).hidden
        values: Tensor = self.value_head(hidden)
        return values

    def freeze_reference(self) -> None:
        """Make the present weights the reference.

        Base weights that are not trained are never copied: the reference of an adapter that was
        loaded is a frozen copy of the adapter, that of a new one is the model with adapters off.
        """
        model, adapter = self.model, None
        if not isinstance(model, PeftModel):
            model = copy.deepcopy(model).eval().requires_grad_(False)
        elif self.continued:
            _copy_adapter(model, REFERENCE_ADAPTER)
            adapter = REFERENCE_ADAPTER
        self.reference = Reference(model, self.reader, adapter)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return all parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the policy loss trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the value function alone."""
        trunk = list(self.value_trunk.parameters()) if self.value_trunk is not None else []
        return [*self.value_head.parameters(), *(p for p in trunk if p.requires_grad)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch dropout and gradients off and a view's own adapter on, and back again."""
        was_training = self.model.training
        self.eval()
        try:
            with torch.no_grad(), adapter_in_force(self.model, self.adapter) if self.adapter else nullcontext():
                yield
        finally:
            self.train(was_training)
