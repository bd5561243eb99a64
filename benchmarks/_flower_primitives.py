# mypy: ignore-errors
"""Times Flower's own SecAgg+ functions; run by `benchmarks.secagg` in a virtual environment of Flower's.

It imports nothing of Mien. One line of JSON on standard output: CPU seconds of this process, all threads together, the
best of several repetitions, for each function as Flower's client or server calls it; then one small round through
Flower's own client functions, its server's steps in the order of its workflow, and a check of the sum.

    python _flower_primitives.py '{"n": 100, "t": 67, "lost": 10, "size": 1000000, "repetitions": 3, ...}'
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    Key,
    SecAggPlusState,
    _collect_masked_vectors,
    _setup,
    _share_keys,
    _unmask,
)
from flwr.common import bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

CLIP, TARGET, MODULUS, MAX_WEIGHT = 8.0, 1 << 22, 1 << 32, 1000.0  # the workflow's defaults
LONG_REPETITIONS = 2  # of what takes seconds, and is most of the composed times: once alone is another figure each time
T = TypeVar("T")


def main() -> None:
    """Print the figures that the one argument asks for."""
    order = json.loads(sys.argv[1])
    rounds = [small_round(order["small"]) for _ in range(order["repetitions"])]
    best = min(rounds, key=lambda parts: sum(parts.values()))
    figures = {"version": importlib.metadata.version("flwr"), **primitives(order), **best}
    sys.stdout.write(json.dumps(figures) + "\n")


def primitives(order: dict[str, int]) -> dict[str, float]:
    """Return seconds of each function at the round's size, and bytes a parameter of an upload."""
    n, t, survivors, repetitions = order["n"], order["t"], order["n"] - order["lost"], order["repetitions"]
    shape = [(order["size"],)]
    vector = [np.zeros(order["size"], np.int64)]
    update = [np.random.default_rng(0).normal(0, 0.1, order["size"])]
    (sk1, pk1), (sk2, _) = generate_key_pairs(), generate_key_pairs()
    key, public, other = private_key_to_bytes(sk1), public_key_to_bytes(pk1), private_key_to_bytes(sk2)
    seed = os.urandom(32)
    shared_key = generate_shared_key(sk2, pk1)
    key_shares, share_key_s = timed(lambda: create_shares(key, t, n), LONG_REPETITIONS)
    seed_shares, share_seed_s = timed(lambda: create_shares(seed, t, n), LONG_REPETITIONS)
    combined, combine_key_s = timed(lambda: combine_shares(key_shares[:survivors]), LONG_REPETITIONS)
    _, combine_seed_s = timed(lambda: combine_shares(seed_shares[:survivors]), LONG_REPETITIONS)
    if combined != key:
        raise SystemExit("Flower's shares do not give its key back: its times mean nothing")
    mask, mask_s = timed(lambda: pseudo_rand_gen(seed, MODULUS, shape), repetitions)
    masked = parameters_mod(parameters_addition(vector, mask), MODULUS)
    upload, pack_s = timed(lambda: ndarray_to_bytes(masked[0]), repetitions)
    ciphertext, encrypt_s = timed(lambda: encrypt(shared_key, key_shares[0] + seed_shares[0]), 20)
    return {
        "mask_s": mask_s,
        "add_s": timed(lambda: parameters_addition(vector, mask), repetitions)[1],
        "mod_s": timed(lambda: parameters_mod(masked, MODULUS), repetitions)[1],
        "quantise_s": timed(lambda: quantize(update, CLIP, TARGET), repetitions)[1],
        "agree_s": timed(lambda: generate_shared_key(bytes_to_private_key(other), bytes_to_public_key(public)), 20)[1],
        "key_pair_s": timed(generate_key_pairs, 20)[1],
        "share_key_s": share_key_s,
        "share_seed_s": share_seed_s,
        "combine_key_s": combine_key_s,
        "combine_seed_s": combine_seed_s,
        "encrypt_s": encrypt_s,
        "decrypt_s": timed(lambda: decrypt(shared_key, ciphertext), 20)[1],
        "pack_s": pack_s,
        "unpack_s": timed(lambda: bytes_to_ndarray(upload), repetitions)[1],
        "bytes_per_parameter": len(upload) / order["size"],
    }


