"""The registrar's revocation list as the coordinator holds it: on disk, fetched anew every few seconds."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator import pki
from coordinator.clock import Clock
from coordinator.registrar.client import fetch_revocations
from mien.errors import AuthError, MienError, UnreachableError
from mien.shell.files import read_limited, write_atomically

_LOG: Final = structlog.get_logger()


class Revocations:
    """Answers whether a device's certificate was revoked, and knows how old its answer is.

    A list with a smaller number than the one at hand never replaces it. The file's time says when the registrar last
    confirmed it, so that a restart does not make an old list look fresh.
    """

    def __init__(
        self,
        path: Path,
        registrar_ca: x509.Certificate,
        clock: Clock,
        *,
        max_age_s: float,
        on_new: Callable[[int, str], Awaitable[None]] | None = None,
    ) -> None:
        """`on_new` is told the number and hash of a list with another number than the one at hand."""
        self._on_new = on_new
        self._path, self._ca, self._clock, self._max_age_s = path, registrar_ca, clock, max_age_s
        self._crl: x509.CertificateRevocationList | None = None
        self._confirmed_at = float("-inf")
        if path.is_file():
            self._crl = pki.load_crl(read_limited(path, pki.MAX_CRL_BYTES, what=path.name), registrar_ca)
            self._confirmed_at = path.stat().st_mtime

    @property
    def age_s(self) -> float:
        """Return how long ago the registrar confirmed the list; infinite when there is none."""
        return self._clock.now() - self._confirmed_at

    def check(self, serial: int) -> None:
        """Raise RevokedError for a revoked certificate, UnreachableError when the list is too old to tell."""
        if self._crl is not None:
            pki.check_revoked(self._crl, serial)
        self.check_age()

    def check_age(self) -> None:
        """Raise UnreachableError when the list is too old to tell who was revoked."""
        if self.age_s > self._max_age_s:
            raise UnreachableError(
                "the coordinator has no recent revocation list, so devices must wait; start the registrar",
                retry_after_s=10.0,
            )

    def accept(self, crl: x509.CertificateRevocationList) -> None:
        """Keep a list that the registrar has just given, unless it is older than the one at hand."""
        if self._crl is not None and pki.crl_number(crl) < pki.crl_number(self._crl):
            _LOG.error("registrar gave an older revocation list than before; it was not taken")
            return
        if self._crl is None or pki.crl_number(crl) > pki.crl_number(self._crl):
            write_atomically(self._path, crl.public_bytes(Encoding.DER))
            _LOG.info("revocation list", number=pki.crl_number(crl))
        self._crl = crl
        self._confirmed_at = self._clock.now()
        os.utime(self._path, (self._confirmed_at, self._confirmed_at))

    async def fetch(self, address: str, *, timeout_s: float = 10.0) -> None:
        """Ask the registrar once; raises UnreachableError or CertificateError."""
        crl = await fetch_revocations(address, self._ca, timeout_s=timeout_s)
        before = self._crl
        self.accept(crl)
        if (
            self._on_new is not None
            and self._crl is crl
            and (before is None or pki.crl_number(before) != pki.crl_number(crl))
        ):
            await self._on_new(pki.crl_number(crl), hashlib.sha256(crl.public_bytes(Encoding.DER)).hexdigest())

    async def keep_fresh(self, address: str, every_s: float) -> None:
        """Ask the registrar again and again; failures are logged, loudly once the list is overdue."""
        while True:
            try:
                await self.fetch(address)
            except MienError as error:
                overdue = self.age_s > max(10 * every_s, 60.0) or isinstance(error, AuthError)
                log = _LOG.error if overdue else _LOG.warning
                log("revocation list not confirmed", age_s=round(min(self.age_s, 1e9)), reason=error.message)
            await asyncio.sleep(every_s)
