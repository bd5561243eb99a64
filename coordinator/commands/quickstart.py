"""mien-coordinator quickstart: a whole fleet's servers in one folder and one process, to try everything out.

::

    registrar/  coordinator/   the two servers' folders, as their `init` makes them
    operator/                  an operator's folder, which makes invites
    release.key                signs releases; belongs offline
    model/                     the first release: recogniser with an adapter, graphs that embed, public faces
    public/                    the public faces as pictures, name/*.jpg: nobody's
    invites.txt  invites.html  invites, one a phone: one a line, and as QR codes
    task.toml                  a first task, with floors that are low for a try-out

The registrar and the coordinator belong on machines of their own, with keys apart (docs/operator.md). Here one process
holds both, and one folder all keys.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coordinator.commands import both
from coordinator.commands.common import Json, now, typed
from coordinator.home.config import CoordinatorConfig
from coordinator.home.folder import ServerHome
from coordinator.home.home import CoordinatorHome
from coordinator.home.settings import port_of
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from mien.errors import AlreadyExistsError, ConfigError, InviteError, UnreachableError
from mien.format import several
from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.cli import say
from mien.shell.doing import doing
from mien.shell.files import InFolder, make_folder, storage_errors, write_atomically
from mien.shell.lock import is_taken, lock_file

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator

_HOST: Final = "127.0.0.1"
_PORT: Final = 7440
_INVITES: Final = 5
_OPERATOR: Final = "quickstart"

TASK: Final = """\
# A first task: one round of summed statistics, in which phones train nothing; see docs/summed-statistics.md.
# Its floors are low, so that a few phones are enough to try it out. In production a sum is of hundreds of people:
# raise cohort.size, cohort.min_reports, privacy.min_cohort and options.min_people.
name = "first-round"
method = "statistics"
rounds = 1
trainable = ["adapter.*"]

[cohort]
size = {phones}
min_reports = 4

[deadlines]
selecting_s = 600.0
selecting_soft_s = 60.0

[privacy]
min_cohort = 4
max_weight = 1
reveals = ["class_moment"]

[options]
form = "wccn"
shrinkage = 0.5
min_people = 4
max_people = 2
"""


@dataclass(frozen=True)
class QuickFleet:
    """The paths in a quick start's folder."""

    folder: Path

    release_key_path = InFolder("release.key")
    """The key that signs releases."""

    bundle_path = InFolder("model")
    """The first release."""

    public_path = InFolder("public")
    """Pictures of public people."""

    invites_path = InFolder("invites.txt")
    """Invites, one a line."""

    invites_page_path = InFolder("invites.html")
    """The same invites as QR codes."""

    task_path = InFolder("task.toml")
    """The first task."""

    @property
    def registrar(self) -> RegistrarHome:
        """The registrar's folder."""
        return RegistrarHome(self.folder / "registrar")

    @property
    def coordinator(self) -> CoordinatorHome:
        """The coordinator's folder."""
        return CoordinatorHome(self.folder / "coordinator")

    @property
    def operator(self) -> RegistrarHome:
        """The operator's folder."""
        return RegistrarHome(self.folder / "operator")

    @property
    def is_made(self) -> bool:
        """Whether a quick start was begun in this folder."""
        return self.registrar.config_path.is_file() and self.coordinator.config_path.is_file()

    def invites(self) -> list[str]:
        """Return the invites in the fleet's file."""
        return self.invites_path.read_text(encoding="utf-8").split()

    def say_next(self, num_open: int) -> None:
        """Print what to do with the fleet, of whose invites so many still work."""
        folder, join, invites = self.folder, self.registrar.resolve().config.address, self.invites()
        say(f"A fleet is up in {folder}: phones join at {join}. Ctrl-C stops it, and the same command goes on with it.")
        say("Next, in another terminal:")
        say(f"  mien-coordinator task submit {typed(self.task_path)} --home {typed(folder / 'coordinator')}")
        are_new = num_open == len(invites)
        source = f"--invites {typed(self.invites_path)}" if are_new else f"--operator {typed(folder / 'operator')}"
        say(f"  mien-sim phones {source} --count {len(invites)} --rounds 1 --out {typed(self._new_phones())}")
        home = f"--home {typed(folder / 'coordinator')} --operator {typed(folder / 'operator')}"
        if are_new:
            page = self.invites_page_path
            say(f"Those phones are emulated. Real ones join with the QR codes in {page}; more of them:")
        else:
            say(
                f"Those phones are emulated, and new ones. Of the {several(len(invites), 'invite')} in "
                f"{self.invites_path} "
                f"{num_open or 'none'} still work{'s' * (num_open < 2)}: an invite works once. More for real phones:"
            )
        say(f"  mien-coordinator device invite --count 5 --out more.html {home}")
        say("For production give each server a machine of its own, and take release.key off this one: docs/operator.md")

    def _new_phones(self) -> Path:
        """Return a folder for emulated phones that is not there yet."""
        folders = (self.folder / f"phones{number}" for number in ("", *range(2, 10_000)))
        return next(folder for folder in folders if not folder.exists())


