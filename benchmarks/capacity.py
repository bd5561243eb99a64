"""What registered phones cost: disk at the registrar and the coordinator, revocation lists, and looking in.

Everything is the servers' own code on databases of their own kind (SQLite) in a temporary folder: phones join by
invites, renew, look in over mutual TLS and are revoked. Times are processor time, so that a busy machine disturbs them
little; bytes are pages of the database that came in use, over the number of phones. With what `phone_round` says of a
round these are the figures that docs/capacity.md multiplies.

`registrar_bytes_per_phone` is of one that has just joined, `registrar_bytes_per_renewal` of each renewal afterwards, of
which `renewal_entry_bytes` stay for ever (the audit log) and the rest until the certificate has long ended.
`look_in_cpu_ms` is the coordinator's for a phone that connects, checks in, is told to come back, and goes.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks import _common
from benchmarks._load import Program
from benchmarks.phone_round import POPULATION
from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.issuing import Registry
from coordinator.registrar.store import Store as RegistrarStore
from coordinator.service.revocations import Revocations
from coordinator.store.database import sqlite_url
from coordinator.store.store import Store
from mien.protocol.ids import DeviceId, PopulationId
from mien.protocol.renewal import renewal_message
from mien.shell.clock import Clock
from simulation.testing.device import DeviceCredentials, FakeDevice
from simulation.testing.fleet import FakeFleet

QUICK: Final = {"phones": 300, "on_record": 50_000, "revoked": 20_000, "looks": 60}
FULL: Final = {"phones": 3_000, "on_record": 1_000_000, "revoked": 300_000, "looks": 600}
AIMS: Final = {"revocation_check_us": 5.0}


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("capacity", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    sizes = QUICK if args.quick else FULL
    with tempfile.TemporaryDirectory(prefix="mien-capacity-") as name:
        folder = Path(name)
        _common.progress(f"{sizes['phones']} phones join and renew")
        found = joined(folder / "registrar.db", sizes["phones"])
        _common.progress(f"{sizes['on_record']} phones on record at the coordinator")
        found |= on_record(folder / "coordinator.db", sizes["on_record"])
        _common.progress(f"a list of {sizes['revoked']} revoked certificates")
        found |= revocation_list(folder / "registrar.crl", sizes["revoked"])
        _common.progress(f"{sizes['looks']} phones look in")
        found |= asyncio.run(look_in(folder / "fleet", sizes["looks"]))
    return {
        **found,
        **sizes,
        "aims": AIMS,
        "missed": sorted(name for name, aim in AIMS.items() if found[name] > aim),
        "quick": args.quick,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def joined(path: Path, phones: int) -> dict[str, float]:
    """Return what a phone's joining and renewing cost the registrar."""
    now = [datetime.now(UTC)]
    authority = pki.create_authority("registrar", now[0])
    coordinator = pki.create_authority("coordinator", now[0])
    store = RegistrarStore.open(sqlite_url(path))
    config = RegistrarConfig("localhost:1", "localhost:2", invites_per_day=10 * phones)
    registry = Registry(store, authority, config, lambda: coordinator.certificate, lambda: now[0])
    # The phones' own work, keys and signatures, is done before and after the clock runs.
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(phones)]
    requests = [pki.create_csr(key) for key in keys]
    used = [_common.database_bytes(path)]
    with _timed() as joining:
        held = [
            registry.join(registry.create_invite(POPULATION, 0, "", actor="load").invite.token, request).certificate_der
            for request in requests
        ]
    used.append(_common.database_bytes(path))
    now[0] += timedelta(days=4)
    unix_ms = round(now[0].timestamp() * 1000)
    signed = [
        key.sign(renewal_message(request, unix_ms), ec.ECDSA(hashes.SHA256()))
        for key, request in zip(keys, requests, strict=True)
    ]
    with _timed() as renewing:
        for certificate, request, signature in zip(held, requests, signed, strict=True):
            registry.renew(certificate, request, signature, unix_ms)
    used.append(_common.database_bytes(path))
    store.close()
    certificates = _table_bytes(path, "certificates") / (2 * phones)
    return {
        "join_cpu_ms": round(1e3 * joining() / phones, 2),
        "renewal_cpu_ms": round(1e3 * renewing() / phones, 2),
        "registrar_bytes_per_phone": round((used[1] - used[0]) / phones),
        "registrar_bytes_per_renewal": round((used[2] - used[1]) / phones),
        "renewal_entry_bytes": round((used[2] - used[1]) / phones - certificates),
    }


