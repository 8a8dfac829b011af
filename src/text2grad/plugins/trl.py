"""TRL's GRPO with credit for words: the group compares verdicts, and each token is paid what was said of it.

`TokenCreditTrainer(credit=TokenCredit(...), model=..., train_dataset=..., args=...)` is a `GRPOTrainer` in all
else: single answers, `tools`, `environment_factory`, `rollout_func` (whose `env_mask` says what the policy
sampled). Its advantages are (B, T), A_t = (verdict - mean of the group) / std + words_weight * words_t, and 0
at tokens of others.
"""

from __future__ import annotations

from typing import Any

from text2grad.align.rewards import Payment, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError, optional_packages
from text2grad.plugins.credit import FAILED, example_of, failed_share, require, words_of

with optional_packages():
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    from text2grad.rl.advantage import with_words

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
        require("trl", "1.16", "pip install 'text2grad[trl]'")  # its private methods are used
        self.credit, self.words_weight = credit, words_weight
        self._payments: list[Payment] = []
        more = kwargs.get("reward_funcs") or []
        kwargs["reward_funcs"] = [self.verdicts, *(more if isinstance(more, list) else [more])]
        super().__init__(**kwargs)
        args = self.args  # type: ignore[attr-defined]
        if args.loss_type in WHOLE_SEQUENCES or args.importance_sampling_level != "token":
            found = f"loss_type {args.loss_type}, importance_sampling_level {args.importance_sampling_level}"
            raise UserError(f"{found}: a loss of whole sequences has no credit for tokens", TOKEN_LOSSES)

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
        examples = [example_of(each, {name: rows[name][at] for name in rows}) for at, each in enumerate(prompts)]
        batch = [Trajectory(*each) for each in zip(examples, completion_ids, own_mask, strict=True)]
        self._payments = self.credit.of(batch)
        log_metric(FAILED, failed_share(self._payments))
        return [each.verdict for each in self._payments]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        ids, whole = out["completion_ids"], out["advantages"]
        words, judged = (each.to(whole.device) for each in words_of(self._payments, ids.shape[1]))
        out["tool_mask"] = out.get("tool_mask", torch.ones_like(ids)) * judged.view(-1, 1)
        learned = out["completion_mask"] * out["tool_mask"]
        out["advantages"] = with_words(whole.view(-1, 1), words, learned.bool(), self.words_weight)
        # What failed counts in no denominator either.
        out["num_items_in_batch"] = self.accelerator.gather(learned.sum()).sum()  # type: ignore[attr-defined]
        return out


class TokenCreditTrainer(TokenCreditMixin, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` with credit for words."""
