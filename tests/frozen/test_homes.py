"""Homes, databases, runs and backups that the programs of an earlier commit made open with the present ones.

`README.md` says how they were made and of what commit. Nothing here depends on the date: no certificate is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.home.home import CoordinatorHome
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.store import Store as RegistrarStore
from coordinator.store import account
from coordinator.store.store import Store
from device_sdk.models.packaged import sface_path
from device_sdk.rounds.attempts import Attempts
from device_sdk.storage.keystore import FileKeyStore
from mien.backbones.importers import import_model, with_adapter
from mien.log.audit import Anchor
from mien.shell.clock import Clock
from simulation.synthetic import committed_faces
from tests.frozen.make import EXPERIMENT, GUEST, HEAD_BYTES, NUM_ENROLLED, OWNERS, PASSWORD, TAIL_BYTES
from tests.programs import call, run

HERE = Path(__file__).resolve().parent
STORY: dict[str, Any] = json.loads((HERE / "story.json").read_text(encoding="utf-8"))
FLEET, SMALL = STORY["fleet"], STORY["small"]
THRESHOLD = 0.75
"""Rendered faces: other pictures of an enrolled person score above 0.8, other people's below 0.6."""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The homes as they were, the recogniser's parameters put back; tests work on copies."""
    folder = tmp_path_factory.mktemp("frozen")
    with tarfile.open(HERE / "homes.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    whole = with_adapter(import_model(sface_path().read_bytes(), "SFace")).theta.astype("<f4").tobytes()
    for name, sha256 in STORY["parameters"].items():
        ends = folder / f"{name}.ends"
        path = folder / name
        if path.suffix == ".bin":
            data = whole_checkpoint(ends.read_bytes(), path.with_suffix(".key").read_bytes(), whole[:-TAIL_BYTES])
        else:
            data = whole[:-TAIL_BYTES] + ends.read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256, name
        path.write_bytes(data)
        path.chmod(0o600)
        ends.unlink()
    return folder


def whole_checkpoint(ends: bytes, key: bytes, frozen_theta: bytes) -> bytes:
    """Return a sealed checkpoint of which only both ends were kept: parameters that nothing trained go between.

    It is nonce, AES-256-GCM ciphertext of a safetensors file whose last tensor is `theta`, and tag.
    """
    derived = HKDF(SHA256(), 32, salt=None, info=b"mien/coordinator/checkpoint/v1").derive(key)
    nonce, head = ends[:12], ends[12:HEAD_BYTES]
    counter = modes.CTR(nonce + (2).to_bytes(4, "big"))  # as in GCM, whose first block is for the tag
    plain = Cipher(algorithms.AES(derived), counter).decryptor().update(head)
    start = 8 + int.from_bytes(plain[:8], "little")
    theta_at = start + json.loads(plain[8:start])["theta"]["data_offsets"][0]
    text = plain[:theta_at] + frozen_theta
    sealed = Cipher(algorithms.AES(derived), counter).encryptor().update(text)
    return nonce + sealed + ends[HEAD_BYTES:]


@pytest.fixture
def homes(frozen: Path, tmp_path: Path) -> Path:
    """Copies of the homes; large files, which nothing changes, are links."""

    def link(source: str, to: str) -> None:
        if Path(source).stat().st_size > 1 << 20 and Path(source).suffix != ".db":
            os.link(source, to)
        else:
            shutil.copy2(source, to)

    return Path(shutil.copytree(frozen, tmp_path / "homes", copy_function=link))


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with the password of the backups."""
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    return file


def unseen(person: str) -> Path:
    """Return a picture that the person was not enrolled with."""
    return committed_faces("phones")[person][NUM_ENROLLED + 3]


# A phone


def test_who_is_enrolled_on_the_phone(homes: Path) -> None:
    told = call("mien-device", "gallery", "list", "--home", homes / "phone")
    assert told == FLEET["people"]
    assert [(each["name"], each["images"]) for each in told["people"]] == [("Ada", NUM_ENROLLED), ("Bo", NUM_ENROLLED)]


def test_the_phone_says_of_itself_what_it_said(homes: Path) -> None:
    told = call("mien-device", "status", "--home", homes / "phone")
    then = FLEET["status"]
    assert told.keys() >= then.keys()
    of_today = ("home", "renewal_is_due")
    assert {key: told[key] for key in then if key not in of_today} == {
        key: then[key] for key in then if key not in of_today
    }
    assert told["model_id"] == FLEET["second_model"]
    assert told["last_round_counted"] is True


@pytest.mark.parametrize(("name", "person"), [("Ada", OWNERS["phone"]), ("Bo", GUEST)])
def test_people_are_verified_against_templates_of_then(homes: Path, name: str, person: str) -> None:
    other = {"Ada": GUEST, "Bo": OWNERS["phone"]}[name]
    options = ("--show-score", "--threshold", THRESHOLD, "--home", homes / "phone")
    mine = run("mien-device", "verify", name, unseen(person), *options)
    theirs = run("mien-device", "verify", name, unseen(other), *options)
    assert (mine.code, mine.told["decision"]) == (0, "match")
    assert (theirs.code, theirs.told["decision"]) == (1, "unknown")
    assert mine.told["score"] > THRESHOLD + 0.03 > THRESHOLD - 0.1 > theirs.told["score"]


