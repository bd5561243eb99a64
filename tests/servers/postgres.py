"""A real PostgreSQL server in a temporary folder: loopback only, password by SCRAM, every commit on disk."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from simulation.testing import free_port

USER = "mien"
PASSWORD = "p@ss:word/éa?"  # every character that a URL has to quote
READY_S = 120.0
_END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_DEBIAN = Path("/usr/lib/postgresql")


def binary(name: str) -> str | None:
    """Return the path of one of PostgreSQL's programs; Debian keeps them off the search path."""
    if (found := shutil.which(name)) is not None:
        return found
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return str(versions[-1]) if versions else None


def missing() -> str:
    """Return why no server can be started here, nothing if one can."""
    lacking = [name for name in ("initdb", "postgres") if binary(name) is None]
    if lacking:
        return f"PostgreSQL is not installed ({', '.join(lacking)}); on Debian: apt-get install postgresql"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and setpriv (util-linux) is not installed"
    return ""


class PostgresServer:
    """One server. `start` and `stop` may be repeated; what was committed stays."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        self._free: list[str] = []
        password = folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            owner = _owner()
            for path in (folder, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = ["-D", str(self._data), "-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
        made = subprocess.run(
            [*_as_owner(), binary("initdb") or "", *command, f"--pwfile={password}"],
            cwd=folder, capture_output=True, text=True, timeout=READY_S,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr

    @property
    def is_running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, if it does not run, and wait until it takes connections."""
        if self.is_running:
            return
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "recovery_init_sync_method": "syncfs",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_owner(), binary("postgres") or "", "-D", str(self._data), *settings],
                cwd=self._folder, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + READY_S
        while True:
            try:
                self._connect("postgres").close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"PostgreSQL did not start:\n{self._log.read_text()[-4000:]}") from None
                time.sleep(0.05)
            else:
                return

    def stop(self, *, crash: bool = False) -> None:
        """End the server: connections are cut at once, and with `crash` nothing is tidied up."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(READY_S)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Lend an empty database's URL while the block runs."""
        if not self._free:
            self._free.append(f"mien_{secrets.token_hex(6)}")
            with self._connect("postgres") as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._free[-1])))
        name = self._free.pop()
        yield self.url(name)
        if self.is_running:
            with self._connect(name) as connection:  # cheaper than another database
                connection.execute(_END_OTHERS)
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
            self._free.append(name)

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        """Return a database's URL as an operator would write it."""
        return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def _connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True,
            connect_timeout=30,
        )  # fmt: skip


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server while the block runs."""
    with tempfile.TemporaryDirectory(prefix="mien-postgres-") as name:
        server = PostgresServer(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop(crash=True)  # an orderly end writes out every database, which nobody will read


def _owner() -> pwd.struct_passwd:
    """Return who runs the server when this process may not: Debian's own user, or nobody."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as_owner() -> list[str]:
    if os.geteuid() != 0:
        return []
    owner = _owner()
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups", "--"]
