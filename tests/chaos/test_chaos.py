"""Chaos at small scale: every kind of fault at once, on the embedded stores and on real servers."""

from __future__ import annotations

import pytest

from tests.chaos import scenarios
from tests.chaos.engine import Result

pytestmark = pytest.mark.timeout(900)
SEED = 1
ON_SERVERS = ("replicas", "servers", "small-servers")


def check(result: Result) -> None:
    """Nothing was lost, wrong or stuck, and the scenario was none of peace."""
    assert result.holds, (result.replay, result.lost, result.wrong, result.stuck)
    assert result.acknowledged > 0
    assert all(result.rounds_closed[task] >= 2 for task in ("plain", "masked", "waves"))


@pytest.mark.slow
def test_everything_at_once_loses_nothing() -> None:
    """Kills at any time, in calls and in writes, a broken network, disk and clock, dying devices and registrar."""
    check(scenarios.play_here(scenarios.SMALL, SEED))


@pytest.mark.slow
def test_database_and_object_store_that_come_and_go_lose_nothing() -> None:
    """The same account when PostgreSQL crashes and the bucket cannot be reached, while coordinators are killed."""
    if reason := scenarios.missing(scenarios.SMALL_SERVERS):
        pytest.skip(reason)
    check(scenarios.play_here(scenarios.SMALL_SERVERS, SEED))


@pytest.mark.parametrize("name", sorted(scenarios.ALL))
def test_every_scenario_has_the_servers_that_it_runs_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not installed it says so before it begins."""
    monkeypatch.setattr(scenarios.postgres, "missing", lambda: "no database")
    monkeypatch.setattr(scenarios.s3, "missing", lambda: "no bucket")
    assert scenarios.missing(scenarios.ALL[name]) == ("no database" if name in ON_SERVERS else "")
