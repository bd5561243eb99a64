"""Traces of real phones in FedScale's form: when each was active, and how fast each is.

FedScale (Lai et al., ICML 2022) ships both as pickles, dictionaries by client. A pickle runs code of whoever made it,
so none is read here: convert it once, where you trust it, to JSON, with the same fields.

- Behaviour: `{client: {"active": [...], "inactive": [...], "finish_time": ..., "duration": ..., "model": ...}}`. A
  client is there from each `active` time to the `inactive` time of the same place, in seconds, and all over again after
  `finish_time`. `duration` and `model` are not used.
- Capacity: `{client: {"computation": ..., "communication": ...}}`: milliseconds an image, and kbit/s both ways, of
  1,024 bits as FedScale reckons.

Both may be CSV instead: a header with these names and `client`, one line for each span, or each client.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError
from mien.shell.files import read_limited
from simulation.fleet.phones import Capacity
from simulation.fleet.profile import Profile
from simulation.fleet.windows import DAY_S, End, Spans

MAX_TRACE_BYTES: Final = 1 << 30
MAX_CLIENTS: Final = 5_000_000
MAX_SPANS: Final = 20_000_000
MOST_SPANS_A_DAY: Final = 20_000_000
"""Most spans of a fleet's phones in a day: 5 GB of memory, and many minutes of arithmetic."""
MIN_PERIOD_S: Final = 60.0
MAX_TIME_S: Final = 1e10
MIN_RATE: Final = 1e-3
"""Milliseconds an image, and kbit/s: what is less is no phone's, and is lost in the arithmetic."""
_KBIT_BYTES: Final = 1024 / 8
_PICKLE: Final = b"\x80"
_THIRDS: Final = ("fast third", "middle third", "slow third")


@dataclass(frozen=True)
class Behaviour:
    """Times when clients are there: for each, spans that come again after its period. All times in seconds."""

    clients: NDArray[np.int32] = field(repr=False)
    starts_s: NDArray[np.float64] = field(repr=False)
    ends_s: NDArray[np.float64] = field(repr=False)
    periods_s: NDArray[np.float64] = field(repr=False)

    @property
    def num_clients(self) -> int:
        """Number of clients in the trace."""
        return len(self.periods_s)


@dataclass(frozen=True)
class Speeds:
    """Each client's milliseconds an image, and its rate in kbit/s."""

    ms_per_image: NDArray[np.float64] = field(repr=False)
    kbit_s: NDArray[np.float64] = field(repr=False)


def parse_behaviour(data: bytes, what: str = "the trace") -> Behaviour:
    """Return a behaviour trace from JSON or CSV; raises CorruptDataError saying what is wrong, and where."""
    clients = _behaviour_rows(data, what)
    if not clients:
        raise CorruptDataError(f"{what} has no clients; export it again")
    index, starts, ends, periods = array("i"), array("d"), array("d"), array("d")
    for number, (client, record) in enumerate(clients.items()):
        active, inactive = _times(record, "active", client, what), _times(record, "inactive", client, what)
        period_s = _number(record.get("finish_time"), f"{what}, client {client[:40]}: finish_time")
        if len(active) != len(inactive):
            raise CorruptDataError(
                f"{what}, client {client[:40]} has {len(active)} active and {len(inactive)} inactive times; there must "
                "be one of each for each span"
            )
        if period_s < MIN_PERIOD_S:
            raise CorruptDataError(
                f"{what}, client {client[:40]}: finish_time is {period_s:g} s; it must be 60 or more"
            )
        periods.append(period_s)
        for start, end in zip(active, inactive, strict=True):
            if start < end:  # FedScale's own trace has spans without length
                index.append(number)
                starts.append(start)
                ends.append(end)
    return Behaviour(np.array(index, np.int32), np.array(starts), np.array(ends), np.array(periods))


