"""The Python that docs/plugins.md shows; the tests of each plug-in run its own."""

from __future__ import annotations

import re

from places import ROOT


def shown_on_page(name: str) -> str:
    """The one block that imports `name`."""
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (found,) = [block for block in blocks if f"from text2grad.{name} import" in block]
    assert isinstance(found, str)
    return found
