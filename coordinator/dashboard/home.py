"""The dashboard's folder, within the coordinator's: accounts, and the certificate that browsers see.

::

    dashboard/dashboard.db    accounts, sessions, sign-ins
    dashboard/tls.key/.pem    the certificate of the coordinator's authority, and its key (0600)
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mien.errors import CertificateError, KeyStoreError
from mien.shell.files import InFolder, read_limited, read_private, storage_errors, write_atomically

if TYPE_CHECKING:
    from cryptography import x509

    from coordinator.home.config import CoordinatorConfig
    from coordinator.home.home import CoordinatorHome

_MAX_CHAIN_BYTES: Final = 64 * 1024
LIFETIME: Final = timedelta(days=397)
"""Longest lifetime that browsers accept from an authority that a person trusts."""


@dataclass(frozen=True)
class DashboardHome:
    """The paths in the dashboard's folder."""

    folder: Path

    database_path = InFolder("dashboard.db")
    """Accounts, sessions, sign-ins."""

    key_path = InFolder("tls.key")
    """The key of the certificate."""

    certificate_path = InFolder("tls.pem")
    """The certificate, with the authority's behind it."""

    @classmethod
    def of(cls, home: CoordinatorHome) -> DashboardHome:
        """Return the folder of a coordinator's dashboard, made where it is missing."""
        folder = home.folder / "dashboard"
        with storage_errors(str(folder)):
            folder.mkdir(mode=0o700, exist_ok=True)
        return cls(folder)


def dashboard_names(config: CoordinatorConfig) -> tuple[str, ...]:
    """Return every name and address under which browsers may come: also what the certificate covers."""
    host = config.dashboard_listen.rpartition(":")[0].strip("[]")
    listens = () if host in ("0.0.0.0", "::") else (host,)  # noqa: S104 - compared, not bound
    return tuple(dict.fromkeys((*config.dashboard_names, *listens, "localhost", "127.0.0.1", "::1")))


def certify(home: CoordinatorHome, config: CoordinatorConfig, now: datetime) -> x509.Certificate:
    """Return a new certificate for the dashboard, signed by the coordinator's authority, written with its key."""
    from coordinator.keys import pki

    there = DashboardHome.of(home)
    leaf = pki.issue_server_leaf(home.authority(), dashboard_names(config), now, LIFETIME)
    write_atomically(there.key_path, leaf.key_pem, private=True)
    write_atomically(there.certificate_path, leaf.chain_pem)
    return leaf.certificate


def served_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate of a chain (PEM); raises CertificateError for none, or one that cannot be read."""
    from cryptography import x509

    if not path.is_file():
        raise CertificateError(
            "the dashboard has no certificate yet; run mien-coordinator dashboard certify, or name files of your own "
            "with --certificate and --key"
        )
    try:
        return x509.load_pem_x509_certificate(read_limited(path, _MAX_CHAIN_BYTES, what=path.name))
    except ValueError as error:
        raise CertificateError(f"{path.name} is not a certificate in PEM; name another, or certify again") from error


def tls_context(certificate: Path, key: Path, now: datetime) -> ssl.SSLContext:
    """Return TLS 1.3 with a certificate that is valid now; raises CertificateError, or KeyStoreError for its key."""
    leaf = served_certificate(certificate)
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise CertificateError(
            f"the dashboard's certificate is not valid now (until {leaf.not_valid_after_utc:%Y-%m-%d}); run "
            "mien-coordinator dashboard certify, or check the clock"
        )
    read_private(key, what="the dashboard's key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise KeyStoreError(
            "the dashboard's key and certificate do not belong together; name the right two files, or certify again"
        ) from error
    return context
