"""The fields of TRL's `GRPOConfig`: allowed, set by our settings, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from fnmatch import fnmatch
from typing import Any, NamedTuple

from text2grad.durable.run import CHECKPOINTS, RunOptions
from text2grad.engines.processes import process_arguments, refuse_failed_launch
from text2grad.errors import UsageError, UserError, first_line, suggestion
from text2grad.plugins.credit import require
from text2grad.policy.settings import GenerationSettings
from text2grad.train.optimizers import MAX_GRAD_NORM
from text2grad.train.passes import largest_divisor
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
"""Fields, or patterns of them, that our settings determine."""
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
"""The fields that our settings determine for SFT."""
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
"""Fields that would change the objective or break resuming, and have no setting."""


class PassShape(NamedTuple):
    """The rows of a pass and the passes of an optimizer step, for each process."""

    rows: int
    passes: int


def refuse_unfit(user_fields: Mapping[str, Any], settings: PPOSettings, generation: GenerationSettings) -> None:
    """Refuse settings that this engine does not support, and forbidden fields.

    Raises:
        UserError: names the first of them; or TRL is missing or of another version.
    """
    refuse_fields(user_fields)
    if settings.valued:
        cure = "use --ppo.advantage returns or group, or --engine local"
        raise UserError("TRL has no value function for ppo.advantage gae", cure)
    if settings.kl == "full":
        raise UserError("TRL keeps no logits for ppo.kl full", "use --ppo.kl k1, or --engine local")
    refuse_greedy(generation)


def refuse_fields(user_fields: Mapping[str, Any], set_by: Mapping[str, str] = SET_BY) -> None:
    """Refuse fields of `engine.trl` that are unknown, set elsewhere, or part of the objective.

    Raises:
        UsageError: names the first of them.
        UserError: TRL is missing or of another version, or the launcher started one process of
            several.
    """
    require("trl", TESTED, INSTALL)
    refuse_failed_launch()
    from trl import GRPOConfig

    config_fields = {field.name: field for field in fields(GRPOConfig)}
    for name, value in user_fields.items():
        key = f"engine.trl.{name}"
        if setting := next((ours for pattern, ours in set_by.items() if fnmatch(name, pattern)), None):
            raise UsageError(f"{key} is set by {setting}", "leave it out")
        if any(fnmatch(name, pattern) for pattern in OBJECTIVE):
            raise UsageError(f"{key} would change the objective, unlike the other engines", "leave it out")
        if name not in config_fields:
            refused = (*set_by, *OBJECTIVE)
            allowed = [field for field in config_fields if not any(fnmatch(field, pattern) for pattern in refused)]
            raise UsageError(f"{key} is not a field of TRL's GRPOConfig", suggestion(name, allowed))
        if isinstance(config_fields[name].default, bool) and not isinstance(value, bool):
            raise UsageError(f"{key} = {value!r}: expected true or false")


def plan_passes(settings: PPOSettings, processes: int) -> PassShape:
    """Divide a step into equal passes of at most `ppo.micro_batch_size` rows in each process.

    Raises:
        UserError: the rollouts cannot be divided evenly.
    """
    unit = processes * settings.mini_batches
    share, remainder = divmod(settings.rollouts, unit)
    if remainder or not share:
        problem = f"ppo.rollouts {settings.rollouts} is not a multiple of {unit}, processes x ppo.mini_batches"
        raise UserError(problem, f"--ppo.rollouts {max(unit, settings.rollouts // unit * unit)}")
    rows = largest_divisor(share, settings.micro_batch_size)
    return PassShape(rows, share // rows)


def make_args(
    user_fields: Mapping[str, Any],
    settings: PPOSettings,
    generation: GenerationSettings,
    shared: Mapping[str, Any],
) -> Any:
    """Return a `GRPOConfig` of our settings, the user's fields and `shared_fields`."""
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
        "beta": 0.0,  # the KL penalty is part of the rewards
        "temperature": generation.temperature,
        "max_completion_length": generation.max_new_tokens,
        "disable_dropout": True,  # makes the first ratio of each step exactly 1
    }
    # TRL's class requires groups of at least two, which an odd number of rollouts does not allow.
    even = {} if settings.rollouts % ours["num_generations"] == 0 else {"num_generations": settings.rollouts}
    args = make_config(GRPOConfig, user_fields, ours | even)
    args.num_generations = settings.samples_per_prompt
    return args


def make_sft_args(
    user_fields: Mapping[str, Any], settings: SFTSettings, steps: int, shared: Mapping[str, Any]
) -> Any:
    """Return an `SFTConfig` of our settings and the user's fields, without those of sampling."""
    from trl import SFTConfig

    ours: dict[str, Any] = {
        **shared,
        "learning_rate": settings.lr,
        "max_steps": steps,
        "remove_unused_columns": False,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},  # it is tokenised already
    }
    names = {field.name for field in fields(SFTConfig)}
    return make_config(SFTConfig, {name: value for name, value in user_fields.items() if name in names}, ours)


def shared_fields(options: RunOptions, shape: PassShape, device: Any) -> dict[str, Any]:
    """Return the fields of both trainers; `run` decides when to save."""
    return {
        "output_dir": str(options.folder / CHECKPOINTS),
        "seed": options.seed,
        "per_device_train_batch_size": shape.rows,
        "gradient_accumulation_steps": shape.passes,
        "max_grad_norm": MAX_GRAD_NORM,
        "save_strategy": "no",
        "report_to": "none",
        **process_arguments(device),
    }


def make_config(config: Any, user_fields: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """Return an instance of TRL's class with these fields.

    Raises:
        UsageError: the class refuses a value.
    """
    defaults: dict[str, Any] = {
        "bf16": False,  # True in TRL
        "gradient_checkpointing": False,  # True in TRL
        "logging_strategy": "no",
        "disable_tqdm": True,
        "save_total_limit": 2,
        "ddp_find_unused_parameters": False,  # every pass uses all trained weights
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # TRL itself sets deprecated fields
            return config(**{**defaults, **user_fields, **ours})
    except (ValueError, TypeError) as error:
        raise UsageError(f"engine.trl: {first_line(error)}", f"see TRL's {config.__name__}") from error
