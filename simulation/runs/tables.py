"""A paper's tables as a TOML file: settings that all rows share, what each row changes, columns, claims.

    title = "FedFace: one identity a phone"
    source = "Aggarwal et al. (2021)"
    notes = ["{phones} phones of one person each."]
    claims = [["FedAvg collapses", "fedavg", "fedface", "eer", {of = "FedFace.fedavg"}]]
    [setting]                         # whose faces, what is trained: how fair a test of the paper's claims this is
    faces = "rendered"
    trains = "adapter"
    [settings."wrong labels"]         # what differs where claims begin with these words; smaller places are fairer
    place = 1
    why = "One party is wrong."
    [base]                            # fields of every row's settings
    phones = 600
    [quick]                           # the same at a toy scale
    phones = 8
    [forms.federated]                 # changes that several rows make
    system = "federated"
    task.cohort.size = "$phones"      # another field's value
    [columns]
    errors = [["EER", "eer"], ["mean cosine", "cos", "number", 3]]
    [[tables]]
    title = "Table 1"
    columns = ["errors"]
    paper_columns = ["LFW accuracy, %"]
    [[tables.rows]]
    name = "fedavg"
    label = "FedAvg"
    paper = ["68.88"]
    of = ["federated"]                # forms, the later over the earlier
    task.method = "fedavg"            # fields by their path, as in a sweep's cases
    quick.task.rounds = 1             # at a toy scale only

Texts take values of `[base]` and `[words]` in braces, a row's label also those of its settings. "$nothing" is no value.
A quoted path replaces what it names, tables included. `only` says at which scale there is a row: "full" or "quick"; a
table without rows is left out. Instead of a row there may be the name of an earlier one. A claim is text, rows, metric,
a bound where it is of an equality, and a table: the paper's claim that it is a test `of`
(`simulation/papers/claims.toml`), kind = "why" where it tells why another one fails, and its `setting` where the text
does not begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mien.records import parse_toml
from simulation.runs.experiment import Claim, Column, Experiment, Measure, Row, Setting, Table
from simulation.runs.grid import changed, leaves

_NOT_SETTINGS: Final = ("name", "label", "paper", "of", "only", "quick")
_Data = Mapping[str, Any]
_NOTHING: Final[_Data] = MappingProxyType({})


def read_tables(
    path: Path,
    measure: Measure,
    *,
    quick: bool,
    data_sha256: str,
    base: _Data = _NOTHING,
    words: _Data = _NOTHING,
    columns: _Data = _NOTHING,
) -> Experiment:
    """Return the experiment that a file describes, named as the file's folder.

    `base`, `words` and `columns` join the file's. At a toy scale it has the claims on rows that there are.
    """
    data = parse_toml(path.read_text(encoding="utf-8"), path.name)
    shared = {**data.get("base", {}), **(data.get("quick", {}) if quick else {}), **base}
    said = {**shared, **data.get("words", {}), **(data.get("quick_words", {}) if quick else {}), **words}
    forms, groups = data.get("forms", {}), {**data.get("columns", {}), **columns}
    scale = "quick" if quick else "full"
    tables, rows = list[Table](), dict[str, Row]()
    for table in data["tables"]:
        found = [
            rows[row] if isinstance(row, str) else _row(row, shared, said, forms, quick=quick)
            for row in table["rows"]
            if isinstance(row, str) or row.get("only", scale) == scale
        ]
        rows |= {row.name: row for row in found}
        if found:
            tables.append(_table(table, found, said, groups))
    claims = [claim_of(claim) for claim in data["claims"]]
    return Experiment(
        path.parent.name,
        data["title"].format_map(said),
        measure,
        tuple(tables),
        tuple(claim for claim in claims if not quick or claim.rows <= rows.keys()),
        data["source"],
        tuple(note.format_map(said) for note in data["notes"]),
        data_sha256,
        settings=settings_of(data),
    )


def claim_of(entry: Sequence[Any]) -> Claim:
    """Return the claim that a file's list describes."""
    *said, last = entry
    if not isinstance(last, Mapping):
        return Claim(*entry)
    return Claim(*said, **{"kind": "paper" if "of" in last else "ours", **last})


def settings_of(data: _Data) -> tuple[Setting, ...]:
    """Return the settings that a file declares: the study's own, nameless, and those that differ from it."""
    own = data.get("setting", {})
    return (
        Setting(**own),
        *(Setting(**{**own, **each, "name": name}) for name, each in data.get("settings", {}).items()),
    )


def _table(table: _Data, rows: Sequence[Row], words: _Data, groups: _Data) -> Table:
    named = [groups[column] if isinstance(column, str) else [column] for column in table["columns"]]
    return Table(
        table["title"].format_map(words),
        tuple(rows),
        tuple(Column(label.format_map(words), *rest) for group in named for label, *rest in group),
        tuple(table.get("paper_columns", ())),
        table.get("note", "").format_map(words),
    )


def _row(row: _Data, shared: _Data, words: _Data, forms: _Data, *, quick: bool) -> Row:
    settings = dict(shared)
    for each in (*(forms[name] for name in row.get("of", ())), row):
        settings = _with(settings, {name: value for name, value in each.items() if name not in _NOT_SETTINGS})
        if quick:
            settings = _with(settings, {k: v for k, v in each.get("quick", {}).items() if k not in _NOT_SETTINGS})
    told = {**row, **(row.get("quick", {}) if quick else {})}
    settings = _filled(settings, settings)
    return Row(told["name"], told["label"].format_map({**words, **settings}), settings, tuple(row.get("paper", ())))


def _with(settings: _Data, changes: _Data) -> dict[str, Any]:
    return changed(settings, leaves(changes))


def _filled(value: Any, settings: _Data) -> Any:
    """Return plain data with "$NAME" replaced by the value of that field."""
    if isinstance(value, Mapping):
        return {name: _filled(inner, settings) for name, inner in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        return None if value == "$nothing" else _filled(settings[value[1:]], settings)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_filled(inner, settings) for inner in value]
    return value
