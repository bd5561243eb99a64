"""Settings: defaults, file, environment, and what is said about a wrong value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from coordinator.registrar.config import SETTINGS, RegistrarConfig, invite_seconds
from mien.errors import ConfigError, NotFoundError

BASE = RegistrarConfig(address="registrar.example:7440", coordinator_address="[2001:db8::1]:7443")


def test_every_field_survives_the_file(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, names=("a.example", 'odd"\\'), json_logs=True, drain_s=3)
    SETTINGS.write(tmp_path / "registrar.toml", config)
    resolved = SETTINGS.load(tmp_path / "registrar.toml", environment={})
    assert resolved.config == config
    stated = {name for name, origin in resolved.origins.items() if origin == "registrar.toml"}
    assert stated == {"address", "coordinator_address", "names", "json_logs", "drain_s"}  # the rest are comments


def test_the_environment_wins_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "registrar.toml").write_text('address = "a.example:1"\ncoordinator_address = "b.example:2"\n')
    environment = {
        "MIEN_REGISTRAR_DRAIN_S": "7",
        "MIEN_REGISTRAR_ADDRESS": "c.example:3",
        "MIEN_REGISTRAR_JSON_LOGS": "true",
    }
    resolved = SETTINGS.load(tmp_path / "registrar.toml", environment=environment)
    assert (resolved.config.address, resolved.config.drain_s, resolved.config.json_logs) == ("c.example:3", 7, True)
    assert resolved.origins["drain_s"] == "MIEN_REGISTRAR_DRAIN_S"
    assert resolved.origins["coordinator_address"] == "registrar.toml"
    assert resolved.origins["names"] == "default"


def test_derived_values() -> None:
    assert BASE.join_listen == "[::]:7440"
    assert BASE.operators_listen == BASE.admin_address == "127.0.0.1:7441"
    elsewhere = dataclasses.replace(BASE, admin_address="registrar.example:7441")
    assert elsewhere.operators_listen == "[::]:7441"  # a name that may be a balancer's, and is no interface here
    assert dataclasses.replace(elsewhere, admin_listen="10.0.0.5:7441").operators_listen == "10.0.0.5:7441"
    assert dataclasses.replace(BASE, address="localhost:7440").join_listen == "localhost:7440"
    assert BASE.server_names == ("registrar.example", "127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('adress = "a:1"', "did you mean 'address'"),
        ('address = "a:1"', "'coordinator_address' is missing"),
        ('address = "nowhere"\ncoordinator_address = "b:2"', "address is 'nowhere'"),
        ('address = "a:0"\ncoordinator_address = "b:2"', "address is 'a:0'"),
        ('address = "a:70000"\ncoordinator_address = "b:2"', "address is 'a:70000'"),
        ('address = "a:1"\ncoordinator_address = "b:2"\ndrain_s = 900', "drain_s is 900; it must lie between"),
        ('address = "a:1"\ncoordinator_address = "b:2"\ndrain_s = "9"', "drain_s is '9' \\(str\\); expected int"),
        ("address = ", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "registrar.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        SETTINGS.load(tmp_path / "registrar.toml", environment={})


def test_a_folder_without_a_registrar_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="mien-registrar init"):
        SETTINGS.load(tmp_path / "registrar.toml", environment={})


@pytest.mark.parametrize("hours", [float("inf"), float("-inf"), float("nan"), 1e300, 720.001, -1.0])
def test_an_invite_lives_no_longer_than_30_days(hours: float) -> None:
    with pytest.raises(ConfigError, match="30 days"):
        invite_seconds(hours)


@pytest.mark.parametrize(("hours", "seconds"), [(0, 0), (1e-9, 1), (0.5, 1800), (2, 7200), (720, 2_592_000)])
def test_an_invites_life_in_hours(hours: float, seconds: int) -> None:
    assert invite_seconds(hours) == seconds
