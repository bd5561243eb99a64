"""Traces in FedScale's form: what a client's times mean, and what is refused."""

from __future__ import annotations

import codecs
import json
import math
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mien.errors import ConfigError, CorruptDataError
from simulation.fleet import traces
from simulation.fleet.profile import read_profile
from simulation.fleet.traces import TracePresence, capacity_of, parse_behaviour, parse_speeds, read_behaviour
from simulation.fleet.windows import DAY_S, Coming
from simulation.program.cli import app

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


@pytest.mark.parametrize(
    ("parse", "whole"),
    [
        (parse_behaviour, data(a=CLIENT)),
        (parse_behaviour, b"client,active,inactive,finish_time\na,10,90,1000\n"),
        (parse_speeds, data(a={"computation": 162.0, "communication": 5648.0})),
        (parse_speeds, b"client,computation,communication\na,162.0,5648.0\n"),
    ],
)
def test_a_byte_order_mark_changes_nothing(parse: Callable[[bytes], Any], whole: bytes) -> None:
    one, two = parse(whole), parse(codecs.BOM_UTF8 + whole)
    assert vars(one).keys() == vars(two).keys()
    for name, values in vars(one).items():
        assert np.array_equal(values, getattr(two, name))


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


@st.composite
def behaviours(draw: st.DrawFn) -> bytes:
    """Return a trace of a few clients in whole seconds, with periods from a few minutes to days."""
    clients = {}
    for number in range(draw(st.integers(1, 4))):
        spans = draw(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 50_000)), max_size=4))
        clients[str(number)] = {
            "active": [start for start, _ in spans],
            "inactive": [start + length for start, length in spans],
            "finish_time": draw(st.integers(600, 300_000)),
        }
    return data(**clients)


@given(behaviours(), st.integers(1, 9))
def test_days_hold_every_turn_of_every_span_of_the_client_that_a_phone_follows(text: bytes, num_phones: int) -> None:
    """Beside a loop over phones, spans and turns."""
    presence = TracePresence(parse_behaviour(text), num_phones, 0.0, 0)
    found = list[tuple[int, float, float]]()
    for day in range(-2, 3):
        spans = presence.day(day)
        assert ((spans.starts_s >= day * DAY_S) & (spans.starts_s < (day + 1) * DAY_S)).all()
        found += zip(spans.phones.tolist(), spans.starts_s.tolist(), spans.ends_s.tolist(), strict=True)
    clients = list(json.loads(text).values())
    expected = []
    for phone in range(num_phones):
        client = clients[phone % len(clients)]
        for start, end in zip(client["active"], client["inactive"], strict=True):
            for turn in range(math.ceil(3 * DAY_S / client["finish_time"])):
                if (at := start + turn * client["finish_time"]) < 3 * DAY_S:
                    expected.append((phone, float(at), float(at + end - start)))
    assert sorted(found) == sorted(expected)


def peak_bytes(call: Callable[[], object]) -> int:
    """Return how much memory a call holds at most, of Python's and of numpy's."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_spans_are_repeated_for_phones_only_when_their_day_is_due() -> None:
    """A client with 2,000 spans in 2,000 days, and 100,000 phones: all at once would take 5 GB."""
    days = np.arange(2000)
    client = {
        "active": (days * DAY_S).tolist(),
        "inactive": (days * DAY_S + 600).tolist(),
        "finish_time": 2000 * DAY_S,
    }
    behaviour = parse_behaviour(data(a=client))

    def follow() -> None:
        coming = Coming(TracePresence(behaviour, 100_000, 0.5, 0), 2 * DAY_S)
        assert coming.next_s() == 0.0

    assert peak_bytes(follow) < 100e6


def test_phones_that_come_more_often_than_memory_holds_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """One line of a trace and a million phones: 1.4 thousand million spans a day."""
    trace, task = tmp_path / "trace.json", tmp_path / "task.toml"
    trace.write_bytes(data(a={"active": [0], "inactive": [30], "finish_time": 60}))
    task.write_text('name = "t"\nmethod = "fedavg"\n[cohort]\nsize = 8\nmin_reports = 6\n[privacy]\nmin_cohort = 6\n')
    words = ["fleet", str(task), "--trace", str(trace), "--phones", "1000000", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, ConfigError)
    assert "1,000,000 phones" in refused.message
    assert "1,440,000,000 times a day" in refused.message
    assert "--phones 13888 or fewer" in refused.message
    parsed = parse_behaviour(trace.read_bytes())
    assert len(TracePresence(parsed, 13888, 0.0, 0).day(0)) <= traces.MOST_SPANS_A_DAY


def test_a_crowded_day_is_refused_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """On average the phones come seldom, and all on one day."""
    monkeypatch.setattr(traces, "MOST_SPANS_A_DAY", 1000)
    crowded = {"active": list(range(0, 5000, 50)), "inactive": list(range(10, 5010, 50)), "finish_time": 30 * DAY_S}
    presence = TracePresence(parse_behaviour(data(a=crowded)), 20, 0.0, 0)
    assert len(presence.day(1)) == 0
    with pytest.raises(ConfigError, match=r"2,000 times a day.*--phones 10 or fewer"):
        presence.day(0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b'{"a": {"active": [' + b"1," * 400_000 + b'1], "inactive": [3], "finish_time": 1000}}', "100,000 spans"),
        (b'{"a": {"active": [' + b"[]," * 400_000 + b'1], "inactive": [3], "finish_time": 1000}}', "100,000 spans"),
        (b"{" + b",".join(b'"%d":{}' % i for i in range(20_000)) + b"}", "10000 clients"),
        (b"client,active,inactive,finish_time\n" + b"a,1,2,1000\n" * 150_000, "100,000 spans"),
        (b"client,active,inactive,finish_time" + b"," * 400_000, "100,000 spans"),
    ],
)
def test_a_file_of_more_than_memory_holds_is_refused_before_it_is_read(
    text: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_SPANS", 100_000)
    monkeypatch.setattr(traces, "MAX_CLIENTS", 10_000)

    def refuse() -> None:
        with pytest.raises(CorruptDataError, match=f"more than {what}"):
            parse_behaviour(text)

    assert peak_bytes(refuse) < 1e6


def test_speeds_of_more_clients_than_are_taken_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_CLIENTS", 10)
    rows = [f"{number},1,1" for number in range(11)]
    with pytest.raises(CorruptDataError, match="more than 10 clients"):
        parse_speeds("\n".join(["client,computation,communication", *rows]).encode())
    assert parse_speeds("\n".join(["client,computation,communication", *rows[:10]]).encode()).kbit_s.sum() == 10