@dataclass(frozen=True)
class _Up:
    """A fleet that phones can join: its released model, and how many invites in its file still work."""

    model_id: str
    num_open: int


def quickstart(
    folder: Annotated[Path, typer.Argument(help="A new folder for the fleet; an earlier one's goes on.")],
    invites: Annotated[
        int | None,
        typer.Option(
            min=4,
            max=100,
            help="How many phones a new fleet invites, and its first task wants; default: 5. For an earlier fleet: how "
            "many new invites its files get.",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(help="This machine's name or IP as phones reach it; default: 127.0.0.1, for phones on it alone."),
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65532, help="Ports: this one, the next, and the third after it; default: 7440.")
    ] = 0,
    ready_file: Annotated[Path | None, typer.Option(help="Holds addresses and process id while ready.")] = None,
    as_json: Json = False,
) -> None:
    """Start a whole fleet in one folder, to try it out: servers, a released model, public faces, invites, a task.

    Needs the extras coordinator and device, no torch. Stays up until SIGTERM; the same command goes on with the fleet.

    Example: mien-coordinator quickstart ./fleet
    """
    from mien.shell import ready

    fleet = QuickFleet(folder)
    if fleet.is_made:
        _check_same(fleet, address, port)
        _check_is_down(fleet)
        then = f"phones know the fleet in {folder} by it: free it, or make another one with {_elsewhere('NEW_FOLDER')}"
        _check_free(fleet.registrar.resolve().config, fleet.coordinator.resolve().config, then)
    else:
        host = _host_of(address)
        _check_free(*_configs(host, port or _PORT), f"name other ports: {_elsewhere(folder)}")
        make_fleet(fleet, invites or _INVITES, host, port or _PORT)
    logs.configure(as_json=as_json)

    def announce(up: _Up) -> None:
        addresses = {
            "registrar": fleet.registrar.resolve().config.address,
            "coordinator": fleet.coordinator.resolve().config.address,
        }
        made = {"task": str(fleet.task_path), "invites": str(fleet.invites_path), "public": str(fleet.public_path)}
        told = {"ready": True, **addresses, "model_id": up.model_id, **made, "pid": os.getpid()}
        write_ready(told)
        shell.emit(told, as_json=as_json, human=lambda: fleet.say_next(up.num_open))
        sys.stdout.flush()

    with doing("Starting the registrar and the coordinator"), ready.ready_file(ready_file) as write_ready:
        _serve(fleet, invites, announce)


def make_fleet(fleet: QuickFleet, invites: int, host: str, port: int) -> None:
    """Make the folder of a fleet whose phones reach it at `host`, whole or not at all.

    Raises AlreadyExistsError for a folder that holds something else.
    """
    from coordinator.release.signing import create_key
    from mien.models.bundles import name_of

    if fleet.folder.exists() and not fleet.folder.is_dir():
        raise AlreadyExistsError(f"{fleet.folder} is a file; name a new folder")
    if fleet.folder.exists() and any(fleet.folder.iterdir()):
        raise AlreadyExistsError(f"{fleet.folder} is not empty, and no fleet of quickstart; name a new folder")
    registrar, coordinator = _configs(host, port)
    os.umask(0o077)
    parent = fleet.folder.absolute().parent
    make_folder(parent)
    with storage_errors(str(parent)), tempfile.TemporaryDirectory(prefix=".mien-quickstart-", dir=parent) as temporary:
        made = QuickFleet(Path(temporary, "fleet"))
        make_folder(made.folder)
        key = name_of(create_key(made.release_key_path))
        RegistrarHome.create(made.registrar.folder, replace(registrar, release_key=key), now())
        CoordinatorHome.create(made.coordinator.folder, replace(coordinator, release_key=key), now())
        for home, other in ((made.registrar, made.coordinator), (made.coordinator, made.registrar)):
            both.enter(home, f"{other.name}.trust", home.trust(other.public(other.ca_path), replace=False))
        certificate = made.registrar.make_operator_folder(made.operator.folder, _OPERATOR, now())
        both.enter_certificate(made.registrar, _OPERATOR, certificate)
        write_atomically(made.task_path, TASK.format(phones=invites).encode())
        with contextlib.suppress(FileNotFoundError):
            fleet.folder.rmdir()
        made.folder.rename(fleet.folder)


