"""The other replicas, over mutual TLS: one channel to each, proved by a certificate of the coordinator's authority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import grpc

from coordinator.keys import pki
from mien.errors import MienError, UnreachableError
from mien.protocol import MAX_MESSAGE_BYTES
from mien.protocol.status import from_rpc_error, is_ours
from mien.protocol.v1 import replicas_pb2_grpc

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A replica whose machine has fallen silent is noticed while a call waits for it."""

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
)

RETRY_AFTER_S: Final = 0.5


@dataclass(frozen=True)
class _Peer:
    address: str
    channel: grpc.aio.Channel
    ends: datetime


class Peers:
    """Channels to the other replicas, opened when they are first needed."""

    def __init__(self, authority: pki.Authority, replica_id: str, clock: Callable[[], datetime]) -> None:
        self._authority, self._replica_id, self._clock = authority, replica_id, clock
        self._peers: dict[str, _Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, replica_id: str, address: str) -> grpc.aio.Channel:
        """Return the channel to a replica; it proves this one by a certificate that is renewed when it is due."""
        peer, now = self._peers.get(replica_id), self._clock()
        if peer is None or peer.address != address or pki.is_due(peer.ends, self._authority, now):
            leaf = pki.issue_replica_leaf(self._authority, self._replica_id, now)
            tls = grpc.ssl_channel_credentials(self._authority.certificate_pem, leaf.key_pem, leaf.chain_pem)
            channel = grpc.aio.secure_channel(address, tls, options=OPTIONS)
            self._drop(replica_id)
            peer = self._peers[replica_id] = _Peer(address, channel, leaf.certificate.not_valid_after_utc)
        return peer.channel

    def stub(self, replica_id: str, address: str) -> replicas_pb2_grpc.ReplicasAsyncStub:
        """Return the gRPC stub of a replica."""
        return replicas_pb2_grpc.ReplicasStub(self.channel(replica_id, address))

    def keep_only(self, addresses: Mapping[str, str]) -> None:
        """Close the channels to replicas that are gone."""
        for replica_id in set(self._peers) - set(addresses):
            self._drop(replica_id)

    async def close(self) -> None:
        """Close all channels."""
        self.keep_only({})
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, replica_id: str) -> None:
        if (peer := self._peers.pop(replica_id, None)) is not None:
            closing = asyncio.create_task(peer.channel.close(), name="closing a channel")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def explained(error: grpc.aio.AioRpcError) -> MienError:
    """Return the error that another replica answered with, or that it is away: whoever asked may try again."""
    if is_ours(error):
        return from_rpc_error(error, peer="another replica")
    return UnreachableError(
        "the replica that runs this task does not answer; another one takes over in a moment, try again",
        retry_after_s=RETRY_AFTER_S,
    )
