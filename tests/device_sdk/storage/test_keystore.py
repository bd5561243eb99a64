"""Key stores: files that only the owner reads, the platform's where there is one, and never one in clear."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keyring.backends.fail
import keyring.backends.null
import pytest
from keyring.errors import KeyringLocked, PasswordDeleteError

from device_sdk.storage import keystore
from device_sdk.storage.keystore import FileKeyStore, PlatformKeyStore, open_key_store, platform_backend
from device_sdk.storage.sealing import SecretKey
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, KeyStoreError


class MemoryBackend:
    """A password store in memory, with the three calls of a `keyring` backend."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked("locked")
        return self.stored.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.stored[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.stored.pop((service, username), None) is None:
            raise PasswordDeleteError("missing")


@pytest.fixture(params=["file", "platform"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> keystore.KeyStore:
    if request.param == "file":
        return FileKeyStore(tmp_path / "keys")
    return PlatformKeyStore(MemoryBackend(), "home1")


def test_a_key_is_kept_until_it_is_destroyed(store: keystore.KeyStore) -> None:
    assert not store.exists("gallery")
    key = store.create("gallery")
    assert store.read("gallery") == key
    assert store.create("identity") != key
    store.destroy("gallery")
    store.destroy("gallery")
    assert not store.exists("gallery")
    with pytest.raises(KeyStoreError, match="missing"):
        store.read("gallery")


def test_a_key_is_never_replaced(store: keystore.KeyStore) -> None:
    key = store.create("gallery")
    with pytest.raises(AlreadyExistsError):
        store.create("gallery")
    assert store.read("gallery") == key


def test_of_several_who_make_a_key_at_once_one_does(tmp_path: Path) -> None:
    num, start = 4, threading.Barrier(4)

    def make(store: FileKeyStore) -> list[SecretKey | None]:
        made: list[SecretKey | None] = []
        for number in range(25):
            start.wait()
            try:
                made.append(store.create(str(number)))
            except AlreadyExistsError:
                made.append(None)
        return made

    with ThreadPoolExecutor(num) as pool:
        made = list(pool.map(make, [FileKeyStore(tmp_path / "keys") for _ in range(num)]))
    for number, keys in enumerate(zip(*made, strict=True)):
        assert [key for key in keys if key is not None] == [FileKeyStore(tmp_path / "keys").read(str(number))]
    assert len(list((tmp_path / "keys").iterdir())) == 25


def test_where_files_have_no_second_name_a_key_is_kept_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT has no links, and Android lets apps make none: each refuses with another error."""
    store = FileKeyStore(tmp_path / "keys")
    for name, refused in (("fat", errno.EPERM), ("android", errno.EACCES), ("fuse", errno.ENOSYS)):

        def link(*_names: object, refused: int = refused, **_how: object) -> None:
            raise OSError(refused, os.strerror(refused))

        monkeypatch.setattr(os, "link", link)
        key = store.create(name)
        assert store.read(name) == key
        with pytest.raises(AlreadyExistsError):
            store.create(name)
        assert store.read(name) == key
    assert sorted(file.name for file in (tmp_path / "keys").iterdir()) == ["android.key", "fat.key", "fuse.key"]


def test_key_files_are_private_from_the_first_byte(tmp_path: Path) -> None:
    FileKeyStore(tmp_path / "keys").create("gallery")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys" / "gallery.key").stat().st_mode & 0o777 == 0o600


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    store = FileKeyStore(tmp_path / "keys")
    store.create("gallery")
    (tmp_path / "keys" / "gallery.key").chmod(0o644)
    with pytest.raises(KeyStoreError, match="chmod 600"):
        store.read("gallery")


@pytest.mark.parametrize("content", [b"", b"short", bytes(32)])
def test_a_key_file_that_is_cut_off_or_zeroed_is_refused(tmp_path: Path, content: bytes) -> None:
    store = FileKeyStore(tmp_path / "keys")
    store.create("gallery")
    (tmp_path / "keys" / "gallery.key").write_bytes(content)
    with pytest.raises(KeyStoreError):
        store.read("gallery")


def test_platform_keys_of_two_homes_do_not_meet() -> None:
    backend = MemoryBackend()
    one, other = PlatformKeyStore(backend, "one"), PlatformKeyStore(backend, "other")
    one.create("gallery")
    assert not other.exists("gallery")


def test_a_locked_platform_store_says_so() -> None:
    backend = MemoryBackend()
    backend.locked = True
    with pytest.raises(KeyStoreError, match="unlock"):
        PlatformKeyStore(backend, "home").exists("gallery")


def test_a_damaged_platform_entry_is_refused() -> None:
    backend = MemoryBackend()
    store = PlatformKeyStore(backend, "home")
    store.create("gallery")
    backend.stored["mien-device", "home/gallery"] = "not base64!"
    with pytest.raises(KeyStoreError, match="damaged"):
        store.read("gallery")


def test_auto_takes_the_platform_and_stays_with_it(tmp_path: Path) -> None:
    backend = MemoryBackend()
    warnings: list[str] = []
    first = open_key_store(tmp_path, backend=lambda: backend, warn=warnings.append)
    key = first.create("gallery")
    assert (first.kind, warnings) == ("platform", [])
    assert open_key_store(tmp_path, backend=lambda: backend).read("gallery") == key
    with pytest.raises(KeyStoreError, match="not running"):
        open_key_store(tmp_path, backend=lambda: None)
    with pytest.raises(ConfigError, match="platform"):
        open_key_store(tmp_path, "file", backend=lambda: backend)


def test_two_first_starts_at_once_keep_their_keys_under_one_name(tmp_path: Path) -> None:
    memory, home, first = MemoryBackend(), tmp_path / "home", list[keystore.KeyStore]()

    def backend() -> MemoryBackend:
        if not first:  # another process starts while this one looks for the platform's store
            first.append(open_key_store(home, backend=lambda: memory))
            first[0].create("gallery")
        return memory

    assert open_key_store(home, backend=backend).read("gallery") == first[0].read("gallery")
    assert open_key_store(home, backend=lambda: memory).read("gallery") == first[0].read("gallery")


def test_without_a_platform_store_files_are_used_with_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert open_key_store(tmp_path, backend=lambda: None, warn=warnings.append).kind == "file"
    assert len(warnings) == 1
    assert "0600" in warnings[0]
    # The platform's store appears later: the keys stay where they are.
    assert open_key_store(tmp_path, backend=MemoryBackend, warn=warnings.append).kind == "file"
    assert len(warnings) == 1


def test_asking_for_files_gives_no_warning(tmp_path: Path) -> None:
    def no_backend() -> None:
        raise AssertionError("must not be asked")

    assert open_key_store(tmp_path, "file", backend=no_backend, warn=pytest.fail).kind == "file"


def test_asking_for_the_platform_where_there_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match='`keystore="file"`'):
        open_key_store(tmp_path, "platform", backend=lambda: None)
    assert not (tmp_path / keystore.CHOICE_FILE).exists()


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "paper", "namespace": "x"}', '{"kind": "file"}'])
def test_a_damaged_note_of_the_choice_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / keystore.CHOICE_FILE).write_text(content)
    with pytest.raises(CorruptDataError):
        open_key_store(tmp_path)


def test_backends_that_fail_or_forget_are_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class PlaintextKeyring(keyring.backends.null.Keyring):
        """What a plug-in that writes passwords in clear looks like: viable, and of high priority."""

        priority = 20

    candidates = [keyring.backends.fail.Keyring(), keyring.backends.null.Keyring(), PlaintextKeyring()]
    monkeypatch.setattr("keyring.backend.get_all_keyring", lambda: candidates)
    assert platform_backend() is None


def test_the_note_holds_no_secret(tmp_path: Path) -> None:
    open_key_store(tmp_path, "file").create("gallery")
    assert set(json.loads((tmp_path / keystore.CHOICE_FILE).read_text())) == {"kind", "namespace"}


SECRET_SERVICE = """
set -e
printf test | gnome-keyring-daemon --unlock --components=secrets >/dev/null
exec "$PYTHON" -c "
from pathlib import Path
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import open_key_store
home = Path('$HOME_FOLDER')
store = open_key_store(home, warn=print)
Gallery.open(home / 'device.db', store).close()
Gallery.open(home / 'device.db', open_key_store(home)).close()
print(store.kind, sorted(path.name for path in home.iterdir()))
Gallery.wipe(home / 'device.db', store)
print(store.exists('gallery'))
"
"""


@pytest.mark.skipif(
    shutil.which("gnome-keyring-daemon") is None or shutil.which("dbus-run-session") is None,
    reason="needs gnome-keyring-daemon and dbus-run-session for a real Secret Service",
)
def test_a_real_secret_service_keeps_the_keys(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    # Sockets have short paths; and the daemon may clear up beside us.
    with tempfile.TemporaryDirectory(prefix="mien-", dir="/tmp", ignore_cleanup_errors=True) as run:
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "HOME_FOLDER": str(tmp_path / "home"),
            "XDG_DATA_HOME": str(tmp_path / "data"),
            "XDG_RUNTIME_DIR": run,
        }
        done = subprocess.run(
            ["dbus-run-session", "--", "bash", "-c", SECRET_SERVICE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.stdout == "platform ['device.db', 'keystore.json']\nFalse\n", done.stderr
