"""Secure aggregation at full size: what masking costs a device and unmasking costs the server, beside the PRG's bound.

A complete attempt of protocol MSA2 in one process: 100 devices, complete graph, 10^6 parameters, 10 devices lost
between sharing and upload. The full run adds 1000 devices with 96 neighbours. Beside it, in the same run, Flower's own
SecAgg+ functions in a child process (see `_flower`): times of each, the same round composed from them, and one small
whole round of both, in the full run a second one of 30 devices and 10^6 parameters.

Times are CPU seconds of the process, all threads together, the best of several repetitions, because the machine may
be shared; `*_wall_s` are wall-clock times. The bound `prg_bound_s` is AES-128-CTR alone, in the same process and in
blocks of the same size, for as many bytes as the server has to expand. What uploads cost (hash, signature, addition) is
the best over all uploads times their number. Memory is the growth of a fresh process's peak from before the first
upload to after the sum was opened, in vectors of 4 bytes a parameter: the server, one device at a time and this
program's own check of the sum; that more devices add nothing to it is the point.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from benchmarks import _common, _flower
from mien.errors import CertificateError
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.secagg import (
    Addends,
    Assignment,
    CohortTerms,
    DevicePolicy,
    DeviceRound,
    EcdsaSigner,
    Identity,
    MemoryLog,
    Profile,
    RoundConfig,
    ServerRound,
    VerifiedLeaf,
)
from mien.secagg.keys import identity_id
from mien.secagg.masks import BLOCK_WORDS, add_masks, key_stream
from mien.secagg.planner import plan_numbers
from simulation.bench.turns import Way, in_turns, over, timed

NUM_PARAMETERS: Final = 1_000_000
AIMS: Final = {
    "server_unmask_s": 1.5,
    "device_mask_over_prg": 1.5,
    "bytes_per_parameter": 4.1,
    "bytes_per_parameter_24_bits": 3.1,
    "server_unmask_n1000_s": 12.0,
    "memory_growth_of_more_devices": 0.5,
}
COMPLETE_100: Final = CohortTerms(Profile.MALICIOUS_SERVER, 60, 100, 99, 67)
SMALL_ROUND: Final = _flower.Shape(n=12, t=8, lost=1, size=100_000)
MIDDLE_ROUND: Final = _flower.Shape(n=30, t=20, lost=3, size=NUM_PARAMETERS)
_SPKI: Final = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
_T = TypeVar("_T")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("secagg", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=0, metavar="N", help="default: 3 with --quick, else 5")
    args = parser.parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    repetitions = args.repetitions or (3 if args.quick else 5)
    _common.progress("PRG and masking on one core")
    prg_s, mask_over_prg = mask_times(num_masks=100, repetitions=repetitions)
    _common.progress("100 devices, complete graph, 10 lost")
    measured = measure(_config(100, COMPLETE_100), lost=10, repetitions=repetitions)
    result: dict[str, Any] = {
        "server_unmask_s": round(measured.server_s, 3),
        "server_unmask_wall_s": round(measured.server_wall_s, 3),
        "prg_bound_s": round(prg_s * measured.num_masks, 3),
        "server_over_prg_bound": round(measured.server_s / (prg_s * measured.num_masks), 2),
        "server_masks": measured.num_masks,
        "server_uploads_s": round(measured.uploads_s, 3),
        "server_open_s": round(measured.open_s, 3),
        "device_mask_over_prg": round(mask_over_prg, 2),
        "device_mask_step_s": round(measured.device_mask_s, 4),
        "device_share_step_s": round(measured.device_share_s, 4),
        "prg_gigabytes_per_s": round(4e-9 * NUM_PARAMETERS / prg_s, 2),
        "bytes_per_parameter": round(measured.payload_bytes / NUM_PARAMETERS, 5),
        "bytes_per_parameter_with_messages": round(measured.upload_bytes / NUM_PARAMETERS, 5),
        **_lean(),
        **_memory((8, 16) if args.quick else (25, 100)),
    }
    if not args.quick:
        result |= _large(prg_s, repetitions)
    result |= _beside_flower(measured, repetitions)
    if not args.quick and result["flower"] is not None:
        result |= _one_more_round("middle_round", MIDDLE_ROUND, repetitions)
    return {
        **result,
        "aims": AIMS,
        "missed": sorted(name for name, aim in AIMS.items() if name in result and result[name] > aim),
        "times": f"CPU seconds, best of {repetitions}; *_wall_s: wall clock, {_common.num_cores()} threads",
        "reference": "AES-128-CTR alone in the same process (prg_bound_s); Flower's functions in a child process",
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
        "duration_s": round(time.monotonic() - started, 1),
    }


def _large(prg_s: float, repetitions: int) -> dict[str, Any]:
    _common.progress("1000 devices, 96 neighbours, 100 lost: some minutes")
    large = measure(
        _config(1000, CohortTerms(Profile.MALICIOUS_SERVER, 600, 1000)), lost=100, repetitions=min(2, repetitions)
    )
    return {
        "server_unmask_n1000_s": round(large.server_s, 3),
        "server_unmask_n1000_wall_s": round(large.server_wall_s, 3),
        "prg_bound_n1000_s": round(prg_s * large.num_masks, 3),
        "server_masks_n1000": large.num_masks,
    }


def _lean() -> dict[str, Any]:
    """Return bytes a parameter of a real round in the ring of 24 bits, its sum checked."""
    _common.progress("12 devices, ring of 24 bits")
    lean = measure(_small_config(12, NUM_PARAMETERS, ring_bits=24), lost=1, repetitions=1)
    return {
        "bytes_per_parameter_24_bits": round(lean.payload_bytes / NUM_PARAMETERS, 5),
        "bytes_per_parameter_24_bits_with_messages": round(lean.upload_bytes / NUM_PARAMETERS, 5),
    }


def _beside_flower(ours: Measured, repetitions: int) -> dict[str, Any]:
    """Return Flower's figures and how many times ours they are, or why there are none."""
    _common.progress("Flower's SecAgg+ functions, in a process of their own")
    shape = _flower.Shape(n=100, t=67, lost=10, size=NUM_PARAMETERS)
    found = _flower.measure(shape, SMALL_ROUND, repetitions=repetitions)
    if isinstance(found, _flower.Unavailable):
        _common.progress(f"Flower is not measured: {found.reason}")
        return {"flower": None, "flower_unavailable": found.reason, "flower_server_s": None}
    composed, ours_device_s = _flower.composed(found, shape), ours.device_share_s + ours.device_mask_s
    return {
        "flower": f"flwr {_flower.VERSION}; *_server_s and *_device_s are composed from measured primitives",
        **composed,
        "flower_primitives_s": {name: value for name, value in found.items() if name.endswith("_s")},
        "flower_bytes_per_parameter": round(found["bytes_per_parameter"], 5),
        "flower_over_ours_server": round(composed["flower_server_s"] / ours.server_s, 1),
        "flower_over_ours_device": round(composed["flower_device_s"] / ours_device_s, 1),
        "flower_over_ours_bytes": round(found["bytes_per_parameter"] / (ours.payload_bytes / NUM_PARAMETERS), 2),
        **_whole_round("small_round", SMALL_ROUND, found, repetitions),
    }


