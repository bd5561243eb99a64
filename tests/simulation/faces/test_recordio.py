"""RecordIO archives written byte by byte from the format's description, and what damaged ones are told."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mien.errors import CorruptDataError, NotFoundError
from simulation.faces import recordio
from simulation.faces.recordio import RecordArchive

MAGIC = b"\x0a\x23\xd7\xce"


def image_record(label: float, image: bytes, record_id: int = 0) -> bytes:
    return struct.pack("<IfQQ", 0, label, record_id, 0) + image


def range_record(*labels: float) -> bytes:
    return struct.pack("<IfQQ", len(labels), 0.0, 0, 0) + struct.pack(f"<{len(labels)}f", *labels)


def framed(content: bytes) -> bytes:
    """Return a record as dmlc-core writes it: split wherever the magic number stands on a multiple of four."""
    cuts = [at for at in range(0, len(content) - 3, 4) if content[at : at + 4] == MAGIC]
    parts = [content[a:b] for a, b in zip([0, *(at + 4 for at in cuts)], [*cuts, len(content)], strict=True)]
    out = b""
    for number, part in enumerate(parts):
        flag = 0 if len(parts) == 1 else 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        out += MAGIC + struct.pack("<I", flag << 29 | len(part)) + part + bytes(-len(part) % 4)
    return out


def write(folder: Path, records: dict[int, bytes]) -> Path:
    rec, idx, data = folder / "train.rec", [], b""
    for key, content in records.items():
        idx.append(f"{key}\t{len(data)}\n")
        data += framed(content)
    rec.write_bytes(data)
    (folder / "train.idx").write_text("".join(idx))
    return rec


IMAGES = {1: b"\xff\xd8first", 2: b"", 3: b"\xff\xd8" + bytes(1000), 4: b"xy"}
FACES = {
    0: range_record(5, 7),
    **{key: image_record(float(key < 4), image, 10 * key) for key, image in IMAGES.items()},
    5: range_record(1, 4),
    6: range_record(4, 5),
}


def test_images_labels_and_ids(tmp_path: Path) -> None:
    with RecordArchive(write(tmp_path, FACES)) as archive:
        assert len(archive) == 7
        assert archive.keys.tolist() == list(range(7))
        for key in (4, 1, 3, 2):  # any order
            record = archive.read(key)
            assert record.image == IMAGES[key]
            assert (record.labels.tolist(), record.id) == ([float(key < 4)], 10 * key)
            assert "first" not in repr(record)


def test_people_and_their_images(tmp_path: Path) -> None:
    with RecordArchive(write(tmp_path, FACES)) as archive:
        assert list(archive.people()) == [(5, range(1, 4)), (6, range(4, 5))]


def test_content_that_holds_the_magic_number_is_joined_again(tmp_path: Path) -> None:
    images = [MAGIC, b"abcd" + MAGIC + b"ef", MAGIC + MAGIC + b"z", b"abc" + MAGIC, b"x" * 4 + MAGIC]
    records = {key: image_record(0.0, image) for key, image in enumerate(images)}
    assert framed(records[1]).count(MAGIC) == 2
    with RecordArchive(write(tmp_path, records)) as archive:
        assert [archive.read(key).image for key in records] == images


def test_an_index_in_any_order(tmp_path: Path) -> None:
    rec = write(tmp_path, FACES)
    idx = rec.with_suffix(".idx")
    idx.write_text("".join(reversed(idx.read_text().splitlines(keepends=True))))
    with RecordArchive(rec, idx) as archive:
        assert archive.read(1).image == IMAGES[1]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"train\.rec"):
        RecordArchive(tmp_path / "train.rec")
    rec = write(tmp_path, FACES)
    with RecordArchive(rec) as archive, pytest.raises(NotFoundError, match="no record 99"):
        archive.read(99)
    (tmp_path / "train.idx").unlink()
    with pytest.raises(NotFoundError, match=r"train\.idx"):
        RecordArchive(rec)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("0\t0\n1 8\n", "line 2"),
        ("0\t0\n1\tx\n", "line 2"),
        ("0\t-1\n", "line 1"),
        ("0\t999999\n", "line 1: it points beyond"),
        ("0\t" + "9" * 30 + "\n", "line 1"),
        ("0\t0\n0\t8\n", "names a key twice"),
        ("", "is empty"),
        ("\x00\xff", "line 1"),
    ],
)
def test_damaged_indices(tmp_path: Path, index: str, says: str) -> None:
    rec = write(tmp_path, FACES)
    rec.with_suffix(".idx").write_text(index, encoding="latin1")
    with pytest.raises(CorruptDataError, match=says):
        RecordArchive(rec)


def test_every_truncation_and_damaged_byte_is_an_error_or_a_record(tmp_path: Path) -> None:
    rec = write(tmp_path, {0: image_record(1.0, b"abcd" + MAGIC + b"ef")})
    whole = rec.read_bytes()
    for end in range(1, len(whole) - 2):  # the last two bytes are padding
        rec.write_bytes(whole[:end])
        with RecordArchive(rec) as archive, pytest.raises(CorruptDataError, match="record 0"):
            archive.read(0)
    for at in range(len(whole)):
        rec.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with RecordArchive(rec) as archive:
            try:
                archive.read(0)
            except CorruptDataError:
                continue


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"short", "shorter than a header"),
        (struct.pack("<IfQQ", 3, 0.0, 0, 0) + bytes(8), "fewer labels"),
        (struct.pack("<IfQQ", 2**31, 0.0, 0, 0), "fewer labels"),
        (image_record(float("nan"), b"x"), "NaN"),
        (range_record(1.0, float("inf")), "NaN or infinite"),
    ],
)
def test_damaged_records(tmp_path: Path, content: bytes, says: str) -> None:
    with RecordArchive(write(tmp_path, {0: content})) as archive, pytest.raises(CorruptDataError, match=says):
        archive.read(0)


def test_a_record_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = write(tmp_path, {0: image_record(0.0, bytes(200))})
    monkeypatch.setattr(recordio, "MAX_RECORD_BYTES", 100)
    with RecordArchive(rec) as archive, pytest.raises(CorruptDataError, match="the limit"):
        archive.read(0)


@pytest.mark.parametrize("head", [image_record(0.0, b"x"), range_record(1), range_record(5, 3), range_record(0.5, 3)])
def test_an_archive_without_people_says_so(tmp_path: Path, head: bytes) -> None:
    with RecordArchive(write(tmp_path, {0: head})) as archive, pytest.raises(CorruptDataError, match="record 0"):
        list(archive.people())


def test_people_whose_records_are_images_are_refused(tmp_path: Path) -> None:
    records = {0: range_record(1, 2), 1: image_record(0.0, b"x")}
    with RecordArchive(write(tmp_path, records)) as archive, pytest.raises(CorruptDataError, match="record 1"):
        list(archive.people())


def test_labels_are_float32(tmp_path: Path) -> None:
    with RecordArchive(write(tmp_path, {0: range_record(0.1, 2.0, 3.0)})) as archive:
        assert archive.read(0).labels.dtype == np.float32