def _configs(host: str, port: int) -> tuple[RegistrarConfig, CoordinatorConfig]:
    """Return both servers' settings in a fleet whose phones reach it at `host`."""
    join, admin, rounds = f"{host}:{port}", f"{_HOST}:{port + 1}", f"{host}:{port + 3}"
    coordinator = CoordinatorConfig(rounds, registrar_address=join, registrar_admin_address=admin)
    return RegistrarConfig(join, rounds, admin), coordinator


def _host_of(address: str) -> str:
    """Return --address as it stands before a port, in brackets where it is of IPv6.

    Raises ConfigError for one that this machine, on which both servers talk to each other by it, cannot resolve.
    """
    with contextlib.suppress(ValueError):
        return f"[{ipaddress.IPv6Address(address)}]"
    host = address or _HOST
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"--address is {address!r}; write a name or IP alone; --port has the port")
    try:
        socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--address is {address!r}, which this machine cannot resolve; name one that it and the phones can reach, "
            "such as this machine's IP"
        ) from error
    return host


def _elsewhere(folder: Path | str) -> str:
    """Return what to type for a fleet at other ports than these."""
    return f"mien-coordinator quickstart {shlex.quote(os.fspath(folder))} --port PORT"


def _check_free(registrar: RegistrarConfig, coordinator: CoordinatorConfig, then: str) -> None:
    """Raise ConfigError that ends in `then` for the first port that another program has or that we may not take."""
    for place in (registrar.join_listen, registrar.operators_listen, coordinator.listens_at):
        host, port = place.rpartition(":")[0].strip("[]"), port_of(place)
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:  # others, such as a machine without IPv6, gRPC has ways around
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                why = "is in use" if error.errno == errno.EADDRINUSE else "may not be taken by this user"
                raise ConfigError(f"port {port} {why}; {then}") from error


def _check_is_down(fleet: QuickFleet) -> None:
    """Raise AlreadyExistsError while a made fleet is up."""
    for home in (fleet.registrar, fleet.coordinator):
        with lock_file(home.lock_path) as handle:
            if not is_taken(handle):
                listing = f"mien-coordinator task list --home {shlex.quote(os.fspath(fleet.coordinator.folder))}"
                raise AlreadyExistsError(
                    f"the fleet in {fleet.folder} is up already; go on with it by {listing}, or stop it with Ctrl-C "
                    "where it runs"
                )


def _check_same(fleet: QuickFleet, address: str, port: int) -> None:
    """Raise ConfigError for an address that is not the one with which a fleet was made."""
    made = fleet.registrar.resolve().config.address
    host, _, number = made.rpartition(":")
    if (address or host) != host or (port or int(number)) != int(number):
        raise ConfigError(
            f"the fleet in {fleet.folder} was made for {made}, which its phones know; leave --address and --port out, "
            "or name a new folder"
        )


def _serve(fleet: QuickFleet, invites: int | None, announce: Callable[[_Up], None]) -> None:
    """Serve both servers in this process until SIGTERM or SIGINT; `announce` is told once phones can come."""
    import asyncio

    from coordinator.store.database import sole_server
    from mien.shell.lock import exclusive
    from mien.shell.memory import keep_freed_memory
    from mien.shell.serving import serve_until_signalled

    os.umask(0o077)
    keep_freed_memory()
    homes: tuple[ServerHome[Any, Any], ...] = (fleet.registrar, fleet.coordinator)
    with contextlib.ExitStack() as stack:
        for home in homes:
            program = f"mien-{home.name}"
            stack.enter_context(exclusive(home.lock_path, program=program))
            stack.enter_context(sole_server(home.database_url(home.resolve().config), program=program))
        drain_s = fleet.coordinator.resolve().config.drain_s
        asyncio.run(serve_until_signalled(_running(fleet, invites), announce, drain_s=drain_s))


