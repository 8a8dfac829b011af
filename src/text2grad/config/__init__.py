"""One configuration for every stage. Importing it imports no torch.

`sections` are the settings, `loading` reads them from YAML and the command line, `reference` lists
and explains them.
"""

from text2grad.config.loading import (
    PRESETS,
    RECIPES,
    dump_config,
    find_config,
    laid_over,
    load_config,
    preset_names,
    recipe_names,
    with_tiny_rates,
)
from text2grad.config.reference import Setting, describe_settings, suggestion
from text2grad.config.sections import (
    TINY,
    AnnotateSettings,
    Config,
    CriticKind,
    CriticSettings,
    EvaluateSettings,
    RewardModelSettings,
    RunSettings,
)

__all__ = [
    "PRESETS",
    "RECIPES",
    "TINY",
    "AnnotateSettings",
    "Config",
    "CriticKind",
    "CriticSettings",
    "EvaluateSettings",
    "RewardModelSettings",
    "RunSettings",
    "Setting",
    "describe_settings",
    "dump_config",
    "find_config",
    "laid_over",
    "load_config",
    "preset_names",
    "recipe_names",
    "suggestion",
    "with_tiny_rates",
]
