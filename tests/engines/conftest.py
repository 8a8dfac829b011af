"""The engines themselves, each in an environment of its own (`make test-plugins`); what stands
beside them in the ordinary tests is shared."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BESIDE = ("tests/plugins", "benchmarks")
sys.path[:0] = [str(ROOT / folder) for folder in BESIDE]
