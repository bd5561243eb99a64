"""A model's folder: what `model export` writes, `model sign` signs, and `model import` and `model release` read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.commands.models.common import find_model
from mien.errors import NotFoundError
from mien.shell.files import read_limited, write_atomically

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import models_pb2, operator_pb2

SPEC: Final = "model.json"
THETA: Final = "theta.f32"
SHARD: Final = "public_shard.safetensors"
FALLBACKS: Final = "fallbacks.txt"
MAX_SPEC_BYTES: Final = 1 << 20
_MAX_SIGNATURE_BYTES: Final = 1024


def read_signed(folder: Path) -> tuple[bytes, bytes]:
    """Return a signed folder's manifest and signature; raises NotFoundError where model sign was not run."""
    from mien.models.bundles import MANIFEST, SIGNATURE

    for name in (MANIFEST, SIGNATURE):
        if not (folder / name).is_file():
            raise NotFoundError(f"there is no {name} in {folder}; run model sign where the release key is")
    return (
        read_limited(folder / MANIFEST, MAX_SPEC_BYTES, what=MANIFEST),
        read_limited(folder / SIGNATURE, _MAX_SIGNATURE_BYTES, what=SIGNATURE),
    )


async def write_model(coordinator: Coordinator, wanted: str, out: Path) -> models_pb2.ModelManifest:
    """Write a model into a folder and return it; raises NotFoundError where its parameters were given up."""
    model = await find_model(coordinator, wanted)
    statuses = [status for _, status in await coordinator.standings()]
    if any(status.removed for status in statuses if status.model_id == model.model_id):
        raise NotFoundError("this model's parameters were given up (keep_round_models); name another one")
    await write_fallbacks(coordinator, model, out)
    write_atomically(out / SPEC, model.spec_json)
    await coordinator.download(model.theta, out / THETA)
    if model.HasField("public_shard"):
        await coordinator.download(model.public_shard, out / SHARD)
    return model


async def write_extras(coordinator: Coordinator, model: models_pb2.ModelManifest, out: Path) -> None:
    """Write the graphs and variants that came with a model's signature, so that the next signature covers them too."""
    from mien.models.bundles import listed_by
    from mien.protocol.v1 import common_pb2

    for file in listed_by(model.bundle_manifest).extras if model.bundle_manifest else ():
        await coordinator.download(common_pb2.BlobRef(sha256=file.sha256, size_bytes=file.size_bytes), out / file.name)


async def write_graphs(coordinator: Coordinator, model: models_pb2.ModelManifest, out: Path) -> bool:
    """Write the graphs of a signed release of this model's layout, newest first; tell whether there were any.

    Graphs hold no parameters: those of another model of the same layout are this one's too.
    """
    from mien.models.bundles import GRAPH_SUFFIXES, GRAPHS, listed_by
    from mien.protocol.canonical import model_from_json
    from mien.protocol.v1 import common_pb2

    layout = model_from_json(model.spec_json)[0].layout_sha256
    released = [status.model_id for _, status in await coordinator.standings() if status.state == "released"]
    for model_id in [model.model_id, *reversed(released)]:
        other = await coordinator.manifest(model_id)
        files = listed_by(other.bundle_manifest).extras if other.bundle_manifest else ()
        graphs = [file for file in files if file.name == GRAPHS or file.name.endswith(GRAPH_SUFFIXES)]
        if graphs and model_from_json(other.spec_json)[0].layout_sha256 == layout:
            for file in graphs:
                ref = common_pb2.BlobRef(sha256=file.sha256, size_bytes=file.size_bytes)
                await coordinator.download(ref, out / file.name)
            return True
    return False


def said_of_bundle(bundle_manifest: bytes) -> str:
    """Return what a signed manifest brings phones beside a model, as a sentence."""
    from mien.models.bundles import GRAPH_SUFFIXES, VARIANT_SUFFIX, listed_by

    manifest = listed_by(bundle_manifest)
    names = [file.name for file in manifest.extras]
    graphs = [name for name in names if name.endswith(GRAPH_SUFFIXES)]
    training = [name for name in graphs if name.startswith("train_")]
    brought = [f"{len(graphs) - len(training)} graphs that embed" if graphs else "no graphs"]
    brought += [f"{len(training)} that train" if training else "none that trains"] if graphs else []
    brought += [f"the {name.removesuffix(VARIANT_SUFFIX)} variant" for name in names if name.endswith(VARIANT_SUFFIX)]
    return f"With it come, signed as release {manifest.sequence}: {', '.join(brought)}."


async def said_of_less(coordinator: Coordinator, names: Iterable[str], folder: Path) -> str:
    """Return what the releases in force bring and a folder with files of these names does not; empty for nothing."""
    from mien.models.bundles import listed_by

    statuses = [status for _, status in await coordinator.standings() if status.state == "released"]
    in_force = [await coordinator.manifest(status.model_id) for status in statuses]
    signed = [listed_by(each.bundle_manifest) for each in in_force if each.bundle_manifest]
    brought = {what for manifest in signed for what in _kinds(file.name for file in manifest.files)}
    if not (lost := sorted(brought - _kinds(names))):
        return ""
    faces = " --int8-faces FACES" if "the int8 variant" in lost else ""
    return (
        f"The release in force brings what this one does not: {' and '.join(lost)}. To keep that, sign and release the "
        f"folder after: python -m device_sdk.export {folder}{faces}"
    )


def _kinds(names: Iterable[str]) -> set[str]:
    """Return what files of these names bring to phones beside a model, in words."""
    from mien.models.bundles import GRAPHS, VARIANT_SUFFIX

    files = set(names)
    variants = {f"the {name.removesuffix(VARIANT_SUFFIX)} variant" for name in files if name.endswith(VARIANT_SUFFIX)}
    return variants | ({"the graphs for phones without torch"} if GRAPHS in files else set())


async def write_fallbacks(coordinator: Coordinator, model: models_pb2.ModelManifest, out: Path) -> None:
    """Write down which signed releases phones may go back to from a model: those that are in force now."""
    from mien.models.bundles import hash_of

    statuses = [status for _, status in await coordinator.standings()]
    in_force = [await coordinator.manifest(status.model_id) for status in statuses if _falls_back_to(status, model)]
    signed = [hash_of(earlier.bundle_manifest) for earlier in in_force if earlier.bundle_manifest]
    write_atomically(out / FALLBACKS, "".join(f"{sha256}\n" for sha256 in signed).encode())


def _falls_back_to(status: operator_pb2.ModelStatus, model: models_pb2.ModelManifest) -> bool:
    """Return whether phones that get `model` may have to go back to another one, which is in force now."""
    return status.state == "released" and status.model_id != model.model_id
