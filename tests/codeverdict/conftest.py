"""What the tests of the sandbox share: the tiers that work here, and a runner in the best of
them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codeverdict import Runner, Tier, probe_tiers


@pytest.fixture(scope="module", params=["best", pytest.param("landlock", marks=pytest.mark.nightly)])
def tier(request: pytest.FixtureRequest) -> Tier:
    """The best tier that works here; nightly the second one as well."""
    return working(request.param) if request.param != "best" else best_tier()


def best_tier() -> Tier:
    """Return the best tier that works here; without any the test is skipped."""
    probes = probe_tiers(1024, ("namespaces", "landlock"))
    tiers: list[Tier] = [probe.tier for probe in probes if probe.works]
    if not tiers:
        pytest.skip("; ".join(f"{probe.tier}: {probe.reason}" for probe in probes))
    return tiers[0]


def working(tier: Tier) -> Tier:
    """A tier, if it works here; else the test is skipped."""
    [probe] = probe_tiers(1024, (tier,))
    if not probe.works:
        pytest.skip(f"{tier}: {probe.reason}")
    return tier


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """A patient one, in the best tier that works here."""
    with Runner(seconds=10.0) as made:
        yield made
