"""Partitions: identities with their numbers of images, divided among clients, public people and test people.

Everything here works on numbers alone (identity -> number of images), so that a split at the scale of a million images
can be checked without one image. A partition refuses to exist if anybody is trained on and tested on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from mien.errors import ConfigError, EmptyFolderError

Counts = Mapping[str, int]
"""Identity -> how many images there are of it."""

Clients = Mapping[str, tuple[str, ...]]
"""Client -> its identities."""

MAX_SEED: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Holding:
    """Some images of one identity, by their numbers from 0."""

    identity: str
    images: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """Each client's people to train on, their images for tests, and who is public or for tests.

    `probes` are further images of a client's own identities (personalised evaluation). `validators` are people by whom
    federated validation judges candidates. `shared` names the identities that several clients may hold. Raises
    ConfigError for any other overlap, for an empty client and for no client.
    """

    clients: Mapping[str, tuple[Holding, ...]] = field(repr=False)
    probes: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict, repr=False)
    public: tuple[Holding, ...] = field(default=(), repr=False)
    test: tuple[Holding, ...] = field(default=(), repr=False)
    shared: frozenset[str] = field(default=frozenset(), repr=False)
    validators: tuple[Holding, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.clients or any(not any(h.images for h in held) for held in self.clients.values()):
            raise ConfigError("a client holds no image, or there is no client; lower the number of clients")
        if strangers := sorted(set(self.probes) - set(self.clients)):
            raise ConfigError(f"probes are given for {strangers[:3]}, who are no clients")
        self._check_identities()
        self._check_images()

    @property
    def num_identities(self) -> int:
        """Different identities that clients train on."""
        return len({h.identity for held in self.clients.values() for h in held})

    @property
    def num_images(self) -> int:
        """Images that clients train on."""
        return sum(len(h.images) for held in self.clients.values() for h in held)

    def summary(self) -> dict[str, int]:
        """Return the numbers that describe the partition: of clients, identities and images, and their extremes."""
        identities = [len(held) for held in self.clients.values()]
        images = [sum(len(h.images) for h in held) for held in self.clients.values()]
        return {
            "clients": len(self.clients),
            "identities": self.num_identities,
            "images": self.num_images,
            "identities_min": min(identities),
            "identities_max": max(identities),
            "images_min": min(images),
            "images_max": max(images),
            "shared_identities": len(self.shared),
            "probe_images": sum(len(h.images) for held in self.probes.values() for h in held),
            "public_identities": len(self.public),
            "public_images": sum(len(h.images) for h in self.public),
            "test_identities": len(self.test),
            "test_images": sum(len(h.images) for h in self.test),
            **({"validator_identities": len(self.validators)} if self.validators else {}),
        }

    def _check_identities(self) -> None:
        groups = {
            "clients": {h.identity for held in self.clients.values() for h in held},
            "public people": {h.identity for h in self.public},
            "test people": {h.identity for h in self.test},
            "validators": {h.identity for h in self.validators},
        }
        names = list(groups)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                if both := sorted(groups[one] & groups[other]):
                    raise ConfigError(f"{both[0]} and {len(both) - 1} others are among the {one} and the {other}")
        held = Counter(h.identity for each in self.clients.values() for h in each)
        if several := sorted(name for name, times in held.items() if times > 1 and name not in self.shared):
            raise ConfigError(f"{several[0]} is held by several clients without being a shared identity")

    def _check_images(self) -> None:
        places: dict[str, list[tuple[int, ...]]] = {}
        for held in (*self.clients.values(), *self.probes.values(), self.public, self.test, self.validators):
            for holding in held:
                places.setdefault(holding.identity, []).append(holding.images)
        for identity, parts in places.items():
            seen = Counter(image for part in parts for image in part) if len(parts) > 1 else Counter[int]()
            if twice := [image for image, times in seen.items() if times > 1]:
                raise ConfigError(
                    f"image {min(twice)} of {identity} is in two places; training and test must not share images"
                )


@dataclass(frozen=True)
class PartitionSpec:
    """Division of faces, as an experiment's TOML says it.

    `public` and `test` people, and `validators`, are drawn first. `scheme` divides `identities` of the others (0: all
    of them) among `clients`: one each, equally many each, numbers drawn from a log-normal distribution of deviation
    `sigma`, or each domain among its own clients (`domain_clients`: domain -> how many; others are left out).
    `train_images` (0: all) of each identity are trained on, the next `probe_images` are kept for personalised tests;
    identities of fewer than `min_images` are left out. `shared` is the share of identities that a second client also
    holds, half of their images each. `seed` draws all of it.
    """

    scheme: Literal["one_identity", "equal", "log_normal", "by_domain"] = "one_identity"
    clients: int = 10
    identities: int = 0
    sigma: float = 1.0
    domain_clients: Mapping[str, int] = field(default_factory=dict)
    min_images: int = 1
    train_images: int = 0
    probe_images: int = 0
    public: int = 0
    test: int = 0
    shared: float = 0.0
    seed: int = 0
    validators: int | None = None

    def __post_init__(self) -> None:
        if self.validators is not None and self.validators < 0:
            raise ConfigError(f"partition.validators is {self.validators}; it must not be negative")
        for name in ("identities", "train_images", "probe_images", "public", "test", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"partition.{name} is {getattr(self, name)}; it must not be negative")
        if self.seed > MAX_SEED:
            raise ConfigError(f"partition.seed is {self.seed}; it must lie between 0 and {MAX_SEED}")
        if self.clients < 1 or self.min_images < 1:
            raise ConfigError("partition.clients and partition.min_images must be at least 1")
        if not 0 < self.sigma <= 5 or not math.isfinite(self.sigma):
            raise ConfigError(f"partition.sigma is {self.sigma}; it must be positive and at most 5")
        if not 0 <= self.shared <= 1:
            raise ConfigError(f"partition.shared is {self.shared}; it is a share and must lie between 0 and 1")
        if (self.scheme == "by_domain") != bool(self.domain_clients):
            raise ConfigError("partition.domain_clients goes with the scheme by_domain, which needs it")
        if any(not isinstance(number, int) or number < 1 for number in self.domain_clients.values()):
            raise ConfigError("partition.domain_clients must give each domain at least one client")
        least = (self.train_images or 1) + self.probe_images
        if self.min_images < least:
            why = "less than train_images + probe_images" if self.train_images else "which leaves no image to train on"
            raise ConfigError(f"partition.min_images is {self.min_images}, {why}; raise it to {least}")


def build(
    spec: PartitionSpec,
    counts: Counts,
    domain_of: Callable[[str], str] = lambda _identity: "",
    is_labelled: Callable[[str], bool] = lambda _identity: True,
) -> Partition:
    """Return the partition that `spec` describes of these identities, whose domain `domain_of` tells.

    Public people, who go out with labels, are drawn of those who have some, as `is_labelled` says. Raises
    EmptyFolderError where there are too few identities.
    """
    usable = {name: number for name, number in counts.items() if number >= spec.min_images}
    _check_enough(spec, len(usable))
    judges = spec.validators or 0
    if not spec.public or all(map(is_labelled, usable)):
        public, test, judged, rest = draw(usable, (spec.public, spec.test, judges, -1), spec.seed)
    else:
        (public,) = draw({name: usable[name] for name in usable if is_labelled(name)}, (spec.public,), spec.seed)
        others = {name: usable[name] for name in usable.keys() - set(public)}
        test, judged, rest = draw(others, (spec.test, judges, -1), spec.seed)
    if spec.scheme == "by_domain":
        clients = by_domain(rest, spec.domain_clients, domain_of, spec.seed)
    else:
        num = spec.clients if spec.scheme == "one_identity" and not spec.identities else spec.identities or len(rest)
        (chosen,) = draw({name: usable[name] for name in rest}, (num,), spec.seed + 1)
        clients = _divided(spec, chosen)
    everything = {name: tuple(range(usable[name])) for name in usable}
    shared = _drawn_shared(clients, spec)
    trained, probes = _holdings({**clients}, shared, everything, spec)
    return Partition(
        trained,
        probes if spec.probe_images else {},
        tuple(Holding(name, everything[name]) for name in public),
        tuple(Holding(name, everything[name]) for name in test),
        frozenset(shared),
        tuple(Holding(name, everything[name]) for name in judged),
    )


def draw(counts: Counts, sizes: Sequence[int], seed: int) -> list[tuple[str, ...]]:
    """Return disjoint groups of so many identities, drawn by `seed`, each in order of name; -1 takes who is left.

    Raises EmptyFolderError, which says how many there are and how many are needed.
    """
    names = sorted(counts)
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    needed = sum(size for size in sizes if size > 0)
    if needed > len(order):
        raise EmptyFolderError(f"there are {len(order)} identities with enough images; this split needs {needed}")
    groups, position = [], 0
    for size in sizes:
        stop = len(order) if size == -1 else position + size
        groups.append(tuple(sorted(order[position:stop])))
        position = stop
    return groups


def one_identity(identities: Sequence[str]) -> Clients:
    """Return one client an identity: phones."""
    return {_client(i, len(identities)): (name,) for i, name in enumerate(identities)}


def equal(identities: Sequence[str], num_clients: int, seed: int) -> Clients:
    """Return clients of equally many identities, drawn by `seed`; what is left over goes one each to the first ones."""
    _need(len(identities), num_clients)
    sizes = [len(part) for part in np.array_split(np.arange(len(identities)), num_clients)]
    return _dealt(identities, sizes, seed)


def log_normal(identities: Sequence[str], num_clients: int, sigma: float, seed: int) -> Clients:
    """Return clients whose numbers of identities follow a log-normal distribution, none of them empty.

    Sizes are proportional to exp(sigma z), z standard normal, rounded so that they add up. Source: FedGC, unbalanced.
    """
    _need(len(identities), num_clients)
    weights = np.exp(sigma * np.random.default_rng([seed, 3]).standard_normal(num_clients))
    spare = len(identities) - num_clients
    exact = weights / weights.sum() * spare
    sizes = np.floor(exact).astype(int)
    for i in np.argsort(sizes - exact, kind="stable")[: spare - int(sizes.sum())]:
        sizes[i] += 1
    return _dealt(identities, [int(size) + 1 for size in sizes], seed)


def by_domain(
    identities: Sequence[str], domain_clients: Mapping[str, int], domain_of: Callable[[str], str], seed: int
) -> Clients:
    """Return clients that each hold identities of one domain, named DOMAIN-NUMBER; equally many in a domain."""
    clients: dict[str, tuple[str, ...]] = {}
    for domain, num in domain_clients.items():
        members = [name for name in identities if domain_of(name) == domain]
        if len(members) < num:
            known = ", ".join(sorted({domain_of(name) for name in identities})[:10]) or "none"
            raise EmptyFolderError(
                f"domain {domain!r} has {len(members)} identities left for {num} clients; known: {known}"
            )
        held = equal(members, num, seed)
        clients.update({f"{domain}-{i}": each for i, each in enumerate(held.values())})
    return clients


def _divided(spec: PartitionSpec, identities: Sequence[str]) -> Clients:
    if spec.scheme == "one_identity":
        return one_identity(identities)
    if spec.scheme == "equal":
        return equal(identities, spec.clients, spec.seed)
    return log_normal(identities, spec.clients, spec.sigma, spec.seed)


def _drawn_shared(clients: Clients, spec: PartitionSpec) -> dict[str, str]:
    """Return shared identity -> the second client that holds it."""
    if spec.shared == 0:
        return {}
    if len(clients) < 2:
        raise ConfigError("partition.shared needs at least two clients")
    rng = np.random.default_rng([spec.seed, 4])
    owner = {name: client for client, held in clients.items() for name in held}
    names = sorted(owner)
    chosen = sorted(names[i] for i in rng.permutation(len(names))[: round(spec.shared * len(names))])
    others = {client: [c for c in sorted(clients) if c != client] for client in clients}
    return {name: others[owner[name]][int(rng.integers(len(clients) - 1))] for name in chosen}


def _holdings(
    clients: dict[str, tuple[str, ...]],
    shared: Mapping[str, str],
    images: Mapping[str, tuple[int, ...]],
    spec: PartitionSpec,
) -> tuple[dict[str, tuple[Holding, ...]], dict[str, tuple[Holding, ...]]]:
    """Return each client's training images and probes; a shared identity's owner takes the first half of its images."""
    trained: dict[str, list[Holding]] = {client: [] for client in clients}
    probes: dict[str, list[Holding]] = {client: [] for client in clients}
    for client, held in clients.items():
        for name in held:
            stop = spec.train_images or len(images[name]) - spec.probe_images
            mine = images[name][:stop]
            if name in shared:
                half = (len(mine) + 1) // 2
                trained[shared[name]].append(Holding(name, mine[half:]))
                mine = mine[:half]
            trained[client].append(Holding(name, mine))
            if spec.probe_images:
                probes[client].append(Holding(name, images[name][stop : stop + spec.probe_images]))
    return _frozen(trained), _frozen(probes)


def _frozen(holdings: Mapping[str, Iterable[Holding]]) -> dict[str, tuple[Holding, ...]]:
    return {client: tuple(sorted(held, key=lambda h: h.identity)) for client, held in holdings.items()}


def _dealt(identities: Sequence[str], sizes: Sequence[int], seed: int) -> Clients:
    groups = draw(dict.fromkeys(identities, 1), sizes, seed + 2)
    return {_client(i, len(groups)): group for i, group in enumerate(groups)}


def _check_enough(spec: PartitionSpec, num_usable: int) -> None:
    """Raise EmptyFolderError where so many people are too few, and say where they went."""
    name, wanted = "clients", sum(spec.domain_clients.values()) or spec.clients
    if spec.scheme != "by_domain" and spec.identities:
        name, wanted = "identities", spec.identities
    left = num_usable - spec.test - spec.public - (spec.validators or 0)
    if left < wanted:
        judges = f", {spec.validators} to validators" if spec.validators else ""
        raise EmptyFolderError(
            f"{num_usable} people have at least {spec.min_images} images; {spec.test} go to tests and {spec.public} to "
            f"public{judges}, so that {max(left, 0)} are left; {wanted} {name} were asked for; lower partition.{name}, "
            ".test, .public or .min_images, or give more faces"
        )


def _client(index: int, num: int) -> str:
    return f"client-{index:0{len(str(max(num - 1, 1)))}d}"


def _need(num_identities: int, num_clients: int) -> None:
    if num_identities < num_clients:
        raise EmptyFolderError(
            f"{num_identities} identities cannot be divided among {num_clients} clients; each needs one"
        )
