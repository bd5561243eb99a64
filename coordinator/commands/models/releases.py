"""mien-coordinator model release and rollback: which model is in force, and for how many of the phones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands.common import Home, Json, ask
from coordinator.commands.models.common import Model, find_model, percent, said_of_thresholds, share_of, tell
from coordinator.commands.models.folder import read_signed, said_of_less
from mien.errors import ConfigError
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
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

    Example: mien-coordinator model release 3f0c --share 10%

    Example: mien-coordinator model release 3f0c --roll-out stages.toml
    """
    from coordinator.commands.fleet import read_roll_out
    from mien.models.bundles import listed_by

    spec = None if roll_out is None else read_roll_out(roll_out)
    part = share_of(share) if spec is None else spec.stages[0]
    signed = (b"", b"") if bundle is None else read_signed(bundle)

    async def question(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, list[str]]:
        found = await find_model(coordinator, model)
        model_id, then = found.model_id, "" if bundle is None else f", then {_ANEW}"
        told = [said_of_thresholds(found.spec_json, model_id, then)]
        if told[0] and not without_thresholds:
            raise ConfigError(
                f"model {model_id[:12]} was not released. {told[0]}. Or --without-thresholds releases it all the same"
            )
        if bundle is not None:
            told.append(await said_of_less(coordinator, [file.name for file in listed_by(signed[0]).files], bundle))
            await coordinator.add_graphs(bundle, *signed)
        released = await coordinator.release(
            model_id, share=part, despite_gates=despite_gates, signed=signed, roll_out=spec
        )
        return released, told

    released, told = ask(home, question)
    tell(released, as_json, "released" if part == 1 else f"released to {percent(part)} of the phones")
    for sentence in filter(None, [] if as_json else told):
        say(sentence)


def rollback(
    home: Home,
    population: Annotated[str, typer.Option(help="Whose phones; default: those of the newest release.")] = "",
    as_json: Json = False,
) -> None:
    """Put the model in force again that was before the newest release; again to go one further.

    Example: mien-coordinator model rollback
    """
    tell(ask(home, lambda coordinator: coordinator.roll_back(population)), as_json, "in force again")
