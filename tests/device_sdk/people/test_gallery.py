"""The gallery: what goes in comes out, all of a person or nothing, one model at a time, and nothing in clear."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.people.backup import seal_backup, unseal_backup
from device_sdk.people.enrolled import Template
from device_sdk.people.gallery import Gallery, from_plain
from device_sdk.people.trained import Pending
from device_sdk.storage.keystore import FileKeyStore
from device_sdk.storage.vault import SCHEMA_VERSION
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    DiskFullError,
    KeyStoreError,
    ModelMismatchError,
    NonFiniteError,
    NotEnrolledError,
    UnreachableError,
    VersionError,
)
from mien.protocol.tensors import pack_tensors, unpack_metadata, unpack_tensors
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, noise_crops, project, template_of

TEMPLATE_1 = '[{"name": "Ada", "enrolled_unix_s": 1, "templates": [{"id": 1}]}]'


def enroll(gallery: Gallery, name: str, seed: int = 1, *, consent: bool = True, add: bool = False) -> None:
    crops = noise_crops(seed)
    gallery.enroll(name, crops, template_of(crops), now_unix_s=1000, consent=consent, add=add)


def pending(person_id: int, **changes: object) -> Pending:
    base = Pending((person_id,), "task", 3, 1, b"\x00\x01\x02", {"w": np.ones((1, 4), np.float32)})
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_a_template_is_the_normalised_mean_of_normalised_features() -> None:
    # (3, 4) / 5 and (0, 2) / 2 have the mean (0.3, 0.9), of length sqrt(0.9).
    features = np.array([[3, 4], [0, 2]], np.float32)
    template = Template.of(features, MODEL_A, SPEC)
    np.testing.assert_allclose(template.embedding, np.array([0.3, 0.9]) / np.sqrt(0.9), rtol=1e-6)
    assert template.num_images == 2


@pytest.mark.parametrize("features", [[[np.nan, 1]], [[0, 0]], [[np.inf, 1]], [[1, 0], [-1, 0]]])
def test_features_without_a_direction_make_no_template(features: list[list[float]]) -> None:
    with pytest.raises(NonFiniteError):
        Template.of(np.array(features, np.float32), MODEL_A, SPEC)


def test_what_is_enrolled_comes_back(gallery: Gallery) -> None:
    enroll(gallery, "  Ada ")
    enroll(gallery, "Bo", seed=2, consent=False)
    ada, bo = gallery.people()
    assert (ada.name, ada.num_images, ada.num_templates, ada.trains) == ("Ada", 3, 1, True)
    assert (bo.name, bo.consent_unix_s, bo.trains) == ("Bo", None, False)
    np.testing.assert_array_equal(gallery.training_crops("ada"), noise_crops(1))
    references = gallery.references(MODEL_A)
    assert references.names == ("Ada", "Bo")
    np.testing.assert_allclose(references.embeddings[1], template_of(noise_crops(2)).embedding, atol=1e-6)


def test_an_empty_gallery_is_no_error(gallery: Gallery) -> None:
    assert gallery.people() == ()
    assert gallery.references(MODEL_A).names == ()
    assert gallery.model_id is None


def test_a_name_is_taken_once_but_may_have_several_templates(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    with pytest.raises(AlreadyExistsError, match="`add=True`"):
        enroll(gallery, "ADA", seed=2)
    enroll(gallery, "ada", seed=2, add=True)
    assert gallery.person("Ada").num_templates == 2
    assert gallery.references(MODEL_A).names == ("Ada", "Ada")
    assert gallery.training_crops("Ada").shape == (6, 112, 112, 3)


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\nb", "\x1b[31m"])
def test_names_that_are_none_are_refused(gallery: Gallery, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        enroll(gallery, name)


def test_a_name_is_found_however_it_is_spelt(gallery: Gallery) -> None:
    enroll(gallery, "Ana\u00a0Mar\u00eda \u0639\u0644\u06cc\u200c\u0631\u0636\u0627")
    assert gallery.person("ANA  MARI\u0301A \u0639\u0644\u06cc\u0631\u0636\u0627").name == gallery.people()[0].name
    with pytest.raises(AlreadyExistsError):
        enroll(gallery, "ana mar\u00eda \u0639\u0644\u06cc\u0631\u0636\u0627")


def test_names_that_earlier_programs_told_apart_stay_apart(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("device_sdk.people.enrolled.name_key", str.casefold)
        for name in ("A b", "A\ufe0f b"):
            enroll(gallery, name)
    assert [gallery.person(name).name for name in ("A b", "A\ufe0f b")] == ["A b", "A\ufe0f b"]


EARLIER = ("Ada L", "Ada  L", "Ada\u2800 L", "\u3164")
"""What earlier programs took for four names."""


@pytest.fixture
def earlier(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> Gallery:
    with monkeypatch.context() as program:
        program.setattr("device_sdk.people.gallery.clean_name", str)
        program.setattr("device_sdk.people.gallery.found", lambda _view, _name: None)
        for seed, name in enumerate(EARLIER):
            enroll(gallery, name, seed)
    assert {person.name for person in gallery.people()} == set(EARLIER)
    return gallery


@pytest.mark.parametrize("name", EARLIER, ids=range(4))
def test_whom_an_earlier_program_enrolled_is_found_withdrawn_and_removed(earlier: Gallery, name: str) -> None:
    assert earlier.has(name)
    enroll(earlier, name, 9, add=True)
    assert {each.name for each in earlier.people() if each.num_templates == 2} == {name}
    earlier.set_consent(name, granted_unix_s=None)
    assert {each.name for each in earlier.people() if not each.trains} == {name}
    assert earlier.remove(name).name == name
    assert {each.name for each in earlier.people()} == set(EARLIER) - {name}


def test_a_spelling_that_fits_several_people_names_none(earlier: Gallery) -> None:
    with pytest.raises(ConfigError, match="3 people have that name"):
        earlier.remove("ada l")


def test_an_earlier_program_s_names_outlive_a_backup(earlier: Gallery, tmp_path: Path) -> None:
    people = from_plain(earlier.to_plain())
    other = Gallery.open(tmp_path / "other" / "device.db", FileKeyStore(tmp_path / "other" / "keys"))
    other.restore([(person, [template_of(crops) for crops in person.crops]) for person in people])
    assert [person.name for person in other.people()] == [person.name for person in earlier.people()]
    with pytest.raises(AlreadyExistsError):
        other.restore([(people[0], []), (people[0], [])])
    other.close()


def test_who_is_not_enrolled_is_named(gallery: Gallery) -> None:
    for call in (gallery.person, gallery.remove, gallery.training_crops):
        with pytest.raises(NotEnrolledError, match="Ada"):
            call("Ada")


def test_images_train_only_with_consent(gallery: Gallery) -> None:
    enroll(gallery, "Ada", consent=False)
    with pytest.raises(ConfigError, match=r"Device\.set_consent\(\)"):
        gallery.training_crops("Ada")
    gallery.set_consent("Ada", granted_unix_s=2000)
    assert gallery.person("Ada").consent_unix_s == 2000
    assert len(gallery.training_crops("Ada")) == 3


def test_withdrawn_consent_takes_the_private_state_along(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    ada = gallery.person("Ada")
    gallery.keep_pending(pending(ada.id))
    gallery.settle(pending(ada.id), counted=True)
    assert gallery.private_state(ada.id, "task")
    gallery.set_consent("Ada", granted_unix_s=None)
    assert gallery.private_state(ada.id, "task") == {}
    assert gallery.person("Ada").num_images == 3


def test_what_was_trained_is_not_kept_once_consent_is_withdrawn(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    ada = gallery.person("Ada")
    gallery.keep_pending(pending(ada.id))
    assert gallery.is_pending(pending(ada.id))
    assert not gallery.is_pending(pending(ada.id, attempt=2))
    gallery.set_consent("Ada", granted_unix_s=None)
    assert not gallery.is_pending(pending(ada.id))
    for person_id in (ada.id, ada.id + 1000):
        with pytest.raises(ConfigError, match="no longer"):
            gallery.keep_pending(pending(person_id))
    assert gallery.pending() is None


def test_a_removed_person_leaves_nothing(gallery: Gallery, tmp_path: Path) -> None:
    enroll(gallery, "Ada")
    enroll(gallery, "Bo", seed=2)
    ada = gallery.person("Ada")
    gallery.keep_pending(pending(ada.id))
    assert gallery.remove("ada").name == "Ada"
    gallery.settle(pending(ada.id), counted=True)
    assert [person.name for person in gallery.people()] == ["Bo"]
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "device.db")) as raw, raw:
        for table in ("persons", "templates", "crops", "states", "pending"):
            assert raw.execute(f"SELECT count(*) FROM {table} WHERE person = ?", (ada.id,)).fetchone() == (0,)
    raw.close()


def test_templates_of_two_models_never_meet(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    with pytest.raises(ModelMismatchError):
        gallery.references(MODEL_B)
    crops = noise_crops(2)
    with pytest.raises(ModelMismatchError):
        gallery.enroll("Bo", crops, template_of(crops, MODEL_B), now_unix_s=0, consent=False)
    assert [person.name for person in gallery.people()] == ["Ada"]


def test_reembedding_makes_every_template_anew_from_its_crops(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    enroll(gallery, "Ada", seed=3, add=True)
    enroll(gallery, "Bo", seed=2)
    assert gallery.reembed(MODEL_B, SPEC, lambda crops: project(crops, seed=9)) == 3
    assert gallery.model_id == MODEL_B
    with pytest.raises(ModelMismatchError):
        gallery.references(MODEL_A)
    for row, seed in enumerate((1, 3, 2)):
        expected = Template.of(project(noise_crops(seed), seed=9), MODEL_B, SPEC).embedding
        np.testing.assert_allclose(gallery.references(MODEL_B).embeddings[row], expected, atol=1e-6)


def test_a_failed_reembedding_leaves_the_old_templates(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    enroll(gallery, "Bo", seed=2)
    calls = iter((1.0, np.nan))
    with pytest.raises(NonFiniteError):
        gallery.reembed(MODEL_B, SPEC, lambda crops: project(crops) * np.float32(next(calls)))
    assert gallery.model_id == MODEL_A
    assert len(gallery.references(MODEL_A).names) == 2


def test_reembedding_notices_a_change_that_came_between(gallery: Gallery, tmp_path: Path) -> None:
    enroll(gallery, "Ada")
    other = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    arrivals = iter(("Bo", None, None))

    def embed(crops: np.ndarray) -> np.ndarray:
        if name := next(arrivals):
            enroll(other, name, seed=2)
        return project(crops, seed=9)

    assert gallery.reembed(MODEL_B, SPEC, embed) == 2
    assert other.references(MODEL_B).names == ("Ada", "Bo")
    other.close()


def test_private_state_is_replaced_only_by_a_round_that_counted(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    ada = gallery.person("Ada").id
    first, second = pending(ada), pending(ada, round=4, private={"w": np.full((1, 4), 2, np.float32)})
    gallery.keep_pending(first)
    kept = gallery.pending()
    assert kept is not None
    assert (kept.task_id, kept.round, kept.attempt, kept.contribution) == ("task", 3, 1, b"\x00\x01\x02")
    gallery.settle(first, counted=False)
    assert (gallery.pending(), gallery.private_state(ada, "task")) == (None, {})
    gallery.keep_pending(first)
    gallery.settle(first, counted=True)
    np.testing.assert_array_equal(gallery.private_state(ada, "task")["w"], np.ones((1, 4)))
    gallery.keep_pending(second)
    gallery.settle(second, counted=False)
    np.testing.assert_array_equal(gallery.private_state(ada, "task")["w"], np.ones((1, 4)))
    gallery.keep_pending(second)
    gallery.settle(second, counted=True)
    np.testing.assert_array_equal(gallery.private_state(ada, "task")["w"], np.full((1, 4), 2))
    assert gallery.private_state(ada, "another task") == {}


def test_nothing_of_a_person_is_on_disk_in_clear(gallery: Gallery, tmp_path: Path) -> None:
    enroll(gallery, "Ada Lovelace")
    gallery.keep_pending(pending(gallery.person("Ada Lovelace").id, contribution=b"contribution bytes"))
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"device.db", "gallery.key", "rotation.key"}
    stored = b"".join(path.read_bytes() for path in files)
    crops = noise_crops(1)
    for secret in (
        b"Lovelace",
        crops.tobytes()[:24],
        template_of(crops).embedding.tobytes()[:16],
        b"contribution bytes",
        np.ones(4, np.float32).tobytes(),
    ):
        assert secret not in stored
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_biometric_data_is_not_in_representations(gallery: Gallery) -> None:
    enroll(gallery, "Ada")
    template = template_of(noise_crops(1))
    assert "array" not in repr((template, gallery.references(MODEL_A), pending(1)))


def test_the_gallery_opens_again_with_its_key_only(tmp_path: Path, key_store: FileKeyStore) -> None:
    path = tmp_path / "home" / "device.db"
    gallery = Gallery.open(path, key_store)
    enroll(gallery, "Ada")
    gallery.close()
    Gallery.open(path, key_store).close()
    key_file = tmp_path / "home" / "keys" / "gallery.key"
    key = key_file.read_bytes()
    key_file.write_bytes(bytes(reversed(key)))
    with pytest.raises(KeyStoreError, match="does not open"):
        Gallery.open(path, key_store)
    key_file.unlink()
    with pytest.raises(KeyStoreError, match="missing"):
        Gallery.open(path, key_store)
    assert not key_file.exists()


def test_wiping_makes_old_copies_worthless(tmp_path: Path, key_store: FileKeyStore) -> None:
    path = tmp_path / "home" / "device.db"
    gallery = Gallery.open(path, key_store)
    enroll(gallery, "Ada")
    gallery.close()
    copy = path.read_bytes()
    Gallery.wipe(path, key_store)
    Gallery.wipe(path, key_store)
    assert not path.exists()
    fresh = Gallery.open(path, key_store)
    assert fresh.people() == ()
    fresh.close()
    path.write_bytes(copy)
    with pytest.raises(KeyStoreError):
        Gallery.open(path, key_store)


@pytest.mark.parametrize("is_begun_anew", [False, True])
def test_a_gallery_that_another_process_wiped_takes_and_shows_nothing(
    tmp_path: Path, key_store: FileKeyStore, is_begun_anew: bool
) -> None:
    path = tmp_path / "home" / "device.db"
    stale = Gallery.open(path, key_store)
    enroll(stale, "Ada")
    stale.references(MODEL_A)
    Gallery.wipe(path, key_store)
    if is_begun_anew:
        Gallery.open(path, key_store).close()
    keys_before = sorted(file.name for file in (tmp_path / "home" / "keys").iterdir())
    for use in (
        lambda: enroll(stale, "Grace", 2),
        lambda: stale.remove("Ada"),
        lambda: stale.people(),
        lambda: stale.references(MODEL_A),
        lambda: stale.training_crops("Ada"),
    ):
        with pytest.raises(KeyStoreError, match="wiped or replaced by another program"):
            use()
    stale.close()
    assert sorted(file.name for file in (tmp_path / "home" / "keys").iterdir()) == keys_before
    with contextlib.closing(Gallery.open(path, key_store)) as fresh:
        assert fresh.people() == ()


def test_a_wipe_in_the_middle_of_a_change_is_told(tmp_path: Path, key_store: FileKeyStore) -> None:
    path = tmp_path / "home" / "device.db"

    def change_and_wipe(gallery: Gallery) -> None:
        with gallery._vault.writing() as change:
            change.insert("persons", b"{}")
            Gallery.wipe(path, key_store)

    with contextlib.closing(Gallery.open(path, key_store)) as stale:
        with pytest.raises(KeyStoreError, match="wiped or replaced"):
            change_and_wipe(stale)
        assert not path.exists()


def test_what_a_killed_writer_left_of_a_wiped_gallery_is_not_rolled_back_into_a_new_one(
    tmp_path: Path, key_store: FileKeyStore
) -> None:
    path = tmp_path / "home" / "device.db"
    Gallery.open(path, key_store).close()
    journal = path.with_name(f"{path.name}-journal")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE meta SET value = zeroblob(100)")
        writer.execute("INSERT INTO crops VALUES (1, 1, '', x'', zeroblob(1000000))")  # more than SQLite keeps back
        left = journal.read_bytes()
        writer.execute("ROLLBACK")
    Gallery.wipe(path, key_store)
    journal.write_bytes(left)  # as after a wipe that was killed before it came to the journal
    with contextlib.closing(Gallery.open(path, key_store)) as fresh:
        assert fresh.people() == ()
        assert fresh.form_id is None


def test_a_gallery_of_a_newer_program_is_not_touched(tmp_path: Path, key_store: FileKeyStore) -> None:
    path = tmp_path / "home" / "device.db"
    Gallery.open(path, key_store).close()
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(VersionError, match="upgrade"):
        Gallery.open(path, key_store)


def test_a_gallery_in_use_says_so(gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_sdk.storage.vault.BUSY_TIMEOUT_S", 0.05)
    other = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "device.db", isolation_level=None)) as raw, raw:
        raw.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnreachableError, match="in use"):
            other.people()
    raw.close()
    other.close()


def test_a_full_disk_changes_nothing(tmp_path: Path, key_store: FileKeyStore) -> None:
    path = tmp_path / "home" / "device.db"
    gallery = Gallery.open(path, key_store)
    enroll(gallery, "Ada")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # A file may not grow beyond this: what the database gets is a short write, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 8192, before[1]))
    try:
        with pytest.raises(DiskFullError):
            enroll(gallery, "Bo", seed=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [person.name for person in gallery.people()] == ["Ada"]
    enroll(gallery, "Bo", seed=2)
    gallery.close()
    again = Gallery.open(path, key_store)
    assert len(again.people()) == 2
    again.close()


def test_a_backup_opens_with_its_password_only(gallery: Gallery) -> None:
    enroll(gallery, "Ada Lovelace")
    enroll(gallery, "Bo", seed=2, consent=False)
    data = seal_backup(gallery.to_plain(), "correct horse")
    assert b"Lovelace" not in data  # a shorter name turns up in so many sealed bytes by chance
    plain = unseal_backup(data, "correct horse")
    people = json.loads(unpack_metadata(plain)["people"])
    tensors = unpack_tensors(plain, what="backup")
    assert [person["name"] for person in people] == ["Ada Lovelace", "Bo"]
    kept = people[0]["templates"][0]["id"]
    np.testing.assert_array_equal(tensors[f"crops/{kept}"], noise_crops(1))
    with pytest.raises(CorruptDataError, match="type the password of this export, or take another copy") as told:
        unseal_backup(data, "correct h0rse")
    assert "wipe" not in told.value.message  # who is enrolled here has nothing to do with it
    with pytest.raises(ConfigError, match="at least"):
        seal_backup(b"", "short")


def test_a_backup_is_restored_whole_or_not_at_all(gallery: Gallery, tmp_path: Path) -> None:
    enroll(gallery, "Ada")
    enroll(gallery, "Ada", seed=3, add=True)
    enroll(gallery, "Bo", seed=2, consent=False)
    people = from_plain(gallery.to_plain())
    made = [(person, [template_of(crops, MODEL_B) for crops in person.crops]) for person in people]
    other = Gallery.open(tmp_path / "other" / "device.db", FileKeyStore(tmp_path / "other" / "keys"))
    other.restore(made)
    assert [replace(person, id=0) for person in other.people()] == [replace(p, id=0) for p in gallery.people()]
    np.testing.assert_array_equal(other.training_crops("Ada"), gallery.training_crops("Ada"))
    assert other.references(MODEL_B).names == ("Ada", "Ada", "Bo")
    other.remove("Ada")
    with pytest.raises(AlreadyExistsError, match="nobody was added"):
        other.restore(made)
    assert [person.name for person in other.people()] == ["Bo"]
    other.close()


@pytest.mark.parametrize(
    ("tensors", "people"),
    [
        ({}, "{}x"),
        ({}, '[{"name": "Ada"}]'),
        ({}, '[{"name": "", "enrolled_unix_s": 1, "templates": []}]'),
        ({}, '[{"name": "Ada", "enrolled_unix_s": 1, "templates": [{"id": 1}]}]'),
        ({"crops/1": np.zeros((2, 96, 112, 3), np.uint8)}, TEMPLATE_1),
        ({"crops/1": np.zeros((2, 112, 112, 3), np.float32)}, TEMPLATE_1),
        ({"crops/1": np.zeros((0, 112, 112, 3), np.uint8)}, TEMPLATE_1),
    ],
)
def test_a_backup_of_another_form_is_refused(tensors: dict[str, np.ndarray], people: str) -> None:
    with pytest.raises(CorruptDataError):
        from_plain(pack_tensors(tensors, {"people": people}))


CROP_1 = {"crops/1": np.zeros((2, 112, 112, 3), np.uint8)}


@pytest.mark.parametrize("field", ["consent_unix_s", "enrolled_unix_s"])
@pytest.mark.parametrize("value", [False, True, "yes", "1", "abc", [1], {}, 1.0, 1e308, -1, 10**12, 10**30])
def test_a_backup_whose_dates_are_none_makes_nobody_agree(field: str, value: object) -> None:
    person = {"name": "Eve", "enrolled_unix_s": 1, "consent_unix_s": None, "templates": [{"id": 1}], field: value}
    with pytest.raises(CorruptDataError, match="export it again"):
        from_plain(pack_tensors(CROP_1, {"people": json.dumps([person])}))


@pytest.mark.parametrize("consent", [None, 0, 1_790_000_000])
def test_a_backup_keeps_when_somebody_agreed(consent: int | None) -> None:
    person = {"name": "Eve", "enrolled_unix_s": 1, "consent_unix_s": consent, "templates": [{"id": 1}]}
    (found,) = from_plain(pack_tensors(CROP_1, {"people": json.dumps([person])}))
    assert (found.consent_unix_s, found.enrolled_unix_s) == (consent, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"templates": []},
        {"templates": {"id": 1}},
        {"templates": "1"},
        {"templates": None},
        {"templates": [1]},
        {"templates": [{"id": [1]}]},
        {"enrolled_unix_s": None},
        {"name": 5},
        {"name": "\ud800"},
    ],
)
def test_a_backup_with_a_damaged_person_is_refused(changes: dict[str, object]) -> None:
    person = {"name": "Eve", "enrolled_unix_s": 1, "consent_unix_s": None, "templates": [{"id": 1}], **changes}
    with pytest.raises(CorruptDataError, match="export it again"):
        from_plain(pack_tensors(CROP_1, {"people": json.dumps([person])}))


@pytest.mark.parametrize("people", ["null", "1", '"Eve"', '["Eve"]', "[null]", '{"Eve": 1}', "{}"])
def test_a_backup_without_a_list_of_people_is_refused(people: str) -> None:
    with pytest.raises(CorruptDataError):
        from_plain(pack_tensors(CROP_1, {"people": people}))


def test_an_empty_gallery_can_be_backed_up(gallery: Gallery) -> None:
    assert json.loads(unpack_metadata(gallery.to_plain())["people"]) == []


def test_threads_take_turns(gallery: Gallery) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: enroll(gallery, f"p{seed}", seed), range(12)))
    assert len(gallery.people()) == 12


KILLED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import FileKeyStore
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, noise_crops, project, template_of

home = Path(sys.argv[1])
gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
print("ready", flush=True)
for i in range(10_000):
    crops = noise_crops(i % 7)
    model = gallery.model_id or MODEL_A
    gallery.enroll(f"p{i}", crops, template_of(crops, model), now_unix_s=0, consent=True)
    if i % 3 == 2:
        gallery.reembed(MODEL_B if model == MODEL_A else MODEL_A, SPEC, project)
    if i > 3:
        gallery.remove(f"p{i - 4}")
"""


@pytest.mark.parametrize("delay_ms", [3, 17, 41, 90, 160, 260])
def test_after_a_kill_the_gallery_opens_in_one_consistent_state(tmp_path: Path, delay_ms: int) -> None:
    home = tmp_path / "home"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(home)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay_ms / 1000)
    process.kill()
    process.communicate()
    gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    people = gallery.people()
    assert all(person.num_images == 3 and person.num_templates == 1 for person in people)
    if people:
        assert gallery.model_id is not None
        assert len(gallery.references(gallery.model_id).names) == len(people)
    gallery.close()
