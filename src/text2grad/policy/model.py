"""The policy: a causal language model, its value function, and its frozen reference.

Everything leaves this file response-aligned: index t belongs to the t-th response token, and the logits and
the value at t are those of the state *before* that token was sampled.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from text2grad.errors import UserError
from text2grad.policy.encode import load_tokenizer
from text2grad.policy.halves import hidden_states, layer_states, logits_of, splits
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.rl.vocabulary import KLKind, View, score_tokens

VALUE_FILE = "value_head.safetensors"
VALUE_TRUNK = "value_trunk"
POLICY_ADAPTER = "policy"
ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class TokenBatch:
    """Prompts padded on the left, responses on the right, so that all responses start at one column.

    `input_ids`, `attention_mask`, `position_ids`: (B, P+T). `response_ids`, `mask`: (B, T).
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_ids: Tensor
    mask: Tensor

    @property
    def width(self) -> int:
        """T, the padded response length."""
        return int(self.mask.shape[1])

    def rows(self, index: Tensor | slice) -> TokenBatch:
        """The same batch restricted to some rows."""
        return TokenBatch(
            self.input_ids[index],
            self.attention_mask[index],
            self.position_ids[index],
            self.response_ids[index],
            self.mask[index],
        )

    def trimmed(self) -> TokenBatch:
        """Without the columns that are padding in all rows: on the left of the prompts, right of the responses."""
        width = int(self.mask.sum(dim=1).max())
        whole = int(self.input_ids.shape[1]) - (self.width - width)
        first = int((self.attention_mask[:, :whole] == 0).all(dim=0).int().argmin())
        cut = slice(first, whole)
        return TokenBatch(
            self.input_ids[:, cut],
            self.attention_mask[:, cut],
            self.position_ids[:, cut],
            self.response_ids[:, :width],
            self.mask[:, :width],
        )

    def passes(self, index: Tensor, size: int) -> tuple[Tensor, ...]:
        """The rows `index` in groups of at most `size` of similar length, so that little of a pass is padding."""
        lengths = self.attention_mask[index].sum(dim=1)
        return torch.split(index[lengths.argsort(stable=True)], size)


@dataclass(frozen=True)
class PolicyOutput:
    """`logp`, `entropy`, `kl` (B, T), 0 outside the mask, None if not asked for; `values` (B, T) = V(s_t);
    `last_value` (B,) = V of the state after the response."""

    logp: Tensor
    entropy: Tensor | None
    kl: Tensor | None
    values: Tensor
    last_value: Tensor


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad: int, device: Any) -> TokenBatch:
    """Pad a batch of prompt and response ids into one rectangle."""
    prompt_width = max(len(ids) for ids in prompts)
    width = max(len(ids) for ids in responses)
    rows, attention, mask = [], [], []
    for prompt, response in zip(prompts, responses, strict=True):
        left, right = prompt_width - len(prompt), width - len(response)
        rows.append([pad] * left + list(prompt) + list(response) + [pad] * right)
        attention.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
        mask.append([True] * len(response) + [False] * right)
    input_ids = torch.tensor(rows, device=device)
    attention_mask = torch.tensor(attention, device=device)
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        response_ids=input_ids[:, prompt_width:],
        mask=torch.tensor(mask, device=device),
    )


def _spread(column: Tensor, mask: Tensor) -> Tensor:
    """(N,) numbers of the True positions of `mask` (B, T), put where they belong; 0 elsewhere."""
    return column.new_zeros(mask.shape).masked_scatter(mask, column)


def _unchanged(states: Tensor) -> Tensor:
    return states


class ValueHead(nn.Module):
    """Two layers from the trunk's last hidden state to one number. The output layer starts at zero, so V = 0."""

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


