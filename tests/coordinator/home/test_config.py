"""Settings: defaults, file, environment, flags, in that order, and where each value came from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.home.config import SETTINGS, CoordinatorConfig
from coordinator.home.settings import settings_sha256, shown
from mien.errors import ConfigError, NotFoundError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "coordinator.toml"
    SETTINGS.write(path, CoordinatorConfig("c.example:7443", names=("other",), drain_s=7.0))
    return path


def test_each_value_says_where_it_came_from(path: Path) -> None:
    environment = {"MIEN_COORDINATOR_RETRY_AFTER_S": "9", "MIEN_COORDINATOR_LISTEN": "[::]:1", "OTHER": "x"}
    resolved = SETTINGS.load(path, {"listen": "127.0.0.1:0", "drain_s": None}, environment)
    config, origins = resolved.config, resolved.origins
    assert (config.address, origins["address"]) == ("c.example:7443", "coordinator.toml")
    assert (config.drain_s, origins["drain_s"]) == (7.0, "coordinator.toml")
    assert (config.retry_after_s, origins["retry_after_s"]) == (9.0, "MIEN_COORDINATOR_RETRY_AFTER_S")
    assert (config.listen, origins["listen"]) == ("127.0.0.1:0", "--listen")
    assert (config.max_aborted, origins["max_aborted"]) == (5, "default")
    assert config.server_names == ("c.example", "other", "localhost", "127.0.0.1")


def test_defaults_are_written_as_comments(path: Path) -> None:
    text = path.read_text()
    assert 'address = "c.example:7443"' in text
    assert "# max_aborted = 5" in text
    path.write_text(text.replace("# max_aborted = 5", "max_aborted = 3"))
    assert SETTINGS.load(path, environment={}).config.max_aborted == 3


def test_mistakes_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="init"):
        SETTINGS.load(tmp_path / "none.toml", environment={})
    for line, words in (
        ("drian_s = 3", "did you mean 'drain_s'"),
        ("drain_s = -1", "drain_s is -1.0; it must lie between"),
        ('retry_after_s = "soon"', "retry_after_s is 'soon'"),
        ('registrar_address = "nowhere"', "host:port"),
        ("= 3", "not valid TOML"),
    ):
        path.write_text('address = "c.example:7443"\n' + line + "\n")
        with pytest.raises(ConfigError, match=words):
            SETTINGS.load(path, environment={})


def test_addresses() -> None:
    assert CoordinatorConfig("c.example:7443").listens_at == "[::]:7443"
    for local in ("localhost:7443", "127.0.0.1:7443", "[::1]:7443"):
        assert CoordinatorConfig(local).listens_at == local  # nobody else could reach it under that address
    assert CoordinatorConfig("c:7443", listen="127.0.0.1:0").listens_at == "127.0.0.1:0"
    for address in ("c", "c:0", "c:70000", "c:x", ""):
        with pytest.raises(ConfigError):
            CoordinatorConfig(address)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://mien:SECRET@db:5432/mien",
        "postgresql://mien:SEC/RET@db/mien",
        "postgresql://mien:SEC RET@db/mien",
        "postgresql://mien:SEC@RET@db/mien",
        "postgresql://db/mien?user=mien&password=SEC/RET",
        "postgresql://db/mien?sslmode=verify-full&sslpassword=SECRET",
        "s3://key:SEC/RET@bucket/mien",
    ],
)
def test_no_part_of_a_password_is_shown_however_a_url_has_it(url: str) -> None:
    told = shown(CoordinatorConfig("c.example:7443", database_url=url))["database_url"]
    assert "***" in told
    assert not {"SEC", "RET"} & set(re.findall("SEC|RET", told))


def test_a_password_in_a_url_is_neither_shown_nor_hashed() -> None:
    def config(password: str) -> CoordinatorConfig:
        return CoordinatorConfig("c.example:7443", database_url=f"postgresql+psycopg://mien:{password}@db:5432/mien")

    assert shown(config("hunter2!"))["database_url"] == "postgresql+psycopg://mien:***@db:5432/mien"
    assert shown(CoordinatorConfig("c.example:7443"))["address"] == "c.example:7443"
    assert settings_sha256(config("hunter2!")) == settings_sha256(config("other"))
    assert settings_sha256(config("other")) != settings_sha256(CoordinatorConfig("c.example:7443"))
