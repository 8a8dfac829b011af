"""TRL's GRPO with credit for words: the group compares verdicts, and each token is paid what was said of it.

`TokenCreditTrainer(credit=TokenCredit(...), model=..., train_dataset=..., args=...)` is a `GRPOTrainer` in all
else: single answers, `tools`, `environment_factory`, `rollout_func` (whose `env_mask` says what the policy
sampled). Its advantages are (B, T), A_t = (verdict - mean of the group) / std + words_weight * words_t, and 0
at tokens of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from text2grad.align.rewards import Payment, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError, optional_packages
from text2grad.feedback import Example, Message

with optional_packages():
    from trl.trainer.grpo_trainer import GRPOTrainer

TESTED = "1.16."
"""The version whose private methods are used."""
TOKEN_LOSSES = "importance_sampling_level='token', loss_type 'dapo', 'grpo', 'dr_grpo', 'bnpo', 'cispo' or 'sapo'"
WHOLE_SEQUENCES = ("luspo", "vespo")
"""Losses that weigh a sequence as a whole: they would smear one token's credit over all."""


class TokenCreditMixin:
    """Beside `GRPOTrainer` or a class made of it; the reward function is `credit`, others may be added.

    A row's `id`, `reference` and other columns reach the critic as its `Example`. A trajectory whose critique
    failed is left out of the loss, and counted as `text2grad/failed`. `words_weight` 0 is GRPO on the verdicts.

    Raises:
        UserError: the loss is of whole sequences, or TRL is of another version.
    """

    def __init__(self, *, credit: TokenCredit, words_weight: float = 1.0, **kwargs: Any) -> None:
        if not version("trl").startswith(TESTED):
            raise UserError(
                f"trl {version('trl')}: the plug-in is written for {TESTED}*", "pip install 'text2grad[trl]'"
            )
        self.credit, self.words_weight = credit, words_weight
        self._payments: list[Payment] = []
        kwargs["reward_funcs"] = [self.verdicts, *_listed(kwargs.get("reward_funcs"))]
        super().__init__(**kwargs)
        args = self.args  # type: ignore[attr-defined]
        if args.loss_type in WHOLE_SEQUENCES or args.importance_sampling_level != "token":
            raise UserError(
                f"loss_type {args.loss_type}, importance_sampling_level {args.importance_sampling_level}: a loss of"
                " whole sequences has no credit for tokens",
                TOKEN_LOSSES,
            )

    def _generate(self, prompts: list[Any]) -> Any:
        """As TRL's; reward functions are told what the policy sampled, too."""
        out = super()._generate(prompts)  # type: ignore[misc]
        completion_ids, tool_mask, extra_fields = out[1], out[2], out[5]
        extra_fields["own_mask"] = tool_mask or [[1] * len(ids) for ids in completion_ids]
        return out

    def verdicts(
        self, prompts: Any, completions: Any, completion_ids: Any, own_mask: Any, log_metric: Any, **columns: Any
    ) -> list[float | None]:
        """The reward function: one verdict for each trajectory, None where there is none."""
        rows = {name: values for name, values in columns.items() if isinstance(values, list)}
        examples = [_example(prompt, {name: rows[name][i] for name in rows}) for i, prompt in enumerate(prompts)]
        batch = [Trajectory(*each) for each in zip(examples, completion_ids, own_mask, strict=True)]
        self._payments = self.credit.of(batch)
        log_metric("text2grad/failed", sum(bool(each.failures) for each in self._payments) / len(batch))
        return [each.verdict for each in self._payments]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        advantages, mask = _landed(out, self._payments, self.words_weight)
        out |= {"advantages": advantages, "tool_mask": mask}
        # What failed counts in no denominator either.
        count = (out["completion_mask"] * mask).sum()
        out["num_items_in_batch"] = self.accelerator.gather(count).sum()  # type: ignore[attr-defined]
        return out


def _landed(out: dict[str, Tensor], payments: Sequence[Payment], weight: float) -> tuple[Tensor, Tensor]:
    """Advantages (B, T) and the mask of the loss (B, T), right-padded as the completions are; 0 where it failed."""
    whole, ids = out["advantages"], out["completion_ids"]
    words = torch.zeros(ids.shape, dtype=whole.dtype)
    judged = torch.ones(ids.shape[0], dtype=torch.long)
    for row, payment in enumerate(payments):
        if payment.words is None:
            judged[row] = 0
        else:
            words[row, : len(payment.words)] = torch.from_numpy(payment.words)
    mask = out.get("tool_mask", torch.ones_like(ids)) * judged.to(ids.device).unsqueeze(1)
    advantages = whole.unsqueeze(1) + weight * words.to(whole.device)
    return torch.where(mask.bool() & out["completion_mask"].bool(), advantages, 0), mask


def _example(prompt: Any, row: dict[str, Any]) -> Example:
    """A row of the data set as an example; of a plain prompt, the user's turn."""
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    known = {name: str(row.pop(name)) for name in ("id", "reference") if row.get(name) is not None}
    messages = tuple(Message(role=turn["role"], content=turn.get("content") or "") for turn in turns)
    return Example(prompt=messages, meta=row, **{"id": "-", **known})


def _listed(functions: Any) -> list[Any]:
    return [] if functions is None else functions if isinstance(functions, list) else [functions]


class TokenCreditTrainer(TokenCreditMixin, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` with credit for words."""
