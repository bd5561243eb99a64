"""mien-device's face to people and machines: help, options, one sentence for a mistake, JSON that parses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from device_sdk.models.packaged import packaged_model
from device_sdk.people.backup import unseal_backup
from device_sdk.people.enrolled import Person
from device_sdk.people.gallery import Gallery
from device_sdk.people.trained import Pending
from device_sdk.program.cli import _next_of, _said_of_training, app
from device_sdk.storage.home import default_root
from device_sdk.storage.keystore import FileKeyStore, open_key_store
from mien.errors import (
    TABLE,
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    InviteError,
    KeyStoreError,
    MienError,
    NotEnrolledError,
    NotFoundError,
)
from mien.protocol.tensors import unpack_metadata
from tests.device_sdk.made_up_people import noise_crops, template_of
from tests.device_sdk.programs import mien_device
from tests.device_sdk.synthetic import DECIDES_AT, OWNER, STRANGER, images_of

OPTIONS = {
    "join": {"--home", "--keystore", "--json"},
    "relocate": {"--home", "--json"},
    "renew": {"--home", "--json"},
    "enroll": {"--home", "--consent", "--add", "--anyway", "--min-images", "--keystore", "--runtime", "--json"},
    "verify": {"--home", "--show-score", "--threshold", "--max-fmr", "--runtime", "--json"},
    "verify-pair": {"--home", "--show-score", "--threshold", "--max-fmr", "--runtime", "--json"},
    "identify": {"--home", "--show-score", "--threshold", "--max-fmr", "--max-fpir", "--runtime", "--json"},
    "watch": {
        "--home",
        "--camera",
        "--input",
        "--every-s",
        "--show-score",
        "--threshold",
        "--max-fmr",
        "--max-fpir",
        "--runtime",
        "--json",
    },
    "personalise": {"--home", "--backbone", "--drop", "--runtime", "--json"},
    "gallery list": {"--home", "--json"},
    "gallery consent": {"--home", "--give", "--json"},
    "gallery remove": {"--home", "--yes", "--json"},
    "gallery export": {"--home", "--password-file", "--agreed", "--json"},
    "gallery import": {"--home", "--password-file", "--anyway", "--keystore", "--json"},
    "gallery renew": {"--home", "--json"},
    "gallery rotate-keys": {"--home", "--json"},
    "gallery wipe": {"--home", "--yes", "--json"},
    "participate": {
        "--home",
        "--rounds",
        "--until-idle",
        "--idle-s",
        "--person",
        "--source",
        "--source-aligned",
        "--validate",
        "--evaluation",
        "--min-cohort",
        "--allow-plain-sums",
        "--allow-profile",
        "--allow-reveal",
        "--max-epsilon",
        "--charging",
        "--idle",
        "--unmetered",
        "--conditions",
        "--max-training-s",
        "--max-memory-mb",
        "--nice",
        "--runtime",
        "--json",
    },
    "bundle verify": {"--home", "--key", "--json"},
    "update": {"--home", "--runtime", "--json"},
    "status": {"--home", "--json"},
    "log": {"--home", "--begin-anew", "--json"},
    "doctor": {"--home", "--json"},
    "config show": {"--home", "--json"},
    "bench": {"--home", "--save", "--tier", "--json"},
}
"""Every verb and its options: what scripts of users rely on."""


def verbs() -> dict[str, Any]:
    """Return every command by its words."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        children = getattr(command, "commands", None)
        found.update({f"{name} {sub}": child for sub, child in children.items()} if children else {name: command})
    return found


def test_verbs_and_options_are_what_scripts_rely_on() -> None:
    options = {
        name: {parameter.opts[0] for parameter in command.params if parameter.opts[0].startswith("--")}
        for name, command in verbs().items()
    }
    assert options == OPTIONS


