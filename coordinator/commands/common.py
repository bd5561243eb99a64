"""Parts shared by the commands: the folder, the JSON switch, and asking the running coordinator."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from coordinator.home.home import CoordinatorHome
from mien.errors import ConfigError, NotFoundError
from mien.shell.doing import doing
from mien.shell.files import read_limited

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import operator_pb2

_T = TypeVar("_T")


def _data_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "mien"


def folder_option(name: str, *default: Any) -> Any:
    """Return the option that names a program's folder; `default` is `...` where it stands as a parameter's default."""

    def usual() -> Path:
        return _data_folder() / name

    variable = f"MIEN_{name.upper()}_HOME"
    return typer.Option(*default, "--home", envvar=variable, help=f"The {name}'s folder.", default_factory=usual)


def typed(path: Path) -> str:
    """Return a path as it is typed in a shell, in quotes where it needs them."""
    return shlex.quote(os.fspath(path))


def usual_home() -> Path:
    """Return the coordinator's folder that commands take where none is named."""
    return Path(os.environ.get("MIEN_COORDINATOR_HOME") or _data_folder() / "coordinator")


def home_flag(home: Path) -> str:
    """Return what a command that is told to type next needs to find a coordinator's folder; empty where nothing."""
    return "" if home == usual_home() else f" --home {typed(home)}"


def key_flag(home: Path) -> str:
    """Return what a release that is told to type next needs to be signed; empty where this coordinator has no key.

    Where a quick start made the folder, its key lies beside it; of any other nobody here knows where it is kept.
    """
    if not CoordinatorHome(home).resolve().config.release_key:
        return ""
    beside = home.parent / "release.key"
    return f" --key {typed(beside) if beside.is_file() else 'release.key'}"


def operator_flag(home: Path) -> str:
    """Return what a command about invites that is told to type next needs beside a coordinator's folder.

    Where a quick start made that, the operator's folder lies beside it; any other is taken to be the usual one.
    """
    beside = home.parent / "operator"
    usual = Path(os.environ.get("MIEN_OPERATOR_HOME") or _usual_operator())
    return f" --operator {typed(beside)}" if beside != usual and (beside / "registrar.toml").is_file() else ""


def _usual_operator() -> Path:
    return _data_folder() / "operator"


Home = Annotated[Path, folder_option("coordinator")]
OperatorHome = Annotated[
    Path,
    typer.Option(
        "--operator",
        envvar="MIEN_OPERATOR_HOME",
        help="The operator's folder, as mien-registrar operator folder makes it.",
        default_factory=_usual_operator,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Count = Annotated[int, typer.Option(min=1, max=10_000, help="How many invites, one a device.")]
InviteFile = Annotated[
    Path | None,
    typer.Option("--out", help="A new file for the invites: .html shows QR codes, another has one invite a line."),
]
Task = Annotated[
    str, typer.Argument(help="The task's id (or its beginning), or its name: of several, the one not over.")
]


def fields(record: object, *names: str) -> dict[str, Any]:
    """Return the fields of these names as plain data, of a message or another record."""

    def plain(value: Any) -> Any:
        if isinstance(value, str | int | float):
            return value
        return dict(value) if isinstance(value, Mapping) else list(value)

    return {name: plain(getattr(record, name)) for name in names}


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def read_pem(path: Path) -> bytes:
    """Return a certificate file's bytes."""
    return read_limited(path, 64 * 1024, what=str(path))


def ask(folder: Path, question: Callable[[Coordinator], Coroutine[Any, Any, _T]]) -> _T:
    """Return what the running coordinator answers to this folder's operator."""
    import asyncio

    from coordinator.operator.client import connect

    home = CoordinatorHome(folder)
    address, credentials = home.resolve().config.address, home.operator_credentials()

    async def connected() -> _T:
        async with connect(address, credentials) as coordinator:
            return await question(coordinator)

    with doing(f"Asking the coordinator at {address}"):
        return asyncio.run(connected())


async def find_task(coordinator: Coordinator, wanted: str) -> operator_pb2.TaskStatus:
    """Return the task of an id, the beginning of one, or a name; of several, the one that is not over.

    Raises NotFoundError when none fits, ConfigError when several do.
    """
    from mien.rounds.records import TaskState  # loads numpy, which the registrar's commands do without

    tasks = await coordinator.tasks()
    exact = [task for task in tasks if task.task_id == wanted]
    near = exact or [task for task in tasks if wanted and (task.name == wanted or task.task_id.startswith(wanted))]
    if len(near) > 1:
        near = [task for task in near if not TaskState(task.state).is_over] or near
    if not near:
        raise NotFoundError(f"no task fits {wanted!r}; give an id that mien-coordinator task list shows")
    if len(near) > 1:
        told = ", ".join(f"{task.task_id[:12]} ({task.state})" for task in near)
        raise ConfigError(f"several tasks fit {wanted!r}: {told}; give the id of one")
    return near[0]
