"""The probe for TLS 1.2, against servers that do and do not speak it."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.keys import pki
from coordinator.keys.tls import check_tls12_is_refused
from mien.errors import ConfigError
from tests.helpers import one_caller

AUTHORITY = pki.create_authority("coordinator", datetime.now(UTC))


@pytest.fixture(autouse=True)
def _however_busy_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the handshake take its time: one that runs out of it counts as refused."""
    monkeypatch.setattr("coordinator.keys.tls._PROBE_S", 240.0)


@contextlib.contextmanager
def mutual_tls_server(folder: Path, oldest: ssl.TLSVersion) -> Iterator[str]:
    """Run a server of the standard library that demands a certificate, and yield its address."""
    leaf = pki.issue_server_leaf(AUTHORITY, ("127.0.0.1",), datetime.now(UTC))
    (folder / "server.pem").write_bytes(leaf.chain_pem + leaf.key_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.certificate_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = oldest
    context.load_cert_chain(folder / "server.pem")
    with one_caller(lambda caller: context.wrap_socket(caller, server_side=True).close()) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def operator(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key files of an operator."""
    made = pki.issue_operator_leaf(AUTHORITY, "alice", datetime.now(UTC))
    paths = tmp_path / "operator.pem", tmp_path / "operator.key"
    for path, data in zip(paths, (made.chain_pem, made.key_pem), strict=True):
        path.write_bytes(data)
    return paths


def test_a_server_that_speaks_tls12_is_found(tmp_path: Path, operator: tuple[Path, Path]) -> None:
    with (
        mutual_tls_server(tmp_path, ssl.TLSVersion.TLSv1_2) as address,
        pytest.raises(ConfigError, match=r"speaks TLS 1\.2"),
    ):
        check_tls12_is_refused(address, AUTHORITY.certificate_pem, client=operator)


def test_a_server_that_speaks_tls13_only_is_in_order(tmp_path: Path, operator: tuple[Path, Path]) -> None:
    with mutual_tls_server(tmp_path, ssl.TLSVersion.TLSv1_3) as address:
        check_tls12_is_refused(address, AUTHORITY.certificate_pem, client=operator)
