"""What the coordinator has done for it in a child process: read a public model file, measure a model on faces.

    python -m simulation.program.worker import FILE --out DIR
    python -m simulation.program.worker first --out DIR --faces FOLDER
    python -m simulation.program.worker evaluate --model DIR --data FOLDER --protocol folder|lfw --json
    python -m simulation.program.worker check --reference DIR --candidate DIR --gates GATES.json \
        --set NAME=FOLDER --json

The last line on standard output is one JSON object; the last line on standard error is one too where the work failed,
and the exit code is the error's. Other lines of JSON on standard error say what is being done (`mien.shell.doing`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.packaged import packaged_model, sface_path
from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.manifest import (
    MANIFEST,
    PACKAGED,
    GraphFolder,
    GraphManifest,
    folder_for,
    write_graph,
)
from mien.errors import ConfigError, MissingDependencyError, NonFiniteError, NotFoundError
from mien.evaluation import Evidence, all_pairs, normalise
from mien.evaluation.gates import MIN_EXPECTED_ERRORS, is_measurable
from mien.methods.gate import LEVEL_FMR, population_of
from mien.models.known_models import SFACE, recognise
from mien.models.known_thresholds import known_thresholds
from mien.models.sface_file import read_known_sface
from mien.protocol.canonical import MAX_JSON_BYTES, parse_json
from mien.records import from_mapping, to_mapping
from mien.shell import cli
from mien.shell.doing import doing
from mien.shell.files import read_limited, storage_errors, write_atomically
from mien.specs import GateSpec
from simulation.faces.datasets import find_people, read_people
from simulation.faces.folder_protocol import evaluate_folder
from simulation.faces.models import Model, read_model, write_model
from simulation.faces.shards import pack_shard
from simulation.program.gating import EvaluationSet, gather
from simulation.synthetic import FACES_SOURCE, FACES_TERMS, committed_faces

if TYPE_CHECKING:
    from mien.backbones.importers import ImportedModel

# What loads torch, three quarters of the start, is imported by the commands that need it.

MAX_MODEL_BYTES: Final = 1 << 30

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
    adapter: Annotated[bool, typer.Option(help="Put a linear adapter behind it and train that alone.")] = False,
    gate: Annotated[
        Path | None, typer.Option(help="Faces of the model's own population, which a gate keeps as it is.")
    ] = None,
    graphs: Annotated[bool, typer.Option(help="Also make the graphs that phones without torch run.")] = False,
    embed_only: Annotated[
        bool, typer.Option(help="Of the graphs, those alone that embed: phones train nothing.")
    ] = False,
    int8_faces: Annotated[Path | None, typer.Option(help="Public faces for an int8 variant, made as well.")] = None,
    aligned: Annotated[bool, typer.Option(help="These faces are aligned crops already.")] = False,
    as_json: Json = True,
) -> None:
    """Unpack a public model file into a new model folder, or copy a model folder; DIR and DIR adds to what is there.

    A file whose thresholds were measured on real people brings them (`mien.models.known_thresholds`).
    """
    if file.is_dir():
        model = read_model(file)
    elif file.is_file():
        model = _imported(file, adapter=adapter, gate=gate, aligned=aligned)
        model = replace(model, spec=replace(model.spec, thresholds=known_thresholds(model.model_id)))
    else:
        raise NotFoundError(f"there is no file {file}; name an ONNX or TFLite file")
    if file.resolve() != out.resolve():
        write_model(model, out)
    added = add_for_phones(model, out, graphs=graphs, embed_only=embed_only, int8_faces=int8_faces, aligned=aligned)
    cli.emit({"model_id": model.model_id, "terms": model.spec.terms, **added}, as_json=True, human=lambda: None)


@app.command()
def first(
    out: Annotated[Path, typer.Option(help="A new folder for the model, its graphs and the public faces with it.")],
    faces: Annotated[Path, typer.Option(help="A new folder for pictures of people on no phone, name/*.jpg.")],
    as_json: Json = True,
) -> None:
    """Make what a fleet's first release is of: the packaged recogniser with an adapter, and the shipped public faces.

    The adapter maps to itself until it is trained, so that every score, and with it the recogniser's known thresholds,
    stays as it was. The folder of faces also has the shipped test people, so that thresholds can be measured on it.
    No torch is needed.
    """
    recogniser, data = packaged_model(), sface_path().read_bytes()
    adapted = Model(*read_known_sface(data, SFACE, adapter=True))
    thresholds = tuple(replace(each, model_id=adapted.model_id) for each in recogniser.spec.thresholds)
    model = replace(adapted, spec=replace(adapted.spec, thresholds=thresholds))
    write_model(model, out)
    _add_graphs(model, out, embed_only=True)
    public = committed_faces("public")
    for name, pictures in (public | committed_faces("test")).items():
        with storage_errors(str(faces)):
            shutil.copytree(pictures[0].parent, faces / name)
    folder = next(iter(public.values()))[0].parents[1]
    packed = pack_shard(folder, out / "public_shard.safetensors", licence=FACES_TERMS, source=FACES_SOURCE)
    answer = {"model_id": model.model_id, "terms": model.spec.terms, "identities": packed["identities"]}
    cli.emit(answer, as_json=True, human=lambda: None)


def _imported(file: Path, *, adapter: bool, gate: Path | None, aligned: bool) -> Model:
    """Return the recogniser in a public model file; SFace without torch, which takes longer to load than SFace."""
    with doing("Reading the model's file"):
        data = read_limited(file, MAX_MODEL_BYTES, what="model file")
    known = recognise(data)
    if known is not None and known.backbone == "sface" and gate is None:
        return Model(*read_known_sface(data, known, adapter=adapter))
    with _loading_torch(f"importing {file.name}" if gate is None else "--gate"):
        from mien.backbones.importers import import_model, with_adapter, with_gate

    imported = import_model(data, file.name)
    if adapter:
        imported = with_adapter(imported)
    if gate is not None:
        imported = with_gate(imported, own_population(imported, gate, aligned=aligned))
    return Model(imported.spec, imported.layout, imported.theta)


def own_population(model: ImportedModel, folder: Path, *, aligned: bool) -> dict[str, NDArray[np.float32]]:
    """Return what a gate has to know of people whom the model was made for: tensors of its stage `population`.

    Raises ConfigError for a folder whose people are too few for the level at which thresholds meet.
    """
    pipeline = FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=aligned)
    faces = read_people(find_people(folder), pipeline)
    features_ND = load_runtime(model.spec, model.layout).features(model.theta, faces.crops)
    num_strangers = all_pairs(normalise(features_ND), faces.labels).num_non_mated
    if not is_measurable(LEVEL_FMR, num_strangers):
        raise ConfigError(
            f"--gate {folder.name} gives {num_strangers} pairs of strangers, and a false match rate of {LEVEL_FMR:g} "
            f"needs {MIN_EXPECTED_ERRORS / LEVEL_FMR:.0f}: name a folder of more people, 60 of five pictures, say"
        )
    return population_of(features_ND, faces.labels)


def add_for_phones(
    model: Model, folder: Path, *, graphs: bool, int8_faces: Path | None, aligned: bool, embed_only: bool = False
) -> dict[str, object]:
    """Write a model's graphs and its int8 variant into its folder, as far as they are wanted; returns what was made."""
    added: dict[str, object] = {}
    if graphs:
        added["num_graphs"] = len(_add_graphs(model, folder, embed_only=embed_only).graphs)
    if int8_faces is not None:
        with _loading_torch("an int8 variant"):
            from device_sdk.export.variants import faces_in, make_int8

        faces = faces_in(int8_faces, model.spec.input, aligned=aligned)
        _tell(f"int8 variant: {len(faces.crops)} faces")
        with doing("Making the int8 variant, and measuring what it costs"):
            variant = make_int8(model.spec, model.layout, model.theta, faces, folder, datetime.now(UTC))
        _tell(f"int8 variant: {variant.cost}")
        added["variants"] = [to_mapping(variant)]
    return added


