"""The registrar's revocation list as the coordinator holds it: on disk, fetched anew every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.keys import pki
from mien.errors import AuthError, CertificateError, CorruptDataError, MienError, UnreachableError
from mien.shell.clock import Clock
from mien.shell.files import read_limited, write_atomically

_LOG: Final = structlog.get_logger()
_MAX_KEPT_BYTES: Final = 4 * pki.MAX_CRL_BYTES


class Revocations:
    """Revocations of devices' certificates, with the age of the list.

    Whom one list named no later one lets in again before the certificate has ended: a registrar that was set back to an
    older state has forgotten revocations. What it forgot is kept beside the list at hand. A list with a smaller number
    than that one, or with its number and other content, never replaces it, but whom it names is refused as well. The
    file's time says when the registrar last confirmed the list, so that a restart does not make an old list look fresh.
    """

    def __init__(
        self,
        path: Path,
        registrar_ca: x509.Certificate,
        clock: Clock,
        *,
        max_age_s: float,
        on_new: Callable[[str, int, Mapping[str, object]], Awaitable[None]] | None = None,
        first_ask: tuple[str, Callable[[], pki.Credentials]] | None = None,
    ) -> None:
        """`on_new` receives every list that is new: what was done with it, its number, and what else the log tells.

        `first_ask` is the registrar's operators' port, and what makes this coordinator's credentials for it: there
        strangers do not stand in the way. Where it does not answer, the joining port is asked.

        Raises CorruptDataError or CertificateError when what was kept on disk is damaged.
        """
        self._on_new, self._first_ask = on_new, first_ask
        self._path, self._ca, self._clock, self._max_age_s = path, registrar_ca, clock, max_age_s
        self._crl: x509.CertificateRevocationList | None = None
        self._listed: Mapping[int, int] = {}  # a list searches itself from its beginning, at every call of a phone
        self._confirmed_at = float("-inf")
        self._kept, self._refused = _read_kept(path)
        if path.is_file():
            self._crl = pki.load_crl(read_limited(path, pki.MAX_CRL_BYTES, what=path.name), registrar_ca)
            self._listed = _entries(self._crl)
            self._confirmed_at = path.stat().st_mtime

    @property
    def age_s(self) -> float:
        """Return how long ago the registrar confirmed the list; infinite when there is none."""
        return self._clock.now() - self._confirmed_at

    @property
    def der(self) -> bytes:
        """The list at hand, as the registrar signed it; raises UnreachableError where there is none."""
        if self._crl is None:
            raise UnreachableError("the coordinator has no revocation list; start the registrar", retry_after_s=10.0)
        return self._crl.public_bytes(Encoding.DER)

    @property
    def num_forgotten(self) -> int:
        """Return how many certificates are refused though the list at hand does not name them (any more)."""
        return _num_valid(self._kept, self._clock.now())

    @property
    def is_refused(self) -> bool:
        """Return whether the registrar's newest answer was a list that was not taken."""
        return bool(self._refused)

    def check(self, serial: int) -> None:
        """Raise RevokedError for a revoked certificate, UnreachableError when the list is too old to tell."""
        if serial in self._kept or serial in self._listed:
            raise pki.revoked()
        self.check_age()

    def check_age(self) -> None:
        """Raise UnreachableError when the list is too old to tell who was revoked."""
        if self.age_s > self._max_age_s:
            raise UnreachableError(
                "the coordinator has no recent revocation list, so devices must wait; start the registrar",
                retry_after_s=10.0,
            )

    def accept(self, crl: x509.CertificateRevocationList) -> str:
        """Take a list that the registrar has just given, or refuse it; either way nobody whom it names is let in.

        Returns what the audit log is to say of it, empty for a list that is known.
        """
        if crl == self._crl:
            return self._confirm()
        known, given = self._listed, _entries(crl)
        number, last = pki.crl_number(crl), -1 if self._crl is None else pki.crl_number(self._crl)
        if number == last and given.keys() == known.keys():  # signed anew, for phones that ask how old it is
            if self._crl is not None and crl.last_update_utc > self._crl.last_update_utc:
                write_atomically(self._path, crl.public_bytes(Encoding.DER))
                self._crl = crl
            return self._confirm()
        if number <= last:
            return self._refuse(crl, {each: when for each, when in given.items() if each not in known})
        now, before = self._clock.now(), {**known, **self._kept}
        forgotten = {each: when for each, when in before.items() if each not in given and _has_not_ended(when, now)}
        return self._take(crl, given, forgotten)

    def _take(self, crl: x509.CertificateRevocationList, given: Mapping[int, int], forgotten: Mapping[int, int]) -> str:
        """Put a list in force; what an earlier one named stays revoked."""
        is_worse = not forgotten.keys() <= self._kept.keys()
        self._keep(forgotten, "")  # first: a crash between the two files then lets nobody in
        write_atomically(self._path, crl.public_bytes(Encoding.DER))
        self._crl, self._listed = crl, given
        _LOG.info("revocation list", number=pki.crl_number(crl))
        if is_worse:
            _LOG.error(
                "registrar forgot revocations; they stay in force here, revoke those phones again",
                number=pki.crl_number(crl),
                certificates=len(forgotten),
            )
        self._confirm()
        return "revocations.accept"

    def _refuse(self, crl: x509.CertificateRevocationList, more: dict[int, int]) -> str:
        """Keep the list at hand, and refuse whom the other one names as well; not a confirmation."""
        sha256, number = _sha256(crl), pki.crl_number(crl)
        _LOG.error("registrar gave a revocation list that contradicts an earlier one; it was not taken", number=number)
        if sha256 == self._refused:
            return ""
        self._keep(self._kept | more, sha256)
        return "revocations.refuse"

    def _confirm(self) -> str:
        """Note that the registrar stands by the list at hand."""
        self._keep(self._kept, "")
        self._confirmed_at = self._clock.now()
        os.utime(self._path, (self._confirmed_at, self._confirmed_at))
        return ""

    def _keep(self, kept: Mapping[int, int], refused: str) -> None:
        """Write down whom the list at hand does not name, and the hash of the list that was refused."""
        if (kept, refused) == (self._kept, self._refused):
            return
        serials = {f"{serial:x}": revoked_s for serial, revoked_s in kept.items()}
        content = json.dumps({"revoked_unix_s": serials, "refused_list_sha256": refused})
        write_atomically(_kept_path(self._path), content.encode())
        self._kept, self._refused = dict(kept), refused

    async def fetch(self, address: str, *, timeout_s: float = 10.0) -> None:
        """Ask the registrar once; raises UnreachableError or CertificateError."""
        from coordinator.operator.registrar_client import (
            fetch_revocations,  # the dashboard reads lists, and needs no gRPC
        )

        crl = None
        if self._first_ask is not None:
            with contextlib.suppress(MienError):
                at, made = self._first_ask
                crl = await fetch_revocations(at, self._ca, credentials=made(), timeout_s=timeout_s / 2)
        if crl is None:
            crl = await fetch_revocations(address, self._ca, timeout_s=timeout_s)
        action = self.accept(crl)
        if self._on_new is not None and action:
            detail: dict[str, object] = {"sha256": _sha256(crl)}
            if self.num_forgotten:
                detail["forgotten"] = self.num_forgotten
            await self._on_new(action, pki.crl_number(crl), detail)

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


