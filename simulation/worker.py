"""What the coordinator has done for it in a child process: read a public model file, measure a model on faces.

    python -m simulation.worker import FILE --out DIR
    python -m simulation.worker evaluate --model DIR --data FOLDER --protocol folder|lfw --json

The last line on standard output is one JSON object; the last line on standard error is one too where the work failed,
and the exit code is the error's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.runtimes import load_runtime
from mien.backbones import build_backbone, load_theta
from mien.backbones.importers import import_model
from mien.errors import ConfigError, NotFoundError
from mien.evaluation import NotMeasurable, all_pairs, det_curve, equal_error_rate, tar_at_fmrs
from mien.evaluation.protocols import lfw
from mien.evaluation.records import Provenance
from mien.shell import cli
from mien.shell.files import read_limited
from simulation import provenance
from simulation.datasets import digest, find_people, read_people
from simulation.lfw import embed_samples, read_pairs
from simulation.models import Model, read_model, write_model

MAX_MODEL_BYTES: Final = 1 << 30
TARGETS: Final = (1e-1, 1e-2, 1e-3, 1e-4)
FOLDER_PROTOCOL: Final = ("folder-all-pairs", "1")
"""Name and version of the protocol that compares every two images of a folder."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Work that the coordinator does in a child process.",
)
Json = Annotated[bool, typer.Option("--json", help="Nothing but JSON is printed, with this option or without.")]


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A public ONNX or TFLite model file.")],
    out: Annotated[Path, typer.Option(help="Folder for model.json and theta.f32.")],
    as_json: Json = True,
) -> None:
    """Unpack a public model file into a model folder."""
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}; name an ONNX or TFLite file")
    imported = import_model(read_limited(file, MAX_MODEL_BYTES, what="model file"), file.name)
    model = Model(imported.spec, imported.layout, imported.theta)
    write_model(model, out)
    cli.emit({"model_id": model.model_id, "terms": model.spec.terms}, as_json=True, human=lambda: None)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Option(help="A model folder.")],
    data: Annotated[Path, typer.Option(help="Folder with the faces.")],
    protocol: Annotated[str, typer.Option(help="folder or lfw.")] = "folder",
    aligned: Annotated[bool, typer.Option(help="The images are aligned crops already.")] = False,
    as_json: Json = True,
) -> None:
    """Measure a model on faces and print one JSON object."""
    protocols = {"folder": evaluate_folder, "lfw": evaluate_lfw}
    if protocol not in protocols:
        raise ConfigError(f"--protocol is {protocol!r}; known: {', '.join(protocols)}")
    cli.emit(protocols[protocol](read_model(model), data, aligned=aligned), as_json=True, human=lambda: None)


def evaluate_folder(model: Model, folder: Path, *, aligned: bool = False) -> dict[str, Any]:
    """Return EER and operating points over all pairs of a folder name/*.jpg, failures to enrol counted."""
    people = find_people(folder)
    faces = read_people(people, FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=aligned))
    runtime = load_runtime(model.spec, model.layout)
    comparisons = all_pairs(runtime.embed(model.theta, faces.crops), faces.labels)
    curve = det_curve(comparisons)
    return {
        **_origin(FOLDER_PROTOCOL, folder.resolve().name, digest(people), model),
        "identities": len(people),
        "images": len(faces.labels) + len(faces.failures),
        "fte": len(faces.failures),
        "mated": comparisons.num_mated,
        "non_mated": comparisons.num_non_mated,
        "eer": equal_error_rate(curve).value,
        "points": [
            {"target_fmr": point.target_fmr, "not_measurable": point.reason}
            if isinstance(point, NotMeasurable)
            else {**dataclasses.asdict(point), "fmr": point.fmr, "fnmr": point.fnmr}
            for point in tar_at_fmrs(curve, TARGETS)
        ],
    }


def evaluate_lfw(model: Model, folder: Path, *, aligned: bool = False) -> dict[str, Any]:
    """Return ten-fold accuracy on LFW View 2 (`folder`/images, `folder`/protocol/pairs.txt)."""
    if aligned:
        raise ConfigError("--aligned does not go with --protocol lfw, whose images are raw")
    pairs = read_pairs(folder)
    backbone = build_backbone(model.spec.backbone, model.spec.input)
    load_theta(backbone, model.layout, model.theta)
    embedded = embed_samples(backbone, folder, pairs, lambda text: cli.ERR.print(text, highlight=False))
    result = lfw.evaluate(pairs, embedded.samples, embedded.embeddings, failed=embedded.failed).system
    return {
        **_origin((lfw.PROTOCOL, lfw.VERSION), "LFW View 2", embedded.dataset_sha256, model),
        "accuracy": result.mean,
        "std": result.std_population,
        "standard_error": result.standard_error,
        "mated": result.num_mated,
        "non_mated": result.num_non_mated,
        "fte": len(embedded.failed),
        "terms": "LFW: research, non-commercial use",
    }


def _origin(protocol: tuple[str, str], dataset: str, dataset_sha256: str, model: Model) -> dict[str, Any]:
    """Return what every answer says of where its figures come from. Neither protocol draws anything: its seed is 0."""
    name, version = protocol
    command = provenance.command("python", "-m", "simulation.worker")
    origin = Provenance(dataset, dataset_sha256, model.model_id, provenance.commit(), command)
    return {"protocol": name, "protocol_version": version, **dataclasses.asdict(origin)}


if __name__ == "__main__":
    cli.run(app, json_errors=True)
