"""mien-coordinator model release and rollback: which model is in force, and for how many of the phones."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands.common import Home, Json, ask, now
from coordinator.commands.models.common import Model, find_model, percent, said_of_thresholds, share_of, tell
from coordinator.commands.models.folder import (
    SPEC,
    read_signed,
    said_of_bundle,
    said_of_less,
    write_graphs,
    write_model,
)
from coordinator.commands.tasks import population_of, said_of_population
from coordinator.home.home import CoordinatorHome
from mien.errors import ConfigError, NotFoundError
from mien.protocol.ids import ModelId
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.files import write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from coordinator.operator.client import Coordinator
    from mien.evaluation.rollout_spec import RollOutSpec
    from mien.protocol.v1 import models_pb2


_ANEW: Final = "export, sign and release it again: thresholds are signed, too"


def release(
    model: Model,
    home: Home,
    share: Annotated[
        str, typer.Option(help="How many of the phones get it: 10% or 0.1; again with more to go on.")
    ] = "100%",
    bundle: Annotated[
        Path | None, typer.Option(help="The folder that model sign signed; needed where a release_key is set.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="In place of --bundle: measure it where it has no threshold, add graphs, and sign it here."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --key: faces to measure it on, name/*.jpg; default: the first evaluation set."),
    ] = None,
    aligned: Annotated[bool, typer.Option(help="These faces are aligned 112x112 crops already.")] = False,
    despite_gates: Annotated[
        bool, typer.Option("--despite-gates", help="Also if its gates rejected it, or have not judged it yet.")
    ] = False,
    without_thresholds: Annotated[
        bool, typer.Option("--without-thresholds", help="Also if phones then recognise nobody until it is measured.")
    ] = False,
    roll_out: Annotated[
        Path | None,
        typer.Option(help="A staged roll-out in TOML: phones judge the model at each share; in place of --share."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model the one that devices verify with and new tasks start from, for all phones or a share of them.

    Example: mien-coordinator model release 3f0c --key release.key --data ./faces

    Example: mien-coordinator model release 3f0c --share 10%

    Example: mien-coordinator model release 3f0c --roll-out stages.toml
    """
    from coordinator.commands.fleet import read_roll_out

    spec = None if roll_out is None else read_roll_out(roll_out)
    part = share_of(share) if spec is None else spec.stages[0]
    if bundle is not None and key is not None:
        raise ConfigError("--key signs anew, and --bundle is signed already; leave one of them out")
    if key is None and (data is not None or aligned):
        raise ConfigError("--data and --aligned go with --key; model evaluate --data measures without a release")
    signing_key = None if key is None else _signing_key(home, key)
    faces = None if key is None or without_thresholds else _faces(home, data, aligned=aligned)
    found = ask(home, lambda coordinator: find_model(coordinator, model))
    had_threshold = not said_of_thresholds(found.spec_json, found.model_id, home, "")
    then = "" if bundle is None else f", then {_ANEW}"
    if lacks := ask(
        home,
        lambda coordinator: _lacking(
            *(coordinator, found, home),
            is_signed=bundle is not None or key is not None,
            is_measured=without_thresholds or faces is not None,
            despite_gates=despite_gates,
            then=then,
        ),
    ):
        raise ConfigError(f"model {found.model_id[:12]} was not released. {' '.join(lacks)}")
    with contextlib.ExitStack() as stack:
        folder = bundle
        if signing_key is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mien-release-")))
            sign_anew(home, found.model_id, folder, signing_key, faces)
        signed = (b"", b"") if folder is None else read_signed(folder)

        async def question(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, list[str]]:
            described = await coordinator.manifest(found.model_id)
            told = [said_of_thresholds(described.spec_json, found.model_id, home, then)]
            if folder is not None:
                from mien.models.bundles import listed_by

                told.append(said_of_bundle(signed[0]))
                told.append(await said_of_less(coordinator, [file.name for file in listed_by(signed[0]).files], folder))
                await coordinator.add_graphs(folder, *signed)
            if spec is not None:
                population = await _population_of(coordinator, found.model_id, spec)
                told.append(await said_of_population(coordinator, population, home, "The roll-out", "fleet stop"))
            released = await coordinator.release(
                found.model_id, share=part, despite_gates=despite_gates, signed=signed, roll_out=spec
            )
            return released, told

        released, told = ask(home, question)
    if faces is not None and data is not None and had_threshold:
        told.append(f"It had thresholds already, so that nobody in {data} was looked at: model evaluate measures anew.")
    tell(released, as_json, "released" if part == 1 else f"released to {percent(part)} of the phones")
    for sentence in filter(None, [] if as_json else told):
        say(sentence)


