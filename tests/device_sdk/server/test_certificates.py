"""Certificates that are not what they should be: one kind of error, whatever is wrong with them."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from device_sdk.server import certificates
from device_sdk.server.certificates import (
    check_device_certificate,
    fetch_unverified_chain,
    load_certificate,
    to_der,
)
from mien.errors import CertificateError, UnreachableError
from tests.helpers import one_caller

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AUTHORITY = pki.create_authority("registrar", NOW)
KEY = ec.generate_private_key(ec.SECP256R1())
DEVICE = pki.issue_device_leaf(AUTHORITY, KEY.public_key(), "default", NOW)

VERSION_3 = bytes.fromhex("a003020102")
VERSION_9 = bytes.fromhex("a003020108")


def with_version_9(der: bytes) -> bytes:
    assert der.count(VERSION_3) == 1
    return der.replace(VERSION_3, VERSION_9)


def test_a_certificate_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(CertificateError, match="damaged or of an unknown kind"):
        load_certificate(with_version_9(to_der(DEVICE)), whose="this device's")


def test_a_servers_certificate_is_no_devices() -> None:
    server = pki.issue_server_leaf(AUTHORITY, ["127.0.0.1"], NOW)
    with pytest.raises(CertificateError, match="names another device"):
        check_device_certificate(server.certificate, server.key, AUTHORITY.certificate)


def test_a_certificate_without_names_is_no_devices() -> None:
    with pytest.raises(CertificateError, match="names another device"):
        check_device_certificate(AUTHORITY.certificate, AUTHORITY.key, AUTHORITY.certificate)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_damaged_byte_is_the_same_kind_of_error(flip: int) -> None:
    der, signed = to_der(DEVICE), DEVICE.tbs_certificate_bytes
    start = der.index(signed)
    for place in range(len(der)):
        damaged = der[:place] + bytes([der[place] ^ flip]) + der[place + 1 :]
        # Around the signed part are bits without meaning, such as how many of a signature's last bits count.
        inside = start <= place < start + len(signed)
        with pytest.raises(CertificateError) if inside else contextlib.suppress(CertificateError):
            check_device_certificate(load_certificate(damaged, whose="this device's"), KEY, AUTHORITY.certificate)


@contextlib.contextmanager
def one_handshake(
    folder: Path, certificate_der: bytes, key_pem: bytes, *, begins: threading.Event | None = None
) -> Iterator[str]:
    """Yield the address of a listener that shows a certificate to one caller, once that `begins` if it is given."""
    (folder / "key").write_bytes(key_pem)
    (folder / "leaf.pem").write_text(ssl.DER_cert_to_PEM_cert(certificate_der))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem", folder / "key")

    def answer(caller: socket.socket) -> None:
        if begins is not None:
            begins.wait(60)
        context.wrap_socket(caller, server_side=True).close()

    with one_caller(answer) as port:
        yield f"127.0.0.1:{port}"


def test_a_server_with_an_unreadable_certificate_is_one_sentence(tmp_path: Path) -> None:
    leaf = pki.issue_server_leaf(AUTHORITY, ["127.0.0.1"], NOW)
    with (
        one_handshake(tmp_path, with_version_9(to_der(leaf.certificate)), leaf.key_pem) as address,
        pytest.raises(UnreachableError, match="certificate that can be read"),
    ):
        fetch_unverified_chain(address, timeout_s=60)


@contextlib.contextmanager
def a_dripping_handshake() -> Iterator[str]:
    """Yield the address of a listener that sends one caller a handshake, a byte every hundredth of a second."""
    over = threading.Event()

    def drip(caller: socket.socket) -> None:
        caller.sendall(bytes.fromhex("160303100002000ffc0303"))  # a record of 4,096 bytes: at least 40 s
        while not over.wait(0.01):
            caller.sendall(bytes(1))

    with one_caller(drip) as port:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            over.set()


def test_a_handshake_that_drips_ends_all_the_same() -> None:
    with a_dripping_handshake() as address, pytest.raises(UnreachableError, match="does not answer"):
        fetch_unverified_chain(address, timeout_s=0.5)


@pytest.mark.parametrize(("silences", "is_long_enough"), [(1.9, True), (2.1, False)])
def test_a_handshake_may_take_twice_as_long_as_a_silence(
    silences: float, is_long_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phone on a slow network could else never join, however often it tried. The clock alone is made up."""
    timeout_s, is_heard = 60.0, threading.Event()
    reads = iter([0.0])
    monkeypatch.setattr(certificates, "time", SimpleNamespace(monotonic=lambda: next(reads, silences * timeout_s)))
    leaf = pki.issue_server_leaf(AUTHORITY, ["127.0.0.1"], NOW)
    poll = select.poll

    def heard() -> select.poll:
        is_heard.set()
        return poll()

    monkeypatch.setattr(certificates, "select", SimpleNamespace(poll=heard, POLLIN=select.POLLIN))
    with one_handshake(tmp_path, to_der(leaf.certificate), leaf.key_pem, begins=is_heard) as address:
        if is_long_enough:
            assert fetch_unverified_chain(address, timeout_s=timeout_s)[0] == leaf.certificate
        else:
            with pytest.raises(UnreachableError, match="does not answer"):
                fetch_unverified_chain(address, timeout_s=timeout_s)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Have every descriptor below 1,024 in use, which is all that `select` can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no process here may open so many files")
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        while opened.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        yield


@pytest.mark.usefixtures("many_files")
def test_a_program_with_many_open_files_reads_a_chain(tmp_path: Path) -> None:
    leaf = pki.issue_server_leaf(AUTHORITY, ["127.0.0.1"], NOW)
    with one_handshake(tmp_path, to_der(leaf.certificate), leaf.key_pem) as address:
        assert fetch_unverified_chain(address, timeout_s=60)[0] == leaf.certificate
