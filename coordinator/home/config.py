"""What a coordinator can be told: its settings, their defaults and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from coordinator.home.settings import Settings, check_address, check_limits, check_release_key, listening_place
from mien.errors import ConfigError
from mien.log.witnesses import Quorum, WitnessAddress
from mien.protocol.addresses import host_of, may_lead_to

_SET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIMITS: Final = {
    "crl_fetch_s": (0.2, 3600.0),
    "crl_max_age_s": (1.0, 30 * 86400.0),
    "check_in_hold_s": (0.0, 300.0),
    "retry_after_s": (0.1, 86400.0),
    "check_ins_per_s": (0.01, 1e6),
    "upload_idle_s": (0.5, 3600.0),
    "drain_s": (0.0, 600.0),
    "restart_grace_s": (0.0, 3600.0),
    "max_step_ratio": (1e-6, 1e6),
    "max_aborted": (1, 1000),
    "gates_limit_s": (1.0, 7 * 86400.0),
    "replica_lease_s": (1.0, 300.0),
    "keep_round_models": (0, 1_000_000),
    "metrics_port": (0, 65535),
    "otlp_share": (0.0, 1.0),
    "device_calls_per_minute": (10, 1_000_000),
    "device_calls_at_once": (2, 10_000),
    "max_calls": (16, 100_000),
    "first_message_s": (0.5, 600.0),
    "connections_per_device": (1, 1000),
    "connections_per_address": (4, 100_000),
    "dashboard_connections": (4, 400),
    "max_model_bytes": (1024, 16 * 1024**3),
    "max_shard_bytes": (1024, 16 * 1024**3),
}
"""Least and largest value of each number."""


@dataclass(frozen=True)
class EvaluationSets:
    """The operator's evaluation sets: folders name/*.jpg by the set's name, of pictures and of aligned crops."""

    raw: Mapping[str, str] = field(default_factory=dict)
    crops: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, those of pictures first."""
        return (*self.raw, *self.crops)

    def chosen(self, names: tuple[str, ...]) -> EvaluationSets:
        """Return the sets of these names, all for none; raises ConfigError for one that there is not."""
        if unknown := [name for name in names if name not in self.names]:
            raise ConfigError(f"there is no evaluation set {unknown[0]!r}; name it in coordinator.toml, then restart")
        wanted = names or self.names
        return EvaluationSets(
            {name: folder for name, folder in self.raw.items() if name in wanted},
            {name: folder for name, folder in self.crops.items() if name in wanted},
        )


