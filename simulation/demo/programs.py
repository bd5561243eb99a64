"""Mien's programs as child processes: called for one JSON answer, or started and stopped as servers and phones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from mien.errors import BY_CODE, InputError, MienError, UnreachableError

STOP_S: Final = 20.0
CALL_S: Final = 300.0


class Programs:
    """Starts Mien's programs, keeps each one's output in a file, and leaves none behind.

    Use as a context manager: leaving it ends every child, by SIGTERM first.
    """

    def __init__(self, log_folder: Path, *, threads: int = 1) -> None:
        self._log_folder = log_folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        # Ten phones on two cores: more threads than cores only get in each other's way.
        self._environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MIEN_THREADS": str(threads)}
        log_folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()
        for log in self._logs:
            log.close()

    def call(self, program: str, *arguments: str) -> Any:
        """Return the JSON that a command prints last; a command that fails raises its own error here.

        A command that answers and ends with another code than 0 (`verify` of a stranger) has not failed.
        """
        done = subprocess.run(
            self._command(program, *arguments, "--json"),
            capture_output=True,
            text=True,
            timeout=CALL_S,
            env=self._environment,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode != 0 and not lines:
            raise _failure(program, arguments[0], done.stderr)
        return json.loads(lines[-1]) if lines else None

    def lines(self, program: str, *arguments: str) -> Iterator[Any]:
        """Yield the JSON lines that a command prints, until it ends; a command that fails raises its own error."""
        with subprocess.Popen(
            self._command(program, *arguments, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            try:
                for line in child.stdout:
                    yield json.loads(line)
                problem = child.stderr.read()
            finally:
                child.terminate()
        if child.returncode > 0:
            raise _failure(program, arguments[0], problem)

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program under `name`; its output goes to `name`.log."""
        log = (self._log_folder / f"{name}.log").open("wb")
        self._logs.append(log)
        child = subprocess.Popen(
            self._command(program, *arguments), stdout=log, stderr=subprocess.STDOUT, env=self._environment
        )
        self._running[name] = child
        return child

    def log_of(self, name: str) -> Path:
        """Return the file that holds the output of the program started under `name`."""
        return self._log_folder / f"{name}.log"

    def wait_for_port(self, name: str, address: str, timeout_s: float = 30.0) -> None:
        """Return when the server `name` accepts connections; raises UnreachableError if it ended or takes too long."""
        host, port = address.rsplit(":", 1)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._running[name].poll() is None:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise UnreachableError(f"{name} did not start; see {self.log_of(name)}")

    def stop(self, *names: str) -> None:
        """End these children: SIGTERM, then SIGKILL for those that do not listen."""
        children = [self._running[name] for name in names]
        for child in children:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_S
        for child in children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def stop_all(self) -> None:
        """End every child, the last started first."""
        self.stop(*reversed(self._running))

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).parent / program), *arguments]


def free_ports(count: int) -> list[int]:
    """Return ports on 127.0.0.1 that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _failure(program: str, verb: str, stderr: str) -> MienError:
    """Return the error that a failed command printed as JSON, or one that shows the end of what it printed."""
    for line in reversed(stderr.strip().splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, Mapping) and answer.get("error") in BY_CODE:
            return BY_CODE[str(answer["error"])](f"{program} {verb}: {answer.get('message', '')}")
    return InputError(f"{program} {verb} failed: {stderr.strip()[-500:]}")
