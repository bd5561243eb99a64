"""A witness as somebody else runs it: a process of its own, asked over HTTP by the coordinator's own client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.commands.registrar_cli import app
from coordinator.operator import witness_client
from coordinator.registrar.public_witness import WitnessHome, running
from coordinator.service.http import HttpLimits
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    KeyStoreError,
    NotFoundError,
    TransparencyError,
    UnreachableError,
)
from mien.log.checkpoints import WITNESS, NoteKey
from mien.log.witnesses import AddCheckpoint, WitnessAddress
from mien.shell.clock import Clock
from mien.shell.lock import exclusive
from tests.helpers import ROOT, one_caller
from tests.mien.log.test_merkle import Tree
from tests.mien.log.test_witnesses import LOGS, OTHER_LOG, note_of, request, signer


def add_checkpoint(*args: Any, **options: Any) -> bytes | int:
    """Ask as a coordinator does."""
    return asyncio.run(witness_client.add_checkpoint(*args, **options))


@contextlib.contextmanager
def witness_process(folder: Path, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Run `mien-registrar witness serve` while the block runs, and yield its URL."""
    ready = folder / "ready.json"
    words = ["witness", "serve", "--home", str(folder), "--listen", listen, "--ready-file", str(ready), "--json"]
    with (folder / "witness.log").open("wb") as log:
        command = [sys.executable, "-m", "coordinator.commands.registrar_cli", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120
        while not ready.is_file():
            assert process.poll() is None, (folder / "witness.log").read_text()[-2000:]
            assert time.monotonic() < end, "the witness did not start"
            time.sleep(0.05)
        yield json.loads(ready.read_text())["url"]
    finally:
        process.terminate()
        assert process.wait(60) == 0


def made(folder: Path) -> WitnessAddress:
    """Return a new witness of one log, at an address that is not its own yet."""
    home = WitnessHome(folder)
    key = home.make()
    home.add([LOGS.key])
    return WitnessAddress(key, "http://127.0.0.1:9")


def test_a_witness_cosigns_a_log_that_grows_and_never_a_fork_also_after_a_restart(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["witness", "init", "--home", str(tmp_path), "--log", str(LOGS.key), "--json"])
    key = json.loads(told.output)["key"]
    with witness_process(tmp_path) as url:
        witness = WitnessAddress.parse(f"{key} {url}")
        answer = add_checkpoint(witness, request(0, 5))
        assert isinstance(answer, bytes)
        assert (witness.signed(answer, note_of(5).text).unverified_unix_s or 0) > 1_700_000_000
        assert add_checkpoint(witness, request(0, 9)) == 5
    with witness_process(tmp_path) as url:
        witness = WitnessAddress(witness.key, url)
        forked = Tree([f"other {number}".encode() for number in range(9)])
        with pytest.raises(TransparencyError, match="HTTP 422"):
            add_checkpoint(witness, request(5, 9, forked))
        assert isinstance(add_checkpoint(witness, request(5, 9)), bytes)
        for refused, code in ((str(note_of(9, OTHER_LOG)), 404), ("no note", 400)):
            with pytest.raises(TransparencyError, match=f"HTTP {code}"):
                add_checkpoint(witness, AddCheckpoint(9, (), refused))
        unsigned = request(9, 9).note.replace("— ", "— x")
        with pytest.raises(TransparencyError, match="HTTP 403"):
            add_checkpoint(witness, AddCheckpoint(9, (), unsigned))
    with pytest.raises(UnreachableError, match="does not answer"):
        add_checkpoint(witness, request(9, 9))


@contextlib.contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """Answer one call with these bytes, a moment apart, while the block runs; yield the URL."""

    def answer(caller: socket.socket) -> None:
        caller.recv(65536)
        for piece in pieces:
            caller.sendall(piece)
            time.sleep(0.02)

    with one_caller(answer) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 500 no\r\nContent-Length: 100\r\n\r\nx",),
        (b"HTTP/1.1 302 there\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",),
        (b"HTTP/1.1 409 no\r\nContent-Type: text/x.tlog.size\r\nContent-Length: 2\r\n\r\n-1",),
        (b"HTTP/1.1 200 yes\r\n" + b"X: y\r\n" * 10_000,),
        (b"\xff" * 100_000,),
        (b"",),
        (b"HTTP/1.1 200 yes\r\nContent-Length: 200\r\n\r\n", *[b"x"] * 200),
    ],
    ids=["cut", "redirect", "size", "head", "noise", "silence", "drops"],
)
def test_whatever_answers_at_a_witness_s_address_ends_in_an_error_of_ours(pieces: tuple[bytes, ...]) -> None:
    with answering(*pieces) as url, pytest.raises((UnreachableError, TransparencyError), match="the witness"):
        add_checkpoint(WitnessAddress(signer(WITNESS, 9).key, url), request(0, 5), timeout_s=2.0)


