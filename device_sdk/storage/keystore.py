"""Key store of a device, with the keys that open everything else.

A key store holds key-encryption keys by label. `platform` is the operating system's (Secret Service, KWallet, macOS
Keychain, Windows Credential Locker); `file` is a folder of files that only their owner may read, for systems that have
none. What a key opens (the gallery's data key, the device's private key) lies wrapped beside the data: destroying one
key here makes all of it unreadable at once.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from device_sdk.storage.sealing import SecretKey
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, KeyStoreError, StorageError
from mien.shell.files import create_private, read_limited, read_private, remove_unfinished, storage_errors, sync_folder
from mien.shell.keys import secret_hex
from mien.shell.sealing import KEY_BYTES

KeyStoreKind = Literal["platform", "file"]
KeyStoreChoice = Literal["auto", "platform", "file"]

SERVICE: Final = "mien-device"
CHOICE_FILE: Final = "keystore.json"

# Named, because `keyring` also loads plug-ins that write passwords in clear, and a fallback that fails on use.
TRUSTED_BACKENDS: Final = (
    "keyring.backends.SecretService",
    "keyring.backends.libsecret",
    "keyring.backends.kwallet",
    "keyring.backends.macOS",
    "keyring.backends.Windows",
)


class KeyStore(Protocol):
    """Store of 256-bit keys by label."""

    @property
    def kind(self) -> KeyStoreKind:
        """Kind of this key store."""
        ...

    def exists(self, label: str) -> bool:
        """Return whether there is a key of that label."""
        ...

    def create(self, label: str) -> SecretKey:
        """Return a new key, already stored; raises AlreadyExistsError rather than replace one."""
        ...

    def read(self, label: str) -> SecretKey:
        """Return the key; raises KeyStoreError when it is missing, unreadable or not a key."""
        ...

    def destroy(self, label: str) -> None:
        """Remove the key for good; what it wrapped can never be read again. Missing keys are no error."""
        ...


class FileKeyStore:
    """Keys as files of mode 0600 in one folder: as safe as the user's account and disk, no safer."""

    kind: KeyStoreKind = "file"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, label: str) -> bool:
        return self._path(label).exists()

    def create(self, label: str) -> SecretKey:
        with storage_errors("the key folder"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = SecretKey.generate()
        create_private(self._path(label), key.unmasked())
        return key

    def read(self, label: str) -> SecretKey:
        data = read_private(self._path(label), what=f"the {label} key")
        if data == bytes(KEY_BYTES):
            raise KeyStoreError(f"the {label} key was destroyed; finish with `Device.wipe()`, then enrol again")
        return SecretKey(data)

    def destroy(self, label: str) -> None:
        path = self._path(label)
        remove_unfinished(self._folder)
        if not path.exists():
            return
        with storage_errors("the key folder"), path.open("r+b") as file:
            # Flash storage may keep the old block all the same; full-disk encryption is what covers that.
            file.write(bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with storage_errors("the key folder"):
            path.unlink()
        sync_folder(self._folder)

    def _path(self, label: str) -> Path:
        return self._folder / f"{label}.key"


class PasswordBackend(Protocol):
    """The part of a `keyring` backend that is used here."""

    def get_password(self, service: str, username: str) -> str | None: ...
    def set_password(self, service: str, username: str, password: str) -> None: ...
    def delete_password(self, service: str, username: str) -> None: ...


class PlatformKeyStore:
    """Keys in the operating system's key store, under names that belong to one home folder."""

    kind: KeyStoreKind = "platform"

    def __init__(self, backend: PasswordBackend, namespace: str) -> None:
        self._backend = backend
        self._namespace = namespace

    def exists(self, label: str) -> bool:
        return self._get(label) is not None

    def create(self, label: str) -> SecretKey:
        if self.exists(label):
            raise AlreadyExistsError(f"the key store holds a {label} key already; it was not replaced")
        key = SecretKey.generate()
        text = base64.b64encode(key.unmasked()).decode()
        self._call("write", lambda: self._backend.set_password(SERVICE, self._name(label), text))
        if self._get(label) != text:
            raise KeyStoreError('the platform key store did not keep the key; use `keystore="file"`')
        return key

    def read(self, label: str) -> SecretKey:
        text = self._get(label)
        if text is None:
            raise KeyStoreError(
                f"the {label} key is missing from the platform key store; restore it, or wipe and enrol again"
            )
        try:
            return SecretKey(base64.b64decode(text, validate=True))
        except binascii.Error:
            raise KeyStoreError(f"the {label} key in the platform key store is damaged; wipe and enrol again") from None

    def destroy(self, label: str) -> None:
        if self.exists(label):
            self._call("delete from", lambda: self._backend.delete_password(SERVICE, self._name(label)))

    def _name(self, label: str) -> str:
        return f"{self._namespace}/{label}"

    def _get(self, label: str) -> str | None:
        found: list[str | None] = []
        self._call("read", lambda: found.append(self._backend.get_password(SERVICE, self._name(label))))
        return found[0]

    @staticmethod
    def _call(verb: str, action: Callable[[], object]) -> None:
        """Run one call on the backend; its refusals (locked, dismissed, gone) become KeyStoreError."""
        from keyring.errors import KeyringError

        try:
            action()
        except (KeyringError, OSError) as error:
            raise KeyStoreError(
                f"cannot {verb} the platform key store ({type(error).__name__}); unlock it and run again, "
                'or use `keystore="file"`'
            ) from error


def platform_backend() -> PasswordBackend | None:
    """Return the operating system's key store, or None where there is none that can be trusted."""
    from keyring.backend import KeyringBackend, get_all_keyring

    real: list[KeyringBackend] = [
        backend
        for backend in get_all_keyring()
        if type(backend).__module__ in TRUSTED_BACKENDS and backend.priority > 0
    ]
    return max(real, key=lambda backend: float(backend.priority), default=None)


def open_key_store(
    home: Path,
    choice: KeyStoreChoice = "auto",
    *,
    backend: Callable[[], PasswordBackend | None] = platform_backend,
    warn: Callable[[str], None] = lambda _message: None,
) -> KeyStore:
    """Return the key store of a home folder, choosing one the first time and keeping to it afterwards.

    `auto` takes the platform's where there is one, else files, with a warning. Raises ConfigError when the home already
    keeps its keys in the other kind: keys do not move by an option.
    """
    if choice not in get_args(KeyStoreChoice):
        raise ConfigError(f"keystore is {choice!r}; allowed: 'auto', 'platform', 'file'")
    chosen = _read_choice(home) or _first_choice(home, choice, backend, warn)
    if choice not in ("auto", chosen["kind"]):
        raise ConfigError(f"this home keeps its keys in the {chosen['kind']} key store; leave `keystore` out")
    if chosen["kind"] == "file":
        with contextlib.suppress(StorageError):  # on a disk that is read-only now; `destroy` would say so
            remove_unfinished(home / "keys")
        return FileKeyStore(home / "keys")
    found = backend()
    if found is None:
        raise KeyStoreError("the platform key store that holds this home's keys is not running; unlock or start it")
    return PlatformKeyStore(found, chosen["namespace"])


def _first_choice(
    home: Path, choice: KeyStoreChoice, backend: Callable[[], PasswordBackend | None], warn: Callable[[str], None]
) -> dict[str, str]:
    """Return the choice of a new home, noted; that of another process that was first, whose keys lie under its name."""
    chosen = _choose(choice, backend, warn)
    with storage_errors("the home folder"):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(AlreadyExistsError):
        create_private(home / CHOICE_FILE, json.dumps(chosen, sort_keys=True).encode())
    return _read_choice(home) or chosen


def _choose(
    choice: KeyStoreChoice, backend: Callable[[], PasswordBackend | None], warn: Callable[[str], None]
) -> dict[str, str]:
    """Return which kind a new home uses, with a fresh namespace; warns when that is files by default."""
    available = choice != "file" and backend() is not None
    if choice == "platform" and not available:
        raise KeyStoreError(
            "there is no platform key store here (no Secret Service, KWallet, Keychain or Credential Locker); "
            'use `keystore="file"`'
        )
    if choice == "auto" and not available:
        warn(
            "no platform key store here: keys are kept in files that only your account can read (mode 0600); "
            "anyone with your account or your unencrypted disk can read the gallery"
        )
    return {"kind": "platform" if available else "file", "namespace": secret_hex(8)}


def _read_choice(home: Path) -> dict[str, str] | None:
    """Return the note of `open_key_store` for this home, or None where it is new."""
    path = home / CHOICE_FILE
    if not path.exists():
        return None
    try:
        noted = json.loads(read_limited(path, 4096, what="the note of which key store is used"))
    except ValueError as error:
        raise CorruptDataError(f"{CHOICE_FILE} is damaged; restore it, or wipe and enrol again") from error
    kind, namespace = (noted.get("kind"), noted.get("namespace")) if isinstance(noted, dict) else (None, None)
    if not isinstance(kind, str) or kind not in get_args(KeyStoreKind) or not isinstance(namespace, str):
        raise CorruptDataError(f"{CHOICE_FILE} is damaged; restore it, or wipe and enrol again")
    return {"kind": kind, "namespace": namespace}