def parse_speeds(data: bytes, what: str = "the capacity file") -> Speeds:
    """Return a capacity file from JSON or CSV; raises CorruptDataError saying what is wrong, and where."""
    _check_size(data, what)
    records: Iterable[tuple[str, Mapping[str, Any]]]
    if _is_json(data, what):
        records = _json(data, what).items()
    else:
        rows = _csv(data, what, ("client", "computation", "communication"))
        records = ((row.get("client") or "", row) for row in rows)
    found = array("d")
    for client, record in records:
        values = [
            _number(record.get(name), f"{what}, client {client[:40]}: {name}")
            for name in ("computation", "communication")
        ]
        if min(values) < MIN_RATE:
            raise CorruptDataError(
                f"{what}, client {client[:40]} has a rate that is not positive, or below {MIN_RATE:g}; correct it"
            )
        found.extend(values)
        _check_number(len(found) // 2, what)
    if not found:
        raise CorruptDataError(f"{what} has no clients; export it again")
    both = np.array(found).reshape(-1, 2)
    return Speeds(both[:, 0], both[:, 1])


def read_behaviour(path: Path) -> Behaviour:
    """Return the behaviour trace in a file."""
    return parse_behaviour(read_limited(path, MAX_TRACE_BYTES, what=path.name), path.name)


def read_speeds(path: Path) -> Speeds:
    """Return the capacity file's content."""
    return parse_speeds(read_limited(path, MAX_TRACE_BYTES, what=path.name), path.name)


class TracePresence:
    """Phones that are there when the trace's clients were; with more phones than clients, several follow one client.

    Spans are kept once for each client, and repeated for its phones only when their day is due.
    """

    def __init__(self, behaviour: Behaviour, num_phones: int, offline_share: float, seed: int) -> None:
        """A trace does not say how a span ended: `offline_share` of them end off the network.

        Raises ConfigError for more spans a day than can be reckoned with.
        """
        self._offline_share, self._seed = offline_share, seed
        self._num_phones, self._num_clients = num_phones, behaviour.num_clients
        followed = behaviour.clients < num_phones
        self._clients = behaviour.clients[followed]
        self._starts_s, self._ends_s = behaviour.starts_s[followed], behaviour.ends_s[followed]
        self._periods_s = behaviour.periods_s[self._clients]
        self._followers = -((self._clients.astype(np.int64) - num_phones) // self._num_clients)
        self._check_number(float((self._followers * (DAY_S / self._periods_s)).sum()))

    def day(self, day: int) -> Spans:
        """Return the spans that begin on a day; the trace begins with the clock. Raises as the constructor."""
        begin_s, end_s = day * DAY_S, (day + 1) * DAY_S
        turn = np.maximum(np.ceil((begin_s - self._starts_s) / self._periods_s), 0)
        first_s = self._starts_s + turn * self._periods_s
        turns = np.maximum(np.ceil((end_s - first_s) / self._periods_s), 0).astype(np.int64)
        self._check_number(float((self._followers * turns).sum()))
        spans, nth = _repeated(turns)
        starts = first_s[spans] + nth * self._periods_s[spans]
        each, nth = _repeated(self._followers[spans])
        spans, starts = spans[each], starts[each]
        phones = (self._clients[spans] + nth * self._num_clients).astype(np.int32)
        ends = starts + (self._ends_s - self._starts_s)[spans]
        rng = np.random.default_rng([self._seed, 7, day + 1_000_000])
        is_offline = rng.random(len(phones)) < self._offline_share
        return Spans(phones, starts, ends, np.where(is_offline, End.OFFLINE, End.IN_USE).astype(np.int8))

    def _check_number(self, spans_a_day: float) -> None:
        if spans_a_day > MOST_SPANS_A_DAY:
            phones = int(self._num_phones * MOST_SPANS_A_DAY / spans_a_day)
            raise ConfigError(
                f"{self._num_phones:,} phones that follow this trace come {spans_a_day:,.0f} times a day, and "
                f"{MOST_SPANS_A_DAY:,} is the most that is kept in memory: use --phones {phones} or fewer, or a trace "
                "whose short spans are joined"
            )


def _repeated(times: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return each place as often as it is to be repeated, and of each repetition how many came before it."""
    places = np.repeat(np.arange(len(times)), times)
    return places, np.arange(len(places)) - (np.cumsum(times) - times)[places]


def capacity_of(speeds: Speeds, profile: Profile, num_phones: int) -> Capacity:
    """Return phones as fast as a trace's clients: its median client takes what the profile's median phone takes."""
    client_of = np.arange(num_phones) % len(speeds.ms_per_image)
    relative = speeds.ms_per_image / np.median(speeds.ms_per_image)
    tier = np.searchsorted(np.quantile(relative, [1 / 3, 2 / 3]), relative).astype(np.int8)
    rate = (speeds.kbit_s * _KBIT_BYTES).astype(np.float32)[client_of]
    slowdown = (relative * _median_slowdown(profile)).astype(np.float32)[client_of]
    return Capacity(slowdown, rate, rate, tier[client_of], _THIRDS)


def _median_slowdown(profile: Profile) -> float:
    """Return the slowdown of the tier in which the median phone is."""
    share = 0.0
    for tier in sorted(profile.tiers, key=lambda each: each.slowdown):
        share += tier.share
        if share >= 0.5:
            return tier.slowdown
    raise ConfigError("the shares of the profile's tiers must add up to 1")


# Reading


def _behaviour_rows(data: bytes, what: str) -> Mapping[str, Mapping[str, Any]]:
    _check_size(data, what)
    if _is_json(data, what):
        return _json(data, what)
    clients: dict[str, dict[str, Any]] = {}
    for row in _csv(data, what, ("client", "active", "inactive", "finish_time")):
        name = row["client"] or ""
        record = clients.setdefault(name, {"active": [], "inactive": [], "finish_time": row["finish_time"]})
        if record["finish_time"] != row["finish_time"]:
            raise CorruptDataError(f"{what}, client {name[:40]} has two values of finish_time; one is needed")
        record["active"].append(row["active"])
        record["inactive"].append(row["inactive"])
        _check_number(len(clients), what)
    return clients


def _is_json(data: bytes, what: str) -> bool:
    if data[:1] == _PICKLE or data[:2] in (b"(d", b"(l"):
        raise CorruptDataError(
            f"{what} is a pickle, which can run any program when it is opened, and is not read here; convert it to "
            "JSON where you trust it, as docs/simulation.md says"
        )
    return data.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"


def _json(data: bytes, what: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{what} is not valid JSON; export it again") from error
    if not isinstance(found, dict) or any(not isinstance(record, dict) for record in found.values()):
        raise CorruptDataError(f"{what} must be an object of objects, one for each client; export it again")
    _check_number(len(found), what)
    return found


def _csv(data: bytes, what: str, columns: Sequence[str]) -> Iterable[dict[str, str | None]]:
    try:
        text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", errors="replace", newline="")
        reader = csv.DictReader(text, strict=True)
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise CorruptDataError(f"{what} lacks the columns {', '.join(missing)}; its first line must name them")
        yield from reader
    except csv.Error as error:
        raise CorruptDataError(f"{what} is neither JSON nor valid CSV ({str(error)[:80]}); export it again") from error


def _times(record: Mapping[str, Any], name: str, client: str, what: str) -> list[float]:
    values = record.get(name)
    if not isinstance(values, list):
        raise CorruptDataError(f"{what}, client {client[:40]}: {name} must be a list of times in seconds")
    return [_number(value, f"{what}, client {client[:40]}: {name}") for value in values]


def _number(value: object, what: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MAX_TIME_S:
        raise CorruptDataError(f"{what} is {str(value)[:40]!r}; it must be a number between 0 and {MAX_TIME_S:g}")
    return number


def _check_size(data: bytes, what: str) -> None:
    """Raise before a file is read that would take far more memory than it is long: each value becomes an object."""
    _check_number(data.count(b"{") - 1, what)
    if data.count(b",") + data.count(b"[") > 3 * MAX_SPANS:  # CSV has three commas a span
        raise CorruptDataError(
            f"{what} has more than {MAX_SPANS:,} spans; leave clients out, or join spans that touch each other"
        )


def _check_number(clients: int, what: str) -> None:
    if clients > MAX_CLIENTS:
        raise CorruptDataError(f"{what} has more than {MAX_CLIENTS} clients; leave some out")