class Policy(nn.Module):
    """A causal LM with a value head on its trunk (`shared`), on a detached trunk, or on a trunk of its own.

    The reference is the same model with its adapters off (LoRA), or a frozen copy (full fine-tuning).
    """

    def __init__(self, model: Any, tokenizer: Any, value_head: str = "shared") -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.value_kind = value_head
        self.value_head = ValueHead(int(model.config.get_text_config().hidden_size)).to(model.device)
        self.value_trunk = copy.deepcopy(model) if value_head == "separate" else None
        self.label_head: nn.Module | None = None  # of a reward model while it trains (train.labels)
        self.base_is_merged = False  # then the base is on no disk, and an adapter alone could not be read back
        self.adapter: str | None = (
            None  # of a view of another policy's model (policy.adapters): the one it speaks with
        )
        self._frozen: tuple[Any, ...] = ()  # in a tuple, so that train() and parameters() pass it over
        self.outline: tuple[Policy, ...] = ()  # what it was before its weights were split (policy.shard)
        self._splits = splits(model)
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self.model.device
        return device

    @property
    def context(self) -> int | None:
        """The longest sequence the model reads, in tokens, if its configuration says so."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def forward(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        entropy: bool = False,
        kl: KLKind | None = None,
        fixed: bool = False,
    ) -> PolicyOutput:
        """What the policy says about the sampled tokens, and their values, in one pass over the trunk.

        The head reads response tokens alone, a few at a time (`rl.vocabulary`): no logits of the prompt, of
        padding, or of the whole batch are ever in memory. With `kl` the reference reads the batch too. Where the
        policy is `fixed`, gradients reach what belongs to the value function alone, and nothing is kept for others.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
            hidden, view, _ = self._read(self.model, batch)
            reference = self._reference_view(batch) if kl else None
            ids = batch.response_ids[batch.mask]
            scores = score_tokens(view, ids, temperature, entropy=entropy, reference=reference, kl=kl or "full")
        states = hidden
        if self.value_kind == "detached":
            states = hidden.detach()
        elif self.value_trunk is not None:
            states, _, _ = self._read(self.value_trunk, batch)
        values = self.value_head(states)
        lengths = batch.mask.sum(dim=1, keepdim=True)
        return PolicyOutput(
            logp=_spread(scores.logp, batch.mask),
            entropy=None if scores.entropy is None else _spread(scores.entropy, batch.mask),
            kl=None if scores.kl is None else _spread(scores.kl, batch.mask),
            values=values[:, :-1],
            last_value=values.gather(1, lengths).squeeze(1),
        )

    def logps(self, batch: TokenBatch) -> Tensor:
        """Log-probabilities (B, T) of the response tokens alone, 0 outside the mask; for supervised training."""
        return self.logps_and_layers(batch, every=False)[0]

    def logps_and_layers(self, batch: TokenBatch, every: bool = True) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`logps`, and with `every` the hidden states (B, P+T, H): the embeddings, then what each layer writes."""
        _, view, layers = self._read(self.model, batch, every)
        return _spread(score_tokens(view, batch.response_ids[batch.mask]).logp, batch.mask), layers

    def _read(self, model: Any, batch: TokenBatch, every: bool = False) -> tuple[Tensor, View, tuple[Tensor, ...]]:
        """Hidden states (B, T+1, H) before and after every response token, what the head makes logits of, and
        with `every` the states of all tokens in all layers."""
        keep = batch.width + 1
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids,
        }
        if self._splits and not self.outline:  # split weights are gathered by the model's own forward alone
            layers = layer_states(model, inputs) if every else (hidden_states(model, inputs),)
            hidden = layers[-1][:, -keep:]
            return hidden, View(partial(logits_of, model), hidden[:, :-1][batch.mask], self._vocabulary), layers
        whole = model(**inputs, output_hidden_states=True, logits_to_keep=keep, use_cache=False)
        logits = whole.logits[:, -keep:-1][batch.mask]
        layers = whole.hidden_states
        return layers[-1][:, -keep:], View(_unchanged, logits, self._vocabulary), layers

    def _reference_view(self, batch: TokenBatch) -> View:
        with torch.no_grad(), self._as_reference() as model:
            _, view, _ = self._read(model, batch)

        def head(states: Tensor) -> Tensor:
            with torch.no_grad(), self._as_reference():
                return view.head(states)

        return view._replace(head=head)

    @contextmanager
    def _as_reference(self) -> Iterator[Any]:
        """The reference model: the frozen copy, or the policy with its adapters off while this lasts."""
        if self._frozen:
            yield self._frozen[0]
        elif isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield self.model
        else:
            raise RuntimeError("freeze_reference() was not called before training")

    def freeze_reference(self) -> None:
        """Make today's weights the reference. With adapters nothing is copied: adapters off is the reference."""
        if not isinstance(self.model, PeftModel):
            self._frozen = (copy.deepcopy(self.model).eval().requires_grad_(False),)

    def parts(self) -> list[nn.Module]:
        """The models and heads that it is made of, a frozen reference included."""
        parts = [self.model, self.value_head, self.value_trunk, self.label_head, *self._frozen]
        return [part for part in parts if part is not None]

    def with_parameters(self, instead: Mapping[nn.Parameter, nn.Parameter]) -> Policy:
        """A copy with other parameters in the place of these, equal ones tied as before, without the reference."""
        memo: dict[int, Any] = {id(old): new for old, new in instead.items()}
        memo |= {id(self._frozen): (), id(self.outline): (), id(self.tokenizer): self.tokenizer}
        return copy.deepcopy(self, memo)

    def policy_parameters(self) -> list[nn.Parameter]:
        """What the policy loss trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def value_parameters(self) -> list[nn.Parameter]:
        """What belongs to the value function alone."""
        trunk = list(self.value_trunk.parameters()) if self.value_trunk is not None else []
        return [*self.value_head.parameters(), *(p for p in trunk if p.requires_grad)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout off, gradients off, a view's own adapter in force, and back again."""
        was_training = self.model.training
        self.eval()
        try:
            with torch.no_grad(), self._with_adapter():
                yield
        finally:
            self.train(was_training)

    @contextmanager
    def _with_adapter(self) -> Iterator[None]:
        if self.adapter is None:
            yield
            return
        self.model.base_model.set_adapter(self.adapter, inference_mode=True)
        try:
            yield
        finally:
            self.model.base_model.set_adapter(POLICY_ADAPTER)

    def save(self, folder: Path) -> None:
        """Write model or adapter, tokenizer, value head and its own trunk if it has one; safetensors and JSON only.

        An adapter trained on top of a merged one is written merged, as a whole model; a value trunk always is.
        """
        folder.mkdir(parents=True, exist_ok=True)
        model = _merged(self.model) if self.base_is_merged else self.model
        _save_model(model, folder)
        if self.value_trunk is not None:
            _merged(self.value_trunk).save_pretrained(folder / VALUE_TRUNK, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        state = {name: tensor.contiguous() for name, tensor in self.value_head.state_dict().items()}
        save_file(state, str(folder / VALUE_FILE))


def load_policy(settings: PolicySettings) -> Policy:
    """Load a policy from a hub name or a folder written by `Policy.save` or `save_pretrained`.

    A folder that holds an adapter is merged into its base first, so that a new adapter starts from there and
    the reference (adapters off) is what was loaded.

    Raises:
        UserError: the folder or name has no model, or no tokenizer; or there is no such device.
    """
    device = choose_device(settings.device)
    tokenizer = load_tokenizer(settings.model, settings.chat_template)
    model = _load_model(settings.model, settings.dtype)
    if settings.lora is not None:
        model = add_lora(model, settings.lora)
    policy = Policy(model.to(device), tokenizer, settings.value_head)
    policy.base_is_merged = (Path(settings.model) / ADAPTER_CONFIG).is_file()
    saved, trunk = Path(settings.model) / VALUE_FILE, Path(settings.model) / VALUE_TRUNK
    if saved.is_file():
        policy.value_head.load_state_dict(load_file(str(saved)))
    if policy.value_trunk is not None and trunk.is_dir():
        own = _load_model(str(trunk), settings.dtype)
        policy.value_trunk = (add_lora(own, settings.lora) if settings.lora else own).to(device)
    return policy.eval()


def _save_model(model: Any, folder: Path) -> None:
    """A model, or the policy's adapter alone: peft writes a named one into a folder of that name."""
    if not isinstance(model, PeftModel):
        model.save_pretrained(folder, safe_serialization=True)
        return
    model.save_pretrained(
        str(folder),
        safe_serialization=True,
        selected_adapters=[POLICY_ADAPTER],
        save_embedding_layers=False,  # nobody adds tokens; peft would look for the base model to make sure
    )
    for path in (folder / POLICY_ADAPTER).iterdir():
        path.replace(folder / path.name)
    (folder / POLICY_ADAPTER).rmdir()


def _merged(model: Any) -> Any:
    """The model with its adapters in its weights; itself where it has none."""
    return copy.deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model


def _load_model(name: str, dtype: str) -> Any:
    """The model of a folder or hub name, adapters merged. Pickled weights are refused: they can run code."""
    folder = Path(name)
    adapted = (folder / ADAPTER_CONFIG).is_file()
    weights = ADAPTER_FILE if adapted else "model.safetensors"
    if folder.is_dir() and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise UserError(f"the weights in {name!r} are pickled, not {weights}", "convert them to safetensors")
    try:
        if adapted:
            return _merge_adapter(folder, dtype)
        AutoConfig.from_pretrained(name, trust_remote_code=False)
        return AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"no model in {name!r}: {reason}", "give a model folder or a hub name") from error


def _merge_adapter(folder: Path, dtype: str) -> Any:
    if not (folder / ADAPTER_FILE).is_file():  # peft would look for a pickle instead
        raise OSError(f"no file named {ADAPTER_FILE}")
    base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    return PeftModel.from_pretrained(_load_model(base, dtype), str(folder)).merge_and_unload()


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """Wrap a model in trainable low-rank adapters; the base weights are frozen.

    Raises:
        UserError: a target module is not in the model.
    """
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config, adapter_name=POLICY_ADAPTER)
    except ValueError as error:
        raise UserError(
            f"cannot add adapters: {error}", "set policy.lora.targets to modules of this model"
        ) from error


def choose_device(name: str) -> torch.device:
    """`auto` is this process's CUDA device if there is one, else the CPU.

    Raises:
        UserError: there is no such device.
    """
    if name != "auto":
        return _named_device(name)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _named_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}", "policy.device is auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no device {name!r} on this machine", "set policy.device to auto or cpu")
    return device