def test_another_key_of_a_log_that_is_known_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(AlreadyExistsError, match="by another key"):
        WitnessHome(tmp_path).add([NoteKey(LOGS.key.name, OTHER_LOG.key.public)])


def test_too_long_a_request_is_refused(tmp_path: Path) -> None:
    made(tmp_path)

    async def story() -> None:
        async with running(WitnessHome(tmp_path), "127.0.0.1:0", Clock()) as url:

            def ask() -> int:
                connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
                with contextlib.closing(connection):
                    connection.request("POST", "/add-checkpoint", body=b"old 5\n" + b"A" * 40_000)
                    return connection.getresponse().status

            assert await asyncio.to_thread(ask) == 400

    asyncio.run(story())


def test_what_is_known_of_a_log_outlives_adding_it_again(tmp_path: Path) -> None:
    home = WitnessHome(tmp_path)
    key = made(tmp_path).key
    (log,) = home.logs().values()
    home.keep({LOGS.key.name: type(log)(LOGS.key, None)})
    home.add([OTHER_LOG.key])
    assert set(home.logs()) == {LOGS.key.name, OTHER_LOG.key.name}
    assert home.make() == key


def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    home = WitnessHome(tmp_path)
    with pytest.raises(NotFoundError, match="witness init"):
        home.signer()
    made(tmp_path)
    with exclusive(home.lock_path, program="witness"), pytest.raises(AlreadyExistsError, match="another witness"):
        home.add([OTHER_LOG.key])
    home.logs_path.write_text('{"a": {"size": 3}}')
    with pytest.raises(CorruptDataError, match="damaged"):
        home.logs()
    home.key_path.chmod(0o644)
    with pytest.raises(KeyStoreError, match="chmod 600"):
        home.signer()


def test_a_witness_s_own_key_is_no_log(tmp_path: Path) -> None:
    words = ["witness", "init", "--home", str(tmp_path / "w"), "--log", str(signer(WITNESS, 9).key)]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ConfigError)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "begin",
    [b"P", b"POST /add-checkpoint HTTP/1.1\r\nHost: x", b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\n"
     b"Content-Length: 100\r\n\r\nold 0"],
    ids=["nothing", "head", "body"],
)  # fmt: skip
def test_who_never_finishes_a_request_is_cut_off(begin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr("coordinator.registrar.public_witness._LIMITS", HttpLimits(8, 4, request_s=0.5))

    async def story() -> None:
        async with running(WitnessHome(tmp_path), "127.0.0.1:0", Clock()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(begin)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 60)
            writer.close()

    asyncio.run(story())


def test_one_address_s_connections_take_no_other_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr("coordinator.registrar.public_witness._LIMITS", HttpLimits(8, 4, request_s=60.0))

    async def story() -> None:
        async with running(WitnessHome(tmp_path), "127.0.0.1:0", Clock()) as url:
            host, port = "127.0.0.1", int(url.rpartition(":")[2])
            lines = [await asyncio.open_connection(host, port) for _ in range(20)]
            for _, writer in lines:
                writer.write(b"POST /add-checkpoint HTTP/1.1\r\n")
            ended = [asyncio.create_task(reader.read()) for reader, _ in lines]
            while sum(each.done() for each in ended) < 16:  # four stay
                await asyncio.wait([each for each in ended if not each.done()], return_when=asyncio.FIRST_COMPLETED)
            witness = WitnessAddress(WitnessHome(tmp_path).make(), url)
            assert isinstance(await witness_client.add_checkpoint(witness, request(0, 5), timeout_s=60.0), bytes)
            for each in ended:
                each.cancel()
            for _, writer in lines:
                writer.close()

    asyncio.run(story())
