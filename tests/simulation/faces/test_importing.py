"""Imports that are killed, archives that are hostile, pictures that need the whole pipeline."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np
import pytest

from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, NotFoundError
from simulation.faces.importing import ImportSource, import_faces
from simulation.faces.store import CROPS, MANIFEST, CropStore, StoreManifest
from simulation.faces.writer import JOURNAL, PART, Imported, StoreTerms, StoreWriter
from simulation.synthetic import committed_faces
from tests.device_sdk.made_up_people import noise_crops
from tests.helpers import ROOT
from tests.simulation.faces.archives import archive, encoded, folder_of_people
from tests.simulation.faces.test_recordio import image_record, range_record, write

TERMS = StoreTerms("CC0", "made up", is_synthetic=True)
LIMIT_S = 120.0

# An import that makes each identity durable at once and then stands still, so that a kill finds it in the middle.
SOME = """
import sys, time
from pathlib import Path
from simulation.faces import importing
from simulation.faces import writer
writer.SYNC_BYTES = 1
read, left = importing._identity, int(sys.argv[3])
def some(*arguments):
    global left
    left -= 1
    if left < 0:
        time.sleep(600)
    return read(*arguments)
importing._identity = some
source = importing.ImportSource.of(Path(sys.argv[1]), aligned=True)
importing.import_faces(source, Path(sys.argv[2]), writer.StoreTerms("CC0", "made up", True))
"""


def killed(source: Path, to: Path, lines: int) -> None:
    """Begin an import and kill it once so many identities are in its journal."""
    process = subprocess.Popen([sys.executable, "-c", SOME, str(source), str(to), str(lines)], cwd=ROOT)
    try:
        end = time.monotonic() + LIMIT_S
        while not ((to / JOURNAL).exists() and (to / JOURNAL).read_bytes().count(b"\n") >= lines):
            assert process.poll() is None, "the import ended by itself"
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_killed_import_goes_on(tmp_path: Path) -> None:
    source, to = folder_of_people(tmp_path / "faces"), tmp_path / "set"
    killed(source, to, 2)
    # Whatever the kill left behind the last whole line does not count.
    with (to / PART).open("ab") as crops, (to / JOURNAL).open("ab") as journal:
        crops.write(b"half a crop")
        journal.write(b'["Torn", 1')
    told = list[str]()
    import_faces(ImportSource.of(source, aligned=True), to, TERMS, tell=told.append)
    assert told[0].startswith("going on after ")
    import_faces(ImportSource.of(source, aligned=True), tmp_path / "whole", TERMS)
    assert CropStore(to).manifest == CropStore(tmp_path / "whole").manifest
    CropStore(to).verify()


def test_a_killed_import_does_not_go_on_as_another(tmp_path: Path) -> None:
    source, to = folder_of_people(tmp_path / "faces"), tmp_path / "set"
    killed(source, to, 1)
    with pytest.raises(NotFoundError):
        CropStore(to)
    with pytest.raises(AlreadyExistsError, match="beginning of another import"):
        import_faces(ImportSource.of(source, aligned=False), to, TERMS)
    with (to / PART).open("r+b") as crops:
        crops.truncate(10)
    with pytest.raises(CorruptDataError, match="shorter than its journal says"):
        import_faces(ImportSource.of(source, aligned=True), to, TERMS)
    (to / JOURNAL).write_bytes(2 * b'["Ada", 0, [], []]\n')
    with pytest.raises(CorruptDataError, match="twice"):
        import_faces(ImportSource.of(source, aligned=True), to, TERMS)
    (to / JOURNAL).write_bytes(b"{}\n")
    with pytest.raises(CorruptDataError, match="damaged"):
        import_faces(ImportSource.of(source, aligned=True), to, TERMS)


@pytest.mark.parametrize("change", ["content", "more", "fewer", "renamed", "archive", "index", "nothing"])
def test_a_killed_import_does_not_go_on_with_another_version_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Two versions of a data set at one path would become one of nobody's; what is unchanged goes on."""
    is_archive = change in ("archive", "index")
    source = archive(tmp_path / "ms") if is_archive else folder_of_people(tmp_path / "faces")
    finish = StoreWriter.finish
    monkeypatch.setattr(StoreWriter, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        import_faces(ImportSource.of(source, aligned=True), tmp_path / "set", TERMS)
    monkeypatch.setattr(StoreWriter, "finish", finish)
    picture = source if is_archive else next(path for path in sorted(source.rglob("*.png")) if path.name == "0.png")
    if change in ("content", "archive"):
        data = bytearray(picture.read_bytes())
        data[-5] ^= 1
        picture.write_bytes(data)  # as long as it was
        os.utime(picture, ns=(1, 1))
    elif change == "index":
        index = source.with_suffix(".idx")
        index.write_text("".join(reversed(index.read_text().splitlines(keepends=True))))
        os.utime(index, ns=(1, 1))
    elif change == "more":
        (picture.parent / "more.png").write_bytes(picture.read_bytes())
    elif change == "fewer":
        picture.unlink()
    elif change == "renamed":
        picture.parent.rename(source / "Renamed")
    if change == "nothing":
        assert import_faces(ImportSource.of(source, aligned=True), tmp_path / "set", TERMS).images
        return
    with pytest.raises(AlreadyExistsError, match="before files of its source were changed; begin anew"):
        import_faces(ImportSource.of(source, aligned=True), tmp_path / "set", TERMS)


def stopped(self: StoreWriter, *_: object) -> NoReturn:
    self.sync()
    raise KeyboardInterrupt


@pytest.mark.parametrize("in_order", [True, False])
def test_a_kill_while_it_is_finished(tmp_path: Path, in_order: bool) -> None:
    """What the last steps left is done again; in order the crops' file is the very one that was written to."""
    names = ("a", "b") if in_order else ("b", "a")
    with StoreWriter(tmp_path, TERMS, height=112, width=112, plan={}) as writer:
        for number, name in enumerate(names):
            writer.add(Imported(name, noise_crops(number, 1), ("1",)))
        writer.sync()
    if in_order:
        os.link(tmp_path / PART, tmp_path / CROPS)
    else:
        (tmp_path / CROPS).write_bytes(b"half")
    with StoreWriter(tmp_path, TERMS, height=112, width=112, plan={}) as writer:
        assert writer.done == {"a", "b"}
        writer.finish("")
    store = CropStore(tmp_path)
    store.verify()
    np.testing.assert_array_equal(store.crops_of(names.index("b") if in_order else 1), noise_crops(in_order, 1))


def person(name: str, seed: int) -> Imported:
    return Imported(name, noise_crops(seed, 2), ("1", "2"))


@pytest.mark.parametrize("synced", [False, True])
def test_one_import_at_a_time_in_a_folder(tmp_path: Path, synced: bool) -> None:
    """The second is refused and touches nothing; when the first is gone, it may go on, or finds the data set there."""
    to = tmp_path / "set"
    with StoreWriter(to, TERMS, height=112, width=112, plan={}) as first:
        first.add(person("a", 1))
        if synced:
            first.sync()
        before = {path.name: path.read_bytes() for path in to.iterdir()}
        with pytest.raises(AlreadyExistsError, match="another import is using this folder"):
            StoreWriter(to, TERMS, height=112, width=112, plan={})
        assert {path.name: path.read_bytes() for path in to.iterdir()} == before
    with StoreWriter(to, TERMS, height=112, width=112, plan={}) as second:
        assert second.done == ({"a"} if synced else set())
        for number, name in enumerate("ab"):
            if name not in second.done:
                second.add(person(name, number + 1))
        second.finish("")
        with pytest.raises(AlreadyExistsError):
            StoreWriter(to, TERMS, height=112, width=112, plan={})
    store = CropStore(to)
    store.verify()
    np.testing.assert_array_equal(store.crops, np.concatenate([noise_crops(1, 2), noise_crops(2, 2)]))
    assert not [path.name for path in to.iterdir() if path.name.startswith((".", "import", "crops.part"))]


KILLED_AT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from simulation.faces.writer import Imported, StoreTerms, StoreWriter
folder, place = Path(sys.argv[1]), sys.argv[2]
move, remove = Path.replace, Path.unlink
def until(act):
    def step(path, *arguments, **options):
        if place in (act.__name__ + " " + path.name, act.__name__ + " to " + Path(*arguments[:1]).name):
            os.kill(os.getpid(), signal.SIGKILL)
        return act(path, *arguments, **options)
    return step
Path.replace, Path.unlink = until(move), until(remove)
with StoreWriter(folder, StoreTerms("CC0", "made up", True), height=112, width=112, plan={}) as writer:
    for name in sorted({"b", "a"} - writer.done, reverse=True):
        writer.add(Imported(name, np.full((1, 112, 112, 3), ord(name), np.uint8), (name,)))
    writer.finish("")
"""


@pytest.mark.parametrize(
    "place",
    [
        "replace to import.json",
        "replace to crops.u8",
        "replace to names.txt",
        "unlink import.json",
    ],
)
def test_a_kill_at_any_write_is_made_good_by_the_same_command(tmp_path: Path, place: str) -> None:
    """Nothing of the killed import stays: neither a refusal for ever nor names of people in half a file."""
    to = tmp_path / "set"
    command = [sys.executable, "-c", KILLED_AT, str(to)]
    assert subprocess.run([*command, place], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(list(to.iterdir())) > 1
    again = subprocess.run([*command, ""], cwd=ROOT, check=False, capture_output=True, text=True)
    if place.startswith("unlink"):  # the data set was there already
        assert "holds a data set already" in again.stderr
    else:
        assert again.returncode == 0, again.stderr
    store = CropStore(to)
    store.verify()
    assert store.crops[:, 0, 0, 0].tolist() == [ord("a"), ord("b")]
    assert {path.name for path in to.iterdir()} == {MANIFEST, CROPS, *store.manifest.files}


class _Unread(dict[str, object]):
    """Lines that may be looked up and counted, and never gone through: that would be done for each identity."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all identities were gone through for one")

    def values(self) -> NoReturn:
        raise AssertionError("all identities were gone through for one")

    items = values


