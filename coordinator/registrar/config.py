"""What a registrar can be told: its settings, their defaults and limits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from coordinator.home.settings import Settings, check_address, check_limits, check_release_key, listening_place
from mien.errors import ConfigError
from mien.log.witnesses import MAX_WITNESSES, Quorum

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
MAX_INVITE_S: Final = 30 * 86400

LIMITS: Final = {
    "device_certificate_days": (1, 90),
    "renewal_grace_days": (0, 365),
    "invite_valid_s": (60, MAX_INVITE_S),
    "invites_per_day": (1, 1_000_000),
    "max_join_failures": (1, 1000),
    "join_failure_window_s": (1, 86400),
    "first_message_s": (0.5, 600.0),
    "calls_per_address": (1, 100_000),
    "connections_per_address": (4, 100_000),
    "drain_s": (0, 300),
    "witnesses_needed": (0, MAX_WITNESSES),
    "attestation_patch_level": (0, 999912),
}
"""Least and largest value of each number."""


@dataclass(frozen=True)
class RegistrarConfig:
    """What a registrar needs to know. Addresses are host:port, with IPv6 addresses in brackets.

    `address` is where devices reach the registrar, and is written into invites; `listen` is where it listens for them.
    `admin_address` and `admin_listen` are the same for operators. `coordinator_address` is told to devices that join.
    `names` are further host names and IP addresses that the server's certificate is to cover. Devices that join pin
    `release_key`, and take no release that it did not sign; they pin `witnesses` as well, and train only on rounds that
    `witnesses_needed` of these have cosigned. `attestation` and what begins with it says what phones must
    prove of their keys.
    """

    address: Annotated[str, "host:port where phones join; written into invites"]
    coordinator_address: Annotated[str, "told to phones that join"]
    admin_address: Annotated[str, "host:port for operators"] = "127.0.0.1:7441"
    listen: Annotated[
        str,
        "where it listens for phones; empty: every interface, or this machine alone where `address` is local",
    ] = ""
    admin_listen: Annotated[str, "the same for operators and `admin_address`"] = ""
    names: Annotated[tuple[str, ...], "further names for its certificate"] = ()
    store_url: Annotated[str, "empty: `registrar.db` in the folder"] = field(default="", repr=False)
    device_certificate_days: Annotated[int, "life of a phone's certificate"] = 7
    renewal_grace_days: Annotated[int, "how long after its end it can still be renewed"] = 30
    invite_valid_s: Annotated[int, "life of an invite, at most 30 days"] = 86400
    invites_per_day: Annotated[int, "invites that all operators together may make in any 24 hours"] = 100
    max_join_failures: Annotated[int, "failed attempts of one address to join, within the window"] = 10
    join_failure_window_s: Annotated[int, "that window"] = 60
    first_message_s: Annotated[float, "a call whose message has not come within that time is ended"] = 5.0
    calls_per_address: Annotated[int, "calls of one address that are answered at once, of 256 of all"] = 32
    connections_per_address: Annotated[
        int, "connections of one address; of more, those silent longest are shut. Raise it behind a balancer"
    ] = 64
    drain_s: Annotated[int, "time for calls under way at SIGTERM"] = 10
    release_key: Annotated[
        str, "public key that phones pin when they join, and without whose signature they take no release"
    ] = ""
    witnesses: Annotated[
        tuple[str, ...],
        "keys (NAME+ID+KEY) of [further witnesses](production.md#witnesses) that phones pin when they join",
    ] = ()
    witnesses_needed: Annotated[
        int, "how many of them have to have cosigned the log before a phone trains, besides this registrar; 0: all"
    ] = 0
    attestation: Annotated[
        str,
        '[key attestation](../operator.md#key-attestation) of phones that join: `"off"`, `"record"` (keep it) '
        'or `"require"`',
    ] = "off"
    attestation_roots: Annotated[
        tuple[str, ...], "PEM files of the roots that are trusted, in the folder unless their paths say otherwise"
    ] = ()
    attestation_status: Annotated[str, "JSON file of revoked attestation keys; empty: none are known"] = ""
    attestation_level: Annotated[str, 'least place of a key: `"tee"` or `"strongbox"`'] = "tee"
    attestation_verified_boot: Annotated[bool, "whether the phone must have started verified and locked"] = True
    attestation_patch_level: Annotated[int, "oldest security patches, as YYYYMM; 0: any"] = 0
    attestation_apps: Annotated[
        tuple[str, ...], "SHA-256 (hex) of the certificates that the app may be signed with; empty: any app"
    ] = ()
    json_logs: Annotated[bool, "logs as JSON"] = False

    def __post_init__(self) -> None:
        for name in ("address", "coordinator_address", "admin_address", "listen", "admin_listen"):
            value = getattr(self, name)
            listens = name in ("listen", "admin_listen")
            if value or not listens:
                check_address(name, value, example="registrar.example:7440", lowest_port=0 if listens else 1)
        check_limits(self, LIMITS)
        check_release_key(self.release_key)
        Quorum.of(self.witnesses, self.witnesses_needed)
        _check_attestation(self)

    @property
    def join_listen(self) -> str:
        """Where the joining port listens, unless `listen` says otherwise: see `listening_place`."""
        return self.listen or listening_place(self.address)

    @property
    def operators_listen(self) -> str:
        """Where the operators' port listens, unless `admin_listen` says otherwise: see `listening_place`."""
        return self.admin_listen or listening_place(self.admin_address)

    @property
    def server_names(self) -> tuple[str, ...]:
        """Every name and address that the server's certificate covers."""
        hosts = (self.address.rpartition(":")[0], self.admin_address.rpartition(":")[0])
        return tuple(dict.fromkeys((*hosts, *self.names, "localhost", "127.0.0.1")))


def invite_seconds(valid_hours: float) -> int:
    """Return the life of an invite in whole seconds, 0 where it is left to the registrar (0 hours).

    Raises ConfigError for what is no time, and for more than 30 days.
    """
    if not 0 <= valid_hours <= MAX_INVITE_S / 3600:  # also not for NaN
        raise ConfigError(f"an invite cannot be valid for {valid_hours:g} hours; the limit is 720 hours (30 days)")
    return math.ceil(valid_hours * 3600)


def _check_attestation(config: RegistrarConfig) -> None:
    for name, known in (("attestation", ("off", "record", "require")), ("attestation_level", ("tee", "strongbox"))):
        if getattr(config, name) not in known:
            raise ConfigError(f"{name} is {getattr(config, name)!r}; known: {', '.join(known)}")
    if config.attestation != "off" and not config.attestation_roots:
        raise ConfigError("attestation needs attestation_roots: PEM files of Google's attestation roots; name them")
    if not all(_DIGEST.fullmatch(digest) for digest in config.attestation_apps):
        raise ConfigError("attestation_apps must be of 64 hex digits: the SHA-256 of a certificate that signs the app")


SETTINGS: Final = Settings(RegistrarConfig, "registrar")
