"""mien-coordinator model: list, show, import, export, sign, release, rollback, evaluate."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, moment, now, say
from coordinator.commands.measured import table_of
from coordinator.commands.tables import Column, facts, listing
from coordinator.home import CoordinatorHome
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.records import to_mapping
from mien.shell import cli as shell
from mien.shell.files import read_limited, storage_errors, write_atomically
from mien.wire.canonical import model_from_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from rich.console import RenderableType

    from coordinator.client import Coordinator
    from mien.wire.v1 import models_pb2, operator_pb2

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Keep models: import, release, roll back, export, evaluate."
)

Model = Annotated[str, typer.Argument(help="The model's id or its beginning; 'released' for the one in force.")]

_MAX_SPEC_BYTES = 1 << 20
_MAX_REASON = 400
"""The coordinator keeps as much of a reason."""

SPEC, THETA, SHARD = "model.json", "theta.f32", "public_shard.safetensors"
FALLBACKS = "fallbacks.txt"


@app.command("list")
def list_models(
    home: Home,
    every: Annotated[bool, typer.Option("--all", help="Also the models of single rounds, never offered.")] = False,
    as_json: Json = False,
) -> None:
    """List models and where they stand: candidate, released, rejected or retired; oldest first.

    Example: mien-coordinator model list --all
    """
    found = ask(home, lambda coordinator: coordinator.standings())
    models = [(model, status) for model, status in found if every or as_json or status.state != "round"]

    def human() -> None:
        shell.OUT.print(
            model_table(models, shell.OUT.width)
            if models
            else "There is no model yet; mien-coordinator model import brings one."
        )
        if rejected := next((model.model_id for model, status in models if status.state == "rejected"), None):
            say(f"Why a model was rejected: mien-coordinator model show {rejected[:12]}")

    result = {"models": [{**to_plain(model), **_standing(status)} for model, status in models]}
    shell.emit(result, as_json=as_json, human=human)


def model_table(
    models: Sequence[tuple[models_pb2.ModelManifest, operator_pb2.ModelStatus]], width: int
) -> RenderableType:
    """Return models as a table for people, within `width` characters."""
    columns = (
        Column("model"),
        Column("state", folds=True),
        Column("for", folds=True),
        Column("made from", 1, folds=True),
        Column("created (UTC)", 2),
        Column("size", 3),
        Column("public faces", 4),
    )
    has_own = any(status.state == "released" and status.population for _, status in models)
    rows = [
        (
            model.model_id[:16],
            _state(status),
            _whose(status, "all others" if has_own else "all"),
            _origin(model, status),
            moment(model.created_unix_s * 1000),
            "given up" if status.removed else f"{model.theta.size_bytes / 1e6:.1f} MB",
            "yes" if model.HasField("public_shard") else "–",
        )
        for model, status in models
    ]
    return listing(columns, rows, width)


def _state(status: operator_pb2.ModelStatus) -> str:
    """Return where a model stands, in few words; why is in `model show`, except for what still waits."""
    if status.state == "released" and status.share < 1:
        return f"released to {percent(status.share)} of the phones"
    return f"{status.state}: {status.reason}" if status.state == "candidate" and status.reason else status.state


def _whose(status: operator_pb2.ModelStatus, everybody: str) -> str:
    """Return for whose phones a model is in force."""
    return (status.population or everybody) if status.state == "released" else "–"


def _origin(model: models_pb2.ModelManifest, status: operator_pb2.ModelStatus) -> str:
    if not model.parent_model_id:
        return "imported"
    return f"{model.parent_model_id[:16]}, round {status.round}"


def _standing(status: operator_pb2.ModelStatus) -> dict[str, Any]:
    """Return where a model stands, as plain data."""
    return {
        "state": status.state,
        "share": status.share,
        "reason": status.reason,
        "population": status.population,
        "task_id": status.task_id,
        "round": status.round,
        "removed": status.removed,
    }


@app.command()
def show(model: Model, home: Home, as_json: Json = False) -> None:
    """Show one model: where it stands, its thresholds, and every measurement that was kept of it.

    Example: mien-coordinator model show 3f0c --json
    """

    async def question(coordinator: Coordinator) -> dict[str, Any]:
        found = await find_model(coordinator, model)
        statuses = {status.model_id: status for _, status in await coordinator.standings()}
        spec, _ = model_from_json(found.spec_json)
        return {
            **to_plain(found),
            **_standing(statuses[found.model_id]),
            "backbone": spec.backbone,
            "terms": spec.terms,
            "thresholds": [to_mapping(threshold) for threshold in spec.thresholds],
            "evaluations": await coordinator.evaluations(found.model_id),
        }

    result = ask(home, question)

    def human() -> None:
        names = ("model_id", "state", "share", "reason", "population", "backbone", "terms")
        rows = [(name, percent(result[name]) if name == "share" else str(result[name])) for name in names]
        for threshold in result["thresholds"]:
            measured = f"{threshold['value']:.4f}: FMR {threshold['fmr']:.2g}"
            rows.append((f"threshold on {threshold['dataset']}", measured))
        for record in result["evaluations"]:
            rows.append(
                (
                    f"{record.get('protocol', 'an unknown protocol')} on {record.get('dataset', 'all sets')}",
                    in_short(record, result["reason"]),
                )
            )
        shell.OUT.print(facts("", "value", rows))

    shell.emit(result, as_json=as_json, human=human)


def in_short(record: Mapping[str, Any], told: str = "") -> str:
    """Return the gist of a measurement, without reasons that were `told` already; --json shows all of it."""
    if "passed" in record:
        why = "; ".join(map(str, record.get("reasons", ())))
        return "passed" if record["passed"] else f"failed: {why}" if why[:_MAX_REASON] != told else "failed"
    rates = [f"{name} {record[name]:.4f}" for name in ("eer", "accuracy") if isinstance(record.get(name), int | float)]
    counts = [f"{record[name]} {name.replace('_', '-')}" for name in ("mated", "non_mated") if name in record]
    return ", ".join([*rates, *counts]) or "of a kind that this program does not know; --json shows it"


@app.command("import")
def import_model(
    file: Annotated[Path, typer.Argument(help="An ONNX or TFLite file, or a folder that model export wrote.")],
    home: Home,
    public: Annotated[Path | None, typer.Option(help="Crops of public faces (safetensors) to go with it.")] = None,
    adapter: Annotated[
        bool,
        typer.Option(help="Put a linear adapter behind it: phones train that alone, and send 64 KB in place of MBs."),
    ] = False,
    release: Annotated[bool, typer.Option(help="Release it at once.")] = False,
    graphs: Annotated[
        Path | None,
        typer.Option(help="A new folder: the model with the graphs that phones without torch run, ready to be signed."),
    ] = None,
    int8_faces: Annotated[
        Path | None, typer.Option(help="With --graphs: public faces, name/*.jpg, for a variant of it in int8.")
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
    if not file.exists():
        raise NotFoundError(f"there is no file {file}; name an ONNX or TFLite file, or an exported folder")
    if adapter and file.is_dir():
        raise ConfigError("--adapter goes with a public model file; what model export wrote is imported as it is")
    if graphs is None and (int8_faces is not None or key is not None):
        raise ConfigError("a variant and a signature go into the folder that is released: add --graphs FOLDER")
    if unsigned and (graphs is None or not release or key is not None):
        raise ConfigError("--unsigned goes with --graphs and --release, and without --key; leave it out")
    if graphs is not None and release and key is None and not unsigned:
        raise ConfigError(
            "graphs reach phones only with a signature: add --key with the release key; or leave --release out, run "
            "model sign where the key is, then model release --bundle; or add --unsigned to release the model alone"
        )
    if graphs is not None and graphs.exists():
        raise AlreadyExistsError(f"{graphs} exists already; name a new folder for the bundle")
    signing_key = _release_key(key)  # a mistyped one is noticed before minutes of work and before anything is imported
    with _new_folder(graphs) as temporary:
        folder = file
        if graphs is not None or not file.is_dir():
            from coordinator import worker

            folder = temporary
            worker.import_model(
                file, folder, adapter=adapter, graphs=graphs is not None, int8_faces=int8_faces, aligned=aligned
            )
        shard = _with_shard(file, folder, public)
        spec_json = read_limited(folder / SPEC, _MAX_SPEC_BYTES, what=SPEC)
        for path in (folder / THETA, shard):
            if path is not None and not path.is_file():
                raise NotFoundError(f"there is no file {path}; export the model again")

        async def question(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, bool]:
            known = {model.model_id for model in await coordinator.models()}
            kept = await coordinator.import_model(spec_json, folder / THETA, shard)
            was_there = kept.model_id in known
            signed = (b"", b"") if graphs is None else await _signed_here(coordinator, kept, folder, signing_key)
            if release and signed[0]:
                await coordinator.add_graphs(folder, *signed)
            return (await coordinator.release(kept.model_id, signed=signed) if release else kept), was_there

        model, was_there = ask(home, question)
    what = "here already; nothing was imported" if was_there else "imported"
    what += (", and it is released" if was_there else " and released") if release else ""
    result = {**to_plain(model), "was_there": was_there, "bundle": None if graphs is None else str(graphs)}

    def human() -> None:
        say(f"Model {model.model_id} is {what}.")
        if graphs is not None and key is None:
            say(f"Next, where the release key is: mien-coordinator model sign {graphs} --key release.key")

    shell.emit(result, as_json=as_json, human=human)


def _release_key(path: Path | None) -> Ed25519PrivateKey | None:
    """Return the release key in a file, if one is named; raises NotFoundError, KeyStoreError for a file without."""
    if path is None:
        return None
    from coordinator.signing import read_key

    return read_key(path)


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


async def _signed_here(
    coordinator: Coordinator, model: models_pb2.ModelManifest, folder: Path, key: Ed25519PrivateKey | None
) -> tuple[bytes, bytes]:
    """Return a new bundle's manifest and signature; empty without a key. What it falls back to is written down."""
    await _write_fallbacks(coordinator, model, folder)
    if key is None:
        return b"", b""
    from coordinator.signing import sign_folder

    sign_folder(folder, key, sequence=int(now().timestamp()))
    return read_signed(folder)


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    home: Home,
    as_json: Json = False,
) -> None:
    """Write a model to a folder: model.json, theta.f32 and, where there is one, public_shard.safetensors.

    Beside them fallbacks.txt: the signed releases in force now, to which phones may go back from this one, each by
    its manifest's SHA-256.

    Example: mien-coordinator model export released ./model
    """
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name a new folder")
    with storage_errors(str(out)):
        out.mkdir(parents=True)
    exported = ask(home, lambda coordinator: _export(coordinator, model, out))
    _tell(exported, as_json, f"exported to {out}")


