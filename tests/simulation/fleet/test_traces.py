"""Traces in FedScale's form: what a client's times mean, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.errors import CorruptDataError
from simulation.fleet.profile import read_profile
from simulation.fleet.traces import TracePresence, capacity_of, parse_behaviour, parse_speeds, read_behaviour
from simulation.fleet.windows import DAY_S, Coming

CLIENT = {"active": [10, 500], "inactive": [90, 900], "finish_time": 1000, "duration": 3, "model": "x"}


def data(**clients: Any) -> bytes:
    return json.dumps(clients).encode()


def test_a_client_is_there_from_active_to_inactive_and_again_after_its_period() -> None:
    coming = Coming(TracePresence(parse_behaviour(data(a=CLIENT)), 1, 0.0, 0), 2000.0)
    found = []
    while (start_s := coming.next_s()) < 2000:
        phone, end_s, is_offline = coming.take()
        found.append((phone, start_s, end_s, is_offline))
    assert found == [
        (0, 10, 90, False),
        (0, 500, 900, False),
        (0, 1010, 1090, False),
        (0, 1500, 1900, False),
    ]


def test_every_span_of_a_day_is_there_once() -> None:
    """Two clients of other periods, three phones: the third follows the first client."""
    other = {"active": [0], "inactive": [50], "finish_time": 700}
    presence = TracePresence(parse_behaviour(data(a=CLIENT, b=other)), 3, 0.0, 0)
    days = [presence.day(day) for day in (-1, 0, 1)]
    assert len(days[0]) == 0
    whole = days[1].merged(days[2])
    expected = {
        0: sorted(start + 1000 * k for start in (10, 500) for k in range(200) if start + 1000 * k < 2 * DAY_S),
        1: [700 * k for k in range(400) if 700 * k < 2 * DAY_S],
    }
    expected[2] = expected[0]
    for phone, starts in expected.items():
        assert sorted(whole.starts_s[whole.phones == phone].tolist()) == starts


def test_csv_says_the_same_as_json() -> None:
    csv = b"client,active,inactive,finish_time\na,10,90,1000\na,500,900,1000\n"
    one, two = parse_behaviour(csv), parse_behaviour(data(a=CLIENT))
    for name in ("clients", "starts_s", "ends_s", "periods_s"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    json_speeds = parse_speeds(data(a={"computation": 162.0, "communication": 5648.0}))
    csv_speeds = parse_speeds(b"client,computation,communication\na,162.0,5648.0\n")
    assert json_speeds.ms_per_image == csv_speeds.ms_per_image == [162.0]
    assert json_speeds.kbit_s == csv_speeds.kbit_s == [5648.0]


def test_the_median_client_is_as_fast_as_the_profiles_median_phone() -> None:
    profile = read_profile(None)
    clients = {str(ms): {"computation": ms, "communication": 8000.0} for ms in (50.0, 100.0, 400.0)}
    capacity = capacity_of(parse_speeds(data(**clients)), profile, 4)
    middle = next(tier.slowdown for tier in profile.tiers if tier.name == "middle")
    assert np.allclose(capacity.slowdown, [middle / 2, middle, 4 * middle, middle / 2])
    assert np.allclose(capacity.up_bytes_s, 8000 * 1024 / 8)
    assert capacity.tier_of.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "lacks the columns"),
        (b"{}", "no clients"),
        (b'{"a": 3}', "object of objects"),
        (b'{"a": {"active": 3, "inactive": [], "finish_time": 1000}}', "list of times"),
        (b'{"a": {"active": [1, 2], "inactive": [3], "finish_time": 1000}}', "2 active and 1 inactive"),
        (b'{"a": {"active": [1], "inactive": [3], "finish_time": 0}}', "60 or more"),
        (b'{"a": {"active": [NaN], "inactive": [3], "finish_time": 1000}}', "must be a number"),
        (b'{"a": {"active": [-1], "inactive": [3], "finish_time": 1000}}', "must be a number"),
        (b'{"a": {"active": [1], "inactive": [3]}}', "finish_time"),
        (b'{"a": {"active": [1' + b"0" * 400 + b'], "inactive": [3], "finish_time": 1000}}', "must be a number"),
        (b"{" * 100_000, "not valid JSON"),
        (b"client,active\n1,2\n", "lacks the columns inactive, finish_time"),
        (b"client,active,inactive,finish_time\na,1,2,1000\na,3,4,2000\n", "two values of finish_time"),
    ],
)
def test_a_damaged_trace_is_refused_with_what_is_wrong(text: bytes, what: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_behaviour(text, "trace.json")
    assert "trace.json" in caught.value.message
    assert what in caught.value.message


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_is_never_opened(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "client_behave_trace"
    path.write_bytes(pickle.dumps({"a": CLIENT}, protocol=protocol))
    with pytest.raises(CorruptDataError, match="pickle"):
        read_behaviour(path)
    with pytest.raises(CorruptDataError, match="pickle"):
        parse_speeds(path.read_bytes())


@pytest.mark.parametrize("rate", [0, 5e-324, 1e-50, 1e-30, 9e-4])
@pytest.mark.parametrize("name", ["computation", "communication"])
def test_rates_are_positive_and_some_phones(name: str, rate: float) -> None:
    with pytest.raises(CorruptDataError, match="not positive"):
        parse_speeds(
            data(a={"computation": 1, "communication": 1}, b={"computation": 1, "communication": 1, name: rate})
        )


def test_the_slowest_rates_that_are_taken_can_be_reckoned_with() -> None:
    clients = {
        f"{ms},{kbit}": {"computation": ms, "communication": kbit} for ms in (1e-3, 1e10) for kbit in (1e-3, 1e10)
    }
    capacity = capacity_of(parse_speeds(data(**clients)), read_profile(None), 8)
    for each in (capacity.slowdown, capacity.up_bytes_s, capacity.down_bytes_s):
        assert np.isfinite(each).all()
        assert (each > 0).all()
