"""Engines that are not installed here, as if they were."""

from __future__ import annotations

import pytest


def version_of(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """As if the engine were installed in this version."""
    monkeypatch.setattr("text2grad.plugins.credit.version", lambda package: version)
