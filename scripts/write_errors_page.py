"""Write docs/errors.md from the error tree, so that the page cannot drift from the code."""

from __future__ import annotations

from pathlib import Path

from mien.errors import TABLE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"


def main() -> None:
    """Write one row per error: code, exit code, gRPC status, meaning."""
    rows = [
        f"| `{cls.code}` | {row.exit_code} | {row.grpc_status} | {(cls.__doc__ or '').strip().splitlines()[0]} |"
        for cls, row in TABLE.items()
    ]
    PAGE.write_text(
        "# Errors\n\n"
        "Every program ends with one sentence that says what happened and what to do, and with the exit code below.\n"
        'With `--json` the error is one JSON object on stderr: `{"error": code, "message": sentence}`.\n'
        "Over gRPC the code travels in the trailing metadata `mien-error`. Written by `scripts/write_errors_page.py`\n"
        "from `mien/errors.py`, whose docstring draws the tree.\n\n"
        "| code | exit code | gRPC status | what it means |\n|---|---|---|---|\n" + "\n".join(rows) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