def _sha256(crl: x509.CertificateRevocationList) -> str:
    return hashlib.sha256(crl.public_bytes(Encoding.DER)).hexdigest()


def _entries(crl: x509.CertificateRevocationList) -> dict[int, int]:
    """Return the serial numbers on a list with when each was revoked, in Unix seconds."""
    return {entry.serial_number: int(entry.revocation_date_utc.timestamp()) for entry in crl}


def _has_not_ended(revoked_unix_s: int, now: float) -> bool:
    """Return whether a certificate that was revoked then may be valid still: it had been issued by that time."""
    return revoked_unix_s + pki.MAX_DEVICE_LIFETIME.total_seconds() > now


def _num_valid(kept: Mapping[int, int], now: float) -> int:
    return sum(_has_not_ended(revoked_s, now) for revoked_s in kept.values())


def _kept_path(crl_path: Path) -> Path:
    return crl_path.with_suffix(".revoked")


def check_lists(crl_path: Path, clock: Clock) -> None:
    """Raise CertificateError when the registrar contradicts or forgot what its lists until that at `crl_path` said.

    Raises CorruptDataError when what was kept of that is damaged.
    """
    kept, refused = _read_kept(crl_path)
    if refused:
        raise CertificateError(
            "the registrar gave a revocation list that contradicts an earlier one, and it was not taken; if the "
            "registrar was set back to an older state, put its backup in a new folder with mien-registrar restore"
        )
    num_forgotten = _num_valid(kept, clock.now())
    if num_forgotten:
        raise CertificateError(
            f"the registrar forgot that {num_forgotten} certificates are revoked; they are refused all the same, but "
            "revoke their phones again (mien-coordinator device revoke), or they may renew"
        )


def _read_kept(crl_path: Path) -> tuple[dict[int, int], str]:
    """Return what `_keep` wrote beside the list at `crl_path`; raises CorruptDataError."""
    path = _kept_path(crl_path)
    if not path.is_file():
        return {}, ""
    try:
        content = json.loads(read_limited(path, _MAX_KEPT_BYTES, what=path.name))
        kept = {int(serial, 16): int(revoked_s) for serial, revoked_s in content["revoked_unix_s"].items()}
        return kept, str(content["refused_list_sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            f"{path.name} is damaged, so revoked phones might be let in; restore it from a backup"
        ) from error
