"""Somebody with write access to the gallery's file, but without its key: every change is noticed, nothing is shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.people.backup import MAGIC, seal_backup, unseal_backup
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import CorruptDataError, MienError
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, noise_crops, project, template_of

NAMES = ("Ada", "Bo")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    gallery = open_gallery(tmp_path)
    for seed, name in enumerate(NAMES):
        crops = noise_crops(seed)
        gallery.enroll(name, crops, template_of(crops), now_unix_s=0, consent=True)
    gallery.close()
    return tmp_path


def open_gallery(home: Path) -> Gallery:
    return Gallery.open(home / "device.db", FileKeyStore(home / "keys"))


@pytest.fixture
def raw(home: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(home / "device.db", isolation_level=None)
    yield connection
    connection.close()


def read_everything(home: Path) -> None:
    gallery = open_gallery(home)
    try:
        gallery.people()
        gallery.references(MODEL_A)
        for name in NAMES:
            gallery.training_crops(name)
    finally:
        gallery.close()


SWAP = """
UPDATE {t} SET {c} = CASE id WHEN :a THEN (SELECT {c} FROM {t} WHERE id = :b)
                             WHEN :b THEN (SELECT {c} FROM {t} WHERE id = :a) END WHERE id IN (:a, :b)
"""


def ids(raw: sqlite3.Connection, table: str) -> list[int]:
    return [row[0] for row in raw.execute(f"SELECT id FROM {table} ORDER BY id")]


@pytest.mark.parametrize("table", ["persons", "templates", "crops"])
@pytest.mark.parametrize("columns", [("sealed",), ("nonce",), ("nonce", "sealed"), ("person",), ("tag", "person")])
def test_records_swapped_between_people_do_not_open(
    home: Path, raw: sqlite3.Connection, table: str, columns: tuple[str, ...]
) -> None:
    rows = ids(raw, table)
    if raw.execute(f"SELECT count(DISTINCT {columns[0]}) FROM {table} WHERE id IN (?, ?)", (rows[0], rows[-1])):
        for column in columns:
            raw.execute(SWAP.format(t=table, c=column), {"a": rows[0], "b": rows[-1]})
    with pytest.raises(CorruptDataError):
        read_everything(home)


def test_a_template_relabelled_as_another_models_does_not_open(home: Path, raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE templates SET tag = ?", (MODEL_B,))
    with pytest.raises(CorruptDataError):
        open_gallery(home)


@pytest.mark.parametrize("table", ["persons", "templates", "crops"])
def test_a_deleted_record_is_missed(home: Path, raw: sqlite3.Connection, table: str) -> None:
    raw.execute(f"DELETE FROM {table} WHERE id = ?", (ids(raw, table)[0],))
    with pytest.raises(CorruptDataError, match="changed by something other"):
        open_gallery(home)


def test_a_copied_record_is_noticed(home: Path, raw: sqlite3.Connection) -> None:
    raw.execute("INSERT INTO crops SELECT max(id) + 1, person, tag, nonce, sealed FROM crops")
    with pytest.raises(CorruptDataError, match="changed by something other"):
        open_gallery(home)


def test_one_record_set_back_to_an_older_version_is_noticed(home: Path, raw: sqlite3.Connection) -> None:
    old = raw.execute("SELECT id, tag, nonce, sealed FROM templates ORDER BY id").fetchone()
    gallery = open_gallery(home)
    # There and back: the id, person and model are the old ones again, only the content is newer.
    for model_id in (MODEL_B, MODEL_A):
        gallery.reembed(model_id, SPEC, lambda crops: project(crops, seed=5))
    gallery.close()
    raw.execute("UPDATE templates SET nonce = ?, sealed = ? WHERE id = ? AND tag = ?", (old[2], old[3], old[0], old[1]))
    assert raw.execute("SELECT changes()").fetchone() == (1,)
    with pytest.raises(CorruptDataError, match="older"):
        open_gallery(home)


def test_a_withdrawn_consent_cannot_be_brought_back(home: Path, raw: sqlite3.Connection) -> None:
    old = raw.execute("SELECT id, nonce, sealed FROM persons ORDER BY id").fetchone()
    gallery = open_gallery(home)
    gallery.set_consent("Ada", granted_unix_s=None)
    gallery.close()
    raw.execute("UPDATE persons SET nonce = ?, sealed = ? WHERE id = ?", (old[1], old[2], old[0]))
    with pytest.raises(CorruptDataError):
        open_gallery(home)


def test_an_old_record_under_a_new_nonce_does_not_open(home: Path, raw: sqlite3.Connection) -> None:
    old = raw.execute("SELECT sealed FROM persons ORDER BY id").fetchone()
    gallery = open_gallery(home)
    gallery.set_consent("Ada", granted_unix_s=None)
    gallery.close()
    raw.execute("UPDATE persons SET sealed = ? WHERE id = (SELECT min(id) FROM persons)", old)
    with pytest.raises(CorruptDataError):
        read_everything(home)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM meta WHERE name = 'root'",
        "DELETE FROM meta WHERE name = 'wrapped_key'",
        "UPDATE meta SET value = x'00'",
        "UPDATE meta SET value = (SELECT value FROM meta WHERE name = 'root')",
        "DROP TABLE crops",
        "DROP TABLE meta",
        "UPDATE crops SET sealed = 'text'",
    ],
)
def test_a_damaged_schema_is_refused(home: Path, raw: sqlite3.Connection, change: str) -> None:
    raw.execute(change)
    with pytest.raises(MienError):
        read_everything(home)


@pytest.mark.parametrize("damage", [b"CREA\xb6\x8b\x98ABLE", b"CREATE \xe9\xcb\xc0\xa4o"])
def test_a_schema_that_is_no_text_is_refused(home: Path, damage: bytes) -> None:
    path = home / "device.db"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE", damage))
    with pytest.raises(CorruptDataError, match="is damaged"):
        read_everything(home)


def test_a_gallery_of_another_home_does_not_open(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    open_gallery(other).close()
    (other / "device.db").write_bytes((home / "device.db").read_bytes())
    with pytest.raises(MienError, match="does not open"):
        open_gallery(other)


def test_a_truncated_file_never_gives_wrong_data(home: Path) -> None:
    path = home / "device.db"
    whole = path.read_bytes()
    for length in sorted({0, 1, 100, 1024, *range(4096, len(whole), 4096 * 5), len(whole) - 1}):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptDataError):
            read_everything(home)


def test_random_damage_never_gives_wrong_data(home: Path) -> None:
    path = home / "device.db"
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(60):
        damaged = whole.copy()
        start = int(rng.integers(0, len(whole) - 8))
        damaged[start : start + 8] = rng.integers(0, 256, 8, dtype=np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            check_content(home)
        except MienError:
            noticed += 1
    # Some damage hits free space within a page and harms nothing.
    assert noticed > 40


def check_content(home: Path) -> None:
    gallery = open_gallery(home)
    try:
        assert [person.name for person in gallery.people()] == list(NAMES)
        for seed, name in enumerate(NAMES):
            crops = noise_crops(seed)
            np.testing.assert_array_equal(gallery.training_crops(name), crops)
            found = gallery.references(MODEL_A).embeddings[seed]
            np.testing.assert_allclose(found, template_of(crops).embedding, atol=1e-6)
    finally:
        gallery.close()


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer_header(data: bytes) -> bytes:
    return data[: len(MAGIC)] + b"\xff\xff\xff\xff" + data[len(MAGIC) + 4 :]  # fixed data


def costlier(data: bytes) -> bytes:
    return data.replace(b'"n":131072', b'"n":999999')


def cheaper(data: bytes) -> bytes:
    return data.replace(b'"n":131072', b'"n":000002')


@pytest.mark.parametrize("change", [cut, longer_header, costlier, cheaper, lambda _data: b"", lambda data: data[:13]])
def test_hostile_backups_are_refused(change: Callable[[bytes], bytes]) -> None:
    data = seal_backup(b"content", "a long password")
    with pytest.raises(CorruptDataError):
        unseal_backup(change(data), "a long password")