def on_record(path: Path, phones: int) -> dict[str, float]:
    """Return what a phone that was seen once takes in the coordinator's database."""
    store = Store.open(sqlite_url(path), Clock())
    empty = _common.database_bytes(path)
    for start in range(0, phones, 50_000):
        many = range(start, min(start + 50_000, phones))
        store.saw_devices([(DeviceId(f"{number:032x}"), PopulationId(POPULATION), "load") for number in many])
    used = _common.database_bytes(path)
    store.close()
    return {"coordinator_bytes_per_phone": round((used - empty) / phones)}


def revocation_list(path: Path, revoked: int) -> dict[str, float]:
    """Return what each certificate on the registrar's list costs the registrar, the coordinator and each phone."""
    now = datetime.now(UTC)
    authority = pki.create_authority("registrar", now)
    serials = [x509.random_serial_number() for _ in range(revoked)]
    with _timed() as signing:
        der = pki.build_crl(authority, [pki.Revocation(serial, now) for serial in serials], 1, now)
    held = Revocations(path, authority.certificate, Clock(), max_age_s=3600.0)
    with _timed() as accepting:
        held.accept(pki.load_crl(der, authority.certificate))
    others = [secrets.randbits(150) for _ in range(10_000)]
    with _timed() as checking:
        for serial in others:
            held.check(serial)
    return {
        "list_bytes_per_revoked": round(len(der) / revoked, 1),
        "list_signing_cpu_s": round(signing(), 3),
        "list_accepting_cpu_s": round(accepting(), 3),
        "revocation_check_us": round(1e6 * checking() / len(others), 2),
        "most_revoked": pki.MAX_CRL_BYTES * revoked // len(der),
    }


async def look_in(folder: Path, looks: int) -> dict[str, float]:
    """Return what a phone that connects, asks for work and is told to come back costs the coordinator."""
    with FakeFleet(folder, connections_per_address=100_000, check_in_hold_s=0.0) as fleet:
        everybody = [fleet.admit(POPULATION) for _ in range(looks + 1)]
        await _look(fleet.address, everybody[:1])  # what a first call loads is not a look's
        program = Program(fleet.process, fleet.port)
        began, cpu_s = time.monotonic(), program.cpu_s
        await _look(fleet.address, everybody[1:])
        busy_s, took_s = program.cpu_s - cpu_s, time.monotonic() - began
        began, cpu_s = time.monotonic(), program.cpu_s
        await asyncio.sleep(3.0)
        idle = (program.cpu_s - cpu_s) / (time.monotonic() - began)
    return {"look_in_cpu_ms": round(1e3 * (busy_s - idle * took_s) / looks, 2)}


async def _look(address: str, everybody: Sequence[DeviceCredentials]) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    for each in everybody:
        async with FakeDevice(address, each, options=options) as device:
            await device.hello()
            reply = await device.check_in()
            assert reply.WhichOneof("answer") == "wait"


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """Yield what says, after the block, how much processor time it took, in seconds."""
    began, took = time.process_time(), [0.0]
    yield lambda: took[0]
    took[0] = time.process_time() - began


def _table_bytes(path: Path, table: str) -> int:
    """Return the bytes of a table's pages and of its indices'."""
    with closing(sqlite3.connect(path)) as db:
        names = "SELECT name FROM sqlite_master WHERE tbl_name = ?"
        found = db.execute(f"SELECT SUM(pgsize) FROM dbstat WHERE name IN ({names})", (table,)).fetchone()
    return int(found[0])


if __name__ == "__main__":
    main()
