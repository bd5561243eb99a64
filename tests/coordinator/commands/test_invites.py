"""Invites by the dozen: one file, whole or with as many as there are, for its owner alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.commands.invites import make_invites
from coordinator.operator.registrar_client import IssuedInvite, RegistrarAdmin
from mien.errors import AlreadyExistsError, ConfigError, MienError, NotFoundError, RateLimitedError
from mien.protocol.invite import Invite


class _Registrar:
    """Makes invites, of which only so many are left."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def create_invite(self, population: str, *, valid_s: int, note: str) -> IssuedInvite:
        if not self.left:
            raise RateLimitedError("no invites are left today")
        self.left -= 1
        invite = Invite("registrar.example:7440", "ab" * 32, "cd" * 32, f"{self.left:043}")
        return IssuedInvite(invite.to_url(), 1_800_000_000)


def asking(left: int) -> Callable[..., Any]:
    registrar = cast("RegistrarAdmin", _Registrar(left))
    return lambda question: asyncio.run(question(registrar))


def made(left: int, count: int, out: Path | None, *, as_json: bool = True) -> None:
    make_invites(asking(left), "default", 0, "", count=count, out=out, as_json=as_json)


def test_a_file_has_one_invite_a_line_for_its_owner_alone(tmp_path: Path) -> None:
    made(9, 3, tmp_path / "invites.txt")
    lines = (tmp_path / "invites.txt").read_text().splitlines()
    assert len({Invite.from_url(line).token for line in lines}) == len(lines) == 3
    assert (tmp_path / "invites.txt").stat().st_mode & 0o077 == 0


def test_a_page_has_a_code_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(9, 3, tmp_path / "invites.html", as_json=False)
    page = (tmp_path / "invites.html").read_text()
    assert page.count("<svg") == page.count("mien://join?r=") == 3
    assert "&amp;t=" in page
    assert page.count("Works once, until") == 3
    said = capsys.readouterr().out
    assert "3 invites, one a phone, are in" in said
    assert "Each works once, until 2027-01-15 08:00 UTC. Show each to one person." in said


def test_those_before_a_refusal_are_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MienError, match="no invites are left"):
        made(2, 3, tmp_path / "invites.txt", as_json=False)
    assert len((tmp_path / "invites.txt").read_text().splitlines()) == 2
    assert "2 invites, one a phone, are in" in capsys.readouterr().out
    with pytest.raises(MienError, match="no invites are left"):
        made(2, 3, None)
    assert len(json.loads(capsys.readouterr().out)["invites"]) == 2


def test_without_a_file_json_has_them_all_and_people_are_told_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    made(9, 2, None)
    assert len(json.loads(capsys.readouterr().out)["invites"]) == 2
    with pytest.raises(ConfigError, match="--out FILE"):
        made(9, 2, None, as_json=False)
    made(9, 1, None)
    assert json.loads(capsys.readouterr().out).keys() == {"url", "expires_unix_s", "population", "code", "fingerprints"}


def test_no_invite_is_made_for_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    registrar = _Registrar(9)

    def ask(question: Callable[..., Any]) -> Any:
        return asyncio.run(question(registrar))

    for out, error in (
        (tmp_path / "old.txt", AlreadyExistsError),
        (tmp_path / "none" / "a.txt", NotFoundError),
        (tmp_path / ("a" * 256), NotFoundError),  # longer than file systems take
    ):
        with pytest.raises(error):
            make_invites(ask, "default", 0, "", count=2, out=out, as_json=True)
    assert registrar.left == 9
    assert (tmp_path / "old.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]


def test_a_refusal_at_once_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RateLimitedError):
        made(0, 3, tmp_path / "invites.txt")
    assert not [*tmp_path.iterdir()]
