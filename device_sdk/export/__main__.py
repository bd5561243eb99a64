"""`python -m device_sdk.export MODEL --out FOLDER`: make a model's graphs for phones without torch."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import typer

from device_sdk.models.models import MAX_THETA_BYTES
from device_sdk.runtimes.forms import EXAMPLE_SIZES, exportable, standard_forms
from device_sdk.runtimes.manifest import SUFFIXES, GraphEngine, folder_for
from mien.errors import ConfigError, CorruptDataError, MissingDependencyError, NotFoundError
from mien.layout import ParameterLayout, ParameterPart
from mien.models.bundles import THETA
from mien.models.variants import Variant
from mien.protocol.canonical import MAX_JSON_BYTES, model_from_json
from mien.records import to_mapping
from mien.shell import cli as shell
from mien.shell.files import read_limited, storage_errors
from mien.specs import ModelSpec

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
_ALL: Final = "all"


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A folder that `mien-coordinator model export` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where a folder named after the model's layout is made; default: the model's own folder, for "
            "`mien-coordinator model sign` to sign the graphs with it."
        ),
    ] = None,
    objective: Annotated[
        list[str] | None, typer.Option(help="What phones will train; may be repeated; 'all' for every one there is.")
    ] = None,
    part: Annotated[
        Literal["tail", "full", "both"], typer.Option(help="The part that phones train by default, all of it, or both.")
    ] = "tail",
    trainable: Annotated[
        list[str] | None, typer.Option(help="Tensors that a task trains, as in its `trainable`; instead of --part.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="onnxruntime (the default) or executorch; may be repeated.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=5, help="The most images of a step on ExecuTorch.")] = 8,
    max_classes: Annotated[int, typer.Option(min=7, help="The most classes of a step on ExecuTorch.")] = 256,
    int8_faces: Annotated[
        Path | None,
        typer.Option(help="Public faces, name/*.jpg: also make the int8 variant, calibrated and measured on them."),
    ] = None,
    aligned: Annotated[bool, typer.Option(help="These faces are aligned 112x112 crops already.")] = False,
    arcface_margin: Annotated[float, typer.Option(help="The margin of arcface, which its graph has built in.")] = 0.5,
    keep: Annotated[bool, typer.Option("--keep", help="Leave graphs that are there: goes on after a stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Write the graphs with which phones embed and train without torch. They hold no parameters.

    A variant holds them: it is of this very model, and is made anew for each release.

    Example: python -m device_sdk.export ./model --objective positive_hinge --objective fedfr

    Example: python -m device_sdk.export ./model --int8-faces ./public --aligned
    """
    if int8_faces is not None and out is not None:
        raise ConfigError("a variant comes with its model: leave --out away, so that model sign signs it")
    try:
        from device_sdk.export.build import DEFAULT_OBJECTIVES, export_graphs
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"making graphs (not running them) needs {error.name}: pip install '.[train]' in Mien's folder"
        ) from error
    spec, layout = _read(model)
    names = exportable() if objective and _ALL in objective else objective or DEFAULT_OBJECTIVES
    forms = [form for name in names for form in standard_forms(name, arcface_margin=arcface_margin)]
    parts = [layout.part(trainable)] if trainable else _parts(spec, layout, part)
    folder = model if out is None else folder_for(out, layout)
    with storage_errors(str(folder)):
        manifest = export_graphs(
            spec,
            layout,
            folder,
            forms=forms,
            parts=parts,
            engines=_engines(engine),
            limits=_limits(max_batch, max_classes),
            keep=keep,
            tell=lambda _: None if as_json else shell.ERR.print(_),
        )
    total = sum(graph.size_bytes for graph in manifest.graphs)
    variant = None if int8_faces is None else _int8(model, spec, layout, int8_faces, aligned=aligned)
    result = {
        "folder": str(folder),
        "num_graphs": len(manifest.graphs),
        "size_bytes": total,
        "variants": [] if variant is None else [to_mapping(variant)],
    }

    def human() -> None:
        shell.OUT.print(f"{len(manifest.graphs)} graphs, {total / 1e6:.1f} MB, in {result['folder']}")
        if variant is not None:
            shell.OUT.print(f"{variant.file}, {variant.size_bytes / 1e6:.1f} MB: {variant.cost}", soft_wrap=True)

    shell.emit(result, as_json=as_json, human=human)


def _int8(model: Path, spec: ModelSpec, layout: ParameterLayout, faces: Path, *, aligned: bool) -> Variant:
    """Return the model's int8 variant, written beside it."""
    from device_sdk.export.variants import faces_in, make_int8

    data = read_limited(model / THETA, MAX_THETA_BYTES, what=THETA)
    if len(data) != 4 * layout.size:
        raise CorruptDataError(f"{THETA} does not fit model.json; export the model again")
    theta = layout.check(np.frombuffer(data, "<f4").astype(np.float32), what=THETA)
    now = datetime.now(UTC)
    with storage_errors(str(model)):
        return make_int8(spec, layout, theta, faces_in(faces, spec.input, aligned=aligned), model, now)


def _engines(names: list[str] | None) -> tuple[GraphEngine, ...]:
    chosen = dict.fromkeys(names or ["onnxruntime"])
    unknown = [name for name in chosen if name not in SUFFIXES]
    if unknown:
        raise ConfigError(f"there is no engine {unknown[0]!r} to export for; choose from {', '.join(SUFFIXES)}")
    return tuple(engine for engine in SUFFIXES if engine in chosen)


def _limits(max_batch: int, max_classes: int) -> dict[str, int]:
    own = max(max_classes // 16, EXAMPLE_SIZES["L"])
    return {"B": max_batch, "K": max_classes, "L": own, "G": max_classes - own}


def _read(model: Path) -> tuple[ModelSpec, ParameterLayout]:
    path = model / "model.json"
    if not path.is_file():
        raise NotFoundError(f"there is no {path}; name a folder that `mien-coordinator model export` wrote")
    return model_from_json(read_limited(path, MAX_JSON_BYTES, what=str(path)))


def _parts(spec: ModelSpec, layout: ParameterLayout, wanted: str) -> list[ParameterPart]:
    default, whole = layout.part(spec.trainable or ("*",)), layout.part(("*",))
    if wanted == "both":
        return [default] if default.names == whole.names else [default, whole]
    return [default] if wanted == "tail" else [whole]


if __name__ == "__main__":
    shell.run(app)
