"""The replicas' own port: what one replica says to another, and calls that it passes on with a caller's certificate.

Only who has the authority's key gets in. A replica that is broken or taken over must still end no other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordinator.keys import pki
from coordinator.replicas.forwarding import CALLER_KEY
from simulation.testing import tiny_task
from tests.attacks.fuzz.messages import Pool, encoded
from tests.attacks.fuzz.mutations import mutate
from tests.attacks.fuzz.servers import Target
from tests.attacks.fuzz.test_rpcs import EXAMPLES, MORE_MEMORY, methods
from tests.helpers import run
from tests.integration.replicas import ReplicaFleet
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

PASSED_ON = ("Rounds/CheckIn", "Rounds/ReportTrained", "Rounds/Upload", "Operator/ListTasks")
WANTED = [
    method
    for method in methods()
    if method.containing_service.name == "Replicas" or f"{method.containing_service.name}/{method.name}" in PASSED_ON
]


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, s3_server: S3Server
) -> Iterator[Target]:
    """A replica that runs a task, and a channel to it as another replica has one."""
    folder, bucket = tmp_path_factory.mktemp("replica"), f"s3://{s3_server.new_bucket()}/mien"
    with postgres_server.database() as url:
        fleet = ReplicaFleet(folder, None, database_url=url, blobs_url=bucket, blobs_endpoint=s3_server.endpoint)
        try:
            fleet.start()
            device = fleet.admit("fuzz")

            async def prepare() -> str:
                async with fleet.operator() as operator:
                    await fleet.release_tiny_model(operator)
                    return (await operator.submit(tiny_task("fuzz", "fuzz"), "fuzz")).task_id

            pool: Pool = {
                "task_id": [run(prepare())],
                "device_id": [device.device_id],
                "device_ids": [device.device_id],
                "round_id": [1],
                "round": [1],
                "attempt": [1],
                "length": [10, 2**40],
                "ring_bits": [0, 24, 32],
                "error_code": ["corrupt_data", "late"],
                "population": ["fuzz"],
                "caller": [device.chain, fleet.home.operator_credentials().chain_pem],
            }
            authority = fleet.home.authority()
            other = pki.issue_replica_leaf(authority, "other", datetime.now(UTC))
            tls = grpc.ssl_channel_credentials(authority.certificate_pem, other.key_pem, other.chain_pem)
            with grpc.secure_channel(fleet.peer_address, tls) as channel:
                yield Target([channel], pool, fleet.process.pid, fleet.log)
            assert fleet.process.poll() is None, "the replica did not survive"
            assert "Traceback" not in fleet.log.read_text(encoding="utf-8", errors="replace")
            assert fleet.stop() == 0
        finally:
            fleet.close()


@pytest.mark.parametrize("method", WANTED, ids=lambda method: f"{method.containing_service.name}/{method.name}")
def test_whatever_a_replica_sends_gets_an_answer(target: Target, method: MethodDescriptor) -> None:
    codes, before = Counter[grpc.StatusCode](), target.memory_bytes
    callers: Any = target.pool["caller"]

    @settings(
        max_examples=EXAMPLES or 25,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        messages=st.lists(encoded(method.input_type, target.pool), min_size=1, max_size=3), seed=st.integers(0, 2**32)
    )
    def throw(messages: list[bytes], seed: int) -> None:
        rng = random.Random(seed)
        caller = rng.choice(callers)
        passed = {0: (), 1: ((CALLER_KEY, caller),), 2: ((CALLER_KEY, mutate(rng, caller)),)}[rng.randrange(3)]
        codes[target.throw(method, messages, 0, passed)] += 1

    throw()
    assert target.memory_bytes < before + MORE_MEMORY
    assert codes
