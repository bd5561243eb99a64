"""Keys of the gallery: rotated, renewed, destroyed, and one consistent state whenever the power fails."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk.people.enrolled import unpack_template
from device_sdk.people.gallery import Gallery
from device_sdk.people.protection import LABEL
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import KeyStoreError, MienError, UnreachableError
from mien.protocol.tensors import pack_tensors
from mien.records import to_mapping
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, noise_crops, project, template_of
from tests.helpers import is_root


def enroll(gallery: Gallery, name: str, seed: int) -> None:
    crops = noise_crops(seed)
    gallery.enroll(name, crops, template_of(crops), now_unix_s=1000, consent=True)


def embedding(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return template_of(noise_crops(seed)).embedding


def stored_rows(gallery: Gallery) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Return the templates as they lie, sealed no more: what a thief of the data key would have."""
    with gallery._vault.reading() as view:
        return [unpack_template(record).row for record in view.select("templates")]


# --- the key that seals ---


def test_after_a_key_rotation_everything_is_there_and_old_copies_do_not_open(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    home, old = tmp_path / "home", tmp_path / "old"
    shutil.copytree(home, old)
    gallery.rotate_key()
    assert {path.name for path in (home / "keys").iterdir()} == {"gallery-2.key", "rotation.key"}
    np.testing.assert_allclose(gallery.references(MODEL_A).embeddings[0], embedding(1), atol=1e-6)
    with pytest.raises(KeyStoreError, match="gallery key"):
        Gallery.open(old / "device.db", FileKeyStore(home / "keys"))
    gallery.rotate_key()
    assert {path.name for path in (home / "keys").iterdir()} == {"gallery.key", "rotation.key"}
    gallery.close()
    again = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    np.testing.assert_array_equal(again.training_crops("Ada"), noise_crops(1))
    again.close()


def test_every_record_is_sealed_anew(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)

    def sealed() -> set[bytes]:
        with contextlib.closing(sqlite3.connect(tmp_path / "home" / "device.db")) as file, file:
            return {
                row[0]
                for table in ("persons", "templates", "crops")
                for row in file.execute(f"SELECT sealed FROM {table}")
            }

    before = sealed()
    gallery.rotate_key()
    after = sealed()
    assert len(before) == len(after) == 5
    assert not before & after


def test_another_process_follows_a_rotation(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    other = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    other.people()
    gallery.rotate_key()
    enroll(other, "Bo", 2)
    assert [person.name for person in gallery.people()] == ["Ada", "Bo"]
    other.rotate_key()
    assert [person.name for person in gallery.people()] == ["Ada", "Bo"]
    other.close()


def test_two_rotations_do_not_meet(tmp_path: Path, gallery: Gallery) -> None:
    other = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    with gallery._vault._rotating() as may:
        assert may
        with pytest.raises(UnreachableError, match="run again later"):
            other.rotate_key()
    other.rotate_key()
    other.close()


def test_wiping_destroys_whichever_key_is_in_use(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    gallery.rotate_key()
    gallery.close()
    home = tmp_path / "home"
    stolen = (home / "device.db").read_bytes()
    Gallery.wipe(home / "device.db", FileKeyStore(home / "keys"))
    assert list((home / "keys").iterdir()) == []
    assert not list(home.glob("*device.db*"))
    (home / "device.db").write_bytes(stolen)
    with pytest.raises(MienError):
        Gallery.open(home / "device.db", FileKeyStore(home / "keys"))


def test_a_file_that_names_a_foreign_key_is_refused(tmp_path: Path, gallery: Gallery) -> None:
    gallery.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "device.db")) as file, file:
        file.execute("INSERT OR REPLACE INTO meta VALUES ('key_label', 'identity')")
    with pytest.raises(MienError, match="key that cannot be"):
        Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))


@pytest.mark.parametrize("rotations", [0, 1, 2, 3])
def test_a_gallery_that_was_away_for_a_while_still_opens(tmp_path: Path, gallery: Gallery, rotations: int) -> None:
    """As when a folder is restored file by file: what opened the gallery must not be destroyed meanwhile."""
    enroll(gallery, "Ada", 1)
    for _ in range(rotations):
        gallery.rotate_key()
    gallery.close()
    file, keys = tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys")
    aside = file.rename(tmp_path / "aside.db")
    for _ in range(2):
        empty = Gallery.open(file, keys)
        assert empty.people() == ()
        empty.close()
    aside.replace(file)
    back = Gallery.open(file, keys)
    np.testing.assert_array_equal(back.training_crops("Ada"), noise_crops(1))
    back.close()


def test_two_keys_without_their_gallery_are_both_left_alone(tmp_path: Path, key_store: FileKeyStore) -> None:
    for label in ("gallery", "gallery-2"):
        key_store.create(label)
    with pytest.raises(KeyStoreError, match="put it back"):
        Gallery.open(tmp_path / "home" / "device.db", key_store)
    assert key_store.exists("gallery")
    assert key_store.exists("gallery-2")


@pytest.mark.skipif(is_root(), reason="root may write everywhere")
def test_in_a_folder_that_cannot_be_written_the_gallery_is_read_and_rotation_refused(
    tmp_path: Path, gallery: Gallery, key_store: FileKeyStore
) -> None:
    enroll(gallery, "Ada", 1)
    key_store.create("gallery-2")  # as an interrupted rotation leaves it
    home = tmp_path / "home"
    home.chmod(0o500)
    try:
        again = Gallery.open(home / "device.db", key_store)
        assert [person.name for person in again.people()] == ["Ada"]
        with pytest.raises(MienError):
            again.rotate_key()
        again.close()
    finally:
        home.chmod(0o700)


