"""The engines themselves, each in an environment of its own (`make test-plugins`); what stands beside them in the
ordinary tests is shared."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
