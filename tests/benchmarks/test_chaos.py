"""The benchmarks of chaos and soak: counts are added up, and what does not hold ends with exit code 1."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import chaos, soak
from tests.chaos import scenarios
from tests.chaos.engine import Result

HELD = Result(
    scenario="quick",
    seed=7,
    kills=3,
    lost=[],
    wrong=[],
    stuck=[],
    seconds=1.5,
    rounds_closed={"plain": 2, "masked": 1},
    rounds_aborted={"plain": 1},
    acknowledged=9,
    killed_at={"plain upload": 2, "masked keys": 1},
    killed_how={"in a write": 3},
    injected={"cut": 1},
    reasons={},
)


def played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: list[Result]
) -> tuple[int, str]:
    """Return exit code and last line of a run whose scenarios show these results."""
    left = iter(results)
    monkeypatch.setattr(scenarios, "play_here", lambda *_args, **_options: next(left))
    monkeypatch.setattr(scenarios, "FULL", {str(number): scenarios.QUICK for number in range(len(results))})
    monkeypatch.setattr(sys, "argv", ["chaos", "--json", "--seed", "7"])
    with pytest.raises(SystemExit) as ended:
        chaos.main()
    return int(ended.value.code or 0), capsys.readouterr().out.splitlines()[-1]


def test_counts_are_added_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = played(monkeypatch, capsys, [HELD, replace(HELD, kills=4, killed_at={"plain upload": 4})])
    found = json.loads(line)
    assert code == 0
    assert {name: found[name] for name in ("kills", "lost", "wrong", "stuck", "acknowledged")} == {
        "kills": 7, "lost": 0, "wrong": 0, "stuck": 0, "acknowledged": 18,
    }  # fmt: skip
    assert found["killed_at"] == {"plain upload": 6, "masked keys": 1}
    assert HELD.replay == "python -m benchmarks.chaos --scenario quick --seed 7"


@pytest.mark.parametrize("name", ["lost", "wrong", "stuck"])
def test_what_does_not_hold_is_counted_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, line = played(monkeypatch, capsys, [HELD, replace(HELD, **{name: ["one", "another"]})])
    assert code == 1
    assert json.loads(line)[name] == 2


def test_an_unknown_scenario_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", "--scenario", "sunshine"])
    with pytest.raises(SystemExit) as ended:
        chaos.main()
    assert ended.value.code not in (0, 1)
    assert "there is no scenario 'sunshine'" in capsys.readouterr().err


def test_a_soak_holds_while_nothing_grows_or_is_left() -> None:
    flat = {
        "left_in_spool": 0,
        "surplus_models": 0,
        "surplus_states": 0,
        "quick": False,
        **dict.fromkeys(soak.AIMS, 0.0),
    }
    assert soak.holds(flat)
    assert not soak.holds({**flat, "left_in_spool": 1})
    assert not soak.holds({**flat, "rss_growth_mb_per_1000": soak.AIMS["rss_growth_mb_per_1000"] + 0.1})
    assert soak.holds({**flat, "quick": True, "rss_growth_mb_per_1000": 50.0})
