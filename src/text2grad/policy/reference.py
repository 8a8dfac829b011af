"""The reference: the policy as it was before training, from which the KL penalty measures the distance."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from text2grad.policy.batch import TokenBatch
from text2grad.policy.halves import Reader
from text2grad.rl.vocabulary import View


class Reference:
    """A frozen copy of a model, or, where only adapters are trained, the same model with its adapters off.

    No gradient reaches it.
    """

    def __init__(self, model: Any, reader: Reader) -> None:
        self.model = model
        self.reader = reader

    @classmethod
    def of(cls, model: Any, reader: Reader) -> Reference:
        """The reference of a model that is about to be trained; nothing is copied where it has adapters."""
        frozen = model if isinstance(model, PeftModel) else copy.deepcopy(model).eval().requires_grad_(False)
        return cls(frozen, reader)

    @contextmanager
    def _in_force(self) -> Iterator[Any]:
        with torch.no_grad():
            if isinstance(self.model, PeftModel):
                with self.model.disable_adapter():
                    yield self.model
            else:
                yield self.model

    def view(self, batch: TokenBatch) -> View:
        """What its log-probabilities of the response tokens of a batch are made of."""
        with self._in_force() as model:
            view = self.reader(model, batch).view

        def head(states: Tensor) -> Tensor:
            with self._in_force():
                return view.head(states)

        return view._replace(head=head)
