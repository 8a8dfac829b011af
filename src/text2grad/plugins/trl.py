"""Add credit for words to TRL's GRPO: verdicts are compared in groups, words pay their tokens.

`TokenCreditTrainer(credit=TokenCredit(...), model=..., train_dataset=..., args=...)` is a
`GRPOTrainer` otherwise, with single answers, `tools`, `environment_factory` and `rollout_func`
(whose `env_mask` marks the ids that the policy sampled). Its advantages are (B, T):
A_t = (verdict - mean of the group) / std + words_weight * words_t, and 0 at tokens of tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError, optional_packages
from text2grad.feedback import Message
from text2grad.plugins.credit import (
    credit_metrics,
    make_example,
    pad_word_rewards,
    read_messages,
    refuse_not_finite,
    require,
)

with optional_packages():
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    from text2grad.rl.advantage import EPSILON

TOKEN_LOSSES = "importance_sampling_level='token', loss_type 'dapo', 'grpo', 'dr_grpo', 'bnpo', 'cispo' or 'sapo'"
WHOLE_SEQUENCES = ("luspo", "vespo")
"""Losses that weigh whole sequences, which would spread the credit of a token over all tokens."""
MEANS_OF_ROWS = ("grpo", "sapo", "dr_grpo")
"""Losses divided by the number of trajectories; the others are divided by that of tokens."""


class TokenCreditMixin:
    """A base class to put before `GRPOTrainer` or a subclass of it.

    The verdict is the first reward function; others may be added. A row's `id`, `reference` and
    other columns reach the critic as its `Example`. A trajectory whose critique failed is left out
    of the loss and of its group's baseline, and counted as `text2grad/failed`. TRL's entropy bonus,
    if it is on, is also a mean over the judged trajectories.

    Args:
        words_weight: factor on word rewards; 0 is GRPO on the verdicts.

    Raises:
        UserError: the loss weighs whole sequences, `credit` has another tokenizer, `words_weight`
            is not finite, the number of reward weights is wrong, or TRL is of another version.
    """

    def __init__(self, model: Any, *, credit: TokenCredit, words_weight: float = 1.0, **kwargs: Any) -> None:
        require("trl", "1.16", "pip install 'text2grad[trl]'")  # the plug-in overrides private methods
        if not isinstance(credit, TokenCredit):
            raise UserError(
                f"credit is a {type(credit).__name__}, not a TokenCredit", "credit=TokenCredit(critic, tokenizer)"
            )
        refuse_not_finite(words_weight=words_weight)
        self.credit, self.words_weight = credit, words_weight
        self._outcomes: list[ScoredTrajectory] = []
        more = kwargs.get("reward_funcs") or []
        kwargs["reward_funcs"] = [self.verdicts, *(more if isinstance(more, Sequence) else [more])]
        _refuse_weights(kwargs.get("args"), len(kwargs["reward_funcs"]))
        super().__init__(model, **kwargs)  # type: ignore[call-arg]
        args = self.args  # type: ignore[attr-defined]
        if args.loss_type in WHOLE_SEQUENCES or args.importance_sampling_level != "token":
            loss = f"loss_type {args.loss_type}, importance_sampling_level {args.importance_sampling_level}"
            raise UserError(f"{loss}: a loss of whole sequences has no credit for tokens", TOKEN_LOSSES)
        processing = self.processing_class  # type: ignore[attr-defined]
        if not credit.table.matches(getattr(processing, "tokenizer", processing)):
            raise UserError(
                "the tokenizer of credit is not the trainer's", "TokenCredit(critic, trainer's processing_class)"
            )
        if credit.output_size is None:
            credit.output_size = self.model.config.get_text_config().vocab_size  # type: ignore[attr-defined]

    def _generate(self, prompts: list[Any]) -> Any:
        """Generate as TRL does, and pass the mask of sampled ids to the reward functions."""
        out = super()._generate(prompts)  # type: ignore[misc]
        completion_ids, tool_mask, extra_fields = out[1], out[2], out[5]
        extra_fields["sampled_mask"] = tool_mask or [[1] * len(ids) for ids in completion_ids]
        return out

    def verdicts(
        self,
        prompts: Any,
        completions: Any,
        completion_ids: Any,
        sampled_mask: Any,
        log_metric: Any,
        log_extra: Any,
        **columns: Any,
    ) -> list[float | None]:
        """Return one verdict for each trajectory, None without one; the first reward function."""
        rows = {name: values for name, values in columns.items() if isinstance(values, list)}
        examples = [
            make_example(prompt, {name: rows[name][at] for name in rows}) for at, prompt in enumerate(prompts)
        ]
        between = map(messages_between, completions, sampled_mask)
        batch = [Trajectory(*item) for item in zip(examples, completion_ids, sampled_mask, between, strict=True)]
        self._outcomes = self.credit.score_batch(batch)
        for name, value in credit_metrics(self._outcomes).items():
            log_metric(name, value)
        words = [outcome.word_rewards for outcome in self._outcomes]
        log_extra("words", [None if rewards is None else rewards.tolist() for rewards in words])
        return [outcome.score for outcome in self._outcomes]

    def _calculate_rewards(self, *args: Any) -> Any:
        """Return TRL's rewards (B of all processes, functions), NaN where the critique failed."""
        rewards = super()._calculate_rewards(*args)  # type: ignore[misc]
        failed = torch.tensor([outcome.failed for outcome in self._outcomes], device=rewards.device)
        rewards[self.accelerator.gather(failed)] = torch.nan  # type: ignore[attr-defined]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        ids, outcome = out["completion_ids"], out["advantages"]  # (B, T) and (B,)
        words, is_judged = (column.to(outcome.device) for column in pad_word_rewards(self._outcomes, ids.shape[1]))
        out["tool_mask"] = out.get("tool_mask", torch.ones_like(ids)) * is_judged.view(-1, 1)
        loss_mask = out["completion_mask"] * out["tool_mask"]  # (B, T)
        out["advantages"] = torch.where(loss_mask.bool(), outcome.view(-1, 1) + self.words_weight * words, 0)
        # Failed trajectories must not count in the denominators: of tokens here, of trajectories in
        # `_compute_loss`.
        gather = self.accelerator.gather  # type: ignore[attr-defined]
        out["num_items_in_batch"] = gather(loss_mask.sum()).sum()
        out["judged_share"] = gather(is_judged.float()).mean()
        return out

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return TRL's loss; means over trajectories are over the judged ones."""
        loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        if self.args.loss_type in MEANS_OF_ROWS:  # type: ignore[attr-defined]
            return loss / inputs["judged_share"].clamp(min=EPSILON)
        return loss


def _refuse_weights(args: Any, count: int) -> None:
    """Refuse a wrong number of reward weights; the first is that of the verdict."""
    weights = getattr(args, "reward_weights", None)
    if weights is not None and len(weights) != count:
        raise UserError(
            f"reward_weights has {len(weights)} entries for {count} rewards",
            "the first is the verdict's: reward_weights=[1.0, ...]",
        )


def messages_between(completion: Any, mask: Sequence[int]) -> list[list[Message]] | None:
    """Return the messages of tools and users before each turn and after the last.

    None if TRL has no messages (a `rollout_func` returns only ids); they are then decoded from ids.
    """
    between: list[list[Message]] = [[]]
    for message in completion if not isinstance(completion, str) else ():
        if message["role"] == "assistant":
            between.append([])
        else:
            between[-1] += read_messages([message])
    turns = sum(sampled for sampled, _ in groupby(map(bool, mask)))
    return between if len(between) == turns + 1 else None


class TokenCreditTrainer(TokenCreditMixin, GRPOTrainer):  # type: ignore[misc]
    """A `GRPOTrainer` with credit for words."""
