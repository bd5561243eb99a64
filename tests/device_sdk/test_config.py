"""Settings: where each value is from, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.config import DeviceConfig, load_config
from device_sdk.storage.home import Home, default_root
from mien.errors import ConfigError


def test_defaults_are_the_cautious_ones() -> None:
    config = DeviceConfig()
    assert config.participation.min_cohort == 16
    assert config.participation.allow_reveal == ()
    assert config.enrollment.min_images == 3
    assert config.verification.threshold is None
    assert config.keystore == "auto"


def test_each_value_says_where_it_is_from(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text('threads = 2\n[participation]\nmin_cohort = 8\nallow_reveal = ["class_embeddings"]\n')
    resolved = load_config(path, {"participation.min_cohort": 4, "enrollment.min_images": None})
    found = {name: (value, resolved.origins[name]) for name, value in resolved.values().items()}
    assert found["threads"] == (2, "device.toml")
    assert found["participation.min_cohort"] == (4, "option")
    assert found["participation.allow_reveal"] == (["class_embeddings"], "device.toml")
    assert found["enrollment.min_images"] == (3, "default")
    assert found["verification.threshold"] == (None, "default")
    assert resolved.config.participation.min_cohort == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 1", "did you mean 'threads'"),
        ("threads = 0", "threads is 0"),
        ('keystore = "paper"', "'auto', 'platform', 'file'"),
        ("[participation]\nmin_cohort = 1", "hides nobody"),
        ('[participation]\nallow_reveal = ["photos"]', "class_embeddings"),
        ("[verification]\nmax_fmr = 2.0", "max_fmr"),
        ("[verification]\nmax_fmr = nan", "max_fmr"),
        ("[verification]\nthreshold = nan", "verification.threshold is nan"),
        ("[verification]\nthreshold = inf", "verification.threshold is inf"),
        ("[verification]\nthreshold = -inf", "verification.threshold is -inf"),
        ("[enrollment]\nmin_images = 0", "at least 1"),
        ("[quality]\nmin_score = -1.0", "quality.min_score"),
        ("participation = 3", "participation"),
        ("= nonsense", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(path, {"participation.person": "Ada"} if text.startswith("participation") else None)
    assert text.startswith("participation") or error.value.message.startswith(f"{path}")


def test_the_home_is_where_the_environment_says() -> None:
    assert default_root({"MIEN_DEVICE_HOME": "/data/phone"}) == Path("/data/phone")
    assert default_root({"XDG_DATA_HOME": "/data"}) == Path("/data/mien/device")
    assert default_root({"HOME": "/home/ada"}) == Path("/home/ada/.local/share/mien/device")


def test_a_home_is_private_and_must_be_a_folder(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "a" / "b")
    assert home.folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="not a folder"):
        Home.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('allow_profiles = ["any"]', "honest_but_curious"),
        ("max_epsilon = 0.0", "must be positive"),
        ("max_epsilon = inf", "must be positive"),
        ('conditions = "guessed"', "'stated', 'system'"),
        ("max_training_s = 0.0", "max_training_s is 0.0"),
        ("max_memory_mb = -1.0", "max_memory_mb is -1.0"),
        ("max_memory_mb = inf", "no limit"),
        ("nice = 20", "between 0 and 19"),
        ("nice = -1", "between 0 and 19"),
    ],
)
def test_what_protects_updates_and_the_phone_is_checked(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(f"[participation]\n{line}\n")
    with pytest.raises(ConfigError, match=words):
        load_config(path)


def test_by_default_nothing_but_full_secure_aggregation_will_do(tmp_path: Path) -> None:
    agreed = load_config(tmp_path / "device.toml").config.participation
    assert (agreed.allow_plain_sums, agreed.allow_profiles, agreed.max_epsilon) == (False, (), None)
