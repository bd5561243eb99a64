"""mien-coordinator model import: bring a recogniser in, with graphs and a signature where they are wanted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, now, typed
from coordinator.commands.models.common import said_of_thresholds, to_plain
from coordinator.commands.models.evaluations import add_thresholds, configured_sets, measured
from coordinator.commands.models.folder import (
    MAX_SPEC_BYTES,
    SHARD,
    SPEC,
    THETA,
    read_signed,
    said_of_bundle,
    write_fallbacks,
)
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.protocol.ids import ModelId
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.files import read_limited, storage_errors, write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import models_pb2


def import_model(
    file: Annotated[Path, typer.Argument(help="An ONNX or TFLite file, or a folder that model export wrote.")],
    home: Home,
    public: Annotated[Path | None, typer.Option(help="Crops of public faces (safetensors) to go with it.")] = None,
    adapter: Annotated[
        bool,
        typer.Option(help="Put a linear adapter behind it: phones train that alone, and send 64 KB in place of MBs."),
    ] = False,
    gate: Annotated[
        Path | None,
        typer.Option(
            help="Faces, name/*.jpg, of people whom it was made for: an adapter for others alone, these keep the model "
            "as it is."
        ),
    ] = None,
    release: Annotated[bool, typer.Option(help="Release it at once.")] = False,
    graphs: Annotated[
        Path | None,
        typer.Option(help="A new folder: the model with the graphs that phones without torch run, ready to be signed."),
    ] = None,
    embed_only: Annotated[
        bool,
        typer.Option(
            "--embed-only", help="With --graphs: those alone that embed, for tasks in which phones train nothing."
        ),
    ] = False,
    int8_faces: Annotated[
        Path | None,
        typer.Option(help="With --graphs: public faces, name/*.jpg, for its thresholds and a variant of it in int8."),
    ] = None,
    aligned: Annotated[bool, typer.Option(help="These faces are aligned 112x112 crops already.")] = False,
    key: Annotated[
        Path | None, typer.Option(help="With --graphs: sign that folder with this release key, in one go.")
    ] = None,
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned", help="With --graphs and --release: release the model alone; phones get no graphs with it."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a recogniser in. Files of other programs are read by a child process, which needs the simulation extra.

    Example: mien-coordinator model import face_recognition_sface.onnx --adapter --public faces.safetensors --release

    Example: mien-coordinator model import sface.onnx --graphs ./model --int8-faces ./public --key release.key --release
    """
    from coordinator.release.signing import read_key
    from mien.rounds.thresholds import decides

    if not file.exists():
        raise NotFoundError(f"there is no file {file}; name an ONNX or TFLite file, or an exported folder")
    if (adapter or gate is not None) and file.is_dir():
        raise ConfigError(
            "--adapter and --gate go with a public model file; what model export wrote is imported as it is"
        )
    if adapter and gate is not None:
        raise ConfigError("--gate puts an adapter behind the model, too: leave --adapter out")
    _check_bundle(graphs, int8_faces, key, release=release, unsigned=unsigned, embed_only=embed_only)
    # A mistyped one is noticed before minutes of work and before anything is imported.
    signing_key = None if key is None else read_key(key)
    with _new_folder(graphs) as temporary:
        folder, own_id = file, ""
        if graphs is not None or not file.is_dir():
            from coordinator.release import worker

            folder = temporary
            made = worker.import_model(
                file,
                folder,
                adapter=adapter,
                gate=gate,
                graphs=graphs is not None,
                embed_only=embed_only,
                int8_faces=int8_faces,
                aligned=aligned,
            )
            own_id = made["model_id"]
        shard = _with_shard(file, folder, public)
        spec_json = _spec_of(folder, shard)
        is_known = graphs is None or decides(spec_json, ModelId(own_id))
        record = None if is_known else _for_thresholds(home, folder, int8_faces, aligned=aligned)

        async def question(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, bool, str]:
            known = {model.model_id for model in await coordinator.models()}
            kept = await coordinator.import_model(spec_json, folder / THETA, shard)
            if graphs is not None:
                kept = await _described(coordinator, kept, folder, record)
            signed = (b"", b"") if graphs is None else await _signed_here(coordinator, kept, folder, signing_key)
            released = await _released(coordinator, kept, folder, signed) if release else kept
            then = ", then this import again with a new folder: thresholds are signed, too" if graphs else ""
            lacking = said_of_thresholds(kept.spec_json, kept.model_id, home, "" if unsigned else then)
            return released, kept.model_id in known, lacking

        model, was_there, lacking = ask(home, question)
    result = {**to_plain(model), "was_there": was_there, "bundle": None if graphs is None else str(graphs)}
    result["has_threshold"] = not lacking

    def human() -> None:
        say(f"Model {model.model_id} is {_what_happened(was_there=was_there, release=release)}.")
        if release and model.bundle_manifest:
            say(said_of_bundle(model.bundle_manifest))
        if lacking and (release or graphs is not None):
            say(lacking)
        if graphs is not None and key is None:
            say(f"Next, where the release key is: mien-coordinator model sign {typed(graphs)} --key release.key")

    shell.emit(result, as_json=as_json, human=human)


