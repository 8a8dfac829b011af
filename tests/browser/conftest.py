"""Chromium for the tests of the pages; where there is none they are skipped, and the reason says
what brings it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser_pages import chromium, fresh_tab, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := missing():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A page of a context of its own; an error in its scripts fails the test."""
    page = fresh_tab(browser, viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.context.close()
    assert errors == []