def small_round(order: dict[str, int]) -> dict[str, float]:
    """Return CPU seconds of a whole small round, all devices together and the server."""
    n, t, lost, size = order["n"], order["t"], order["lost"], order["size"]
    ids = list(range(1, n + 1))
    updates = {i: np.random.default_rng(i).normal(0, 0.1, size) for i in ids}
    devices_s = 0.0

    def on_device(call: Callable[[], T]) -> T:
        nonlocal devices_s
        result, seconds = timed(call, 1)
        devices_s += seconds
        return result

    # 1. Keys and shares.
    states = {i: SecAggPlusState(nid=i) for i in ids}
    terms: dict[str, Any] = dict(
        zip(
            ("sample_num", "share_num", "threshold", "clipping_range", "target_range", "mod_range", "max_weight"),
            (n, n, t, CLIP, TARGET, MODULUS, MAX_WEIGHT),
            strict=True,
        )
    )
    keys = {i: on_device(lambda i=i: _setup(states[i], terms)) for i in ids}
    public = {str(i): (keys[i]["pk1"], keys[i]["pk2"]) for i in ids}
    shares = {i: on_device(lambda i=i: _share_keys(states[i], public)) for i in ids}
    sealed: dict[int, dict[str, list[Any]]] = {i: {"srcs": [], "ctxts": []} for i in ids}
    for source, message in shares.items():
        for target, ciphertext in zip(*message.values(), strict=True):
            sealed[target]["srcs"].append(source)
            sealed[target]["ctxts"].append(ciphertext)
    # 2. Masked vectors of those who are left.
    alive, dead = ids[lost:], ids[:lost]
    uploads = {}
    for i in alive:
        parameters = ndarrays_to_parameters([updates[i]])
        masked = on_device(lambda i=i, p=parameters: _collect_masked_vectors(states[i], _order(sealed[i]), 500, p))
        (uploads[i],) = masked.values()
    # 3. Shares of the secrets, and the sum.
    asked = {"active_nids": alive, "dead_nids": dead}
    answers = [on_device(lambda i=i: _unmask(states[i], asked)) for i in alive]
    total, server_s = timed(lambda: _server(uploads, answers, ids, dead, public), 1)
    ratio = round(500 / MAX_WEIGHT * TARGET)
    mean = (total[1] * (2 * CLIP / TARGET) - CLIP * len(alive)) / (len(alive) * ratio / TARGET)
    if total[0][0] != len(alive) * ratio or np.abs(mean - np.mean([updates[i] for i in alive], axis=0)).max() > 1e-4:
        raise SystemExit("Flower's sum is not the plain sum: its times mean nothing")
    return {"small_devices_s": devices_s, "small_server_s": server_s}


def _order(sealed: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the message of the third stage under the names that the client looks up."""
    return {str(Key.SOURCE_LIST): sealed["srcs"], str(Key.CIPHERTEXT_LIST): sealed["ctxts"]}


def _server(
    uploads: dict[int, list[bytes]],
    answers: list[dict[str, Any]],
    ids: list[int],
    dead: list[int],
    public: dict[str, tuple[bytes, bytes]],
) -> list[Any]:
    """Return the unmasked sum: what SecAggPlusWorkflow does in its last two stages."""
    total: list[Any] = []
    for blobs in uploads.values():
        vector = [bytes_to_ndarray(blob) for blob in blobs]
        total = parameters_addition(total, vector) if total else vector
    total = parameters_mod(total, MODULUS)
    collected: dict[int, list[bytes]] = {i: [] for i in ids}
    for answer in answers:
        for owner, share in zip(*answer.values(), strict=True):
            collected[owner].append(share)
    shapes = [array.shape for array in total]
    for owner, owned in collected.items():
        secret = combine_shares(owned)
        if owner not in dead:
            total = parameters_subtraction(total, pseudo_rand_gen(secret, MODULUS, shapes))
            continue
        for peer in ids:
            if peer != owner:
                shared = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(public[str(peer)][0]))
                mask = pseudo_rand_gen(shared, MODULUS, shapes)
                total = (parameters_addition if owner > peer else parameters_subtraction)(total, mask)
    return parameters_mod(total, MODULUS)


def timed(call: Callable[[], T], repetitions: int) -> tuple[T, float]:
    """Return what a call returns and its CPU seconds, the best of several."""
    best = float("inf")
    for _ in range(repetitions):
        started = time.process_time()
        result = call()
        best = min(best, time.process_time() - started)
    return result, best


if __name__ == "__main__":
    main()
