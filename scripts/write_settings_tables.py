"""Write the tables of settings in docs/operator/settings.md from the records that hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coordinator.home.config import LIMITS, CoordinatorConfig
from coordinator.home.reference import reference, to_markdown
from coordinator.registrar.config import LIMITS as REGISTRAR_LIMITS
from coordinator.registrar.config import RegistrarConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operator" / "settings.md"
TABLES = {
    "## Coordinator settings": to_markdown(reference(CoordinatorConfig, LIMITS)),
    "## Registrar settings": to_markdown(reference(RegistrarConfig, REGISTRAR_LIMITS)),
}


def written(page: str) -> str:
    """Return the page with its tables as they should be."""
    return with_tables(page, TABLES, PAGE.name)


def with_tables(page: str, tables: Mapping[str, str], name: str) -> str:
    """Return a page whose first table under each heading is another; raises SystemExit where `name` has none there."""
    for heading, table in tables.items():
        before, found, after = page.partition(f"\n{heading}\n")
        old = re.search(r"^\|.*\n(?:\|.*\n)+", after, flags=re.MULTILINE)
        if not found or old is None:
            raise SystemExit(f"{name} has no table under {heading}")
        page = before + found + after[: old.start()] + table + after[old.end() :]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