async def _export(coordinator: Coordinator, wanted: str, out: Path) -> models_pb2.ModelManifest:
    model = await find_model(coordinator, wanted)
    statuses = [status for _, status in await coordinator.standings()]
    if any(status.removed for status in statuses if status.model_id == model.model_id):
        raise NotFoundError("this model's parameters were given up (keep_round_models); name another one")
    await _write_fallbacks(coordinator, model, out)
    write_atomically(out / SPEC, model.spec_json)
    await coordinator.download(model.theta, out / THETA)
    if model.HasField("public_shard"):
        await coordinator.download(model.public_shard, out / SHARD)
    return model


async def _write_fallbacks(coordinator: Coordinator, model: models_pb2.ModelManifest, out: Path) -> None:
    """Write down which signed releases phones may go back to from a model: those that are in force now."""
    from mien.bundles import hash_of

    statuses = [status for _, status in await coordinator.standings()]
    in_force = [await coordinator.manifest(status.model_id) for status in statuses if _falls_back_to(status, model)]
    signed = [hash_of(earlier.bundle_manifest) for earlier in in_force if earlier.bundle_manifest]
    write_atomically(out / FALLBACKS, "".join(f"{sha256}\n" for sha256 in signed).encode())


def _falls_back_to(status: operator_pb2.ModelStatus, model: models_pb2.ModelManifest) -> bool:
    """Return whether phones that get `model` may have to go back to another one, which is in force now."""
    return status.state == "released" and status.model_id != model.model_id


