"""mien-coordinator model list and show: which models there are, where they stand, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, fields
from coordinator.commands.models.common import Model, find_model, percent, to_plain
from coordinator.commands.tables import Column, facts, listing
from mien.format import cut, moment
from mien.records import to_mapping
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import models_pb2, operator_pb2


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
    return fields(status, "state", "share", "reason", "population", "task_id", "round", "removed")


def show(model: Model, home: Home, as_json: Json = False) -> None:
    """Show one model: where it stands, its thresholds, and every measurement that was kept of it.

    Example: mien-coordinator model show 3f0c --json
    """
    from mien.protocol.canonical import model_from_json

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
            "groups": [to_mapping(each) for each in spec.groups or ()],
            "evaluations": await coordinator.evaluations(found.model_id),
        }

    result = ask(home, question)

    def human() -> None:
        names = ("model_id", "state", "share", "reason", "population", "backbone", "terms")
        rows = [(name, percent(result[name]) if name == "share" else str(result[name])) for name in names]
        for threshold in result["thresholds"]:
            measured = f"{threshold['value']:.4f}: FMR {threshold['fmr']:.2g}"
            rows.append((f"threshold on {threshold['dataset']}", measured))
        for each in result["groups"]:
            told = f"{each['verdict'].replace('_', ' ')}: {each['num_false_matches']} of {each['num_non_mated']}"
            rows.append((f"{each['attribute']} {each['group']} on {each['dataset']}", told))
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
        return "passed" if record["passed"] else f"failed: {why}" if cut(why) != told else "failed"
    rates = [f"{name} {record[name]:.4f}" for name in ("eer", "accuracy") if isinstance(record.get(name), int | float)]
    counts = [f"{record[name]} {name.replace('_', '-')}" for name in ("mated", "non_mated") if name in record]
    return ", ".join([*rates, *counts]) or "of a kind that this program does not know; --json shows it"