@dataclass(frozen=True)
class CoordinatorConfig:
    """What a coordinator needs to know. Addresses are host:port, with IPv6 addresses in brackets.

    `address` is where devices and operators reach the coordinator, `listen` where it listens (default: every interface
    at that port, or this machine alone where the address is local), `names` are further names for its certificate.
    `registrar_admin_address` is asked for revocations, and where it does not answer `registrar_address`. `database_url`
    and `blobs_url` default to files in the coordinator's folder; `blobs_endpoint` is the address of an S3-compatible
    store that is not AWS's.
    `witnesses` are asked to cosign the log, besides the registrar.
    A replica tells the phones whose tasks it runs its `public_address`.
    Device calls are refused once the revocation list is older than `crl_max_age_s`. `check_in_hold_s` is how long a
    check-in is held while a round may still want the device, `retry_after_s` the shortest pause that it is told
    afterwards; many devices are told longer ones, so that `check_ins_per_s` of them come, or as many as tasks gather.
    Metrics and health are told over plain HTTP at `metrics_port` of `metrics_host`; port 0 is off. The dashboard, a
    program of its own, listens at `dashboard_listen` and answers under `dashboard_names` too.
    A round is aborted when its step is larger than `max_step_ratio` of the model's norm; a task pauses after
    `max_aborted` aborted attempts in a row. `evaluation_sets` (pictures) and `evaluation_crops` (aligned crops) name
    folders name/*.jpg as NAME=FOLDER: with one or more, gates judge candidates on them, each within `gates_limit_s`.
    Each task's newest `keep_round_models` are kept besides those that something refers to. With a `release_key` nothing
    is released that it did not sign.
    """

    address: Annotated[str, "host:port where phones and operators reach it"]
    listen: Annotated[
        str, "where it listens; empty: every interface at that port, or this machine alone where `address` is its own"
    ] = ""
    names: Annotated[tuple[str, ...], "further names for its certificate"] = ()
    registrar_address: Annotated[
        str, "asked for revocations; empty: revoked phones are not noticed, and it says so"
    ] = ""
    registrar_admin_address: Annotated[str, "asked for revocations first: strangers cannot crowd that port"] = (
        "127.0.0.1:7441"
    )
    database_url: Annotated[str, "empty: `coordinator.db` in the folder"] = field(default="", repr=False)
    blobs_url: Annotated[str, "where models and states lie; empty: in the folder"] = field(default="", repr=False)
    blobs_endpoint: Annotated[str, "address of an S3-compatible store that is not AWS's"] = ""
    spool_folder: Annotated[
        str, "where contributions lie until their round has closed; empty: `spool` in the folder"
    ] = ""
    replica_address: Annotated[
        str, "host:port where other [replicas](production.md#replicas) reach this one; empty: it runs alone"
    ] = ""
    replica_listen: Annotated[str, "where it listens for them; empty: every interface at that port"] = ""
    public_address: Annotated[
        str,
        "host:port where phones reach this replica and no other, told to those whose tasks it runs and who came to "
        "another one: another port of `address`' host, or a name below it; empty: their calls are passed on",
    ] = ""
    replica_lease_s: Annotated[float, "a replica that is not heard of for so long loses its tasks to the others"] = 10.0
    witnesses: Annotated[
        tuple[str, ...],
        'further [witnesses](production.md#witnesses) that are asked to cosign the log: `"NAME+ID+KEY URL"`',
    ] = ()
    crl_fetch_s: Annotated[float, "seconds between fetches of the revocation list"] = 5.0
    crl_max_age_s: Annotated[float, "phones are refused once the list is older"] = 86400.0
    check_in_hold_s: Annotated[float, "how long a check-in is held while a round may want the phone"] = 20.0
    retry_after_s: Annotated[float, "shortest pause that a phone without work is told"] = 5.0
    check_ins_per_s: Annotated[
        float, "phones without work are spread over time so that no more of them come, unless tasks want more"
    ] = 50.0
    upload_idle_s: Annotated[float, "an upload that is silent for so long is ended, and can go on later"] = 60.0
    drain_s: Annotated[float, "time for a sum that is under way at SIGTERM"] = 20.0
    restart_grace_s: Annotated[float, "least time that phones get after a restart"] = 30.0
    max_step_ratio: Annotated[float, "largest server step, in norms of the model"] = 1.0
    max_aborted: Annotated[int, "aborted attempts in a row before a task pauses"] = 5
    evaluation_sets: Annotated[
        tuple[str, ...],
        'public people on which gates judge candidates: `"NAME=FOLDER"`, pictures in `FOLDER/person/*.jpg`',
    ] = ()
    evaluation_crops: Annotated[tuple[str, ...], "the same, of aligned crops"] = ()
    gates_limit_s: Annotated[float, "longest measurement of one candidate"] = 3600.0
    keep_round_models: Annotated[
        int, "each task's newest models that are kept besides those that something refers to"
    ] = 100
    release_key: Annotated[
        str, "public key without whose signature nothing is released; empty: releases are not signed"
    ] = ""
    device_calls_per_minute: Annotated[int, "calls that one phone may make in a minute"] = 600
    device_calls_at_once: Annotated[int, "calls that one phone may have open"] = 16
    max_calls: Annotated[int, "calls at once, of all phones together"] = 4096
    first_message_s: Annotated[float, "a call whose message has not come within that time is ended"] = 10.0
    connections_per_device: Annotated[int, "connections of one phone; of more, those silent longest end"] = 16
    connections_per_address: Annotated[
        int, "connections of one address from which no phone has called yet; those silent longest end"
    ] = 512
    max_model_bytes: Annotated[int, "largest model"] = 1024**3
    max_shard_bytes: Annotated[int, "largest set of public faces"] = 256 * 1024**2
    metrics_port: Annotated[int, "port of [metrics and health](production.md#metrics-and-health); 0: off"] = 0
    metrics_host: Annotated[str, "where it listens"] = "127.0.0.1"
    otlp_endpoint: Annotated[
        str, "where [traces](production.md#traces) are sent: the URL of a collector; empty: nowhere"
    ] = ""
    otlp_share: Annotated[float, "share of rounds and calls that are traced"] = 1.0
    dashboard_listen: Annotated[str, "where the [dashboard](production.md#dashboard) listens"] = "127.0.0.1:8443"
    dashboard_connections: Annotated[
        int, "connections of one address to it, of 400 of all; those silent longest end"
    ] = 50
    dashboard_names: Annotated[tuple[str, ...], "names under which browsers reach it, besides this machine's own"] = ()
    json_logs: Annotated[bool, "logs as JSON"] = False

    def __post_init__(self) -> None:
        addresses = ("address", "listen", "registrar_address", "registrar_admin_address")
        for name in (*addresses, "replica_address", "replica_listen", "public_address"):
            value = getattr(self, name)
            if value or name == "address":
                check_address(name, value, example="coordinator.example:7443", lowest_port=0 if name == "listen" else 1)
        if self.public_address and not self.replica_address:
            raise ConfigError("public_address is of one of several replicas; set replica_address, or leave it empty")
        if self.public_address and not may_lead_to(self.address, self.public_address):
            raise ConfigError(
                f"public_address is {self.public_address!r}, where no phone would go; name another port of "
                f"{host_of(self.address)}, or a host below it, as replica-1.{host_of(self.address)}"
            )
        check_address("dashboard_listen", self.dashboard_listen, example="0.0.0.0:8443", lowest_port=0)
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_endpoint is {self.otlp_endpoint!r}; write a URL, for example http://127.0.0.1:4318/v1/traces"
            )
        check_limits(self, LIMITS)
        check_release_key(self.release_key)
        Quorum(tuple(each.key for each in self.further_witnesses))
        _folders_by_name((*self.evaluation_sets, *self.evaluation_crops))

    @property
    def sets(self) -> EvaluationSets:
        """What candidates are judged on."""
        return EvaluationSets(_folders_by_name(self.evaluation_sets), _folders_by_name(self.evaluation_crops))

    @property
    def further_witnesses(self) -> tuple[WitnessAddress, ...]:
        """Further witnesses of the log, besides the registrar."""
        return tuple(WitnessAddress.parse(text) for text in self.witnesses)

    @property
    def listens_at(self) -> str:
        """Where the server listens, unless `listen` says otherwise: see `listening_place`."""
        return self.listen or listening_place(self.address)

    @property
    def server_names(self) -> tuple[str, ...]:
        """Every name and address that the server's certificate covers."""
        return tuple(dict.fromkeys((host_of(self.address), *self.names, "localhost", "127.0.0.1")))


def _folders_by_name(named: tuple[str, ...]) -> dict[str, str]:
    """Return folders by the names of their evaluation sets; raises ConfigError for what is no NAME=FOLDER."""
    folders: dict[str, str] = {}
    for text in named:
        name, _, folder = text.partition("=")
        if not _SET_NAME.fullmatch(name) or not folder or name in folders:
            raise ConfigError(
                f"evaluation set {text!r} is not NAME=FOLDER with a name of its own (letters, digits, '-', '_', '.')"
            )
        folders[name] = folder
    return folders


SETTINGS: Final = Settings(CoordinatorConfig, "coordinator")
