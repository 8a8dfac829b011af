"""Where the repository, the data of the tests, and the shared data sets are."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" / "data"
"""Real public data that is not in the repository; what needs it is skipped where it is absent."""
