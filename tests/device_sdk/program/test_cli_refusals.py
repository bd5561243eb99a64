"""What mien-device says when files, folders or the terminal are not as they should be: one sentence, no traceback."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_sdk.people.gallery import Gallery
from device_sdk.program.cli import app
from device_sdk.program.words import typed
from device_sdk.server.identity import IdentityFiles
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import FileKeyStore, open_key_store
from mien.errors import TABLE, ConfigError, CorruptDataError, FileAccessError, InviteError, MienError, NotFoundError
from tests.device_sdk.made_up_people import noise_crops, template_of
from tests.device_sdk.programs import ENVIRONMENT, command
from tests.device_sdk.scripted import Fleet
from tests.device_sdk.synthetic import OWNER, images_of

# Root may read and write everything, and so would see none of this.
BOUND = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
needs_permissions = pytest.mark.skipif(
    bool(BOUND) and shutil.which("setpriv") is None, reason="root, and no setpriv to give up what root may"
)


@dataclass(frozen=True)
class Phone:
    """A home with one person, and a way to call the program on it."""

    home: Path

    def says(self, *arguments: str | Path, bound: bool = False, close_stdin: bool = False) -> tuple[int, list[str]]:
        """Return the exit code and the lines on stderr, warnings left out."""
        words = [*(BOUND if bound else []), *command(*arguments, "--home", self.home)]
        shell = ["sh", "-c", 'exec "$@" <&-', "sh"] if close_stdin else []
        done = subprocess.run(
            [*shell, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=240,
            check=False,
        )
        return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("warning")]

    def refuses(self, *arguments: str | Path, error: type[MienError], bound: bool = False) -> str:
        """Return the one sentence that a command ends with; only `bound` it takes a process of its own."""
        if not bound:
            done = CliRunner().invoke(app, [*map(str, arguments), "--home", str(self.home)])
            assert type(done.exception) is error, done.output
            return typed(str(done.exception))
        code, lines = self.says(*arguments, bound=True)
        assert len(lines) == 1, lines
        assert code == TABLE[error].exit_code, lines
        return lines[0]


@pytest.fixture
def phone(tmp_path: Path) -> Iterator[Phone]:
    root = tmp_path / "phone"
    open_key_store(root, "file")
    gallery = Gallery.open(root / "device.db", FileKeyStore(root / "keys"))
    crops = noise_crops(0)
    gallery.enroll("Ada", crops, template_of(crops), now_unix_s=1_700_000_000, consent=True)
    gallery.close()
    yield Phone(root)
    for path in (root, *root.rglob("*")):  # so that pytest can clear up
        path.chmod(0o700)


@pytest.mark.parametrize("below", ["", "below", "far/below"])
@pytest.mark.parametrize("words", ["status", "config show", "gallery wipe --yes"])
def test_a_home_that_is_a_file(tmp_path: Path, words: str, below: str) -> None:
    (tmp_path / "file").touch()
    phone = Phone(tmp_path / "file" / below)
    assert "name another --home" in phone.refuses(*words.split(), error=ConfigError)


@pytest.mark.parametrize("words", ["status", "gallery list", "gallery wipe --yes"])
def test_a_gallery_that_is_a_folder(phone: Phone, words: str) -> None:
    (phone.home / "device.db").unlink()
    (phone.home / "device.db").mkdir()
    assert "device.db is a folder" in phone.refuses(*words.split(), error=CorruptDataError)


@pytest.mark.parametrize("words", ["status", "config show", "doctor"])
def test_settings_that_cannot_be_read(phone: Phone, words: str) -> None:
    settings = phone.home / "device.toml"
    settings.write_text("= broken [")
    assert f"{settings} is not valid TOML" in phone.refuses(*words.split(), error=ConfigError)
    settings.unlink()
    settings.mkdir()
    assert "device.toml is not a file" in phone.refuses(*words.split(), error=ConfigError)


@needs_permissions
def test_a_new_home_on_a_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir(mode=0o500)
    for home, words in (("ro", ["status"]), ("ro/below", ["join", "mien://join"])):
        assert "may not write" in Phone(tmp_path / home).refuses(*words, error=FileAccessError, bound=True)
        code, lines = Phone(tmp_path / home).says("config", "show", bound=True)
        assert (code, lines) == (0, [])


@needs_permissions
def test_a_used_home_that_became_read_only(phone: Phone) -> None:
    phone.home.chmod(0o500)
    assert phone.says("gallery", "list", bound=True) == (0, [])
    for words in ("gallery remove Ada --yes", "participate", "gallery wipe --yes"):
        assert "may not write" in phone.refuses(*words.split(), error=FileAccessError, bound=True)


@needs_permissions
def test_a_gallery_that_may_not_be_read_is_wiped_in_a_fleet_too(phone: Phone) -> None:
    home = Home.at(phone.home)
    files = IdentityFiles(home, open_key_store(phone.home, "auto"))
    files.save(replace(Fleet.create(), key=files.key()).identity("127.0.0.1:9"))
    (phone.home / "device.db").chmod(0o000)
    assert phone.says("gallery", "wipe", "--yes", bound=True) == (0, [])
    assert not (phone.home / "device.db").exists()


@needs_permissions
@pytest.mark.parametrize("name", ["device.db", "device.toml", "keystore.json", "keys", "keys/gallery.key"])
def test_a_piece_of_the_home_that_may_not_be_read(phone: Phone, name: str) -> None:
    path = phone.home / name
    path.touch()
    path.chmod(0o000)
    sentence = phone.refuses("gallery", "list", error=FileAccessError, bound=True)
    assert "owner and permissions" in sentence
    assert str(phone.home) in sentence or name == "device.db"


@needs_permissions
def test_an_export_to_where_it_may_not_be(phone: Phone, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\n")
    (tmp_path / "ro").mkdir(mode=0o500)
    for path in ("ro/out", "none/out", "password/out"):
        code, lines = phone.says(
            "gallery", "export", tmp_path / path, "--agreed", "--password-file", tmp_path / "password", bound=True
        )
        assert code in {row.exit_code for row in TABLE.values()}, lines
        assert len(lines) == 1


@pytest.mark.parametrize("close_stdin", [True, False])
@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ("join -", InviteError, "this is not an invite"),
        ("gallery wipe", ConfigError, "give --yes"),
        ("gallery remove Ada", ConfigError, "give --yes"),
        ("gallery export out", ConfigError, "--agreed"),
        ("gallery export out --agreed", ConfigError, "--password-file"),
        ("gallery import out", ConfigError, "--password-file"),
    ],
)
def test_nobody_is_there_to_answer(
    phone: Phone, words: str, error: type[MienError], says: str, close_stdin: bool
) -> None:
    if not close_stdin:
        assert says in phone.refuses(*words.split(), error=error)
        return
    code, lines = phone.says(*words.split(), close_stdin=True)
    assert len(lines) == 1, lines
    assert (code, says in lines[0]) == (TABLE[error].exit_code, True), lines


def test_a_closed_stdin_is_no_consent(phone: Phone) -> None:
    code, lines = phone.says("enroll", "Bo", *images_of(OWNER)[:5], close_stdin=True)
    assert code == 0, lines
    with contextlib.closing(Gallery.open(phone.home / "device.db", FileKeyStore(phone.home / "keys"))) as gallery:
        assert {person.name: person.consent_unix_s is None for person in gallery.people()} == {"Ada": False, "Bo": True}


def test_a_source_that_cannot_be_is_said_before_anything_is_read(phone: Phone, tmp_path: Path) -> None:
    said = phone.refuses("participate", "--nice", "0", "--source-aligned", error=ConfigError)
    assert said.startswith("--source-aligned says how the pictures of --source are")
    said = phone.refuses("participate", "--nice", "0", "--source", tmp_path, "--person", "Ada", error=ConfigError)
    assert said.startswith("--person and --source say two things")
    said = phone.refuses("participate", "--nice", "0", "--source", tmp_path / "nowhere", error=NotFoundError)
    assert said.endswith("check --source")
    (tmp_path / "empty").mkdir()
    said = phone.refuses("participate", "--nice", "0", "--source", tmp_path / "empty", error=ConfigError)
    assert "one folder a person" in said