def _one_more_round(name: str, shape: _flower.Shape, repetitions: int) -> dict[str, Any]:
    """Return the figures of one more whole round, both measured anew."""
    _common.progress(f"a whole round of {shape.n} devices, Flower's and ours")
    found = _flower.measure(SMALL_ROUND, shape, repetitions=1)
    if isinstance(found, _flower.Unavailable):
        return {f"{name}_unavailable": found.reason}
    return _whole_round(name, shape, found, repetitions)


def _whole_round(name: str, shape: _flower.Shape, found: Mapping[str, float], repetitions: int) -> dict[str, Any]:
    """Return what a whole round takes, of which `found` has Flower's times, under keys with this name."""
    flower_s = found["small_devices_s"] + found["small_server_s"]
    config = _small_config(shape.n, shape.size)
    ours_s = min(measure(config, lost=shape.lost, repetitions=1).all_parties_s for _ in range(repetitions))
    return {
        name: f"{shape.n} devices, {shape.lost} lost, {shape.size} parameters, all parties' CPU seconds",
        f"{name}_s": round(ours_s, 3),
        f"flower_{name}_s": round(flower_s, 3),
        f"flower_over_ours_{name}": round(flower_s / ours_s, 1),
    }


# Memory


def _memory(cohorts: tuple[int, int]) -> dict[str, Any]:
    """Return peak memory of a round in vectors of 4 bytes a parameter, and what more devices add to it."""
    peaks = []
    for n in cohorts:
        _common.progress(f"memory of {n} devices, in a fresh process")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            peaks.append(pool.submit(_peak_growth, n).result() / (4 * NUM_PARAMETERS))
    return {
        "memory_vectors": round(peaks[-1], 2),
        "memory_of_devices": list(cohorts),
        "memory_growth_of_more_devices": round(peaks[-1] - peaks[0], 2),
    }


def _peak_growth(n: int) -> float:
    """Return by how many bytes this process's memory grows at most from the first upload to the opened sum."""
    before = 0

    def note() -> None:
        nonlocal before
        before = _resident()

    measure(_small_config(n, NUM_PARAMETERS), lost=1, repetitions=1, before_uploads=note)
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before)