def test_scores_are_what_they_were(homes: Path) -> None:
    for name, frozen_answer in FLEET["scores"].items():
        person = {"Ada": OWNERS["phone"], "Bo": GUEST}[name]
        picture = committed_faces("phones")[person][7]
        told = run(
            "mien-device", "verify", "Ada", picture, "--show-score", "--threshold", THRESHOLD, "--home", homes / "phone"
        ).told
        assert told["score"] == pytest.approx(frozen_answer["score"], abs=0.01)
        assert told["decision"] == frozen_answer["decision"]


def test_the_attempts_log_knows_the_rounds_that_it_promised_for(homes: Path) -> None:
    population = FLEET["status"]["population"]
    attempts = Attempts.open(homes / "phone" / "attempts.db", FileKeyStore(homes / "phone" / "keys"), population)
    terms = attempts.participations()
    attempts.close()
    assert [each.round for each in terms] == [1, 2]


def test_a_gallery_in_a_file_comes_back(homes: Path, password: Path) -> None:
    home = ("--home", homes / "phone")
    for name in ("Ada", "Bo"):
        assert call("mien-device", "gallery", "remove", name, "--yes", *home)["images"] == NUM_ENROLLED
    assert call("mien-device", "gallery", "list", *home) == {"people": []}
    restored = call("mien-device", "gallery", "import", HERE / "gallery.mien", "--password-file", password, *home)
    assert restored == {"people": 2}
    people = call("mien-device", "gallery", "list", *home)["people"]
    assert [(each["name"], each["images"]) for each in people] == [("Ada", NUM_ENROLLED), ("Bo", NUM_ENROLLED)]
    mine = run("mien-device", "verify", "Ada", unseen(OWNERS["phone"]), "--threshold", THRESHOLD, *home)
    assert (mine.code, mine.told["decision"]) == (0, "match")


def test_keys_of_a_phone_of_then_can_be_changed(homes: Path) -> None:
    home = ("--home", homes / "phone")
    assert call("mien-device", "gallery", "rotate-keys", *home) == {"rotated": True}
    assert call("mien-device", "gallery", "list", *home) == FLEET["people"]


# The coordinator


@pytest.fixture
def store(homes: Path) -> Iterator[Store]:
    """The coordinator's database, brought up to date."""
    opened = open_store(homes / "coordinator")
    yield opened
    opened.close()


def open_store(folder: Path) -> Store:
    """Open a coordinator's database as the program does."""
    home = CoordinatorHome(folder)
    return Store.open(home.database_url(home.resolve().config), Clock())


def test_the_coordinators_task_and_its_rounds(store: Store) -> None:
    (task,) = store.tasks()
    assert (task.task_id, task.name, task.state.value) == (FLEET["task_id"], "frozen", "done")
    rounds = store.rounds(task.task_id)
    assert [(each.round, each.attempt, each.stage.value, each.num_reports) for each in rounds] == [
        (1, 1, "closed", 3),
        (2, 1, "closed", 3),
    ]
    assert rounds[-1].model_id == FLEET["second_model"]


def test_the_coordinators_models_are_whole(store: Store, homes: Path) -> None:
    models = {each.model_id: each for each in store.models()}
    assert {each["model_id"] for each in FLEET["models"]["models"]} == set(models)
    for model_id in (FLEET["first_model"], FLEET["second_model"]):
        blob = models[model_id].theta
        data = (homes / "coordinator" / "models" / blob.sha256[:2] / blob.sha256).read_bytes()
        assert hashlib.sha256(data).hexdigest() == blob.sha256
        assert np.isfinite(np.frombuffer(data, "<f4")).all()


def test_the_coordinators_audit_log_holds_up_to_the_anchor_of_then(store: Store) -> None:
    anchor = Anchor.parse(FLEET["audit_head"]["anchor"])
    assert store.audit(lambda log, db: log.verify(db, [anchor])).position >= anchor.position
    actions = {each.action for each in store.audit(lambda log, db: log.read(db, last=1000))}
    assert {"registrar.trust", "model.import", "model.release", "task.submit"} <= actions


def test_the_ledger_counts_what_was_spent(store: Store) -> None:
    ledger = store.privacy(lambda db: account.read(db, FLEET["status"]["population"]))
    ledger.verify()
    assert [(each.task_id, each.round, each.attempt) for each in ledger.events] == [
        (FLEET["task_id"], 1, 1),
        (FLEET["task_id"], 2, 1),
    ]
    assert 1 < ledger.epsilon(1e-5) < 100