@app.command()
def sign(
    folder: Annotated[Path, typer.Argument(help="A folder that model export wrote.")],
    key: Annotated[Path, typer.Option(help="The release key's file, from release-key init.")],
    sequence: Annotated[
        int | None, typer.Option(help="Higher than that of every earlier release; default: the time, in seconds.")
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            help="The SHA-256 of a signed manifest.json that phones may go back to; default: those of the releases in "
            "force when the folder was exported."
        ),
    ] = None,
    min_sdk: Annotated[str, typer.Option(help="The oldest version of mien whose devices may use it.")] = "0.1.0",
    as_json: Json = False,
) -> None:
    """Sign an exported model with the release key. Needs neither network nor coordinator: run it where the key is.

    Graphs in the folder (`python -m device_sdk.export`) are signed with it: devices without torch run those.

    Example: mien-coordinator model sign ./model --key release.key
    """
    from coordinator.signing import read_key, sign_folder
    from mien.bundles import hash_of

    signed = sign_folder(
        folder,
        read_key(key),
        sequence=sequence or int(now().timestamp()),
        fallbacks=fallback,
        min_sdk=min_sdk,
    )
    result = {
        "model_id": signed.model_id,
        "sequence": signed.sequence,
        "manifest_sha256": hash_of(signed.to_json()),
        "fallbacks": list(signed.fallbacks),
        "files": [file.name for file in signed.files],
    }

    def human() -> None:
        say(f"Model {signed.model_id} is signed as release {signed.sequence}, manifest {result['manifest_sha256']}.")
        say(f"Next: mien-coordinator model release {signed.model_id[:12]} --bundle {folder}")

    shell.emit(result, as_json=as_json, human=human)


