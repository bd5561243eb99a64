"""The channel to a server: which versions of TLS it takes, and what is said when it fails."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.keys import pki
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator

_CONNECT = """
import sys
import threading
from pathlib import Path
from cryptography import x509
from device_sdk.server.rpc import open_channel
import grpc

authority = x509.load_pem_x509_certificate(Path(sys.argv[2]).read_bytes())
failed = threading.Event()
with open_channel(sys.argv[1], authority) as channel:
    told = lambda state: state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and failed.set()
    channel.subscribe(told, try_to_connect=True)
    assert failed.wait(60)  # the server hangs up once both have agreed, or not
"""
"""A program that uses nothing of Mien's but the device: what a test process has imported besides decides nothing."""


def versions_agreed(folder: Path, highest: ssl.TLSVersion) -> set[str | None]:
    """Return the TLS versions that a device and a server of a pinned authority agree on; None where it is none.

    A device tries again and again, and may hang up amid a try once it has seen one fail: that says nothing of versions.
    """
    now = datetime.now(UTC)
    authority = pki.create_authority("registrar", now)
    leaf = pki.issue_server_leaf(authority, ["127.0.0.1"], now)
    for name, data in (("ca.pem", authority.certificate_pem), ("chain.pem", leaf.chain_pem), ("key", leaf.key_pem)):
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "chain.pem", folder / "key")
    context.set_alpn_protocols(["h2"])
    context.maximum_version = highest
    agreed: set[str | None] = set()

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                raw.settimeout(60)
                with context.wrap_socket(raw, server_side=True) as tls:
                    agreed.add(tls.version())
            except OSError:
                agreed.add(None)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-c", _CONNECT, address, str(folder / "ca.pem")]
        # The servers' own choice, which importing them put into this process' environment, must not help.
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_SSL_CIPHER_SUITES"}
        subprocess.run(command, check=True, timeout=120, env=environment)
        listener.shutdown(socket.SHUT_RDWR)
        server.join(60)
    return agreed - {None} or agreed


@pytest.mark.parametrize(
    ("highest", "agreed"), [(ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, None)], ids=["1.3", "1.2"]
)
def test_a_device_takes_tls13_only(tmp_path: Path, highest: ssl.TLSVersion, agreed: str | None) -> None:
    assert versions_agreed(tmp_path, highest) == {agreed}


@pytest.mark.parametrize(("level", "is_quiet"), [(None, True), ("INFO", False)])
def test_a_failed_handshake_is_told_by_us_alone_unless_more_was_asked_for(level: str | None, is_quiet: bool) -> None:
    known, stranger = Fleet.create(), Fleet.create()
    code = (
        "import random, sys\n"
        "import device_sdk\n"
        "from cryptography import x509\n"
        "from mien.shell.clock import WallClock\n"
        "from device_sdk.server.retry import RetryPolicy\n"
        "from device_sdk.server.rpc import open_channel, say_hello\n"
        "from mien.errors import UnreachableError\n"
        "from mien.protocol.v1 import rounds_pb2_grpc\n"
        "authority = x509.load_pem_x509_certificate(sys.stdin.buffer.read())\n"
        "stub = rounds_pb2_grpc.RoundsStub(open_channel(sys.argv[1], authority))\n"
        "policy = RetryPolicy(give_up_s=0.0)\n"
        "try:\n"
        "    say_hello(stub.Hello, 'it', policy, clock=WallClock(), rng=random.Random(0))\n"
        "except UnreachableError:\n"
        "    print('refused')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if level:
        environment["GRPC_VERBOSITY"] = level
    with scripted_coordinator(stranger, Script()) as address:
        done = subprocess.run(
            [sys.executable, "-c", code, address],
            input=known.coordinator.certificate_pem,
            capture_output=True,
            env=environment,
            check=False,
        )
    assert done.stdout == b"refused\n"
    assert (done.stderr == b"") == is_quiet, done.stderr
