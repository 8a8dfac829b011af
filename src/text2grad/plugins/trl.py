"""TRL's GRPO with credit for words: the group compares verdicts, and each token is paid what was
said of it.

`TokenCreditTrainer(credit=TokenCredit(...), model=..., train_dataset=..., args=...)` is a
`GRPOTrainer` in all else: single answers, `tools`, `environment_factory`, `rollout_func` (whose
`env_mask` says what the policy sampled). Its advantages are (B, T), A_t = (verdict - mean of the
group) / std + words_weight * words_t, and 0 at tokens of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError, optional_packages
from text2grad.feedback import Message
from text2grad.plugins.credit import example_of, metrics_of, read_messages, refuse_weight, require, words_of

with optional_packages():
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    from text2grad.rl.advantage import EPSILON

TOKEN_LOSSES = "importance_sampling_level='token', loss_type 'dapo', 'grpo', 'dr_grpo', 'bnpo', 'cispo' or 'sapo'"
WHOLE_SEQUENCES = ("luspo", "vespo")
"""Losses that weigh a sequence as a whole: they would smear one token's credit over all."""
MEANS_OF_ROWS = ("grpo", "sapo", "dr_grpo")
"""Losses that are divided by the number of trajectories; the others by the number of tokens."""


class TokenCreditMixin:
    """Beside `GRPOTrainer` or a class made of it; the first reward function is `credit`, others may
    be added.

    A row's `id`, `reference` and other columns reach the critic as its `Example`. A trajectory
    whose critique failed is left out of the loss and of its group's baseline, and counted as
    `text2grad/failed`. `words_weight` 0 is GRPO on the verdicts. The entropy bonus of TRL, if it is
    on, is a mean over the judged trajectories too.

    Raises:
        UserError: the loss is of whole sequences, `credit` is of another tokenizer, `words_weight`
            is not finite, the weights of the rewards do not fit, or TRL is of another version.
    """

    def __init__(self, model: Any, *, credit: TokenCredit, words_weight: float = 1.0, **kwargs: Any) -> None:
        require("trl", "1.16", "pip install 'text2grad[trl]'")  # its private methods are used
        if not isinstance(credit, TokenCredit):
            raise UserError(
                f"credit is a {type(credit).__name__}, not a TokenCredit", "credit=TokenCredit(critic, tokenizer)"
            )
        refuse_weight("words_weight", words_weight)
        self.credit, self.words_weight = credit, words_weight
        self._outcomes: list[ScoredTrajectory] = []
        more = kwargs.get("reward_funcs") or []
        kwargs["reward_funcs"] = [self.verdicts, *(more if isinstance(more, Sequence) else [more])]
        _refuse_weights(kwargs.get("args"), len(kwargs["reward_funcs"]))
        super().__init__(model, **kwargs)  # type: ignore[call-arg]
        args = self.args  # type: ignore[attr-defined]
        if args.loss_type in WHOLE_SEQUENCES or args.importance_sampling_level != "token":
            found = f"loss_type {args.loss_type}, importance_sampling_level {args.importance_sampling_level}"
            raise UserError(f"{found}: a loss of whole sequences has no credit for tokens", TOKEN_LOSSES)
        processing = self.processing_class  # type: ignore[attr-defined]
        if not credit.table.matches(getattr(processing, "tokenizer", processing)):
            raise UserError(
                "the tokenizer of credit is not the trainer's", "TokenCredit(critic, trainer's processing_class)"
            )
        if credit.output_size is None:
            credit.output_size = self.model.config.get_text_config().vocab_size  # type: ignore[attr-defined]

    def _generate(self, prompts: list[Any]) -> Any:
        """As TRL's; reward functions are told what the policy sampled, too."""
        out = super()._generate(prompts)  # type: ignore[misc]
        completion_ids, tool_mask, extra_fields = out[1], out[2], out[5]
        extra_fields["own_mask"] = tool_mask or [[1] * len(ids) for ids in completion_ids]
        return out

    def verdicts(
        self,
        prompts: Any,
        completions: Any,
        completion_ids: Any,
        own_mask: Any,
        log_metric: Any,
        log_extra: Any,
        **columns: Any,
    ) -> list[float | None]:
        """The reward function: one verdict for each trajectory, None where there is none."""
        rows = {name: values for name, values in columns.items() if isinstance(values, list)}
        examples = [example_of(each, {name: rows[name][at] for name in rows}) for at, each in enumerate(prompts)]
        between = map(messages_between, completions, own_mask)
        batch = [Trajectory(*each) for each in zip(examples, completion_ids, own_mask, between, strict=True)]
        self._outcomes = self.credit.score_batch(batch)
        for name, value in metrics_of(self._outcomes).items():
            log_metric(name, value)
        words = [each.word_rewards for each in self._outcomes]
        log_extra("words", [None if each is None else each.tolist() for each in words])
        return [each.score for each in self._outcomes]

    def _calculate_rewards(self, *args: Any) -> Any:
        """As TRL's, (B of all processes, functions): a failed critique leaves no reward, whatever
        else paid."""
        rewards = super()._calculate_rewards(*args)  # type: ignore[misc]
        failed = torch.tensor([outcome.failed for outcome in self._outcomes], device=rewards.device)
        rewards[self.accelerator.gather(failed)] = torch.nan  # type: ignore[attr-defined]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        ids, whole = out["completion_ids"], out["advantages"]
        words, judged = (each.to(whole.device) for each in words_of(self._outcomes, ids.shape[1]))
        out["tool_mask"] = out.get("tool_mask", torch.ones_like(ids)) * judged.view(-1, 1)
        learned = out["completion_mask"] * out["tool_mask"]
        out["advantages"] = torch.where(learned.bool(), whole.view(-1, 1) + self.words_weight * words, 0)
        # What failed counts in no denominator either: of tokens here, of trajectories in
        # `_compute_loss`.
        gather = self.accelerator.gather  # type: ignore[attr-defined]
        out["num_items_in_batch"] = gather(learned.sum()).sum()
        out["judged_share"] = gather(judged.float()).mean()
        return out

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """As TRL's; means over trajectories are over the judged ones."""
        loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        of_rows = self.args.loss_type in MEANS_OF_ROWS  # type: ignore[attr-defined]
        return loss / inputs["judged_share"].clamp(min=EPSILON) if of_rows else loss


def _refuse_weights(args: Any, count: int) -> None:
    """Refuse weights of rewards that do not begin with the verdict's."""
    weights = getattr(args, "reward_weights", None)
    if weights is not None and len(weights) != count:
        raise UserError(
            f"reward_weights has {len(weights)} entries for {count} rewards",
            "the first is the verdict's: reward_weights=[1.0, ...]",
        )


def messages_between(completion: Any, mask: Sequence[int]) -> list[list[Message]] | None:
    """The messages of others before each turn and after the last, where TRL holds them as messages.

    None where it does not (a `rollout_func` returns ids alone): they are then read off the ids.
    """
    between: list[list[Message]] = [[]]
    for message in completion if not isinstance(completion, str) else ():
        if message["role"] == "assistant":
            between.append([])
        else:
            between[-1] += read_messages([message])
    turns = sum(own for own, _ in groupby(map(bool, mask)))
    return between if len(between) == turns + 1 else None


class TokenCreditTrainer(TokenCreditMixin, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` with credit for words."""
