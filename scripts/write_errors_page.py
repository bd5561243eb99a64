"""Write docs/errors.md from the error tree, so that the page cannot drift from the code."""

from __future__ import annotations

from pathlib import Path

from mien.errors import TABLE, DiskFullError, NotFoundError
from mien.shell.doing import AFTER_S, VARIABLE
from mien.shell.exits import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_READER_GONE

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
        "A command line that is wrong is a `config`: without `--json` its usage is shown above the sentence.\n"
        "Over gRPC the code travels in the trailing metadata `mien-error`. Written by `scripts/write_errors_page.py`\n"
        "from `mien/errors.py`, whose docstring draws the tree.\n\n"
        "| code | exit code | gRPC status | what it means |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "0 and 1 are answers, and nothing else ends with them: `mien-device verify` says yes with 0 and somebody else\n"
        "with 1, and other commands that judge (`doctor`, `run`) say with 1 that not all is well. An answer that was\n"
        f"not written out is none: a full disk ends with {TABLE[DiskFullError].exit_code}, a reader that has gone with "
        f"{EXIT_READER_GONE}, a closed output with {TABLE[NotFoundError].exit_code}.\n"
        f"Ctrl-C, and a no to a question, end with {EXIT_INTERRUPTED}; a fault of the program itself with {EXIT_FAULT} "
        "and a traceback on stderr.\n"
        "What a terminal that is not UTF-8 cannot show is printed as escapes.\n\n"
        "## While a command works\n\n"
        f"A command that prints nothing for {AFTER_S:g} seconds says on stderr what it does, with a bar where the end\n"
        "is known: a terminal shows one line that moves and goes, a log gets a plain line for each step, and again\n"
        "each minute where the end is known. With `--json` a log gets none.\n"
        f"`{VARIABLE}` names other seconds, or `inf`.\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
