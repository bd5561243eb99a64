"""The commands for accounts, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.commands.cli import app
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from tests.coordinator.dashboard.made_up import PASSWORD, Fleet

pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture
def home(tmp_path: Path) -> str:
    fleet = Fleet(tmp_path)
    fleet.close()
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return str(fleet.home.folder)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["dashboard", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_accounts_come_and_go(home: str, tmp_path: Path) -> None:
    password = ("--password-file", str(tmp_path / "password"), "--home", home)
    assert "No accounts" in run("user", "list", "--home", home)
    assert json.loads(run("user", "add", "alice", *password, "--json")) == {"name": "alice"}
    assert "alice  password of 20" in run("user", "list", "--home", home)
    with pytest.raises(AlreadyExistsError):
        run("user", "add", "alice", *password)
    assert "another password" in run("user", "password", "alice", *password)
    run("user", "remove", "alice", "--home", home)
    with pytest.raises(NotFoundError):
        run("user", "remove", "alice", "--home", home)
    told = [entry["action"] for entry in json.loads(run("log", "--home", home, "--json"))["entries"]]
    assert told == ["dashboard.add", "dashboard.password", "dashboard.remove"]
    assert "dashboard.add  alice" in run("log", "--last", "9", "--home", home)


def test_a_folder_without_a_coordinator_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="init"):
        run("user", "list", "--home", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_and_its_key_go_together(home: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        run("serve", "--certificate", str(tmp_path / "x.pem"), "--home", home)