def _resident() -> int:
    """Return the bytes that this process has in memory now; its peak where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# Masks alone


def mask_times(num_masks: int, repetitions: int) -> tuple[float, float]:
    """Return CPU seconds of the key stream of a mask of NUM_PARAMETERS words, and how many times that masking takes.

    Masking is key stream added to a vector; both take turns.
    """
    seeds = [secrets.token_bytes(32) for _ in range(num_masks)]
    vector = np.zeros(NUM_PARAMETERS, np.uint32)
    ways: dict[str, Way] = {
        "prg": lambda: timed(partial(_expand, seeds)),
        "mask": lambda: timed(partial(add_masks, vector, seeds[::2], seeds[1::2])),
    }
    found = in_turns(ways, repetitions)
    return min(cpu_s for _, cpu_s in found["prg"]) / num_masks, over(found["mask"], found["prg"])[1]


def _expand(seeds: list[bytes]) -> None:
    """Make the bytes of all masks, block by block as `add_masks` does, and add nothing."""
    streams = [key_stream(seed) for seed in seeds]
    target = np.empty(4 * BLOCK_WORDS, np.uint8)
    zeros = memoryview(bytes(4 * BLOCK_WORDS))
    for start in range(0, NUM_PARAMETERS, BLOCK_WORDS):
        size = 4 * min(BLOCK_WORDS, NUM_PARAMETERS - start)
        for stream in streams:
            stream.update_into(zeros[:size], target[:size].data)


# A whole attempt


@dataclass(frozen=True)
class Measured:
    """One attempt's figures; times in CPU seconds unless they say wall."""

    uploads_s: float
    open_s: float
    server_s: float
    server_wall_s: float
    device_mask_s: float
    device_share_s: float
    all_parties_s: float
    num_masks: int
    payload_bytes: int
    upload_bytes: int


def measure(
    config: RoundConfig, *, lost: int, repetitions: int, before_uploads: Callable[[], None] = lambda: None
) -> Measured:
    """Return what an attempt costs of which `lost` devices vanish after sharing; the sum is checked exactly."""
    # 1. Keys and shares.
    server = ServerRound(config, verify=_verify, threads=_common.num_cores())
    devices = {identity.id: _device(config, server, identity) for identity in _identities(config.cohort.n_max)}
    started_s = time.process_time()
    keys = {device_id: device.advertise() for device_id, device in devices.items()}
    for device_id, message in keys.items():
        server.accept_advertise(device_id, message)
    shared = {d: _timed(partial(devices[d].share, roster)) for d, roster in server.close_keys().items()}
    for device_id, share in shared.items():
        server.accept_shares(device_id, share.result)
    delivered = server.close_shares()
    all_parties_s = time.process_time() - started_s
    before_uploads()
    # 2. Masked vectors of those who are left.
    survivors = sorted(delivered)[lost:]
    uploads = _upload(server, {d: devices[d] for d in survivors}, delivered)
    # 3. Agreement and shares of the secrets.
    started_s = time.process_time()
    survivors_message = server.close_upload()
    agreed = {d: devices[d].agree(survivors_message) for d in survivors}
    for device_id, message in agreed.items():
        server.accept_consistency(device_id, message)
    answers = {d: devices[d].unmask(proof) for d, proof in server.close_consistency().items()}
    accepted = _timed(partial(_accept_answers, server, answers))
    all_parties_s += uploads.all_s + time.process_time() - started_s
    # 4. The sum, again and again.
    openings = [_timed(server.open) for _ in range(repetitions)]
    if not np.array_equal(openings[0].result.sum.update * 2**config.numbers.frac_bits, uploads.expected):
        raise SystemExit("the opened sum is not the integer sum: this is a bug, its times mean nothing")
    messages = [m[survivors[0]] for m in (keys, agreed, answers)] + [shared[survivors[0]].result]
    open_s = min(opening.cpu_s for opening in openings) + accepted.cpu_s
    return Measured(
        uploads_s=uploads.accept_s * len(survivors),
        open_s=open_s,
        server_s=uploads.accept_s * len(survivors) + open_s,
        server_wall_s=uploads.accept_wall_s * len(survivors) + min(o.wall_s for o in openings) + accepted.wall_s,
        device_mask_s=uploads.mask_s,
        device_share_s=min(share.cpu_s for share in shared.values()),
        all_parties_s=all_parties_s + min(opening.cpu_s for opening in openings),
        num_masks=_num_masks(server, survivors),
        payload_bytes=server.payload_bytes,
        upload_bytes=server.payload_bytes + uploads.message_bytes + sum(map(len, messages)),
    )


@dataclass(frozen=True)
class _Uploads:
    """Best times of one upload, on the device and on the server; time and plain integer sum of all."""

    all_s: float
    mask_s: float
    accept_s: float
    accept_wall_s: float
    message_bytes: int
    expected: NDArray[np.int64]