@pytest.mark.parametrize("name", OPTIONS)
def test_help_shows_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert f"Example: mien-device {name}" in " ".join(shown.output.split())


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from device_sdk.program.cli import app\n"
        "assert CliRunner().invoke(app, ['participate', '--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'cv2', 'grpc', 'numpy', 'OpenSSL', 'keyring') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    root = tmp_path / "phone"
    open_key_store(root, "file")
    gallery = Gallery.open(root / "device.db", FileKeyStore(root / "keys"))
    for seed, name in enumerate(("Ada", "Bo")):
        crops = noise_crops(seed)
        gallery.enroll(name, crops, template_of(crops), now_unix_s=1_700_000_000, consent=name == "Ada")
    gallery.close()
    return root


def call(*arguments: str | Path) -> Any:
    """Return the JSON of a command that succeeds."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def refused(*arguments: str | Path) -> MienError:
    """Return the error that a command ends with."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, MienError), done.output
    return done.exception


def test_the_gallery_is_listed_changed_and_wiped(home: Path) -> None:
    assert call("gallery", "list", "--home", home)["people"] == [
        {
            "name": "Ada",
            "images": 3,
            "templates": 1,
            "enrolled_unix_s": 1_700_000_000,
            "consent_unix_s": 1_700_000_000,
        },
        {"name": "Bo", "images": 3, "templates": 1, "enrolled_unix_s": 1_700_000_000, "consent_unix_s": None},
    ]
    removed = {"removed": "Bo", "images": 3, "coordinator_told": True}
    assert call("gallery", "remove", "Bo", "--yes", "--home", home) == removed
    assert isinstance(refused("gallery", "remove", "Bo", "--yes", "--home", home), NotEnrolledError)
    assert call("gallery", "renew", "Ada", "--home", home) == {"name": "Ada", "templates": 1}
    assert call("gallery", "rotate-keys", "--home", home) == {"rotated": True}
    assert [person["name"] for person in call("gallery", "list", "--home", home)["people"]] == ["Ada"]
    assert call("gallery", "wipe", "--yes", "--home", home) == {"wiped": True}
    assert call("gallery", "list", "--home", home) == {"people": []}


def test_consent_is_withdrawn_and_given(home: Path) -> None:
    gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    ada = gallery.person("Ada")
    for attempt in (1, 2):
        gallery.keep_pending(Pending((ada.id,), "task", 1, attempt, b"sum", {"w": np.ones(2, np.float32)}))
        if attempt == 1:
            gallery.settle(Pending((ada.id,), "task", 1, attempt, b"sum", {}), counted=True)
    gallery.close()
    arguments = ("gallery", "consent", "ada", "--home", home)
    done = CliRunner().invoke(app, [*map(str, arguments), "--withdraw"], catch_exceptions=False)
    assert "no longer train" in done.output
    assert "Ada is recognised as before" in done.output
    assert "taken back" not in done.output, "a device in no fleet has sent nothing"
    gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    assert gallery.pending() is None
    assert gallery.private_state(ada.id, "task") == {}
    gallery.close()

    withdrawn = {"name": "Ada", "trains": False, "consent_unix_s": None, "coordinator_told": True}
    assert call(*arguments, "--withdraw") == withdrawn
    given = call(*arguments, "--give")
    assert (given["trains"], given["consent_unix_s"] > 1_700_000_000) == (True, True)
    # Given again it stays as old as it is.
    assert call(*arguments, "--give") == given
    assert isinstance(refused("gallery", "consent", "Nobody", "--give", "--home", home), NotEnrolledError)
    assert CliRunner().invoke(app, [*map(str, arguments)]).exit_code == 2


def test_nothing_is_destroyed_without_a_yes(home: Path) -> None:
    for arguments in (("gallery", "wipe"), ("gallery", "remove", "Ada")):
        assert "--yes" in refused(*arguments, "--home", home).message
    assert len(call("gallery", "list", "--home", home)["people"]) == 2