def _add_graphs(model: Model, folder: Path, *, embed_only: bool) -> GraphManifest:
    """Return the list of the graphs that are in a model's folder now; none is made that comes with this program."""
    packaged = folder_for(PACKAGED, model.layout)
    if embed_only and (packaged / MANIFEST).is_file() and not (folder / MANIFEST).exists():
        graphs = GraphFolder.at(packaged, model.spec, model.layout)
        for graph in graphs.manifest.graphs:
            write_graph(folder, graph, graphs.read(graph))
        write_atomically(folder / MANIFEST, graphs.manifest.to_json())
        return graphs.manifest
    with _loading_torch("making graphs of this model"):
        from device_sdk.export.build import export_graphs  # which takes longer to load than torch

    with doing("Making the graphs"):
        return export_graphs(model.spec, model.layout, folder, tell=_tell, forms=() if embed_only else None)


@contextmanager
def _loading_torch(wanted_by: str) -> Iterator[None]:
    """A block that imports what loads torch; raises MissingDependencyError where this installation goes without."""
    try:
        with doing("Loading torch"):
            yield
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{wanted_by} needs {error.name}, which is not installed here; run: pip install '.[simulation]' in Mien's "
            "folder, or do it on a machine that has it and bring the folder that results"
        ) from error


def _tell(text: str) -> None:
    cli.ERR.print(text, highlight=False)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Option(help="A model folder.")],
    data: Annotated[Path, typer.Option(help="Folder with the faces.")],
    protocol: Annotated[str, typer.Option(help="folder or lfw.")] = "folder",
    aligned: Annotated[bool, typer.Option(help="The images are aligned crops already.")] = False,
    graphs: Annotated[
        Path | None, typer.Option(help="Folder with its graphs, for protocol folder; else those that come with Mien.")
    ] = None,
    groups: Annotated[Path | None, typer.Option(help="A CSV of who is in which group, or --data again.")] = None,
    worst_group: Annotated[bool, typer.Option(help="Operating points of the worst group.")] = False,
    as_json: Json = True,
) -> None:
    """Measure a model on faces and print one JSON object."""
    if protocol == "folder":
        record = evaluate_folder(
            read_model(model), data, aligned=aligned, graphs=graphs, groups=groups, worst_group=worst_group
        )
    elif protocol == "lfw":
        with _loading_torch("--protocol lfw"):
            from simulation.program.evaluate import evaluate_lfw

        record = evaluate_lfw(read_model(model), data, aligned=aligned)
    else:
        raise ConfigError(f"--protocol is {protocol!r}; known: folder, lfw")
    cli.emit(record, as_json=True, human=lambda: None)


