"""Parts shared by the model commands: a model's name and description, and shares of the phones as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from coordinator.commands.common import fields, home_flag
from mien.errors import ConfigError, NotFoundError
from mien.protocol.ids import ModelId
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import models_pb2

_Id = TypeVar("_Id", bound=str)

Model = Annotated[str, typer.Argument(help="The model's id or its beginning; 'released' for the one in force.")]


async def find_model(coordinator: Coordinator, wanted: str) -> models_pb2.ModelManifest:
    """Return a model with its layout, by id, the beginning of one, or 'released'."""
    if wanted == "released":
        return await coordinator.manifest()
    return await coordinator.manifest(only_one((model.model_id for model in await coordinator.models()), wanted))


def only_one(model_ids: Iterable[_Id], wanted: str) -> _Id:
    """Return the only id that begins so; raises NotFoundError for none or several. Nothing is the beginning of none."""
    near = [model_id for model_id in model_ids if wanted and model_id.startswith(wanted)]
    if len(near) != 1:
        found = "several models fit" if near else "no model fits"
        raise NotFoundError(f"{found} {wanted!r}; give an id that mien-coordinator model list shows")
    return near[0]


def to_plain(model: models_pb2.ModelManifest) -> dict[str, Any]:
    """Return a model as plain data."""
    return {
        **fields(model, "model_id", "parent_model_id", "created_unix_s", "released"),
        "size_bytes": model.theta.size_bytes,
        "public_shard_bytes": model.public_shard.size_bytes if model.HasField("public_shard") else 0,
    }


def tell(model: models_pb2.ModelManifest, as_json: bool, what: str) -> None:
    """Print what became of a model."""
    shell.emit(to_plain(model), as_json=as_json, human=lambda: say(f"Model {model.model_id} is {what}."))


def said_of_thresholds(spec_json: bytes, model_id: str, home: Path, then: str) -> str:
    """Return that phones recognise nobody with a model, and what to do, at last `then`; empty where they do."""
    from mien.rounds.thresholds import PHONES_MAX_FMR, decides

    if decides(spec_json, ModelId(model_id)):
        return ""
    return (
        f"Phones recognise nobody with it: it has no threshold for a false match rate of {PHONES_MAX_FMR:g} or less. "
        f"Next: mien-coordinator model evaluate {model_id[:12]} --data FACES --keep-thresholds{home_flag(home)}{then}"
    )


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