def test_an_export_opens_with_its_password(home: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\nsecond line\n")
    arguments = (
        "gallery",
        "export",
        tmp_path / "backup",
        "--password-file",
        tmp_path / "password",
        "--agreed",
        "--home",
        home,
    )
    assert call(*arguments)["people"] == 2
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    plain = unseal_backup((tmp_path / "backup").read_bytes(), "correct horse")
    assert len(json.loads(unpack_metadata(plain)["people"])) == 2
    assert "exists already" in refused(*arguments).message


def test_one_person_is_no_people(home: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\n")

    def told(name: str) -> str:
        file = ("--password-file", str(tmp_path / "password"), "--agreed", "--home", str(home))
        return " ".join(CliRunner().invoke(app, ["gallery", "export", str(tmp_path / name), *file]).stdout.split())

    assert "2 people were written" in told("both")
    call("gallery", "remove", "Bo", "--yes", "--home", home)
    assert "1 person was written" in told("one")
    doctor = json.loads(CliRunner().invoke(app, ["doctor", "--home", str(home), "--json"]).stdout)["findings"]
    assert "opens; 1 person, 1 agreed to training" in [row["detail"] for row in doctor]


def test_a_password_may_come_through_a_pipe(home: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, "correct hörse\r\nsecond line\n".encode())
    os.close(write_end)
    arguments = (
        "gallery",
        "export",
        tmp_path / "backup",
        "--password-file",
        f"/dev/fd/{read_end}",
        "--agreed",
        "--home",
        home,
    )
    assert call(*arguments)["people"] == 2
    os.close(read_end)
    assert unseal_backup((tmp_path / "backup").read_bytes(), "correct hörse")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, NotFoundError, "there is no password file"),
        (b"", ConfigError, "is empty"),
        (b"\nsecond line", ConfigError, "is empty"),
        (b"x" * 5000, ConfigError, "first line is longer than 4096 bytes"),
        (b"correct h\xf6rse\n", ConfigError, "not UTF-8"),
    ],
)
def test_a_password_file_of_no_use_is_one_sentence(
    home: Path, tmp_path: Path, content: bytes | None, error: type[MienError], message: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    found = refused("gallery", "export", tmp_path / "backup", "--password-file", file, "--agreed", "--home", home)
    assert type(found) is error
    assert message in found.message
    folder = refused("gallery", "export", tmp_path / "backup", "--password-file", tmp_path, "--agreed", "--home", home)
    assert isinstance(folder, ConfigError)


def test_the_environment_names_this_programs_home_only(home: Path) -> None:
    environment = {"MIEN_DEVICE_HOME": str(home), "MIEN_HOME": str(home / "of another program")}
    done = CliRunner(env=environment).invoke(app, ["status", "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["home"] == str(home)


def test_the_status_needs_no_network(home: Path) -> None:
    status = call("status", "--home", home)
    assert (status["num_people"], status["num_agreed"], status["device_id"]) == (2, 1, None)
    assert status["keystore"] == "file"


def test_settings_are_shown_with_their_origin(home: Path) -> None:
    (home / "device.toml").write_text("[participation]\nmin_cohort = 8\n")
    shown = call("config", "show", "--home", home)
    assert shown["participation.min_cohort"] == {"value": 8, "from": "device.toml"}
    assert shown["enrollment.min_images"] == {"value": 3, "from": "default"}


def test_people_see_tables_and_sentences(home: Path) -> None:
    listed = CliRunner().invoke(app, ["gallery", "list", "--home", str(home)])
    assert "Ada" in listed.stdout
    assert "trains the model" in listed.stdout
    shown = CliRunner().invoke(app, ["config", "show", "--home", str(home)])
    assert "participation.min_cohort" in shown.stdout


@pytest.mark.parametrize("words", ["--help", "status", "gallery list", "config show"])
def test_light_commands_load_nothing_heavy(home: Path, words: str) -> None:
    code = (
        "import sys\n"
        "from device_sdk.program import main\n"
        "sys.argv = ['mien-device', *sys.argv[1:]]\n"
        "heavy = {'torch', 'onnxruntime', 'onnx', 'cv2', 'PIL', 'grpc', 'OpenSSL', 'cryptography.x509', 'mien.secagg',"
        " 'mien.evaluation'}\n"
        "try: main()\n"
        "finally: print(*heavy & set(sys.modules), file=sys.stderr)\n"
    )
    given = words.split() + ([] if words == "--help" else ["--home", str(home)])
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_who_did_not_agree_is_told_how_to_later() -> None:
    usual = default_root()
    assert _said_of_training(Person(1, "Ada", 0, 5), usual) == "Their pictures train the model."
    later = _said_of_training(Person(1, "Ada Byron", 0, None), usual)
    assert later.endswith("agree to that later: mien-device gallery consent 'Ada Byron' --give")
    assert _said_of_training(Person(1, "--Ada", 0, None), usual).endswith("gallery consent --give -- --Ada")
    elsewhere = Path("my phones") / "one"
    later = _said_of_training(Person(1, "Ada", 0, None), elsewhere)
    assert later.endswith("mien-device gallery consent Ada --give --home 'my phones/one'")
    later = _said_of_training(Person(1, "--Ada", 0, None), elsewhere)
    assert later.endswith("mien-device gallery consent --give --home 'my phones/one' -- --Ada")


def test_in_no_fleet_people_are_recognised_all_the_same(tmp_path: Path) -> None:
    home, mine, other = ("--home", tmp_path / "new"), images_of(OWNER), images_of(STRANGER)
    decides = ("--threshold", str(DECIDES_AT))  # the packaged one is of real people
    paired = call("verify-pair", mine[0], mine[4], *decides, *home)
    assert paired == {"decision": "match", "threshold": DECIDES_AT}
    assert not (tmp_path / "new").exists()
    enrolled = call("enroll", "Ada", *mine[:3], "--no-consent", "--anyway", "--keystore", "file", *home)
    assert (enrolled["images_used"], enrolled["trains"]) == (3, False)
    assert call("verify", "Ada", mine[4], *decides, *home)["decision"] == "match"
    assert call("identify", mine[4], *decides, *home)["name"] == "Ada"
    assert CliRunner().invoke(app, ["verify-pair", *map(str, (mine[0], other[0], *decides, *home))]).exit_code == 1
    found = {row["what"]: row for row in call("doctor", *home)["findings"]}
    assert found["membership"]["detail"].startswith("in no fleet, and none is needed")
    assert found["model"]["detail"].startswith(f"sface {packaged_model().model_id[:12]} in float32")


def test_mistakes_are_found_before_a_model_is_fetched(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    assert isinstance(refused("enroll", "Cy", folder, "--home", home), EmptyFolderError)
    assert isinstance(refused("enroll", "Cy", tmp_path / "none", "--home", home), NotFoundError)
    (folder / "a.jpg").write_bytes(b"")
    assert isinstance(refused("enroll", "ada", folder, "--home", home), AlreadyExistsError)
    assert isinstance(refused("enroll", " ", folder, "--home", home), ConfigError)


@pytest.mark.parametrize(
    ("people", "told"),
    [
        ((), "mien-device enroll NAME FOLDER --home phone"),
        (
            (Person(1, "Ada", 0, None),),
            "where somebody agrees that their pictures train the model, mien-device gallery consent Ada --give --home "
            "phone; then mien-device participate --home phone",
        ),
        ((Person(1, "Ada", 0, None), Person(2, "Bo", 0, 1)), "mien-device participate --home phone"),
    ],
)
def test_what_a_device_that_joined_does_next_follows_from_who_is_enrolled(
    people: tuple[Person, ...], told: str
) -> None:
    assert _next_of(people, Path("phone")) == told


@pytest.mark.parametrize(
    "invite",
    ["", "https://example.org", "mien://join?", "mien://join?r=a:1&rf=00&cf=00&t=short", "mien://join?r=a:1"],
)
def test_a_damaged_invite_is_one_sentence(tmp_path: Path, invite: str) -> None:
    error = refused("join", invite, "--home", tmp_path / "new", "--keystore", "file")
    assert isinstance(error, InviteError)
    assert "copy the whole line" in error.message


def test_a_users_mistake_is_one_line_and_a_number(home: Path) -> None:
    for arguments, error in (
        (("verify", "Nobody", "face.jpg"), NotEnrolledError),
        (("participate",), InviteError),
        (("gallery", "remove", "Nobody", "--yes"), NotEnrolledError),
    ):
        for as_json in (False, True):
            done = mien_device(*arguments, "--home", home, *(["--json"] if as_json else []))
            assert done.returncode == TABLE[error].exit_code, done.stderr
            assert len(done.stderr.splitlines()) == 1
            assert "Traceback" not in done.stderr
            if as_json:
                assert json.loads(done.stderr)["error"] == error.code


def test_a_command_in_the_tests_process_leaves_its_priority_as_it_was(home: Path) -> None:
    """A phone's program steps back until it ends; what is tested after it, and servers started then, must not."""
    before = os.nice(0)
    mien_device("participate", "--nice", "19", "--home", home)
    assert os.nice(0) == before


def test_a_gallery_without_its_key_can_be_wiped(home: Path) -> None:
    (home / "keys" / "gallery.key").unlink()
    assert isinstance(refused("gallery", "list", "--home", home), KeyStoreError)
    assert call("gallery", "wipe", "--yes", "--home", home) == {"wiped": True}
    assert call("gallery", "list", "--home", home) == {"people": []}


def test_a_damaged_gallery_is_one_sentence(home: Path) -> None:
    (home / "device.db").write_bytes(b"not a database at all")
    error = refused("gallery", "list", "--home", home)
    assert isinstance(error, CorruptDataError)
    assert "wipe and enrol again" in error.message


def test_the_doctor_names_what_is_missing(home: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--home", str(home), "--json"])
    assert done.exit_code == 1
    found = {row["what"]: row for row in json.loads(done.stdout)["findings"]}
    assert found["gallery"]["ok"]
    assert found["gallery"]["detail"] == "opens; 2 people, 1 agreed to training"
    assert "join" in found["membership"]["detail"]
    assert not found["model"]["ok"]


@pytest.mark.parametrize(
    "words",
    ["status", "doctor", "log", "gallery list", "identify door.jpg", "gallery wipe --yes", "participate --until-idle"],
)
def test_a_command_that_begins_no_device_makes_no_home(tmp_path: Path, words: str) -> None:
    home = tmp_path / "none"
    done = CliRunner().invoke(app, [*words.split(), "--home", str(home), "--json"])
    assert not home.exists()
    if words == "status":
        assert json.loads(done.stdout)["home"] == str(home)


def test_a_home_that_was_named_and_is_not_there_is_no_healthy_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "none"
    for command in ("status", "doctor"):
        done = CliRunner().invoke(app, [command, "--home", str(home)])
        assert f"there is no device at {home} yet" in done.stderr
    doctor = CliRunner().invoke(app, ["doctor", "--home", str(home), "--json"])
    assert json.loads(doctor.stdout)["findings"][0]["detail"].startswith(f"{home} is not there yet")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MIEN_DEVICE_HOME", raising=False)
    assert CliRunner().invoke(app, ["status"]).stderr == "", "nobody named the default one"


def test_a_device_without_a_fleet_cannot_know_whose_releases_to_trust(tmp_path: Path) -> None:
    assert "give the operator's by --key" in refused("bundle", "verify", tmp_path, "--home", tmp_path / "none").message


@pytest.mark.parametrize(
    "words", [("gallery", "import", "{}", "--password-file", "{}"), ("bundle", "verify", "{}", "--key", "a" * 64)]
)
def test_a_file_that_is_not_there_is_named_as_it_was_typed(home: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "file"
    file.write_text("a long password\n")
    gone = tmp_path / "usb" / "gone"
    typed = [word.format(gone if number == 2 else file) for number, word in enumerate(words)]
    assert str(gone) in refused(*typed, "--home", home).message