@app.command()
def check(
    reference: Annotated[Path, typer.Option(help="Model folder of the model that the candidate would replace.")],
    candidate: Annotated[Path, typer.Option(help="Model folder of the candidate.")],
    gates: Annotated[Path, typer.Option(help="What is measured and put up with, as JSON.")],
    raw: Annotated[list[str] | None, typer.Option("--set", help="NAME=FOLDER of pictures name/*.jpg.")] = None,
    crops: Annotated[list[str] | None, typer.Option("--crops", help="The same, of aligned crops.")] = None,
    as_json: Json = True,
) -> None:
    """Print what gates judge a candidate by, and the records of its measurements, as one JSON object."""
    value = parse_json(read_limited(gates, MAX_JSON_BYTES, what="the gates"), what="the gates")
    spec = from_mapping(GateSpec, value if isinstance(value, dict) else {})
    sets = [*_sets(raw or [], aligned=False), *_sets(crops or [], aligned=True)]
    before = read_model(reference)
    try:
        after = read_model(candidate)
    except NonFiniteError:
        evidence, records = Evidence(is_finite=False, change=0.0, sets=()), list[dict[str, Any]]()
    else:
        evidence, records = gather(spec, before, after, sets)
    cli.emit({"evidence": to_mapping(evidence), "records": records}, as_json=True, human=lambda: None)


def _sets(named: list[str], *, aligned: bool) -> Iterator[EvaluationSet]:
    for text in named:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"{text!r} is no evaluation set; write NAME=FOLDER")
        yield EvaluationSet(name, Path(folder), aligned)


if __name__ == "__main__":
    cli.run(app, json_errors=True, relays=True)
