"""The model store: by hash, complete or absent, usable without a network, suspicious of manifests."""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.models.models import ModelStore, check_face_input
from device_sdk.server.client import ClientSettings, CoordinatorClient
from device_sdk.server.offers import Manifest
from device_sdk.server.retry import RetryPolicy
from mien.errors import (
    CorruptDataError,
    ModelMismatchError,
    NonFiniteError,
    NotFoundError,
    UnreachableError,
    VersionError,
)
from mien.layout import ParameterEntry, ParameterLayout, model_id
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import BlobId
from mien.protocol.tensors import PublicShard, pack_tensors
from mien.protocol.v1 import common_pb2
from mien.specs import FaceInputSpec, ModelSpec
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script, scripted_coordinator

LAYOUT = ParameterLayout((ParameterEntry("a", (30, 5)), ParameterEntry("b", (7,))))
SPEC = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(), "made up", "none", ("*",))
THETA = np.arange(LAYOUT.size, dtype=np.float32)
SHARD = PublicShard(np.zeros((2, 112, 112, 3), np.uint8), np.array([0, 1]), "CC0", "rendered").to_bytes()


def blob(data: bytes) -> BlobId:
    return BlobId(hashlib.sha256(data).hexdigest(), len(data))


def manifest(theta: np.ndarray = THETA, *, shard: bool = False) -> Manifest:
    return Manifest(
        model_id(LAYOUT.sha256, theta),
        model_to_json(SPEC, LAYOUT),
        blob(theta.tobytes()),
        blob(SHARD) if shard else None,
        released=True,
    )


@dataclasses.dataclass
class Server:
    """A scripted coordinator that serves blobs by hash."""

    client: CoordinatorClient
    blobs: dict[str, bytes]
    script: Script

    def serve(self, *contents: bytes) -> None:
        self.blobs.update({blob(content).sha256: content for content in contents})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    fleet, script = Fleet.create(), Script()
    blobs: dict[str, bytes] = {}
    settings = ClientSettings(retry=RetryPolicy(give_up_s=30.0))
    with (
        scripted_coordinator(fleet, script) as address,
        CoordinatorClient(fleet.identity(address), ShiftedClock(), random.Random(0), settings) as client,
    ):
        original = client.download

        def download(wanted: BlobId, target: Path, **options: object) -> None:
            def answer(offset: int) -> Iterable[common_pb2.DataChunk]:
                if wanted.sha256 not in blobs:
                    raise BrokenConnectionError
                return [common_pb2.DataChunk(offset=offset, data=blobs[wanted.sha256][offset:])]

            script.download = answer
            original(wanted, target, **options)  # type: ignore[arg-type]

        client.download = download  # type: ignore[method-assign]
        yield Server(client, blobs, script)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def test_a_model_is_fetched_once_and_then_needs_no_network(server: Server, store: ModelStore) -> None:
    server.serve(THETA.tobytes(), SHARD)
    wanted = manifest(shard=True)
    assert not store.has(wanted.model_id)
    fetched = store.fetch(server.client, wanted)
    calls = len(server.script.calls)
    np.testing.assert_array_equal(fetched.theta, THETA)
    assert store.has(wanted.model_id)
    loaded = store.load(wanted.model_id)
    assert loaded.spec == SPEC == store.known(wanted.model_id).spec
    shard = store.load_shard(loaded)
    assert shard is not None
    assert (shard.licence, shard.crops.shape) == ("CC0", (2, 112, 112, 3))
    store.fetch(server.client, wanted)
    assert len(server.script.calls) == calls


def test_a_models_parameters_stay_in_their_file_and_are_nobodys_to_change(server: Server, store: ModelStore) -> None:
    """A file that is replaced or removed meanwhile takes nothing away."""
    store.fetch(server.client, manifest())
    model = store.load(manifest().model_id)
    lies = model.theta
    while isinstance(lies, np.ndarray):
        lies = lies.base
    assert isinstance(lies.obj if isinstance(lies, memoryview) else lies, mmap.mmap)
    assert not model.theta.flags.writeable
    (store._folder / manifest().theta.sha256).unlink()
    np.testing.assert_array_equal(model.theta, THETA)


def test_an_interrupted_fetch_leaves_no_model(server: Server, store: ModelStore) -> None:
    server.blobs.clear()
    server.serve(THETA.tobytes())
    with pytest.raises(UnreachableError):
        store.fetch(server.client, manifest(shard=True))
    assert not store.has(manifest().model_id)
    server.serve(SHARD)
    store.fetch(server.client, manifest(shard=True))
    assert store.has(manifest().model_id)


def test_a_model_that_was_never_fetched_says_so(store: ModelStore) -> None:
    with pytest.raises(NotFoundError, match="update"):
        store.load("a" * 64)
    with pytest.raises(NotFoundError, match="not the id"):
        store.load("../../etc/passwd")