@pytest.mark.slow
@pytest.mark.timeout(960)
@pytest.mark.parametrize("seed", [1, 2])
def test_after_each_of_150_kills_the_gallery_holds_one_consistent_state(tmp_path: Path, seed: int) -> None:
    """Enrolment, removal, re-embedding, both kinds of key rotation, training and consent; each seed kills 150 times."""
    command = [sys.executable, "-m", "tests.device_sdk.gallery_under_kills", str(tmp_path / "home"), "150", str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["kills"] == 150
    assert set(result["did"]) >= {"enroll", "reembed", "rotate_key", "renew", "train"}


# --- the keys that turn templates ---


def test_a_stored_template_bears_no_likeness_to_the_person(gallery: Gallery) -> None:
    for seed in range(20):
        enroll(gallery, f"p{seed}", seed)
    rows = stored_rows(gallery)
    likeness = [abs(float(row @ embedding(seed))) for seed, row in enumerate(rows)]
    assert np.mean(likeness) < 0.45  # chance in 16 dimensions: 0.2, and 0.04 about it
    assert all(np.isclose(np.linalg.norm(row), 1.0, atol=1e-5) for row in rows)


def test_a_person_is_compared_without_turning_the_template_back(gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    crops = noise_crops(1)
    gallery.enroll("Ada", crops[:2], template_of(crops[:2]), now_unix_s=1, consent=True, add=True)
    enroll(gallery, "Bo", 2)
    scores = gallery.scores("ada", MODEL_A, embedding(2))
    expected = [embedding(1) @ embedding(2), template_of(crops[:2]).embedding @ embedding(2)]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_renewal_gives_other_references_of_the_same_face(gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    enroll(gallery, "Bo", 2)
    before = stored_rows(gallery)
    assert gallery.renew("Ada") == 1
    after = stored_rows(gallery)
    assert not np.allclose(before[0], after[0], atol=0.1)
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_allclose(gallery.scores("Ada", MODEL_A, embedding(1)), [1.0], atol=1e-5)


def test_a_new_model_gives_new_rotations_too(gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    before = stored_rows(gallery)
    gallery.reembed(MODEL_B, SPEC, project)
    assert not np.allclose(before[0], stored_rows(gallery)[0], atol=0.1)
    np.testing.assert_allclose(gallery.scores("Ada", MODEL_B, embedding(1)), [1.0], atol=1e-5)


@pytest.mark.parametrize("change", ["missing", "another"])
def test_without_the_right_rotation_key_nobody_is_compared_with_noise(
    tmp_path: Path, gallery: Gallery, change: str
) -> None:
    enroll(gallery, "Ada", 1)
    keys = FileKeyStore(tmp_path / "home" / "keys")
    keys.destroy(LABEL)
    if change == "another":
        keys.create(LABEL)
    fresh = Gallery.open(tmp_path / "home" / "device.db", keys)
    for ask in (lambda: fresh.scores("Ada", MODEL_A, embedding(1)), lambda: fresh.references(MODEL_A)):
        with pytest.raises(KeyStoreError, match=r"rotation key|key that turns"):
            ask()
    fresh.close()


def test_templates_of_earlier_programs_compare_until_they_are_turned(gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    facts = {"num_images": 3, "input": to_mapping(SPEC)}
    with gallery._vault.writing() as change:
        (record,) = change.select("templates")
        change.replace(record, pack_tensors({"template": embedding(1)}, {"facts": json.dumps(facts)}))
    np.testing.assert_allclose(gallery.scores("Ada", MODEL_A, embedding(1)), [1.0], atol=1e-6)
    np.testing.assert_allclose(gallery.references(MODEL_A).embeddings[0], embedding(1), atol=1e-6)
    gallery.renew("Ada")
    assert not np.allclose(stored_rows(gallery)[0], embedding(1), atol=0.1)
    np.testing.assert_allclose(gallery.scores("Ada", MODEL_A, embedding(1)), [1.0], atol=1e-5)


def test_a_gallery_of_an_earlier_program_alone_needs_no_rotation_key(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    facts = {"num_images": 3, "input": to_mapping(SPEC)}
    with gallery._vault.writing() as change:
        (record,) = change.select("templates")
        change.replace(record, pack_tensors({"template": embedding(1)}, {"facts": json.dumps(facts)}))
        del change._new_facts["rotation"]
    FileKeyStore(tmp_path / "home" / "keys").destroy(LABEL)
    old = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    np.testing.assert_allclose(old.scores("Ada", MODEL_A, embedding(1)), [1.0], atol=1e-6)
    np.testing.assert_allclose(old.references(MODEL_A).embeddings[0], embedding(1), atol=1e-6)
    old.renew("Ada")
    np.testing.assert_allclose(old.scores("Ada", MODEL_A, embedding(1)), [1.0], atol=1e-5)
    old.close()


def test_references_are_read_again_only_when_the_gallery_changed(tmp_path: Path, gallery: Gallery) -> None:
    enroll(gallery, "Ada", 1)
    first = gallery.references(MODEL_A)
    assert gallery.references(MODEL_A) is first
    other = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    enroll(other, "Bo", 2)
    other.close()
    assert gallery.references(MODEL_A).names == ("Ada", "Bo")
    gallery.remove("Bo")
    assert gallery.references(MODEL_A).names == ("Ada",)
