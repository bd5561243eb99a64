"""mien-coordinator model: list, show, import, export, sign, release, rollback, evaluate, card."""

from __future__ import annotations

import typer

from coordinator.commands.models import cards, evaluations, exports, imports, releases, standings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep models: import, release, roll back, evaluate, describe.",
)
app.command("list")(standings.list_models)
app.command()(standings.show)
app.command("import")(imports.import_model)
app.command()(exports.export)
app.command()(exports.sign)
app.command()(releases.release)
app.command()(releases.rollback)
app.command()(evaluations.evaluate)
app.command()(cards.card)