async def _population_of(coordinator: Coordinator, model_id: str, spec: RollOutSpec) -> str:
    """Return whose phones a roll-out asks: those of the task that made the model, or whom it names itself."""
    made_by = [status.task_id for _, status in await coordinator.standings() if status.model_id == model_id]
    tasks = [task for task in await coordinator.tasks() if task.task_id in made_by]
    return population_of(tasks[0]) if tasks else spec.population


def sign_anew(home: Path, model_id: str, folder: Path, key: Ed25519PrivateKey, faces: tuple[Path, bool] | None) -> None:
    """Write a model into an empty folder with graphs, and with thresholds measured on `faces` where it has none; sign.

    Graphs come from a signed release of its layout; without one those that embed are made.
    """
    from coordinator.commands.models.evaluations import add_thresholds, measured
    from coordinator.release import worker
    from coordinator.release.signing import sign_folder
    from mien.rounds.thresholds import decides

    async def fetch(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, bool]:
        found = await write_model(coordinator, model_id, folder)
        return found, await write_graphs(coordinator, found, folder)

    found, has_graphs = ask(home, fetch)
    if not has_graphs:
        worker.import_model(folder, folder, graphs=True, embed_only=True)
    if faces is not None and not decides(found.spec_json, ModelId(model_id)):
        data, aligned = faces
        shell.tell(f"Measuring the model on the faces in {data} …")
        record = measured(folder, data, "folder", aligned=aligned, graphs=folder)

        async def keep(coordinator: Coordinator) -> models_pb2.ModelManifest:
            await coordinator.add_evaluation(model_id, record)
            await add_thresholds(coordinator, record)
            return await coordinator.manifest(model_id)

        found = ask(home, keep)
        write_atomically(folder / SPEC, found.spec_json)
        if still := said_of_thresholds(found.spec_json, model_id, home, ""):
            raise ConfigError(f"the people in {data} are too few. {still}, with more people, or --without-thresholds")
    sign_folder(folder, key, sequence=int(now().timestamp()))


def _signing_key(home: Path, path: Path) -> Ed25519PrivateKey:
    """Return the release key in a file; raises ConfigError for another one than the coordinator's settings name."""
    from coordinator.release.signing import read_key
    from mien.models.bundles import name_of

    key, wanted = read_key(path), CoordinatorHome(home).resolve().config.release_key
    if wanted and name_of(key) != wanted:
        raise ConfigError(
            f"{path} is not the release key of this coordinator, so that phones would refuse what it signs; name the "
            f"file of key {wanted[:12]}…"
        )
    return key


def _faces(home: Path, data: Path | None, *, aligned: bool) -> tuple[Path, bool] | None:
    """Return the folder of faces to measure on, and whether they are crops; None where there is none."""
    from coordinator.commands.models.evaluations import configured_sets

    if data is not None and not data.is_dir():
        raise NotFoundError(f"there is no folder {data}; name the folder that holds the faces")
    sets = configured_sets(home) if data is None else [(data, aligned)]
    return next((each for each in sets if each[0].is_dir()), None)


async def _lacking(
    coordinator: Coordinator,
    model: models_pb2.ModelManifest,
    home: Path,
    *,
    is_signed: bool,
    is_measured: bool,
    despite_gates: bool,
    then: str,
) -> list[str]:
    """Return all that a release lacks, a sentence each with what to do; nothing where it can go ahead."""
    lacks = []
    if not is_measured and (told := said_of_thresholds(model.spec_json, model.model_id, home, then)):
        lacks.append(f"{told}. Or --without-thresholds releases it all the same.")
    needs_signature = CoordinatorHome(home).resolve().config.release_key and not model.bundle_manifest
    if needs_signature and not is_signed:
        lacks.append("It is not signed: add --key with the release key, or --bundle with what model sign signed.")
    statuses = {status.model_id: status for _, status in await coordinator.standings()}
    if not despite_gates and (status := statuses.get(model.model_id)) is not None and status.state == "rejected":
        lacks.append(f"It failed its gates ({status.reason}): --despite-gates releases it all the same.")
    return lacks


def rollback(
    home: Home,
    population: Annotated[str, typer.Option(help="Whose phones; default: those of the newest release.")] = "",
    as_json: Json = False,
) -> None:
    """Put the model in force again that was before the newest release; again to go one further.

    Example: mien-coordinator model rollback
    """
    tell(ask(home, lambda coordinator: coordinator.roll_back(population)), as_json, "in force again")
