"""The fields of TRL's `GRPOConfig`: what a user may pass on, what our settings say, and what is
refused."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from dataclasses import fields
from fnmatch import fnmatch
from typing import Any, NamedTuple

from text2grad.durable.run import CHECKPOINTS, RunOptions
from text2grad.engines.processes import how_of, refuse_lost_launch
from text2grad.errors import UsageError, UserError, first_line
from text2grad.plugins.credit import require
from text2grad.policy.settings import GenerationSettings
from text2grad.train.optimizers import MAX_GRAD_NORM
from text2grad.train.ppo_settings import PPOSettings, refuse_greedy
from text2grad.train.settings import SFTSettings

TESTED, INSTALL = "1.16", "pip install 'text2grad[trl]'"

SET_BY = {
    "learning_rate": "ppo.lr",
    "lr_scheduler_*": "ppo.schedule",
    "warmup_*": "ppo.schedule",
    "max_steps": "ppo.steps",
    "num_train_epochs": "ppo.steps",
    "num_iterations": "ppo.epochs",
    "num_generations*": "ppo.samples_per_prompt",
    "per_device_train_batch_size": "ppo.micro_batch_size",
    "gradient_accumulation_steps": "ppo.mini_batches",
    "steps_per_generation": "ppo.rollouts",
    "generation_batch_size": "ppo.rollouts",
    "auto_find_batch_size": "ppo.micro_batch_size",
    "beta": "ppo.kl_coefficient",
    "use_bias_correction_kl": "ppo.kl",
    "epsilon*": "ppo.clip_high",
    "scale_rewards": "ppo.normalisation",
    "mask_truncated_completions": "ppo.mask_truncated",
    "temperature": "generation.temperature",
    "max_completion_length": "generation.max_new_tokens",
    "seed": "run.seed",
    "data_seed": "run.seed",
    "output_dir": "run.folder",
    "resume_from_checkpoint": "--restart and --force",
    "report_to": "run.loggers",
    "log_completions*": "run.loggers",
    "eval_*": "ppo.heldout_every",
    "do_*": "ppo.heldout_every",
    "model_init_kwargs": "policy.model, policy.dtype",
    "trust_remote_code": "policy.model",
    "chat_template_kwargs": "policy.chat_template",
    "use_cpu": "policy.device",
    "ddp_backend": "policy.device",
}
"""Fields, or families of them, that a setting of ours says."""
SFT_SET_BY = SET_BY | {
    "learning_rate": "sft.lr",
    "lr_scheduler_*": "training.schedule",
    "warmup_*": "training.warmup",
    "max_steps": "sft.epochs",
    "num_train_epochs": "sft.epochs",
    "per_device_train_batch_size": "sft.micro_batch_size",
    "auto_find_batch_size": "sft.micro_batch_size",
    "gradient_accumulation_steps": "sft.batch_size",
    "weight_decay": "training.weight_decay",
    "optim*": "sft.optimizer",
}
"""The same for SFT."""
OBJECTIVE = (
    *("loss_type", "importance_sampling_level", "delta", "sapo_*", "vespo_*", "off_policy_mask_threshold"),
    *("top_entropy_quantile", "entropy_*", "use_adaptive_entropy", "router_aux_loss_coef"),
    *("reward_weights", "multi_objective_aggregation", "sync_ref_model", "ref_model_*"),
    *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "vllm_structured_outputs_regex"),
    *("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap"),
    *("optim*", "weight_decay", "adam_*", "max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha"),
    *("disable_dropout", "shuffle_dataset", "train_sampling_strategy", "ignore_data_skip", "save_only_model"),
    *("load_best_model_at_end", "save_strategy", "save_steps", "remove_unused_columns", "use_transformers_paged"),
)
"""Fields of the objective, and of what keeps a run the same, for which there is no setting."""


class Shape(NamedTuple):
    """The rows of a pass, and the passes for an optimizer step, of each process."""

    rows: int
    passes: int


def refuse_unfit(given: Mapping[str, Any], settings: PPOSettings, generation: GenerationSettings) -> None:
    """Refuse settings that only another engine has, and fields that may not be passed on.

    Raises:
        UserError: one of them, with the engine that has it; or TRL is not installed, or of another
            version.
    """
    refuse_fields(given)
    if settings.valued:
        raise UserError("TRL has no value function for ppo.advantage gae", "returns or group, or --engine local")
    if settings.kl == "full":
        raise UserError("TRL keeps no logits for ppo.kl full", "--ppo.kl k1, or --engine local")
    refuse_greedy(generation)


def refuse_fields(given: Mapping[str, Any], set_by: Mapping[str, str] = SET_BY) -> None:
    """Refuse fields of `engine.trl` that are unknown, set elsewhere, or part of the objective.

    Raises:
        UsageError: the first of them.
        UserError: TRL is not installed, or of another version, or the launcher started one process
            of several.
    """
    require("trl", TESTED, INSTALL)
    refuse_lost_launch()
    from trl import GRPOConfig

    known = {field.name: field for field in fields(GRPOConfig)}
    for name, value in given.items():
        key = f"engine.trl.{name}"
        if setting := next((ours for pattern, ours in set_by.items() if fnmatch(name, pattern)), None):
            raise UsageError(f"{key} is set by {setting}", "leave it out")
        if any(fnmatch(name, pattern) for pattern in OBJECTIVE):
            raise UsageError(f"{key} would train something else than the other engines do", "leave it out")
        if name not in known:
            refused = (*set_by, *OBJECTIVE)
            allowed = [field for field in known if not any(fnmatch(field, pattern) for pattern in refused)]
            near = difflib.get_close_matches(name, allowed, n=1)
            raise UsageError(f"{key} is no field of TRL's GRPOConfig", f"did you mean {near[0]!r}?" if near else "")
        if isinstance(known[name].default, bool) and not isinstance(value, bool):
            raise UsageError(f"{key} = {value!r}: expected true or false")


def shape_of(settings: PPOSettings, processes: int) -> Shape:
    """Return how a step is cut: every pass of every process has as many rows, at most
    `ppo.micro_batch_size`.

    Raises:
        UserError: the rollouts cannot be shared evenly.
    """
    share, left = divmod(settings.rollouts, processes * settings.mini_batches)
    if left or not share:
        unit = processes * settings.mini_batches
        problem = f"ppo.rollouts {settings.rollouts} is no multiple of {unit}, the processes x ppo.mini_batches"
        raise UserError(problem, f"--ppo.rollouts {max(unit, settings.rollouts // unit * unit)}")
    rows = next(size for size in range(min(share, settings.micro_batch_size), 0, -1) if share % size == 0)
    return Shape(rows, share // rows)


def make_args(
    given: Mapping[str, Any],
    settings: PPOSettings,
    generation: GenerationSettings,
    shared: Mapping[str, Any],
) -> Any:
    """Return a `GRPOConfig` of our settings and the given fields; `shared` are `shared_fields`.

    Raises:
        UsageError: TRL's own class refuses a value.
    """
    from trl import GRPOConfig

    ours: dict[str, Any] = {
        **shared,
        "learning_rate": settings.lr,
        "lr_scheduler_type": settings.schedule,
        "max_steps": settings.steps * settings.epochs * settings.mini_batches,
        "num_iterations": settings.epochs,
        "num_generations": max(2, settings.samples_per_prompt),
        "generation_batch_size": settings.rollouts,
        "weight_decay": 0.0,
        "beta": 0.0,  # our KL is in the rewards
        "temperature": generation.temperature,
        "max_completion_length": generation.max_new_tokens,
        "disable_dropout": True,  # the first ratio of every step is exactly 1
    }
    # An odd number of rollouts is no group of two, which is the least that TRL's class takes.
    even = {} if settings.rollouts % ours["num_generations"] == 0 else {"num_generations": settings.rollouts}
    args = checked(GRPOConfig, given, ours | even)
    args.num_generations = settings.samples_per_prompt
    return args


def make_sft_args(given: Mapping[str, Any], settings: SFTSettings, steps: int, shared: Mapping[str, Any]) -> Any:
    """Return an `SFTConfig` of our settings and the given fields, without the fields of sampling.

    Raises:
        UsageError: TRL's own class refuses a value.
    """
    from trl import SFTConfig

    ours: dict[str, Any] = {
        **shared,
        "learning_rate": settings.lr,
        "max_steps": steps,
        "remove_unused_columns": False,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},  # it is tokenized
    }
    known = {field.name for field in fields(SFTConfig)}
    return checked(SFTConfig, {name: value for name, value in given.items() if name in known}, ours)


def shared_fields(options: RunOptions, shape: Shape, device: Any) -> dict[str, Any]:
    """Return the fields that both trainers have; `run` decides when to save."""
    return {
        "output_dir": str(options.folder / CHECKPOINTS),
        "seed": options.seed,
        "per_device_train_batch_size": shape.rows,
        "gradient_accumulation_steps": shape.passes,
        "max_grad_norm": MAX_GRAD_NORM,
        "save_strategy": "no",
        "report_to": "none",
        **how_of(device),
    }


def checked(config: Any, given: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """Return TRL's class with these fields.

    Raises:
        UsageError: it refuses a value.
    """
    defaults: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False}  # in TRL they are True
    defaults |= {"logging_strategy": "no", "disable_tqdm": True, "save_total_limit": 2}
    defaults |= {"ddp_find_unused_parameters": False}  # all that is trained is read in every pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of old names that TRL itself still sets
            return config(**{**defaults, **given, **ours})
    except (ValueError, TypeError) as error:
        raise UsageError(f"engine.trl: {first_line(error)}", f"see TRL's {config.__name__}") from error
