"""Write tests/frozen/cli.json: every program with its verbs, options and help, so that no change of them goes unseen.

Users' scripts rely on all of it. After a change that is meant, run `python -m scripts.write_cli_snapshot` and commit
what it wrote with the change: the difference of that file is what users will notice. `--print` writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import inspect
import json
import os
import runpy
import sys
import tomllib
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

import typer
import typer.main

ROOT: Final = Path(__file__).resolve().parents[1]
SNAPSHOT: Final = ROOT / "tests" / "frozen" / "cli.json"

MODULES: Final = (
    "device_sdk.export",
    "simulation.papers.demo.tune",
    "simulation.papers.leakage",
    "simulation.papers.noised",
    "simulation.papers.spreadout.choice",
    "simulation.papers.spreadout.mix",
    "simulation.synthetic",
    "simulation.program.worker",
    "benchmarks",
    "benchmarks.capacity",
    "benchmarks.chaos",
    "benchmarks.cli",
    "benchmarks.coordinator",
    "benchmarks.device",
    "benchmarks.dp",
    "benchmarks.group_statistics",
    "benchmarks.hostile",
    "benchmarks.identify",
    "benchmarks.lfw",
    "benchmarks.personal",
    "benchmarks.phone",
    "benchmarks.phone_round",
    "benchmarks.replicas",
    "benchmarks.round_log",
    "benchmarks.search",
    "benchmarks.secagg",
    "benchmarks.simulation",
    "benchmarks.soak",
    "benchmarks.statistics",
    "benchmarks.stores",
)
"""What is run as `python -m NAME`: the documentation names these."""


class _StartedError(BaseException):  # no fault of the program, which would be caught
    """Carries the command line that a program was about to read."""

    def __init__(self, program: object) -> None:
        super().__init__("a program read its command line")
        self.program = program


def written() -> str:
    """Return the snapshot as it is committed."""
    return "{\n" + ",\n".join(_block(name, lines(name)) for name in programs()) + "\n}\n"


def programs() -> tuple[str, ...]:
    """Return every program by how it is called."""
    return (*scripts(), *(f"python -m {name}" for name in MODULES))


def lines(program: str) -> list[str]:
    """Return a program's verbs as the snapshot has them: JSON with one line a parameter, so that differences show."""
    return [_block(verb, _lines(said)) for verb, said in verbs(started(entry_point(program))).items()]


def _block(name: str, inner: list[str]) -> str:
    return f"{_json(name)}: {{\n" + ",\n".join(inner) + "\n}"


def _lines(said: Mapping[str, Any]) -> list[str]:
    parameters = ",\n  ".join(_json(each) for each in said.get("parameters", ()))
    rest = [f" {_json(name)}: {_json(value)}" for name, value in said.items() if name != "parameters"]
    return [*rest, *([f' "parameters": [\n  {parameters}\n ]'] if parameters else [])]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def scripts() -> dict[str, str]:
    """Return the installed programs by name: where each starts, as module:function."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project["scripts"])


def entry_point(program: str) -> Callable[[], Any]:
    """Return what starts a program as its users start it."""
    if program.startswith("python -m "):
        name = program.removeprefix("python -m ")
        return lambda: runpy.run_module(name, run_name="__main__")
    module, _, function = scripts()[program].partition(":")
    return getattr(import_module(module), function)  # type: ignore[no-any-return]


def started(start: Callable[[], Any]) -> object:
    """Start a program and return what it was about to read its command line with, before it does anything else."""

    def stop(program: object, *_: object, **__: object) -> None:
        raise _StartedError(program)

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy's, about a module that is imported already
        stack.enter_context(mock.patch.object(sys, "argv", ["program"]))
        stack.enter_context(mock.patch.object(typer.Typer, "__call__", stop))
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop))
        try:
            start()
        except _StartedError as reached:
            return reached.program
    raise RuntimeError("the program read no command line")


def verbs(program: object) -> dict[str, Any]:
    """Return a program's verbs by their words; the program itself, or a group of verbs, is among them."""
    if isinstance(program, argparse.ArgumentParser):
        return {"": _parser(program)}
    command = typer.main.get_command(program) if isinstance(program, typer.Typer) else program
    return {" ".join(words): _command(found) for words, found in _walk(command)}


def _walk(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, child in (getattr(command, "commands", None) or {}).items():
        yield from _walk(child, *words, name)


def _command(command: Any) -> dict[str, Any]:
    children = getattr(command, "commands", None)
    return _said(
        help=inspect.cleandoc(command.help or ""),
        epilog=command.epilog,
        hidden=command.hidden,
        deprecated=command.deprecated,
        no_args_is_help=command.no_args_is_help,
        verbs=None if children is None else list(children),
        parameters=[_parameter(parameter) for parameter in command.params],
    )


def _parameter(parameter: Any) -> dict[str, Any]:
    is_option = parameter.param_type_name == "option"
    return _said(
        kind=parameter.param_type_name,
        names=[*parameter.opts, *(f"/{name}" for name in parameter.secondary_opts)],
        type=_type(parameter),
        default=_plain(parameter.default),
        required=parameter.required,
        help=parameter.help,
        hidden=parameter.hidden,
        multiple=parameter.multiple if is_option else None,
        nargs=None if parameter.nargs == 1 else parameter.nargs,
        is_flag=parameter.is_flag if is_option else None,
        prompt=parameter.prompt if is_option else None,
        variable=_plain(parameter.envvar),
        metavar=parameter.metavar,
    )


def _type(parameter: Any) -> dict[str, Any]:
    annotation = parameter.type_descriptor.annotation
    declared = parameter.type_descriptor.parameter_info
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    checks = ("exists", "file_okay", "dir_okay", "clamp", "case_sensitive", "formats")
    usual = {"file_okay": True, "dir_okay": True, "case_sensitive": True}
    return _said(
        name="choice"
        if choices
        else str(annotation).replace("pathlib.", "")
        if typing.get_origin(annotation)
        else annotation.__name__,
        choices=list(choices),
        min=parameter.min,
        max=parameter.max,
        checks={
            name: _plain(value)
            for name in checks
            if (value := getattr(declared, name)) not in (None, usual.get(name, False))
        },
    )


def _parser(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return _said(
        help=parser.description,
        usage=parser.usage,
        prog=parser.prog if parser.prog.startswith("python") else None,
        epilog=parser.epilog,
        parameters=[_action(action) for action in parser._actions],
    )


def _action(action: argparse.Action) -> dict[str, Any]:
    return _said(
        kind="option" if action.option_strings else "argument",
        names=list(action.option_strings) or [action.dest],
        action=type(action).__name__.strip("_"),
        type={"name": getattr(action.type, "__name__", "text")},
        choices=_plain(action.choices),
        default=None if action.default == argparse.SUPPRESS else _plain(action.default),
        required=action.required,
        help=None if action.help == argparse.SUPPRESS else action.help,
        hidden=action.help == argparse.SUPPRESS,
        nargs=action.nargs,
        metavar=_plain(action.metavar),
    )


def _said(**values: Any) -> dict[str, Any]:
    """Return what is said: nothing that is absent, off or empty, but a default of 0 or "" is one."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name == "default" or (value is not False and value not in ("", [], (), {})))
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON, the same on every machine."""
    if callable(value):
        with mock.patch.dict(os.environ, {"HOME": "/home/you"}):
            os.environ.pop("XDG_DATA_HOME", None)
            return _plain(value())
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.buffer.write(written().encode())
    else:
        SNAPSHOT.write_text(written(), encoding="utf-8")