def read_signed(folder: Path) -> tuple[bytes, bytes]:
    """Return a signed folder's manifest and signature; raises NotFoundError where model sign was not run."""
    from mien.bundles import MANIFEST, SIGNATURE

    for name in (MANIFEST, SIGNATURE):
        if not (folder / name).is_file():
            raise NotFoundError(f"there is no {name} in {folder}; run model sign where the release key is")
    return (
        read_limited(folder / MANIFEST, _MAX_SPEC_BYTES, what=MANIFEST),
        read_limited(folder / SIGNATURE, 1024, what=SIGNATURE),
    )


@app.command()
def release(
    model: Model,
    home: Home,
    share: Annotated[
        str, typer.Option(help="How many of the phones get it: 10% or 0.1; again with more to go on.")
    ] = "100%",
    bundle: Annotated[
        Path | None, typer.Option(help="The folder that model sign signed; needed where a release_key is set.")
    ] = None,
    despite_gates: Annotated[
        bool, typer.Option("--despite-gates", help="Also if its gates rejected it, or have not judged it yet.")
    ] = False,
    roll_out: Annotated[
        Path | None,
        typer.Option(help="A staged roll-out in TOML: phones judge the model at each share; in place of --share."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model the one that devices verify with and new tasks start from, for all phones or a share of them.

    Example: mien-coordinator model release 3f0c --share 10%

    Example: mien-coordinator model release 3f0c --roll-out stages.toml
    """
    from coordinator.commands.fleet import read_roll_out

    spec = None if roll_out is None else read_roll_out(roll_out)
    part = share_of(share) if spec is None else spec.stages[0]
    signed = (b"", b"") if bundle is None else read_signed(bundle)

    async def question(coordinator: Coordinator) -> models_pb2.ModelManifest:
        model_id = (await find_model(coordinator, model)).model_id
        if bundle is not None:
            await coordinator.add_graphs(bundle, *signed)
        return await coordinator.release(
            model_id, share=part, despite_gates=despite_gates, signed=signed, roll_out=spec
        )

    _tell(ask(home, question), as_json, "released" if part == 1 else f"released to {percent(part)} of the phones")


@app.command()
def rollback(
    home: Home,
    population: Annotated[str, typer.Option(help="Whose phones; default: those of the newest release.")] = "",
    as_json: Json = False,
) -> None:
    """Put the model in force again that was before the newest release; again to go one further.

    Example: mien-coordinator model rollback
    """
    _tell(ask(home, lambda coordinator: coordinator.roll_back(population)), as_json, "in force again")


def percent(share: float) -> str:
    """Return a share as it is written on the command line: 0.1 is 10%."""
    return f"{100 * share:.4g}%"


def share_of(text: str) -> float:
    """Return a share written as 10% or 0.1; raises ConfigError for anything else."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--share is {text!r}; write a share of the phones above 0 and up to 100%, such as 10%")
    return share


@app.command()
def evaluate(
    model: Model,
    home: Home,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the faces; default: every evaluation set of coordinator.toml.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="lfw (ten-fold) or folder (all pairs of name/*.jpg).")] = "folder",
    aligned: Annotated[bool, typer.Option(help="The images are aligned crops already.")] = False,
    keep_thresholds: Annotated[
        bool, typer.Option(help="Keep the thresholds that were found, with their provenance, in the model's manifest.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model on faces, in a child process that needs the simulation extra. The coordinator keeps the record.

    Example: mien-coordinator model evaluate released --data ./lfw --protocol lfw --json
    """
    if protocol not in ("lfw", "folder"):
        raise ConfigError(f"--protocol is {protocol!r}; known: lfw, folder")
    sets = [(data, aligned)] if data is not None else _configured_sets(home)
    for folder, _ in sets:
        if not folder.is_dir():
            raise NotFoundError(f"there is no folder {folder}; name the folder that holds the faces")
    records = _measured(home, model, sets, protocol)

    async def keep(coordinator: Coordinator) -> None:
        for record in records:
            await coordinator.add_evaluation(record["model_id"], record)

    ask(home, keep)
    if keep_thresholds:
        records[0]["thresholds_kept"] = _keep_thresholds(home, records[0])

    def human() -> None:
        for record in records:
            shell.OUT.print(table_of(record))

    shell.emit(records[0] if data is not None else {"evaluations": records}, as_json=as_json, human=human)


def _configured_sets(home: Path) -> list[tuple[Path, bool]]:
    """Return the folders of the coordinator's evaluation sets, and whether they hold aligned crops."""
    sets = CoordinatorHome(home).resolve().config.sets
    folders = [*((folder, False) for folder in sets.raw.values()), *((folder, True) for folder in sets.crops.values())]
    if not folders:
        raise ConfigError("coordinator.toml names no evaluation_sets; add one, or give --data")
    return [(Path(folder), aligned) for folder, aligned in folders]


def _measured(home: Path, model: str, sets: Sequence[tuple[Path, bool]], protocol: str) -> list[dict[str, Any]]:
    """Return the records of a model on each folder."""
    from coordinator import worker

    command = shlex.join(["mien-coordinator", *sys.argv[1:]])  # the worker's names a folder that is gone
    with tempfile.TemporaryDirectory(prefix="mien-evaluate-") as temporary:
        ask(home, lambda coordinator: _export(coordinator, model, Path(temporary)))
        records = [worker.evaluate(Path(temporary), folder, protocol, aligned=crops) for folder, crops in sets]
    return [{**record, "command": command} for record in records]


def _keep_thresholds(home: Path, record: Mapping[str, Any]) -> int:
    """Add what a record measured to the model's manifest; returns how many thresholds that were."""
    from coordinator.thresholds import thresholds_of

    thresholds = thresholds_of(record, now())

    async def keep(coordinator: Coordinator) -> None:
        for threshold in thresholds:
            await coordinator.add_threshold(threshold.model_id, threshold)

    ask(home, keep)
    return len(thresholds)


async def find_model(coordinator: Coordinator, wanted: str) -> models_pb2.ModelManifest:
    """Return a model with its layout, by id, the beginning of one, or 'released'."""
    if wanted == "released":
        return await coordinator.manifest()
    near = [model.model_id for model in await coordinator.models() if model.model_id.startswith(wanted)]
    if len(near) != 1:
        found = "several models fit" if near else "no model fits"
        raise NotFoundError(f"{found} {wanted!r}; give an id that mien-coordinator model list shows")
    return await coordinator.manifest(near[0])


def to_plain(model: models_pb2.ModelManifest) -> dict[str, Any]:
    """Return a model as plain data."""
    return {
        "model_id": model.model_id,
        "parent_model_id": model.parent_model_id,
        "created_unix_s": model.created_unix_s,
        "size_bytes": model.theta.size_bytes,
        "public_shard_bytes": model.public_shard.size_bytes if model.HasField("public_shard") else 0,
        "released": model.released,
    }


def _tell(model: models_pb2.ModelManifest, as_json: bool, what: str) -> None:
    shell.emit(to_plain(model), as_json=as_json, human=lambda: say(f"Model {model.model_id} is {what}."))
