"""The programs' verbs, options, defaults and help are what they were: users' scripts and habits rely on them."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer

from scripts.write_cli_snapshot import MODULES, ROOT, SNAPSHOT, lines, programs, scripts, verbs

REMEDY = "where this is meant: python -m scripts.write_cli_snapshot, and commit what it wrote with the change"
ELSEWHERE = {
    "COLUMNS": "40",
    "LANG": "de_DE.UTF-8",
    "LANGUAGE": "de",
    "TERM": "dumb",
    "FORCE_COLOR": "1",
    "TZ": "Asia/Tokyo",
}


def changes(before: str, after: str) -> str:
    """Return what is no longer as it was, in lines of the snapshot, or an empty text."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), "frozen", "now", lineterm="", n=1))


@pytest.mark.parametrize("program", scripts())
def test_an_installed_program_is_as_it_was(program: str) -> None:
    _, _, frozen = SNAPSHOT.read_text(encoding="utf-8").partition(f'"{program}": {{\n')
    told = changes(frozen.partition("\n}\n}")[0], ",\n".join(lines(program)).removesuffix("\n}"))
    assert not told, f"{told}\n{REMEDY}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_program_is_as_it_was_in_any_terminal_and_language() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.write_cli_snapshot", "--print"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **ELSEWHERE},
    )
    assert done.returncode == 0, done.stderr.decode()
    told = changes(SNAPSHOT.read_text(encoding="utf-8"), done.stdout.decode())
    assert not told, f"{told}\n{REMEDY}"


def test_the_snapshot_is_json_that_holds_every_verb_with_its_parameters() -> None:
    frozen = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert list(frozen) == list(programs())
    assert {name: len(frozen[name]) for name in scripts()} == {
        "mien-registrar": 25,
        "mien-coordinator": 65,
        "mien-device": 29,
        "mien-sim": 20,
    }
    quick = next(each for each in frozen["mien-sim"]["bench"]["parameters"] if each["names"][0] == "--quick")
    assert quick == {
        "kind": "option",
        "names": ["--quick", "/--no-quick"],
        "type": {"name": "bool"},
        "default": False,
        "help": "Less of everything: within a minute on two cores.",
        "is_flag": True,
    }


def test_everything_that_users_see_of_a_verb_is_in_it() -> None:
    app = typer.Typer(add_completion=False)

    @app.callback()
    def group() -> None:
        """Say which."""

    @app.command("list", hidden=True)
    def show(
        name: str,
        last: Annotated[int, typer.Option(min=1, help="How many.", envvar="LAST")] = 50,
        kind: Literal["a", "b"] = "a",
        add: Annotated[list[Path] | None, typer.Option("--add", hidden=True)] = None,
    ) -> None:
        """List the newest."""

    assert verbs(app) == {
        "": {"help": "Say which.", "verbs": ["list"]},
        "list": {
            "help": "List the newest.",
            "hidden": True,
            "parameters": [
                {"kind": "argument", "names": ["name"], "type": {"name": "str"}, "required": True},
                {
                    "kind": "option",
                    "names": ["--last"],
                    "type": {"name": "int", "min": 1},
                    "default": 50,
                    "help": "How many.",
                    "variable": "LAST",
                },
                {
                    "kind": "option",
                    "names": ["--kind"],
                    "type": {"name": "choice", "choices": ["a", "b"]},
                    "default": "a",
                },
                {
                    "kind": "option",
                    "names": ["--add"],
                    "type": {"name": "list[Path]"},
                    "hidden": True,
                    "multiple": True,
                },
            ],
        },
    }


def test_a_parser_of_the_standard_library_is_walked_too() -> None:
    parser = argparse.ArgumentParser(prog="python -m made.up", description="Do it.", add_help=False)
    parser.add_argument("variants", nargs="*", default=["a"], help="which")
    parser.add_argument("--seeds", type=int, default=3, help="runs")
    assert verbs(parser) == {
        "": {
            "help": "Do it.",
            "prog": "python -m made.up",
            "parameters": [
                {
                    "kind": "argument",
                    "names": ["variants"],
                    "action": "StoreAction",
                    "type": {"name": "text"},
                    "default": ["a"],
                    "help": "which",
                    "nargs": "*",
                },
                {
                    "kind": "option",
                    "names": ["--seeds"],
                    "action": "StoreAction",
                    "type": {"name": "int"},
                    "default": 3,
                    "help": "runs",
                },
            ],
        }
    }


def test_what_documentation_runs_with_python_is_frozen_too() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    told = {
        word.rstrip(".,:;)`")
        for page in pages
        for after in page.read_text(encoding="utf-8").split("python -m ")[1:]
        for word in after.split()[:1]
    }
    products = {
        name for name in told if name.split("`")[0].partition(".")[0] in ("device_sdk", "simulation", "benchmarks")
    }
    assert {name.split("`")[0] for name in products} <= set(MODULES)
