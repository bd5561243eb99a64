"""What looking a round or a release up in the log costs a phone: bytes of the answer, and milliseconds to check it.

The log is in memory and has as many entries as a fleet makes in a week or in years; the phone's part is its own code,
with its sealed file. The network is left out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import _common
from device_sdk.rounds.round_log import LogFiles, RoundLog
from device_sdk.server.client import CoordinatorClient, LogProof
from device_sdk.server.identity import KEY_LABEL
from device_sdk.storage.keystore import FileKeyStore
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteSigner
from mien.log.entries import release_entry, round_entry
from mien.log.merkle import appended, consistency_proof, inclusion_proof, leaf_hash, tree_root
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import RoundRef
from mien.protocol.v1 import rounds_pb2
from mien.shell.clock import Clock

BETWEEN: Final = 200
"""Entries between two looks of a phone: rounds of others, their rosters, and certificates."""

REF: Final = RoundRef(TaskId("task"), RoundNumber(1), AttemptNumber(1))
RELEASED: Final = ModelId("b" * 64), PopulationId("everybody")
HASHES: Final = dict.fromkeys(("task_sha256", "model_sha256", "layout_sha256", "statement_sha256"), "1" * 64)


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("round_log", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    sizes, looks = ((1_000, 20_000), 5) if args.quick else ((1_000, 1_000_000), 50)
    return {
        "benchmark": "round_log",
        "quick": args.quick,
        "entries_between_looks": BETWEEN,
        "logs": [_looks(size, looks) for size in sizes],
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


class _Log:
    """A coordinator's log in memory, which proves its newest entry."""

    def __init__(self, rng: random.Random) -> None:
        self._nodes: dict[tuple[int, int], bytes] = {}
        self._signer = NoteSigner.of(LOG, Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)))
        self.witness = NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)))
        self.size, self._answer = 0, rounds_pb2.ProveRoundReply()

    def append(self, data: bytes) -> None:
        for level, index, made in appended(lambda *at: self._nodes[at], self.size, leaf_hash(data)):
            self._nodes[level, index] = made
        self.size += 1

    def prepare(self, first_size: int, entry: bytes = b"") -> int:
        """Make the next answer, as the network would bring it, and return its bytes."""
        nodes, size = (lambda *at: self._nodes[at]), self.size
        text = Checkpoint(self._signer.key.name, size, tree_root(nodes, size)).text
        note = Note(text, (self._signer.sign(text), self.witness.sign(text, int(time.time()))))
        self._answer = rounds_pb2.ProveRoundReply(
            checkpoint=str(note),
            log_key=self._signer.key.public,
            position=size - 1,
            inclusion=inclusion_proof(nodes, size - 1, size),
            consistency=consistency_proof(nodes, first_size, size),
            entry=entry,
        )
        return len(self._answer.SerializeToString())

    def prove_round(self, _ref: RoundRef, _first_size: int) -> LogProof:
        reply = self._answer
        proofs = tuple(reply.inclusion), tuple(reply.consistency)
        return LogProof(reply.checkpoint, reply.log_key, reply.position, *proofs, reply.entry)

    def prove_release(self, _model_id: ModelId, first_size: int) -> LogProof:
        return self.prove_round(REF, first_size)


def _looks(size: int, looks: int) -> Mapping[str, Any]:
    """Return the cost of looks at a log that grows to `size`."""
    rng, log, seen = random.Random(0), None, 0
    log = _Log(rng)
    for number in range(size - 2 * looks * BETWEEN):
        log.append(number.to_bytes(8, "big"))
    bytes_: dict[str, list[int]] = {"round": [], "release": []}
    seconds: dict[str, list[float]] = {"round": [], "release": []}
    with tempfile.TemporaryDirectory() as folder:
        key_store = FileKeyStore(Path(folder) / "keys")
        key_store.create(KEY_LABEL)
        files = LogFiles(Path(folder) / "last", Path(folder) / "evidence", key_store)
        check = RoundLog(log.witness.key, files, lambda: True, Clock())
        client = cast(CoordinatorClient, log)
        for look in range(looks):
            for of in bytes_:
                for _ in range(BETWEEN - 1):
                    log.append(rng.randbytes(8))
                is_round = of == "round"
                entry = round_entry("ab" * 16, look, 1, **HASHES) if is_round else release_entry(*RELEASED, 1.0)
                log.append(entry.data)
                bytes_[of].append(log.prepare(seen, b"" if is_round else entry.data))
                begun = time.perf_counter()
                said = check.check(client, REF, entry) if is_round else check.check_release(client, *RELEASED)
                seconds[of].append(time.perf_counter() - begun)
                assert said == ""
                seen = log.size
    return {
        "entries": log.size,
        "answer_bytes": statistics.median(bytes_["round"][1:]),
        "largest_answer_bytes": max(bytes_["round"]),
        "check_ms": 1e3 * statistics.median(seconds["round"][1:]),
        "release_answer_bytes": statistics.median(bytes_["release"]),
        "release_check_ms": 1e3 * statistics.median(seconds["release"]),
    }


if __name__ == "__main__":
    main()
