"""Home of a device: one folder, readable by its owner only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mien.errors import ConfigError
from mien.shell.files import storage_errors


@dataclass(frozen=True)
class Home:
    """The paths of a device's folder; `open` makes the folder, nothing else here writes to the disk."""

    root: Path

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
                    raise ConfigError(f"{folder} is not a folder; name another --home")
                break
        return cls(root)

    @property
    def gallery(self) -> Path:
        """The encrypted gallery."""
        return self.root / "device.db"

    @property
    def attempts(self) -> Path:
        """The encrypted log of private sums that this device took part in."""
        return self.root / "attempts.db"

    @property
    def config(self) -> Path:
        """Owner's settings, in TOML; absent until there are any."""
        return self.root / "device.toml"

    @property
    def identity(self) -> Path:
        """Certificates and addresses: what joining gave."""
        return self.root / "identity.json"

    @property
    def identity_key(self) -> Path:
        """The device's private key, sealed under a key of the key store."""
        return self.root / "identity.key"

    @property
    def release(self) -> Path:
        """The highest signed release that was accepted."""
        return self.root / "release.json"

    @property
    def models(self) -> Path:
        """Models and public shards, by hash: nothing secret, and all of it can be fetched again."""
        return self.root / "models"

    @property
    def graphs(self) -> Path:
        """ONNX Runtime's graphs for these models, by the hash of their layout; they hold no parameters."""
        return self.models / "graphs"

    @property
    def variants(self) -> Path:
        """The variants of these models that this device runs or has looked at, by hash; they hold parameters."""
        return self.models / "variants"

    @property
    def participation_lock(self) -> Path:
        """Held while a process takes part in rounds."""
        return self.root / "participate.lock"


def default_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that MIEN_DEVICE_HOME names, else `mien/device` in the user's data folder (XDG)."""
    if chosen := environment.get("MIEN_DEVICE_HOME"):
        return Path(chosen)
    base = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".local/share")
    return Path(base) / "mien" / "device"
