"""The configuration of all stages. Imports no torch.

`sections` declares the settings, `loading` reads them from YAML and the command line, `reference`
lists and explains them.
"""

from text2grad.config.loading import PRESETS as PRESETS
from text2grad.config.loading import dump_config as dump_config
from text2grad.config.loading import extra_settings as extra_settings
from text2grad.config.loading import find_config as find_config
from text2grad.config.loading import is_recipe as is_recipe
from text2grad.config.loading import load_config as load_config
from text2grad.config.loading import preset_names as preset_names
from text2grad.config.loading import preset_settings as preset_settings
from text2grad.config.loading import recipe_names as recipe_names
from text2grad.config.loading import with_recipe as with_recipe
from text2grad.config.reference import Setting as Setting
from text2grad.config.reference import describe_settings as describe_settings
from text2grad.config.sections import TINY as TINY
from text2grad.config.sections import Config as Config
from text2grad.config.sections import CriticKind as CriticKind
from text2grad.config.sections import RewardModelSettings as RewardModelSettings
