"""Mien's programs as child processes: called for one JSON answer, or started and stopped as servers and phones."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from mien.errors import (
    BY_CODE,
    AlreadyExistsError,
    CorruptDataError,
    MienError,
    MissingDependencyError,
    UnreachableError,
)
from mien.shell.files import make_folder
from mien.shell.keys import SYSTEM_RANDOM

STOP_S: Final = 20.0
CALL_S: Final = 300.0
POLL_S: Final = 1.0
# Below those that systems give to outgoing connections, and to whoever asks for any (Linux: from 32768 on).
_PORTS: Final = range(12_000, 20_000)
# How much of what a program last said goes into an error.
LAST_WORDS: Final = 300


class Programs:
    """Starts Mien's programs, keeps the output of servers and phones in files, and leaves none behind.

    Use as a context manager: leaving it, however that comes about, ends every child, by SIGTERM first. Where this
    process is killed meanwhile, its guard ends them, and removes the folder `state`.
    """

    def __init__(self, log_folder: Path, *, state: Path | None = None, threads: int = 1) -> None:
        self._log_folder = log_folder
        self._state = state
        self._guard: subprocess.Popen[bytes] | None = None
        self._named: dict[str, subprocess.Popen[bytes]] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starts programs")
        self._starting, self._is_left = threading.Lock(), False
        # Settings of the caller's own Mien are not the children's. Ten phones on two cores: more threads than cores
        # only get in each other's way.
        own = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
        self._environment = own | {"OMP_NUM_THREADS": str(threads)}
        make_folder(log_folder)

    def __enter__(self) -> Self:
        # In a session of its own: what ends all processes of a terminal does not end it.
        self._guard = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "simulation.demo.guard",
                str(os.getpid()),
                *([str(self._state.resolve())] if self._state else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:  # a child that is being started counts
            self._is_left = True
        try:
            self.stop_all()
        finally:
            self._leave_guard()
            self._starter.shutdown()

    def call(self, program: str, *arguments: str, answers: Collection[int] = (0,)) -> Any:
        """Return the JSON that a command prints last, None if it prints nothing.

        `answers` are the exit codes that come with an answer (`verify` says no with 1). Any other code raises the
        command's own error here; a command that takes longer than `CALL_S` raises UnreachableError.
        """
        command = self._command(program, *arguments, "--json")
        with self._child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            try:
                printed, problem = child.communicate(timeout=CALL_S)
            except subprocess.TimeoutExpired as error:
                raise UnreachableError(
                    f"{program} {arguments[0]} took more than {CALL_S:.0f} s; see the logs"
                ) from error
        if child.returncode not in answers:
            raise _failure(program, arguments[0], child.returncode, problem.decode(errors="replace"))
        lines = printed.decode(errors="replace").strip().splitlines()
        return _parsed(program, arguments[0], lines[-1]) if lines else None

    def lines(
        self, program: str, *arguments: str, called: str = "", meanwhile: Callable[[], None] = lambda: None
    ) -> Iterator[Any]:
        """Yield the JSON lines that a command prints, until it ends; a command that fails raises its own error.

        `called` is the command as its user knows it, where `arguments` begin with an inner one. `meanwhile` is called
        in every second without a line. What it raises ends the command; so does whoever stops reading.
        """
        verb = called or arguments[0]
        command = self._command(program, *arguments, "--json")
        with (
            tempfile.TemporaryFile() as problem,
            self._child(command, stdout=subprocess.PIPE, stderr=problem) as child,
        ):
            assert child.stdout is not None
            for line in _lines(child.stdout, meanwhile):
                yield _parsed(program, verb, line.decode(errors="replace"))
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)
            if child.returncode != 0:
                problem.seek(0)
                raise _failure(program, verb, child.returncode, problem.read().decode(errors="replace"))

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program under `name`; its output goes to `name`.log. Raises AlreadyExistsError for a name in use."""
        if name in self._named:
            raise AlreadyExistsError(f"a program called {name} was started already; choose another name")
        with self.log_of(name).open("wb") as log:
            child = self._popen(self._command(program, *arguments), stdout=log, stderr=subprocess.STDOUT)
        self._named[name] = child
        return child

    def log_of(self, name: str) -> Path:
        """Return the file that holds the output of the program started under `name`."""
        return self._log_folder / f"{name}.log"

    def wait_for_port(self, name: str, address: str, timeout_s: float = 60.0) -> None:
        """Return when the server `name` accepts connections; raises UnreachableError if it ended or takes too long."""
        host, port = address.rsplit(":", 1)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.require_running(name)
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise UnreachableError(f"{name} does not answer after {timeout_s:.0f} s; {self._log_says(name)}")

    def require_running(self, *names: str) -> None:
        """Raise UnreachableError, with what its log says last, if one of these programs has ended."""
        for name in names:
            code = self._named[name].poll()
            if code is not None:
                raise UnreachableError(f"{name} ended by itself (exit code {code}); {self._log_says(name)}")

    def stop(self, *names: str) -> None:
        """End these programs: SIGTERM, then after `STOP_S` SIGKILL for those that do not listen."""
        self._end([self._named[name] for name in names])

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """Return the program that was started under `name`."""
        return self._named[name]

    def stop_others(self, *names: str) -> None:
        """End every child but these, those that a call waits for too."""
        kept = [self._named[name] for name in names if name in self._named]
        self._end([child for child in self._children if child not in kept])

    def stop_all(self) -> None:
        """End every child, those that a call waits for too."""
        self._end(self._children)

    def _end(self, children: Iterable[subprocess.Popen[bytes]]) -> None:
        ended = list(children)
        _end(ended)
        for child in ended:
            self._tell_guard(f"-{child.pid}")

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):  # somebody ended it
                os.write(self._guard.stdin.fileno(), f"{line}\n".encode())

    def _leave_guard(self) -> None:
        if self._guard is not None:
            self._tell_guard(".")
            self._guard.communicate()
            self._guard = None

    def _log_says(self, name: str) -> str:
        path = self.log_of(name)
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 4096))
            words = log.read().decode(errors="replace").strip().splitlines()
        return f"its log {path} ends: {words[-1][-LAST_WORDS:]}" if words else f"its log {path} is empty"

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).parent / program), *arguments]

    def _popen(
        self, command: list[str], *, stdout: IO[bytes] | int, stderr: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Return a child that has begun and is noted, by another thread: a signal may end what this one does."""
        return self._starter.submit(self._begin, command, stdout, stderr).result()

    def _begin(self, command: list[str], stdout: IO[bytes] | int, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._is_left:
                raise UnreachableError("all programs are being ended; begin again")
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=self._environment
                )
            except FileNotFoundError as error:
                raise MissingDependencyError(
                    f"there is no program {Path(command[0]).name} beside {sys.executable}; pip install there "
                    "'.[simulation]' in Mien's folder"
                ) from error
            self._children.append(child)
            self._tell_guard(f"+{child.pid}")
            return child

    @contextmanager
    def _child(
        self, command: list[str], *, stdout: IO[bytes] | int, stderr: IO[bytes] | int
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A child that has ended when the block is left."""
        with self._popen(command, stdout=stdout, stderr=stderr) as child:
            try:
                yield child
            finally:
                self._end([child])
        self._children.remove(child)


def free_ports(count: int) -> list[int]:
    """Return ports on 127.0.0.1 that nobody listens on at the moment; raises UnreachableError where there are too few.

    None that the system gives to whoever asks for any: one of those may be somebody's before its server listens.
    """
    found: list[int] = []
    for port in SYSTEM_RANDOM.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise UnreachableError(f"no {count} ports from {_PORTS[0]} to {_PORTS[-1]} are free; end what listens on them")


def _end(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """End these children; whatever interrupts the wait for their own end, none is left."""
    running = [child for child in children if child.poll() is None]
    deadline = time.monotonic() + STOP_S
    try:
        for child in running:
            child.terminate()
        with suppress(subprocess.TimeoutExpired):
            for child in running:
                child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child in running:
            child.kill()  # does nothing to one that has ended
        for child in running:
            child.wait()


def _lines(stream: IO[bytes], meanwhile: Callable[[], None]) -> Iterator[bytes]:
    """Yield a pipe's lines as they come; `meanwhile` is called every `POLL_S` without anything."""
    unread = b""
    while True:
        if not select.select([stream], [], [], POLL_S)[0]:
            meanwhile()
            continue
        read = os.read(stream.fileno(), 1 << 16)
        if not read:
            break
        *whole, unread = (unread + read).split(b"\n")
        yield from whole
    if unread:
        yield unread


def _parsed(program: str, verb: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CorruptDataError(
            f"{program} {verb} printed what is not JSON: {line.strip()[:LAST_WORDS]!r}; is it of another version?"
        ) from error


def _failure(program: str, verb: str, exit_code: int | None, stderr: str) -> MienError:
    """Return the error that a failed command printed as JSON, or one that shows the end of what it printed."""
    for line in reversed(stderr.strip().splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, Mapping) and answer.get("error") in BY_CODE:
            return BY_CODE[str(answer["error"])](f"{program} {verb}: {answer.get('message', '')}")
    said = stderr.strip()[-LAST_WORDS:] or "it said nothing"
    return CorruptDataError(f"{program} {verb} failed (exit code {exit_code}): {said}")
