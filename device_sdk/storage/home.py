"""Home of a device: one folder, readable by its owner only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mien.errors import ConfigError
from mien.shell.files import InFolder, storage_errors


@dataclass(frozen=True)
class Home:
    """The paths of a device's folder; `open` makes the folder, nothing else here writes to the disk."""

    folder: Path

    gallery = InFolder("device.db")
    """The encrypted gallery."""

    attempts = InFolder("attempts.db")
    """The encrypted log of private sums that this device took part in."""

    config = InFolder("device.toml")
    """Owner's settings, in TOML; absent until there are any."""

    identity = InFolder("identity.json")
    """Certificates and addresses: what joining gave."""

    identity_key = InFolder("identity.key")
    """The device's private key, sealed under a key of the key store."""

    release = InFolder("release.json")
    """The highest signed release that was accepted."""

    round_log = InFolder("round-log.sealed")
    """The newest checkpoint of the log of rounds that this device took."""

    log_evidence = InFolder("log-evidence.json")
    """What shows that the coordinator lied about the log of rounds; absent where it did not."""

    models = InFolder("models")
    """Models and public shards, by hash: nothing secret, and all of it can be fetched again."""

    graphs = InFolder("models/graphs")
    """ONNX Runtime's graphs for these models, by the hash of their layout; they hold no parameters."""

    variants = InFolder("models/variants")
    """The variants of these models that this device runs or has looked at, by hash; they hold parameters."""

    participation_lock = InFolder("participate.lock")
    """Held while a process takes part in rounds."""

    @classmethod
    def open(cls, root: Path) -> Home:
        """Return the home in `root`, made with mode 0700 where it is missing."""
        home = cls.at(root)
        with storage_errors("the home folder"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    @classmethod
    def at(cls, root: Path) -> Home:
        """Return the home in `root`, which may be missing; raises ConfigError where a file is in the way."""
        for folder in (root, *root.parents):
            if folder.exists():
                if not folder.is_dir():
                    raise ConfigError(f"{folder} is not a folder; name another `home`")
                break
        return cls(root)


def default_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that MIEN_DEVICE_HOME names, else `mien/device` in the user's data folder (XDG)."""
    if chosen := environment.get("MIEN_DEVICE_HOME"):
        return Path(chosen)
    base = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".local/share")
    return Path(base) / "mien" / "device"