def _upload(server: ServerRound, devices: Mapping[bytes, DeviceRound], delivered: Mapping[bytes, bytes]) -> _Uploads:
    """Mask and accept one vector after another, so that only one is in memory."""
    config, message_bytes = server.config, 0
    expected = np.zeros(config.size, np.int64)
    masks, accepts = [], []
    for number, (device_id, device) in enumerate(devices.items()):
        addends = _addends(config, number)
        steps = (addends.update.astype(np.float64) * 2**config.numbers.frac_bits).astype(np.int64)
        expected += addends.weight * steps
        masked = _timed(partial(device.mask, delivered[device_id], addends))
        message, payload = masked.result.message, masked.result.payload
        accepted = _timed(partial(server.accept_masked, device_id, message, payload))
        masks.append(masked.cpu_s)
        accepts.append((accepted.cpu_s, accepted.wall_s))
        message_bytes = len(message)
    best_s, best_wall_s = (min(times) for times in zip(*accepts, strict=True))
    all_s = sum(masks) + sum(cpu_s for cpu_s, _ in accepts)
    return _Uploads(all_s, min(masks), best_s, best_wall_s, message_bytes, expected)


def _accept_answers(server: ServerRound, answers: Mapping[bytes, bytes]) -> None:
    for device_id, message in answers.items():
        server.accept_unmask(device_id, message)


def _num_masks(server: ServerRound, survivors: list[bytes]) -> int:
    """Return how many masks the server expands: one a survivor, one for each lost neighbour of one."""
    topology = server.topology
    alive = {topology.index_of[device] for device in survivors}
    return sum(1 + sum(i not in alive for i in topology.graph.neighbours(index)) for index in alive)


@dataclass(frozen=True)
class _Timed(Generic[_T]):
    """What a call returned, its CPU seconds (all threads) and its wall-clock seconds."""

    result: _T
    cpu_s: float
    wall_s: float


def _timed(call: Callable[[], _T]) -> _Timed[_T]:
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return _Timed(result, time.process_time() - cpu, time.perf_counter() - wall)


# Who and what


def _config(n: int, cohort: CohortTerms, *, size: int = NUM_PARAMETERS, ring_bits: int = 32) -> RoundConfig:
    numbers = plan_numbers(n, l2_clip=1000.0, max_weight=16 if ring_bits == 32 else 1, ring_bits=ring_bits)
    return RoundConfig(
        task_id=bytes(16),
        task_sha256=bytes(32),
        round=RoundNumber(1),
        attempt=AttemptNumber(1),
        model_sha256=bytes(32),
        layout_sha256=bytes(32),
        statement_sha256=bytes(32),
        size=size,
        num_metrics=2,
        numbers=numbers,
        cohort=cohort,
    )


def _small_config(n: int, size: int, *, ring_bits: int = 32) -> RoundConfig:
    """Return a round of n devices in the default profile, a complete graph up to 97."""
    return _config(n, CohortTerms(Profile.MALICIOUS_SERVER, 3, n), size=size, ring_bits=ring_bits)


def _addends(config: RoundConfig, number: int) -> Addends:
    """Return an update whose elements lie on the grid of steps, so that rounding is exact and the sum is known."""
    span = 2 ** min(12, config.numbers.frac_bits)
    steps = np.random.default_rng(number).integers(-span, span, config.size)
    return Addends(
        number % config.numbers.max_weight + 1, (steps * 2.0**-config.numbers.frac_bits).astype(np.float32), (1.0, 2.0)
    )


def _identities(n: int) -> list[Identity]:
    """Return fresh identities; a leaf is a public key here, because checking chains is not what is measured."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(n)]
    return [Identity(identity_id(k.public_key()), k.public_key().public_bytes(*_SPKI), EcdsaSigner.of(k)) for k in keys]


_known: dict[bytes, VerifiedLeaf] = {}


def _verify(leaf: bytes) -> VerifiedLeaf:
    if leaf not in _known:
        key = serialization.load_der_public_key(leaf)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise CertificateError("not a key of this benchmark")
        _known[leaf] = VerifiedLeaf(identity_id(key), key, 0)
    return _known[leaf]


def _device(config: RoundConfig, server: ServerRound, identity: Identity) -> DeviceRound:
    c = config
    return DeviceRound(
        server.invite,
        identity=identity,
        assignment=Assignment(
            c.task_id, c.task_sha256, c.model_sha256, c.layout_sha256, c.statement_sha256, c.size, c.num_metrics
        ),
        policy=replace(DevicePolicy(), min_cohort=config.cohort.n_min),
        verify=_verify,
        log=MemoryLog(),
        random_bytes=secrets.token_bytes,
    )


if __name__ == "__main__":
    main()
