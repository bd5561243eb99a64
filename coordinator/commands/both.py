"""The verbs that both servers' programs have, made from one description of each program.

`config`, `operator`, `backup`, `restore`, `doctor`, and the frame of `serve`; `audit` is in a module of its own. What
the verbs import is loaded when they run: store, keys and client are most of the programs' start-up time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from coordinator.commands.common import fields, folder_option, now, read_pem
from coordinator.commands.tables import Column, facts, found, listing
from coordinator.home.folder import ServerHome
from coordinator.home.settings import shown
from mien.errors import TABLE, ConfigError, NotFoundError
from mien.format import several
from mien.records import to_mapping
from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.cli import say
from mien.shell.clock import Clock
from mien.shell.doing import doing
from mien.shell.files import write_atomically
from mien.shell.passwords import read_password

if TYPE_CHECKING:
    from cryptography import x509

    from coordinator.commands.checks import FolderChecks
    from coordinator.home.archive import Summary
    from coordinator.home.backup import Backup

_T = TypeVar("_T")

PasswordFile = Annotated[Path | None, typer.Option(help="Read the password from this file's (or pipe's) first line.")]


@dataclass(frozen=True)
class Words:
    """The words of a program's help that differ; `folder` is how its examples call the folder."""

    folder: str
    copy: str
    operator_name: str
    backup: str
    restore: str
    doctor: str
    json: str


@dataclass(frozen=True)
class Program:
    """One of the two servers' programs, as far as it differs from the other in the verbs that both have."""

    home: type[ServerHome[Any, Any]]
    limits: Mapping[str, tuple[float, float]]
    backup: Callable[[], type[Backup[Any]]]
    checks: Callable[[], type[FolderChecks[Any]]]
    words: Words

    @property
    def name(self) -> str:
        """`coordinator` or `registrar`."""
        return self.home.settings.name

    def example(self, line: str) -> str:
        """Return the sentence that ends a verb's help."""
        return f"Example: mien-{self.name} {line}"


def add_backups(app: typer.Typer, program: Program) -> None:
    """Give a program the verbs `backup` and `restore`."""
    Home, Json, words = options(program)

    @app.command(
        help=f"{words.backup}\n\nThe {program.name} may go on serving meanwhile. "
        + program.example(f"backup monday.mien --home {words.folder}")
    )
    def backup(
        file: Annotated[Path, typer.Argument(help="Where to write the backup.")],
        *,
        home: Path = Home,
        password_file: PasswordFile = None,
        without_data: Annotated[
            bool, typer.Option("--without-data", help="Keys, certificates and settings only.")
        ] = False,
        as_json: bool = Json,
    ) -> None:
        password, of = _backup(program, home, password_file, confirm=True)
        summary = of.make(file, password, with_data=not without_data)
        _tell(summary, f"Backup of {home} in {file}", as_json=as_json)

    @app.command(
        help=f"{words.restore}\n\nNever run the restored {program.name} beside the one that it was copied from.\n"
        + program.example(f"restore monday.mien --home {words.copy}")
    )
    def restore(
        file: Annotated[Path, typer.Argument(help="The file that backup wrote.")],
        *,
        home: Path = Home,
        password_file: PasswordFile = None,
        as_json: bool = Json,
    ) -> None:
        password, of = _backup(program, home, password_file, confirm=False)
        summary, settled = of.restore(file, password)
        _tell(summary, f"Restored to {home}", as_json=as_json, **settled)
        if "invites_ended" in settled and not as_json:
            ended = settled["invites_ended"]
            say(f"{ended} open invites were ended: they may have been used since. Revoke again whom you revoked since.")


