"""Channels between replicas: kept as long as their certificates are good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from coordinator.keys import pki
from coordinator.replicas.peers import Peers

FOUNDED = datetime(2026, 3, 1, tzinfo=UTC)
ADDRESS = "127.0.0.1:9"


def test_a_channel_is_opened_anew_when_its_certificate_is_due_and_not_in_an_authoritys_last_month() -> None:
    """There each call opened another, by a certificate of the same end."""

    async def calls() -> None:
        now = FOUNDED
        peers = Peers(pki.create_authority("coordinator", FOUNDED), "one", lambda: now)
        try:
            first = peers.channel("two", ADDRESS)
            assert peers.channel("two", ADDRESS) is first
            now += pki.SERVER_LIFETIME * 2 / 3 + timedelta(minutes=1)
            second = peers.channel("two", ADDRESS)
            assert second is not first
            now = FOUNDED + pki.AUTHORITY_LIFETIME - timedelta(days=20)
            last = peers.channel("two", ADDRESS)
            assert last is not second
            assert peers.channel("two", ADDRESS) is last
        finally:
            await peers.close()

    asyncio.run(calls())