def test_the_coordinators_phones(store: Store) -> None:
    assert len(store.devices()) == 3
    assert {each["device_id"] for each in FLEET["registrar_devices"]["devices"]} == {
        each.device_id for each in store.devices()
    }


def test_a_coordinators_backup_comes_back(tmp_path: Path, password: Path) -> None:
    home = tmp_path / "restored"
    told = call("mien-coordinator", "restore", HERE / "coordinator.mien", "--password-file", password, "--home", home)
    assert told == SMALL["backup"]
    store = open_store(home)
    try:
        (task,) = store.tasks()
        assert (task.task_id, task.name, task.state.value) == (SMALL["task"]["task_id"], "small", "paused")
        assert [each.model_id for each in store.models()] == [SMALL["model_id"]]
        blob = store.models()[0].theta
        assert (home / "models" / blob.sha256[:2] / blob.sha256).read_bytes() == (HERE / "tiny/theta.f32").read_bytes()
    finally:
        store.close()


@pytest.mark.parametrize("name", ["coordinator", "small-coordinator", "phone", "registrar"])
def test_settings_of_then_are_read(homes: Path, name: str) -> None:
    program = {"phone": "mien-device", "registrar": "mien-registrar"}.get(name, "mien-coordinator")
    assert call(program, "config", "show", "--home", homes / name)


# The registrar


def test_the_registrars_log_and_devices(homes: Path) -> None:
    home = homes / "registrar"
    anchor = FLEET["registrar_audit_head"]["anchor"]
    told = call("mien-registrar", "audit", "verify", "--anchor", anchor, "--home", home)
    assert (told["verifies"], told["anchor"]) == (True, anchor)
    devices_of_then = {each["device_id"]: each["note"] for each in FLEET["registrar_devices"]["devices"]}
    assert devices_of_then == devices(home)
    assert sorted(devices_of_then.values()) == ["the phone", "the second", "the third"]


def test_a_registrars_backup_comes_back(tmp_path: Path, password: Path) -> None:
    home = tmp_path / "restored"
    told = call("mien-registrar", "restore", HERE / "registrar.mien", "--password-file", password, "--home", home)
    assert {key: told[key] for key in FLEET["registrar_backup"]} == FLEET["registrar_backup"]
    assert devices(home) == {each["device_id"]: each["note"] for each in FLEET["registrar_devices"]["devices"]}


def devices(folder: Path) -> dict[str, str]:
    """Return the notes of a registrar's devices."""
    home = RegistrarHome(folder)
    store = RegistrarStore.open(home.database_url(home.resolve().config))
    try:
        with store.begin() as transaction:
            return {device.device_id: device.note for device, _ in transaction.devices_after("", 100)}
    finally:
        store.close()


# The simulator


def test_a_finished_run_is_reported_and_exported(homes: Path, tmp_path: Path) -> None:
    run_folder = homes / "run"
    records = (run_folder / "records.jsonl").read_bytes()
    call("mien-sim", "report", run_folder)
    assert (run_folder / "report.html").stat().st_size > 10_000
    call("mien-sim", "export", run_folder, "--csv", tmp_path / "run.csv")
    assert "frozen" in (tmp_path / "run.csv").read_text(encoding="utf-8")
    assert (run_folder / "records.jsonl").read_bytes() == records


def test_a_run_that_was_killed_goes_on(homes: Path) -> None:
    folder, experiment = homes / "unfinished", homes / "experiment.toml"
    header, *before = lines_of(folder / "records.jsonl")
    assert len(before) in range(1, 8)
    experiment.write_text(EXPERIMENT, encoding="utf-8")
    call("mien-sim", "run", experiment, "--rounds", 8, "--resume", "--out", folder)
    header_after, *more = lines_of(folder / "records.jsonl")
    after = [each for each in more if each["kind"] == "round"]
    assert header_after == header
    assert [each["round"] for each in after] == list(range(1, 9))
    assert after[0] == before[0], "measured once, with its times"
    assert not (folder / "checkpoint.bin").exists()


def lines_of(file: Path) -> list[Any]:
    """Return a file's JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_sweep_is_reported_and_nothing_of_it_is_measured_again(homes: Path) -> None:
    folder, experiment = homes / "sweep", homes / "experiment.toml"
    records = {path.name: path.read_bytes() for path in (folder / "records").iterdir()}
    assert [name.rpartition("-")[0] for name in sorted(records)] == ["lr-0.01-s0", "lr-0.1-s0"]
    call("mien-sim", "report", folder)
    assert (folder / "report.html").is_file()
    experiment.write_text(EXPERIMENT, encoding="utf-8")
    again, then = call("mien-sim", "sweep", experiment, "--out", folder), STORY["simulator"]["sweep"]
    same = ("failures", "runs", "settings")
    assert {key: again[key] for key in same} == {key: then[key] for key in same}
    assert sorted(again) == sorted([*then, "worse"])  # a sweep of then did not tell which runs made the model worse
    assert {path.name: path.read_bytes() for path in (folder / "records").iterdir()} == records