def test_an_identity_costs_the_same_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = folder_of_people(tmp_path / "faces"), tmp_path / "set"
    finished = StoreWriter.finish

    def finish(self: StoreWriter, software: str, tell: Callable[[str], None]) -> StoreManifest:
        self._lines = dict(dict.items(self._lines))
        return finished(self, software, tell)

    def begin(self: StoreWriter) -> StoreWriter:
        self._lines = _Unread(self._lines)  # type: ignore[assignment]
        return self

    monkeypatch.setattr(StoreWriter, "__enter__", begin)
    monkeypatch.setattr(StoreWriter, "finish", finish)
    made = import_faces(ImportSource.of(source, aligned=True), to, TERMS)
    assert made == CropStore(to).manifest
    assert made.failures == sum(1 for _ in CropStore(to).failures())


def test_no_lock_is_left_in_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match="not empty"):
        StoreWriter(tmp_path, TERMS, height=112, width=112, plan={})
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


# Hostile archives


def test_an_archive_that_is_cut_off(tmp_path: Path) -> None:
    rec = archive(tmp_path / "ms")
    with rec.open("r+b") as file:
        file.truncate(rec.stat().st_size // 2)
    with pytest.raises(CorruptDataError):
        import_faces(ImportSource.of(rec, aligned=True), tmp_path / "set", TERMS)
    with pytest.raises(NotFoundError):
        CropStore(tmp_path / "set")


def test_a_record_that_claims_to_be_huge(tmp_path: Path) -> None:
    rec = archive(tmp_path / "ms")
    data = bytearray(rec.read_bytes())
    offset = int((tmp_path / "ms" / "train.idx").read_text().splitlines()[1].split("\t")[1])
    data[offset + 4 : offset + 8] = struct.pack("<I", 2**29 - 1)
    rec.write_bytes(data)
    with pytest.raises(CorruptDataError, match="longer than the file"):
        import_faces(ImportSource.of(rec, aligned=True), tmp_path / "set", TERMS)


def test_a_person_who_claims_to_have_millions_of_images(tmp_path: Path) -> None:
    records = {0: range_record(2, 3), 1: image_record(0.0, b"x"), 2: range_record(1, 2**24)}
    with pytest.raises(ConfigError, match="more than 100000 images"):
        import_faces(ImportSource.of(write(tmp_path, records), aligned=True), tmp_path / "set", TERMS)


def test_images_of_an_archive_that_are_not_there(tmp_path: Path) -> None:
    crop = noise_crops(1, 1)[0]
    records = {0: range_record(2, 3), 1: image_record(0.0, encoded(crop)), 2: range_record(1, 4)}
    (tmp_path / "ms").mkdir()
    import_faces(ImportSource.of(write(tmp_path / "ms", records), aligned=True), tmp_path / "set", TERMS)
    store = CropStore(tmp_path / "set")
    np.testing.assert_array_equal(store.crops[0], crop)
    # Record 2 is the person's own, which is no image; there is no record 3.
    assert [(each.name, each.code) for each in store.failures()] == [
        ("ms_00000002/00000002", "image"),
        ("ms_00000002/00000003", "not_found"),
    ]


# Pictures


def test_pictures_are_detected_and_aligned(tmp_path: Path) -> None:
    """As the product's pipeline does it for every other program; a picture without a face is listed."""
    (name, files), *_ = committed_faces("phones").items()
    folder = tmp_path / "faces" / name
    folder.mkdir(parents=True)
    for path in files[:2]:
        (folder / path.name).symlink_to(path)
    cv2.imwrite(str(folder / "grey.png"), np.full((200, 200, 3), 128, np.uint8))
    made = import_faces(ImportSource.of(tmp_path / "faces", aligned=False), tmp_path / "set", TERMS)
    assert (made.images, made.failures) == (2, 1)
    (failure,) = CropStore(tmp_path / "set").failures()
    assert failure.name == f"{name}/grey.png"
    assert failure.code == "no_face"
    assert CropStore(tmp_path / "set").crops.shape == (2, 112, 112, 3)


def test_lfw_in_its_own_folders(tmp_path: Path) -> None:
    """Some people of LFW as it is published; the file names are those of its protocol."""
    root = os.environ.get("MIEN_DATA")
    if not root:
        pytest.skip("MIEN_DATA is unset: LFW's images are not read")
    lfw = Path(root) / "lfw"
    people = sorted((lfw / "images").iterdir())[:6]
    (tmp_path / "lfw" / "images").mkdir(parents=True)
    (tmp_path / "lfw" / "protocol").mkdir()
    for person in people:
        (tmp_path / "lfw" / "images" / person.name).symlink_to(person)
    source = ImportSource.of(tmp_path / "lfw", aligned=False)
    assert source.kind == "lfw"
    made = import_faces(source, tmp_path / "set", StoreTerms("research only", "LFW"))
    store = CropStore(tmp_path / "set")
    assert (made.identities, made.failures) == (6, 0)
    for number, name in enumerate(store.names()):
        first = int(store.starts[number])
        assert store.file(first).startswith(f"{name}_0")
