"""The configuration of all stages. Imports no torch.

`sections` declares the settings, `loading` reads them from YAML and the command line, `reference`
lists and explains them.
"""

from text2grad.config.loading import (
    PRESETS,
    dump_config,
    extra_settings,
    find_config,
    is_recipe,
    load_config,
    preset_names,
    preset_settings,
    recipe_names,
    with_recipe,
)
from text2grad.config.reference import Setting, describe_settings
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
    "load_config",
    "preset_names",
    "preset_settings",
    "recipe_names",
    "with_recipe",
]
