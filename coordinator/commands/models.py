"""mien-coordinator model: list, import, export, release, evaluate."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coordinator.commands.common import Home, Json, ask, id_table, moment, now, say
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.shell import cli as shell
from mien.shell.files import read_limited, storage_errors, write_atomically
from mien.specs import Threshold

if TYPE_CHECKING:
    from coordinator.client import Coordinator
    from mien.wire.v1 import models_pb2

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Keep models: import, release, export, evaluate.")

Model = Annotated[str, typer.Argument(help="The model's id or its beginning; 'released' for the one in force.")]

_MAX_SPEC_BYTES = 1 << 20
SPEC, THETA, SHARD = "model.json", "theta.f32", "public_shard.safetensors"


@app.command("list")
def list_models(home: Home, as_json: Json = False) -> None:
    """List all models, oldest first.

    Example: mien-coordinator model list
    """
    models = ask(home, lambda coordinator: coordinator.models())

    def human() -> None:
        table = id_table("model", "made from", "created (UTC)", "size", "public faces", "")
        for model in models:
            table.add_row(
                model.model_id[:16],
                model.parent_model_id[:16] or "imported",
                moment(model.created_unix_s * 1000),
                f"{model.theta.size_bytes / 1e6:.1f} MB",
                "yes" if model.HasField("public_shard") else "–",
                "released" if model.released else "",
            )
        shell.OUT.print(table if models else "There is no model yet; mien-coordinator model import brings one.")

    shell.emit({"models": [to_plain(model) for model in models]}, as_json=as_json, human=human)


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
    as_json: Json = False,
) -> None:
    """Bring a recogniser in. Files of other programs are read by a child process, which needs the simulation extra.

    Example: mien-coordinator model import face_recognition_sface.onnx --adapter --public faces.safetensors --release
    """
    if not file.exists():
        raise NotFoundError(f"there is no file {file}; name an ONNX or TFLite file, or an exported folder")
    if adapter and file.is_dir():
        raise ConfigError("--adapter goes with a public model file; what model export wrote is imported as it is")
    with tempfile.TemporaryDirectory(prefix="mien-import-") as temporary:
        folder = file
        if not file.is_dir():
            from coordinator import worker

            folder = Path(temporary)
            worker.import_model(file, folder, adapter=adapter)
        spec_json = read_limited(folder / SPEC, _MAX_SPEC_BYTES, what=SPEC)
        shard = public or (folder / SHARD if (folder / SHARD).is_file() else None)
        for path in (folder / THETA, shard):
            if path is not None and not path.is_file():
                raise NotFoundError(f"there is no file {path}; export the model again")

        async def question(coordinator: Coordinator) -> models_pb2.ModelManifest:
            kept = await coordinator.import_model(spec_json, folder / THETA, shard)
            return await coordinator.release(kept.model_id) if release else kept

        model = ask(home, question)
    _tell(model, as_json, "imported and released" if release else "imported")


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    home: Home,
    as_json: Json = False,
) -> None:
    """Write a model to a folder: model.json, theta.f32 and, where there is one, public_shard.safetensors.

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
    write_atomically(out / SPEC, model.spec_json)
    await coordinator.download(model.theta, out / THETA)
    if model.HasField("public_shard"):
        await coordinator.download(model.public_shard, out / SHARD)
    return model


@app.command()
def release(model: Model, home: Home, as_json: Json = False) -> None:
    """Make a model the one that devices verify with and new tasks start from.

    Example: mien-coordinator model release 3f0c
    """

    async def question(coordinator: Coordinator) -> models_pb2.ModelManifest:
        return await coordinator.release((await find_model(coordinator, model)).model_id)

    _tell(ask(home, question), as_json, "released")


@app.command()
def evaluate(
    model: Model,
    home: Home,
    data: Annotated[Path, typer.Option(help="Folder with the faces.")],
    protocol: Annotated[str, typer.Option(help="lfw (ten-fold) or folder (all pairs of name/*.jpg).")] = "folder",
    aligned: Annotated[bool, typer.Option(help="The images are aligned crops already.")] = False,
    keep_thresholds: Annotated[
        bool, typer.Option(help="Keep the thresholds that were found, with their provenance, in the model's manifest.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model on faces, in a child process that needs the simulation extra.

    Example: mien-coordinator model evaluate released --data ./lfw --protocol lfw --json
    """
    if protocol not in ("lfw", "folder"):
        raise ConfigError(f"--protocol is {protocol!r}; known: lfw, folder")
    if not data.is_dir():
        raise NotFoundError(f"there is no folder {data}; name the folder that holds the faces")
    from coordinator import worker

    with tempfile.TemporaryDirectory(prefix="mien-evaluate-") as temporary:
        ask(home, lambda coordinator: _export(coordinator, model, Path(temporary)))
        record = worker.evaluate(Path(temporary), data, protocol, aligned=aligned)
    record["command"] = shlex.join(["mien-coordinator", *sys.argv[1:]])  # the worker's names a folder that is gone
    if keep_thresholds:
        thresholds = thresholds_of(record)

        async def keep(coordinator: Coordinator) -> None:
            for threshold in thresholds:
                await coordinator.add_threshold(threshold.model_id, threshold)

        ask(home, keep)
        record["thresholds_kept"] = len(thresholds)

    def human() -> None:
        table = Table("measure", "value")
        for name, value in record.items():
            table.add_row(name, str(value))
        shell.OUT.print(table)

    shell.emit(record, as_json=as_json, human=human)


def thresholds_of(record: Mapping[str, Any]) -> list[Threshold]:
    """Return the thresholds in an evaluation's record, with where they come from; not what could not be measured."""
    points = [point for point in record.get("points", ()) if -1.0 <= point.get("threshold", 2.0) <= 1.0]
    return [
        Threshold(
            value=point["threshold"],
            fmr=point["fmr"],
            dataset=record["dataset"],
            num_mated=point["num_mated"],
            num_non_mated=point["num_non_mated"],
            model_id=record["model_id"],
            date=f"{now():%Y-%m-%d}",
        )
        for point in points
    ]


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