def _check_bundle(
    graphs: Path | None, int8_faces: Path | None, key: Path | None, *, release: bool, unsigned: bool, embed_only: bool
) -> None:
    """Raise ConfigError for options of a bundle that contradict each other, AlreadyExistsError where its folder is."""
    if graphs is None and (int8_faces is not None or key is not None):
        raise ConfigError("a variant and a signature go into the folder that is released: add --graphs FOLDER")
    if graphs is None and embed_only:
        raise ConfigError("--embed-only chooses among the graphs of --graphs FOLDER; add that, or leave it out")
    if unsigned and (graphs is None or not release or key is not None):
        raise ConfigError("--unsigned goes with --graphs and --release, and without --key; leave it out")
    if graphs is not None and release and key is None and not unsigned:
        raise ConfigError(
            "graphs reach phones only with a signature: add --key with the release key; or leave --release out, run "
            "model sign where the key is, then model release --bundle; or add --unsigned to release the model alone"
        )
    if graphs is not None and graphs.exists():
        raise AlreadyExistsError(f"{graphs} exists already; name a new folder for the bundle")


def _what_happened(*, was_there: bool, release: bool) -> str:
    if was_there:
        return "here already; nothing was imported" + (", and it is released" if release else "")
    return "imported" + (" and released" if release else "")


@contextmanager
def _new_folder(wanted: Path | None) -> Iterator[Path]:
    """Give a folder to fill, which becomes `wanted` when the block ends well, and is gone when it does not."""
    parent = None if wanted is None else wanted.absolute().parent
    with storage_errors(str(parent or "the temporary folder")):
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".mien-import-", dir=parent)
    with made as temporary:
        folder = Path(temporary, "model")
        with storage_errors(str(folder)):
            folder.mkdir()
        yield folder
        if wanted is not None:
            with storage_errors(str(wanted)):
                folder.rename(wanted)


def _with_shard(file: Path, folder: Path, public: Path | None) -> Path | None:
    """Return the public faces that go with a model; in a new bundle's folder they lie beside it."""
    given = public or (file / SHARD if file.is_dir() and (file / SHARD).is_file() else None)
    if given is None or not given.is_file() or file == folder or not folder.joinpath(SPEC).is_file():
        return given
    with storage_errors(str(folder)):
        shutil.copyfile(given, folder / SHARD)
    return folder / SHARD


def _spec_of(folder: Path, shard: Path | None) -> bytes:
    """Return the specification of the model in a folder; raises NotFoundError where one of its files is not there."""
    spec_json = read_limited(folder / SPEC, MAX_SPEC_BYTES, what=SPEC)
    for path in (folder / THETA, shard):
        if path is not None and not path.is_file():
            raise NotFoundError(f"there is no file {path}; export the model again")
    return spec_json


def _for_thresholds(home: Path, folder: Path, faces: Path | None, *, aligned: bool) -> dict[str, Any] | None:
    """Return the measurement of a new bundle's model on its public faces, or else on the first evaluation set.

    None where there are no faces.
    """
    sets = [(faces, aligned)] if faces is not None else configured_sets(home)
    found = next(((data, crops) for data, crops in sets if data.is_dir()), None)
    if found is None:
        return None
    shell.ERR.print(f"thresholds: measuring all pairs of {found[0].name}", highlight=False, markup=False)
    return measured(folder, found[0], "folder", aligned=found[1])


async def _described(
    coordinator: Coordinator, model: models_pb2.ModelManifest, folder: Path, record: Mapping[str, Any] | None
) -> models_pb2.ModelManifest:
    """Return a model with its thresholds, the measured ones where it had none; its folder gets them to be signed."""
    from mien.rounds.thresholds import decides

    if record is not None and not decides(model.spec_json, ModelId(model.model_id)):
        await coordinator.add_evaluation(model.model_id, record)
        await add_thresholds(coordinator, record)
    described = await coordinator.manifest(model.model_id)
    write_atomically(folder / SPEC, described.spec_json)
    return described


async def _signed_here(
    coordinator: Coordinator, model: models_pb2.ModelManifest, folder: Path, key: Ed25519PrivateKey | None
) -> tuple[bytes, bytes]:
    """Return a new bundle's manifest and signature; empty without a key. What it falls back to is written down."""
    await write_fallbacks(coordinator, model, folder)
    if key is None:
        return b"", b""
    from coordinator.release.signing import sign_folder

    sign_folder(folder, key, sequence=int(now().timestamp()))
    return read_signed(folder)


async def _released(
    coordinator: Coordinator, model: models_pb2.ModelManifest, folder: Path, signed: tuple[bytes, bytes]
) -> models_pb2.ModelManifest:
    """Release a model, with the graphs in its folder where that is signed."""
    if signed[0]:
        await coordinator.add_graphs(folder, *signed)
    return await coordinator.release(model.model_id, signed=signed)