def add_move(app: typer.Typer, program: Program) -> None:
    """Give a program the verb `move-database`."""
    Home, Json, words = options(program)
    name, setting = program.name, program.home.database_setting

    @app.command(
        "move-database",
        help=f"Move all rows of {name}.db in the folder into the empty database that {setting} names.\n\n"
        f"Stop the {name} and make a backup first, then set {setting}. All rows arrive, or none; the file is left as "
        f"it is, and no program opens it any more. " + program.example(f"move-database --home {words.folder}"),
    )
    def move_database(*, home: Path = Home, as_json: bool = Json) -> None:
        from coordinator.store.audit import local_actor
        from coordinator.store.database import sole_server, sqlite_url
        from coordinator.store.move import check_target, move
        from mien.shell.lock import exclusive

        os.umask(0o077)
        server = program.home(home)
        target = getattr(server.resolve().config, setting)
        if not target:
            raise ConfigError(
                f"{setting} names no other database; set it to an empty one, in {name}.toml or by "
                f"{server.settings.variable(setting)}, and run this again"
            )
        if not server.database_path.is_file():
            raise NotFoundError(f"there is no {server.database_path}; the {name}'s rows lie elsewhere already")
        source, what = sqlite_url(server.database_path), f"mien-{name}"
        with exclusive(server.lock_path, program=what), sole_server(source, program=what):
            with contextlib.closing(server.open_store(source, Clock())) as store:
                newest = store.audit(lambda log, db: log.read(db, last=1))
                again = bool(newest) and newest[-1].action == "database.move"  # an earlier run was interrupted
                check_target(target, server.database_path, setting=setting, again=again)
                if not again:
                    store.log(local_actor(), "database.move", name)
            content = move(source, target, server.schema(), setting=setting)
        rows = sum(content.counts.values())
        result = {"rows": rows, "tables": dict(content.counts), "sha256": content.digest}

        def human() -> None:
            say(f"Moved {rows} rows of {len(content.counts)} tables; they arrived as they were sent.")
            say(f"Next: mien-{name} serve, with {setting} in its settings or its service's environment.")

        shell.emit(result, as_json=as_json, human=human)


def add_doctor(app: typer.Typer, program: Program) -> None:
    """Give a program the verb `doctor`."""
    Home, Json, words = options(program)

    @app.command(help=words.doctor + program.example(f"doctor --home {words.folder}"))
    def doctor(*, home: Path = Home, as_json: bool = Json) -> None:
        import asyncio

        findings = asyncio.run(program.checks()(program.home(home), now).examine())
        result = {"ok": all(each.ok for each in findings), "checks": [each.to_mapping() for each in findings]}

        def human() -> None:
            rows = [found(each.name, each.detail, is_fault=not each.ok) for each in findings]
            shell.OUT.print(facts("check", "result", rows))

        shell.emit(result, as_json=as_json, human=human)
        for each in findings:
            if each.error is not None:
                raise typer.Exit(TABLE[type(each.error)].exit_code)


def config_app(program: Program) -> typer.Typer:
    """Return the verbs that show a program's settings."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the settings.")
    Home, Json, words = options(program)

    @app.command(
        help="Print every setting with its value and where it came from.\n\n"
        + program.example(f"config show --home {words.folder}")
    )
    def show(*, home: Path = Home, as_json: bool = Json) -> None:
        resolved = program.home(home).resolve()
        values = shown(resolved.config)
        result = {name: {"value": value, "origin": resolved.origins[name]} for name, value in values.items()}

        def human() -> None:
            columns = (Column("setting"), Column("value", folds=True), Column("from", 1))
            rows = [(name, repr(value), resolved.origins[name]) for name, value in values.items()]
            shell.OUT.print(listing(columns, rows, shell.OUT.width))

        shell.emit(result, as_json=as_json, human=human)

    @app.command(
        "reference",
        help="Print every setting with its default, its limits and what it means; needs no folder.\n\n"
        + program.example("config reference"),
    )
    def show_reference(
        *,
        as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for docs.")] = False,
        as_json: bool = Json,
    ) -> None:
        from coordinator.home.reference import reference, to_markdown

        rows = reference(program.home.settings.kind, program.limits)

        def human() -> None:
            for row in rows:
                range_in_words = f" ({row.range})" if row.range else ""
                say(f"{row.name} = {row.default}{range_in_words}: {row.meaning_for_people}")

        if as_markdown:
            sys.stdout.write(to_markdown(rows))
        else:
            shell.emit({"settings": [to_mapping(row) for row in rows]}, as_json=as_json, human=human)

    return app


def operator_app(program: Program, *, help: str, signs_first: bool = False) -> typer.Typer:
    """Return the verbs that make credentials for operators; their help lists `sign` first where that says so."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)
    Home, Json, words = options(program)
    Name: Any = typer.Option(..., "--name", help=words.operator_name)

    @app.command(
        help="Give this folder's owner new operator credentials, valid for a year.\n\n"
        + program.example(f"operator renew --home {words.folder}")
    )
    def renew(*, home: Path = Home, as_json: bool = Json) -> None:
        server = program.home(home)
        certificate = server.write_operator(server.operators(now()), now())
        enter_certificate(server, program.name, certificate)
        path = str(server.operator_path)
        shell.emit({"certificate": path}, as_json=as_json, human=lambda: say(f"Renewed: {path}"))

    @app.command(
        help="Sign credentials for an operator whose key stays elsewhere.\n\n"
        + program.example("operator sign alice.csr --name alice --out alice.pem")
    )
    def sign(
        csr: Annotated[Path, typer.Argument(help="The operator's certificate request (PEM).")],
        *,
        home: Path = Home,
        name: str = Name,
        out: Annotated[Path, typer.Option(help="Where to write the certificate.")],
        as_json: bool = Json,
    ) -> None:
        sign_operator(program.home(home), csr, name, out)
        shell.emit({"certificate": str(out), "name": name}, as_json=as_json, human=lambda: say(f"Certificate: {out}"))

    if signs_first:
        app.registered_commands.reverse()
    return app


