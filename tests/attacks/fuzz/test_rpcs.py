"""Every call of every service, over TLS, against running programs: any status but INTERNAL and UNKNOWN, and they live.

Messages are of the right form with values of a real round, values that are not, and damaged bytes. `make fuzz` throws
many more, at random; here they are the same each time.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import mien.protocol.v1
from tests.attacks.fuzz.messages import encoded
from tests.attacks.fuzz.servers import Target, coordinator, registrar

EXAMPLES: Final = int(os.environ.get("MIEN_FUZZ_EXAMPLES", "0"))
"""How many messages for each call; 0: few, and the same each time."""

MORE_MEMORY: Final = 256 * 1024**2

TARGETS: Final = {
    "Rounds": coordinator,
    "Models": coordinator,
    "Operator": coordinator,
    "Registrar": registrar,
    "RegistrarAdmin": registrar,
    "Replicas": coordinator,
}
"""Which program serves what. In this order: operators' calls end the rounds that devices' calls need.

Replicas have a port of their own (`test_replica_rpcs.py`); on this one their calls must get nobody anywhere.
"""


def methods() -> list[MethodDescriptor]:
    """Return every call of the protocol, those of a service of this table in its order."""
    found = []
    for module in pkgutil.iter_modules(mien.protocol.v1.__path__):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(f"mien.protocol.v1.{module.name}").DESCRIPTOR.services_by_name
            found += [method for service in services.values() for method in service.methods]
    order = [*TARGETS]
    return sorted(
        found, key=lambda m: order.index(name) if (name := m.containing_service.name) in order else len(order)
    )


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """The running programs by the services that they have."""
    with ExitStack() as stack:
        kinds = {make: make for make in TARGETS.values()}
        running = {make: stack.enter_context(make(tmp_path_factory.mktemp(make.__name__))) for make in kinds}
        yield {service: running[make] for service, make in TARGETS.items()}
        for target in running.values():
            assert "Traceback" not in target.log.read_text(encoding="utf-8", errors="replace")


def test_every_service_is_fuzzed() -> None:
    assert {method.containing_service.name for method in methods()} == set(TARGETS), "name who serves it in TARGETS"


@pytest.mark.parametrize("method", methods(), ids=lambda method: f"{method.containing_service.name}/{method.name}")
def test_whatever_is_sent_gets_an_answer(targets: dict[str, Target], method: MethodDescriptor) -> None:
    target, codes = targets[method.containing_service.name], Counter[grpc.StatusCode]()
    most = 4 if method.client_streaming else 1

    @settings(
        max_examples=EXAMPLES or 30,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        messages=st.lists(encoded(method.input_type, target.pool), min_size=1, max_size=most),
        caller=st.integers(0, len(target.channels) - 1),
    )
    def throw(messages: list[bytes], caller: int) -> None:
        codes[target.throw(method, messages, caller)] += 1

    before = target.memory_bytes
    throw()
    assert target.memory_bytes < before + MORE_MEMORY
    assert codes
