"""Accounts, sessions and throttled guesses."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.dashboard import accounts as module
from coordinator.dashboard.accounts import IDLE_MS, LIFE_MS, NOBODY, Accounts
from coordinator.dashboard.throttle import Throttle
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, NotFoundError, PermissionDeniedError
from tests.coordinator.dashboard.made_up import PASSWORD, SetClock

COST = module._SCRYPT_N  # read before a test makes it small


@pytest.fixture(autouse=True)
def _cheap(cheap_passwords: None) -> None:
    """Hash fast."""


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_800_000_000.0)


@pytest.fixture
def accounts(tmp_path: Path, clock: SetClock) -> Iterator[Accounts]:
    accounts = Accounts.open(tmp_path / "dashboard.db", clock)
    accounts.add("alice", PASSWORD, actor="local:0")
    yield accounts
    accounts.close()


def test_hashing_is_expensive_outside_of_tests() -> None:
    assert COST >= 2**16


def test_a_password_opens_and_neither_it_nor_the_token_is_kept(accounts: Accounts, tmp_path: Path) -> None:
    session = accounts.sign_in("alice", PASSWORD, "127.0.0.1")
    assert accounts.session(session.token) == session
    assert session.token not in repr(session)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert PASSWORD.encode() not in kept
    assert session.token.encode() not in kept


def test_a_wrong_name_and_a_wrong_password_are_refused_alike(accounts: Accounts) -> None:
    told = []
    for name, password in (("alice", PASSWORD + "x"), ("mallory", PASSWORD), (PASSWORD, "x"), ("alice", "")):
        with pytest.raises(PermissionDeniedError) as caught:
            accounts.sign_in(name, password, "192.0.2.1")
        told.append(caught.value.message)
    assert len(set(told)) == 1
    entries = accounts.newest(4)
    assert [entry.actor for entry in entries] == ["alice", NOBODY, NOBODY, "alice"]
    assert PASSWORD not in repr(entries)  # typed in place of a name


def test_sessions_end(accounts: Accounts, clock: SetClock) -> None:
    first = accounts.sign_in("alice", PASSWORD, "127.0.0.1")
    clock.move(IDLE_MS / 1000 - 60)
    assert accounts.session(first.token, is_use=False) is not None
    assert accounts.session(first.token) is not None
    clock.move(IDLE_MS / 1000 - 60)
    assert accounts.session(first.token, is_use=False) is not None  # the use before counts
    clock.move(120)
    assert accounts.session(first.token) is None
    busy = accounts.sign_in("alice", PASSWORD, "127.0.0.1")
    for _ in range(LIFE_MS // 1_800_000):
        assert accounts.session(busy.token) is not None
        clock.move(1800)
    clock.move(1)
    assert accounts.session(busy.token) is None
    out = accounts.sign_in("alice", PASSWORD, "127.0.0.1")
    accounts.sign_out(out, "127.0.0.1")
    assert accounts.session(out.token) is None


def test_another_password_or_no_account_ends_sessions(accounts: Accounts) -> None:
    session = accounts.sign_in("alice", PASSWORD, "127.0.0.1")
    accounts.set_password("alice", "a longer battery horse", actor="local:0")
    assert accounts.session(session.token) is None
    session = accounts.sign_in("alice", "a longer battery horse", "127.0.0.1")
    accounts.remove("alice", actor="local:0")
    assert accounts.session(session.token) is None
    assert accounts.users() == []
    with pytest.raises(PermissionDeniedError):
        accounts.sign_in("alice", "a longer battery horse", "127.0.0.1")


def test_mistakes_say_what_to_do(accounts: Accounts) -> None:
    with pytest.raises(AlreadyExistsError, match="user password"):
        accounts.add("alice", PASSWORD, actor="local:0")
    with pytest.raises(ConfigError, match="12 to"):
        accounts.add("bob", "too short", actor="local:0")
    with pytest.raises(ConfigError, match="letters"):
        accounts.add("<bob>", PASSWORD, actor="local:0")
    with pytest.raises(NotFoundError, match="user list"):
        accounts.remove("bob", actor="local:0")
    with pytest.raises(NotFoundError, match="user list"):
        accounts.set_password("bob", PASSWORD, actor="local:0")


def test_sign_ins_stand_in_a_chain(accounts: Accounts, tmp_path: Path) -> None:
    accounts.sign_out(accounts.sign_in("alice", PASSWORD, "127.0.0.1"), "127.0.0.1")
    accounts.locked("192.0.2.1")
    told = [(entry.actor, entry.action.removeprefix("dashboard.")) for entry in accounts.newest(10)[::-1]]
    assert told == [("local:0", "add"), ("alice", "sign_in"), ("alice", "sign_out"), (NOBODY, "locked")]
    assert accounts.verify() == 4
    with contextlib.closing(sqlite3.connect(tmp_path / "dashboard.db")) as other, other:
        other.execute("UPDATE audit_entries SET subject = '192.0.2.9' WHERE position = 2")
    other.close()
    with pytest.raises(CorruptDataError, match="entry 2"):
        accounts.verify()


def test_an_account_has_so_many_sessions_and_no_more(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.dashboard.accounts._MAX_SESSIONS", 2)
    tokens = []
    for _ in range(3):
        tokens.append(accounts.sign_in("alice", PASSWORD, "127.0.0.1").token)
        accounts._clock.move(1)  # type: ignore[attr-defined]
    assert [accounts.session(token) is not None for token in tokens] == [False, True, True]


def test_guesses_are_slowed_down() -> None:
    throttle, now_s = Throttle(), 1000.0
    for _ in range(4):
        assert not throttle.failed([("k", 5)], now_s)
    assert throttle.pause_s(["k"], now_s) == 0
    assert throttle.failed([("k", 5), ("other", 20)], now_s)
    assert throttle.pause_s(["k", "other"], now_s) == 30.0
    assert throttle.pause_s(["other"], now_s) == 0
    now_s += 30
    assert throttle.pause_s(["k"], now_s) == 0
    throttle.failed([("k", 5)], now_s)
    assert throttle.pause_s(["k"], now_s) == 60.0
    for _ in range(20):
        throttle.failed([("k", 5)], now_s)
    assert throttle.pause_s(["k"], now_s) == 900.0
    throttle.succeeded(["k"])
    assert throttle.pause_s(["k"], now_s) == 0
    throttle.failed([("j", 1)], now_s)
    assert throttle.pause_s(["j"], now_s) == 30.0
    throttle.failed([("j", 1)], now_s + 4000)  # forgotten in between
    assert throttle.pause_s(["j"], now_s + 4000) == 30.0


def test_the_memory_of_guesses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.dashboard.throttle._MAX_KEYS", 50)
    throttle = Throttle()
    for number in range(500):
        throttle.failed([(f"k{number}", 1)], 1.0)
    assert len(throttle._counts) == 50
    assert throttle.pause_s(["k499"], 1.0) > 0
