"""What `mien-sim data import` and `info` show of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rich.table import Column, Table

from device_sdk.faces.images import display_name
from mien.errors import EmptyFolderError, ImageError, LowQualityError, MultipleFacesError, NoFaceError
from mien.shell import cli
from simulation.faces.importing import UNREADABLE
from simulation.faces.store import CropStore

SHOWN_FAILURES: Final = 10


WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ImageError.code: "no picture, or a damaged one",
        NoFaceError.code: "no face found",
        MultipleFacesError.code: "several faces",
        LowQualityError.code: "a face of too low quality",
        EmptyFolderError.code: "a folder without pictures",
        UNREADABLE: "cannot be read",
    }
)
"""Words for the code of an image that gave no crop."""


def facts(store: CropStore) -> dict[str, Any]:
    """Return what there is to say of a data set, without a name of anybody but of those whose images gave no face."""
    made = store.manifest
    failures = list(store.failures())
    enrolled = {display_name(name) for name in store.names()} if failures else set()
    left_out = sorted({each.name.rpartition("/")[0] for each in failures} - enrolled)
    return {
        "folder": str(store.folder),
        "identities": made.identities,
        "images": made.images,
        "size": [made.height, made.width],
        "size_bytes": made.crops_bytes,
        "failures": len(failures),
        "failures_by_code": dict(sorted(Counter(each.code for each in failures).items())),
        "failed": [each.name for each in failures[:SHOWN_FAILURES]],
        "failed_codes": [each.code for each in failures[:SHOWN_FAILURES]],
        "people_left_out": len(left_out),
        "left_out": left_out[:SHOWN_FAILURES],
        "licence": made.licence,
        "origin": made.origin,
        "is_synthetic": made.is_synthetic,
        "content_sha256": made.content_sha256,
        "software": made.software,
    }


def show(store: CropStore, *, as_json: bool) -> None:
    """Print the content of a data set."""
    found = facts(store)

    def human() -> None:
        cli.OUT.print(_table(found))
        cli.say(f"content {found['content_sha256']}")  # in one piece

    cli.emit(found, as_json=as_json, human=human)


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(Column("what", no_wrap=True), Column("value", overflow="fold"))
    height, width = found["size"]
    table.add_row("crops", f"{found['images']:,} of {width}x{height}, {found['size_bytes'] / 1e6:,.1f} MB")
    table.add_row("identities", f"{found['identities']:,}")
    _add_failures(table, found)
    table.add_row("licence", found["licence"])
    table.add_row("origin", found["origin"] + (" (nobody's faces)" if found["is_synthetic"] else ""))
    return table


def _add_failures(table: Table, found: Mapping[str, Any]) -> None:
    """Add the images that gave no crop and why, and the people who are not in the data set for want of one."""
    table.add_row("people left out", f"{found['people_left_out']:,}, none of whose pictures can be used")
    for name in found["left_out"]:
        table.add_row("", name)
    table.add_row("without a crop", f"{found['failures']:,}")
    for code, count in found["failures_by_code"].items():
        table.add_row("", f"{count:,}: {_words(code)}")
    for name, code in zip(found["failed"], found["failed_codes"], strict=True):
        table.add_row("", f"{name}: {_words(code)}")
    if found["failures"] > len(found["failed"]):
        table.add_row("", "more in failures.txt")


def _words(code: str) -> str:
    return WORDS.get(code, code.replace("_", " "))