@pytest.mark.parametrize("damage", [b"", b"\x00" * 88, THETA.tobytes()[:-4], THETA.tobytes() + b"\x00" * 4])
def test_a_damaged_blob_is_noticed_and_fetched_again(server: Server, store: ModelStore, damage: bytes) -> None:
    server.serve(THETA.tobytes())
    fetched = store.fetch(server.client, manifest())
    path = next(path for path in store._folder.iterdir() if path.name == manifest().theta.sha256)
    path.write_bytes(damage)
    with pytest.raises(CorruptDataError, match="update"):
        store.load(fetched.model_id)
    np.testing.assert_array_equal(store.fetch(server.client, manifest()).theta, THETA)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"model_id": 1, "spec_json": 2, "theta": 3}'])
def test_a_damaged_manifest_is_noticed(server: Server, store: ModelStore, content: bytes) -> None:
    server.serve(THETA.tobytes())
    fetched = store.fetch(server.client, manifest())
    (store._folder / f"{fetched.model_id}.json").write_bytes(content)
    assert not store.has(fetched.model_id)
    with pytest.raises(CorruptDataError, match="update"):
        store.load(fetched.model_id)
    store.fetch(server.client, manifest())
    assert store.has(fetched.model_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_id": "b" * 64},
        {"model_id": "../x"},
        {"unverified_spec_json": b"{}"},
        {"unverified_spec_json": model_to_json(SPEC, LAYOUT).replace(b'"tiny"', b'"tiny","x":1')},
        {"theta": dataclasses.replace(manifest().theta, size_bytes=2**40)},
        {"theta": dataclasses.replace(manifest().theta, sha256="../../x")},
        {"public_shard": BlobId("c" * 64, 2**40)},
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(server: Server, store: ModelStore, changes: dict[str, object]) -> None:
    server.serve(THETA.tobytes())
    wanted = dataclasses.replace(manifest(), **changes)  # type: ignore[arg-type]
    with pytest.raises((CorruptDataError, VersionError)):
        store.fetch(server.client, wanted)
    assert not store.has("b" * 64)


def test_parameters_that_are_not_finite_are_refused(server: Server, store: ModelStore) -> None:
    theta = THETA.copy()
    theta[3] = np.nan
    server.serve(theta.tobytes())
    with pytest.raises(NonFiniteError):
        store.fetch(server.client, manifest(theta))


def test_models_that_are_not_needed_go_with_their_blobs(server: Server, store: ModelStore) -> None:
    newer = THETA + 1
    server.serve(THETA.tobytes(), newer.tobytes(), SHARD)
    old = store.fetch(server.client, manifest(shard=True))
    new = store.fetch(server.client, manifest(newer, shard=True))
    store.keep_only([new.model_id])
    assert not store.has(old.model_id)
    assert store.has(new.model_id)
    assert store.load_shard(store.load(new.model_id)) is not None
    assert {path.name for path in store._folder.iterdir() if not path.name.startswith(".")} == {
        f"{new.model_id}.json",
        manifest(newer).theta.sha256,
        blob(SHARD).sha256,
    }


def of_hashes(store: ModelStore) -> set[str]:
    return {path.name for path in store._folder.iterdir() if path.name != ".switch"}


def test_models_that_never_come_whole_do_not_fill_the_disk(server: Server, store: ModelStore) -> None:
    """One left half-fetched, the others whole and not what their manifests say."""
    server.blobs.clear()
    server.serve(THETA.tobytes(), SHARD)
    store.fetch(server.client, manifest(shard=True))
    there = of_hashes(store)
    for number in range(1, 5):
        half, lie = THETA + number, THETA + number + np.float32(0.5)
        server.blobs[blob(half.tobytes()).sha256] = half.tobytes()[:-4]
        with pytest.raises((UnreachableError, CorruptDataError)):
            store.fetch(server.client, manifest(half))
        assert of_hashes(store) == there | {f"{blob(half.tobytes()).sha256}.part"}
        for odd in (lie, np.where(lie > 100, np.float32(np.nan), lie)):
            server.serve(odd.tobytes())
            with pytest.raises((CorruptDataError, NonFiniteError)):
                store.fetch(server.client, dataclasses.replace(manifest(odd), model_id=f"{number:064x}"))
            assert of_hashes(store) == there | {blob(odd.tobytes()).sha256}
    newer = THETA + 9
    server.serve(newer.tobytes())
    store.fetch(server.client, manifest(newer))
    assert of_hashes(store) == there | {f"{manifest(newer).model_id}.json", manifest(newer).theta.sha256}


def test_what_a_killed_program_was_writing_goes_with_the_next_fetch(server: Server, store: ModelStore) -> None:
    server.blobs.clear()
    server.serve(THETA.tobytes())
    store.fetch(server.client, manifest())
    there = of_hashes(store)
    for name in (f".{'a' * 64}.x1y2z3", f".{'b' * 64}.json.x1y2z3"):
        (store._folder / name).write_bytes(b"half of it")
    newer = THETA + 9
    part = store._folder / f"{blob(newer.tobytes()).sha256}.part"
    part.write_bytes(newer.tobytes()[:100])
    server.serve(newer.tobytes())
    store.fetch(server.client, manifest(newer))
    assert of_hashes(store) == there | {f"{manifest(newer).model_id}.json", manifest(newer).theta.sha256}


def test_nothing_is_removed_while_the_gallery_goes_over_to_another_model(server: Server, store: ModelStore) -> None:
    """As when `mien-device update` has fetched a model and is embedding with it while another process takes part."""
    server.serve(THETA.tobytes())
    other = ModelStore(store._folder)
    with store.switching():
        fetched = store.fetch(server.client, manifest())
        other.keep_only(())
        assert store.has(fetched.model_id)
    in_use = iter([fetched.model_id])
    other.keep_only(in_use)
    assert next(in_use, None) is None, "which models are needed is asked when they can no longer change"
    assert store.load(fetched.model_id).model_id == fetched.model_id
    other.keep_only(())
    assert not store.has(fetched.model_id)


# What training changed, instead of the whole model.

NEWER = THETA + np.where(np.arange(LAYOUT.size) >= 150, np.float32(0.5), np.float32(0))
"""THETA with another tensor b."""


def changed(b: np.ndarray, name: str = "b") -> bytes:
    return pack_tensors({name: b.reshape(-1)})


def newer_manifest(changes: bytes) -> Manifest:
    return dataclasses.replace(manifest(NEWER), changes=blob(changes))


def test_only_what_changed_is_fetched_where_the_rest_is_stored(server: Server, store: ModelStore) -> None:
    server.blobs.clear()
    changes = changed(NEWER[150:])
    server.serve(THETA.tobytes(), changes)  # the newer parameters themselves cannot be had
    store.fetch(server.client, manifest())
    assert store.size_to_fetch(newer_manifest(changes)) == len(changes)
    np.testing.assert_array_equal(store.fetch(server.client, newer_manifest(changes)).theta, NEWER)
    np.testing.assert_array_equal(store.load(newer_manifest(changes).model_id).theta, NEWER)


def test_without_an_earlier_model_the_whole_one_is_fetched(server: Server, store: ModelStore) -> None:
    server.blobs.clear()
    server.serve(NEWER.tobytes())  # what changed cannot be had, and is not asked for
    wanted = newer_manifest(changed(NEWER[150:]))
    assert store.size_to_fetch(wanted) == wanted.theta.size_bytes
    np.testing.assert_array_equal(store.fetch(server.client, wanted).theta, NEWER)


@pytest.mark.parametrize(
    "changes",
    [
        changed(NEWER[150:] + 1),
        changed(NEWER[150:], name="unknown"),
        changed(NEWER[151:]),
        changed(np.full(7, np.nan, np.float32)),
        b"not safetensors",
    ],
    ids=["other values", "unknown tensor", "wrong shape", "nan", "damaged"],
)
def test_changes_that_do_not_give_the_model_are_not_believed(server: Server, store: ModelStore, changes: bytes) -> None:
    server.blobs.clear()
    server.serve(THETA.tobytes(), changes, NEWER.tobytes())
    store.fetch(server.client, manifest())
    np.testing.assert_array_equal(store.fetch(server.client, newer_manifest(changes)).theta, NEWER)


@pytest.mark.parametrize(
    "odd", [{"mean": 1e12, "scale": 1e12}, {"mean": 0.0}, {"scale": 127.5}, {"colour": "BGR"}, {"width": 96}], ids=str
)
def test_a_round_takes_faces_as_its_family_or_the_model_in_use_does(odd: dict[str, Any]) -> None:
    sface = dataclasses.replace(SPEC, backbone="sface", input=FaceInputSpec(dim=64))
    check_face_input(sface, None)
    lying = dataclasses.replace(sface, input=dataclasses.replace(sface.input, **odd))
    for in_use in (None, sface):
        with pytest.raises(ModelMismatchError, match="takes faces otherwise than sface and the model in use"):
            check_face_input(lying, in_use)
    unknown = dataclasses.replace(lying, backbone="somebody's own")
    check_face_input(unknown, dataclasses.replace(unknown, input=dataclasses.replace(unknown.input, dim=8)))
    with pytest.raises(ModelMismatchError):
        check_face_input(unknown, None)
