"""Write the vectors: `python -m tests.golden.client.write`, after a change that phones have to follow."""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden.client._vectors import FILES

FOLDER = Path(__file__).parent


def text_of(name: str) -> str:
    """Return the text of a vector file."""
    return json.dumps(FILES[name](), indent=1) + "\n"


def main() -> None:
    """Write every file."""
    for name in FILES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")
        print(f"{name}: {(FOLDER / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