@contextlib.asynccontextmanager
async def _running(fleet: QuickFleet, invites: int | None) -> AsyncIterator[_Up]:
    """Run both servers while the block runs; yield once phones can come."""
    from coordinator import serve
    from coordinator.operator.client import connect
    from coordinator.registrar import server
    from mien.shell.clock import Clock, WallClock

    registrar, coordinator = fleet.registrar.resolve().config, fleet.coordinator.resolve().config
    async with (
        server.running(fleet.registrar, registrar, WallClock().now_utc),
        serve.running(fleet.coordinator, coordinator, Clock()),
    ):
        try:
            async with connect(coordinator.address, fleet.coordinator.operator_credentials()) as asked:
                released = await _released(fleet, asked)
        except UnreachableError as error:
            raise UnreachableError(
                f"this machine does not reach its own servers at {coordinator.address}; see that the address is its "
                "own, or make another fleet in a new folder, with --address"
            ) from error
        yield _Up(released, await _invite(fleet, invites))


async def _released(fleet: QuickFleet, coordinator: Coordinator) -> str:
    """Return the released model's id; where there is none, make, sign and release the first one."""
    import asyncio

    from coordinator.commands.models.folder import SHARD, SPEC, THETA, read_signed, write_fallbacks
    from coordinator.release import worker
    from coordinator.release.signing import read_key, sign_folder

    released = [model.model_id for model, status in await coordinator.standings() if status.state == "released"]
    if released:
        return released[-1]
    bundle = fleet.bundle_path
    if not bundle.is_dir():
        shell.tell("Making the first model: recogniser, graphs, known thresholds, public faces …")
        with tempfile.TemporaryDirectory(prefix=".mien-quickstart-", dir=fleet.folder) as temporary:
            made, faces = Path(temporary, "model"), Path(temporary, "public")
            await asyncio.to_thread(worker.first_model, made, faces)
            if not fleet.public_path.exists():
                faces.rename(fleet.public_path)
            made.rename(bundle)
    kept = await coordinator.import_model((bundle / SPEC).read_bytes(), bundle / THETA, bundle / SHARD)
    await write_fallbacks(coordinator, kept, bundle)
    sign_folder(bundle, read_key(fleet.release_key_path), sequence=int(now().timestamp()))
    signed = read_signed(bundle)
    await coordinator.add_graphs(bundle, *signed)
    return (await coordinator.release(kept.model_id, signed=signed)).model_id


async def _invite(fleet: QuickFleet, count: int | None) -> int:
    """Make a new fleet's invites, or so many for an earlier one; return how many of those in its file still work."""
    from coordinator.commands.invites import invites_of, write_invites
    from coordinator.operator.registrar_client import connect_admin

    if fleet.invites_path.exists() and count is None:
        return _num_open(fleet)
    count = count or _INVITES
    operator = fleet.operator
    async with connect_admin(operator.resolve().config.admin_address, operator.operator_credentials()) as registrar:
        issued = [each async for each in invites_of(registrar, "default", count, note="quick start")]
    for path in (fleet.invites_page_path, fleet.invites_path):
        write_invites(issued, path)
    return count


def _num_open(fleet: QuickFleet) -> int:
    """Return how many of the invites in the fleet's file are neither used nor over."""
    from coordinator.registrar.issuing import token_hash
    from mien.protocol.invite import Invite

    tokens = list[str]()
    for url in fleet.invites():
        with contextlib.suppress(InviteError):  # a file that its owner wrote into
            tokens.append(Invite.from_url(url).token)
    with fleet.registrar.store() as store, store.begin() as transaction:
        kept = [transaction.invite(token_hash(token)) for token in tokens]
    now_unix_s = now().timestamp()
    return sum(each is not None and each.used_unix_s is None and each.expires_unix_s > now_unix_s for each in kept)
