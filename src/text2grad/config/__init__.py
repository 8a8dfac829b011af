"""One configuration for every stage. Importing it imports no torch.

`sections` are the settings, `loading` reads them from YAML and the command line, `reference` lists
and explains them.
"""

from text2grad.config.loading import (
    PRESETS,
    dump_config,
    extra_settings,
    find_config,
    is_recipe,
    laid_over,
    load_config,
    preset_names,
    recipe_names,
)
from text2grad.config.reference import Setting, describe_settings, suggestion
from text2grad.config.sections import TINY, Config, CriticKind, RewardModelSettings

__all__ = [
    "PRESETS",
    "TINY",
    "Config",
    "CriticKind",
    "RewardModelSettings",
    "Setting",
    "describe_settings",
    "dump_config",
    "extra_settings",
    "find_config",
    "is_recipe",
    "laid_over",
    "load_config",
    "preset_names",
    "recipe_names",
    "suggestion",
]
