"""One program takes what it can of a port, and others get their answers: of registrar, coordinator and dashboard.

Real processes with their usual settings. Others try again as phones and browsers do; no time is asserted.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks._attacks import PREFACE, SETTINGS, headers_frame
from benchmarks._house import House, attacking, open_house
from benchmarks.hostile import METHODS
from coordinator.commands.registrar_cli import _revoke_here
from coordinator.keys import pki
from mien.errors import InviteError, RateLimitedError
from mien.protocol.v1 import registrar_pb2
from tests.coordinator.registrar.running import LocalRegistrar, csr_der, local_registrar

TRIES = 5
BEGUN = 50
RST_STREAM = 3
NEVER_BEGUN = (7, 11)
"""HTTP/2's codes for a stream that no handler has heard of: refused, or too many of them."""
ATTACKS = (
    *(("registrar", name) for name in ("half_handshakes", "idle_http2", "stalled_calls", "large_metadata")),
    *(("operators", name) for name in ("silent_sockets", "stalled_calls")),
    *(("coordinator", name) for name in ("idle_tls", "stalled_calls")),
    ("dashboard", "idle_tls"),
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house")) as opened:
        yield opened


def gets_through(visit: Callable[[float], None]) -> bool:
    """Return whether a visitor who tries a few times gets an answer."""
    for _ in range(TRIES):
        with suppress(grpc.RpcError, OSError):
            visit(20.0)
            return True
        time.sleep(0.2)
    return False


@pytest.mark.parametrize(("port", "attack"), ATTACKS)
def test_others_get_their_answers(house: House, port: str, attack: str) -> None:
    with attacking(attack, house.targets[port], METHODS[port]):
        assert all(gets_through(house.visits[port]) for _ in range(3))
    assert house.processes[port if port != "operators" else "registrar"].poll() is None


@pytest.mark.parametrize(("port", "open_at_once"), [("registrar", 1), ("coordinator", 16)])
def test_a_connection_gets_no_more_calls_into_the_queue_than_it_may_have_open(
    house: House, port: str, open_at_once: int
) -> None:
    """gRPC keeps begun calls in one queue of everybody's, also those of connections that have gone."""
    frames = b"".join(headers_frame(2 * number + 1, METHODS[port]) for number in range(BEGUN))
    with house.targets[port].tls() as attacker:
        attacker.sendall(PREFACE + SETTINGS + frames)
        refused = set[int]()
        while len(refused) < BEGUN - open_at_once - 1:
            head = exactly(attacker, 9)
            body = exactly(attacker, int.from_bytes(head[:3], "big"))
            if head[3] == RST_STREAM and int.from_bytes(body, "big") in NEVER_BEGUN:
                refused.add(int.from_bytes(head[5:], "big"))
    assert not refused & {2 * number + 1 for number in range(open_at_once)}


def exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    """Return so many bytes; raises EOFError where the connection ends before, TimeoutError where nothing comes."""
    connection.settimeout(60)
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise EOFError("the connection ended")
        got += more
    return got


@pytest.mark.parametrize("port", ["registrar", "coordinator"])
def test_metadata_that_no_caller_of_ours_sends_are_refused(house: House, port: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        house.visits[port](20.0, (("x-a", "y" * 5000),))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    house.visits[port](20.0, (("x-a", "y" * 2000),))


def test_failed_joins_hinder_no_renewal(tmp_path: Path) -> None:
    """p09: strangers behind a phone's address guess at tokens."""
    with local_registrar(tmp_path / "R") as registrar:
        phone = registrar.admitted()
        for _ in range(registrar.home.resolve().config.max_join_failures):
            with pytest.raises(InviteError):
                registrar.join("x" * 43, csr_der(ec.generate_private_key(ec.SECP256R1())))
        with pytest.raises(RateLimitedError):
            registrar.join("x" * 43, csr_der(phone.key))
        assert registrar.renew(phone.renewal(_ms(registrar))).device_id == phone.device_id


def test_a_phone_is_revoked_without_a_port_and_a_running_registrar_says_so(tmp_path: Path) -> None:
    with local_registrar(tmp_path / "R") as registrar:
        phone = registrar.admitted()
        assert phone.certificate.serial_number not in revoked(registrar)
        assert _revoke_here(registrar.home, phone.device_id[:8], "lost") == phone.device_id
        registrar.clock.ahead += pki.BACKDATING / 100  # it counts anew once a second
        assert phone.certificate.serial_number in revoked(registrar)


def revoked(registrar: LocalRegistrar) -> set[int]:
    with registrar.operators(registrar.operator.chain_pem, registrar.operator.key_pem) as stub:
        reply = stub.GetRevocations(registrar_pb2.GetRevocationsRequest(), timeout=60)
    return {entry.serial_number for entry in pki.load_crl(reply.crl_der, registrar.home.ca())}


def _ms(registrar: LocalRegistrar) -> int:
    return int(registrar.clock().timestamp() * 1000)
