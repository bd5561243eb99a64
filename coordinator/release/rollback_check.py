"""Check that phones would follow a roll-back: with a release key, only to what the newest signature lets come back."""

from __future__ import annotations

from coordinator.store.store import Store
from mien.errors import ConfigError
from mien.models import bundles
from mien.protocol.ids import ModelId, PopulationId


def check_way_back(store: Store, release_key: str, population: PopulationId | None) -> None:
    """Raise ConfigError where phones would refuse to go back, because no signature lets them."""
    if release_key:
        for way in store.ways_back(population):
            _check(store, release_key, way)


def _check(store: Store, release_key: str, way: tuple[ModelId, ModelId]) -> None:
    newest, earlier = (store.bundle(model_id) for model_id in way)
    if earlier is None:
        raise ConfigError(f"model {way[1][:12]} is not signed, and phones would refuse it; sign and release it")
    if newest is None:
        return
    signed = bundles.verify(release_key, newest.manifest_json, newest.signature)
    if earlier.sequence < newest.sequence and bundles.hash_of(earlier.manifest_json) not in signed.fallbacks:
        raise ConfigError(
            f"the newest bundle does not name release {earlier.sequence} of model {earlier.model_id[:12]} as one "
            "to fall back to, and phones would refuse it; sign that one again and release it"
        )