def serve(
    server: ServerHome[Any, Any],
    flags: Mapping[str, object],
    ready_file: Path | None,
    run: Callable[[Any, Any, Callable[[_T], None]], None],
    told: Callable[[Any, _T], tuple[dict[str, object], str]],
    *,
    as_json: bool,
) -> None:
    """Run a server until SIGTERM; once it is ready say so, as `told` has it in numbers and in a sentence."""
    from mien.shell import ready

    config = server.resolve(flags).config
    logs.configure(as_json=as_json or config.json_logs)

    def announce(ports: _T) -> None:
        numbers, sentence = told(config, ports)
        result = {"ready": True, "address": config.address, **numbers, "pid": os.getpid()}
        write_ready(result)
        shell.emit(result, as_json=as_json, human=lambda: say(sentence))
        sys.stdout.flush()

    with doing(f"Starting the {server.name}"), ready.ready_file(ready_file) as write_ready:
        run(server, config, announce)


def enter(server: ServerHome[Any, Any], action: str, subject: str, **detail: object) -> None:
    """Enter a deed of a command in the audit log, beside a server that may be running."""
    from coordinator.store.audit import local_actor

    os.umask(0o077)
    with server.store() as store:
        store.log(local_actor(), action, subject, detail)


def sign_operator(server: ServerHome[Any, Any], csr: Path, name: str, out: Path) -> None:
    """Write the certificate of an operator's request."""
    from coordinator.keys import pki

    authority = server.operators(now())
    certificate = pki.issue_operator_leaf_for_csr(authority, read_pem(csr), name, now())
    enter_certificate(server, name, certificate)
    write_atomically(out, pki.to_pem(certificate) + authority.certificate_pem)


def enter_certificate(server: ServerHome[Any, Any], name: str, certificate: x509.Certificate) -> None:
    """Enter an operator's certificate in the audit log."""
    from coordinator.keys import pki

    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    enter(server, "operator.certify", name, certificate_sha256=pki.fingerprint(certificate), until=ends)


def options(program: Program) -> tuple[Any, Any, Words]:
    """Return the options that name the folder and ask for JSON, and the program's words."""
    return folder_option(program.name, ...), typer.Option(False, "--json", help=program.words.json), program.words


def _backup(program: Program, home: Path, password_file: Path | None, *, confirm: bool) -> tuple[str, Backup[Any]]:
    """Return the password, and what makes and restores backups of a folder."""
    os.umask(0o077)
    of = program.backup()(program.home(home), Clock())
    return read_password(password_file, confirm=confirm), of


def _tell(summary: Summary, what: str, *, as_json: bool, **more: object) -> None:
    """Print the summary of a backup, and with --json the fields of `more` too."""
    head = None if summary.audit_head is None else str(summary.audit_head)
    result = {**fields(summary, "files", "size_bytes", "created_unix_s"), "audit_head": head, **more}

    def human() -> None:
        created = f"{datetime.fromtimestamp(summary.created_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
        say(f"{what}: {several(summary.files, 'file')}, {summary.size_bytes / 1e6:.1f} MB, as of {created}.")
        say("It holds keys, certificates and settings only." if head is None else f"The audit log stood at {head}")

    shell.emit(result, as_json=as_json, human=human)
