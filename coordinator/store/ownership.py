"""Ownership of a coordinator's blobs by its database: a random id, kept beside both.

A start erases blobs that the database does not name. With another database that would be all of them, so the two must
prove first that they belong together.
"""

from __future__ import annotations

import uuid
from typing import Final

from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from mien.errors import ConfigError

_SETTING: Final = "store_id"


def check_ownership(store: Store, models: BlobStore, states: BlobStore) -> None:
    """Raise ConfigError, changing nothing, unless the blobs are this database's.

    Where both are empty, or the blobs bear no id and the database names some of them (a restored backup, or a store of
    a program that gave no ids), they belong together from now on.
    """
    known, owner = store.setting(_SETTING), models.owner()
    if known is not None and known == owner:
        return
    named, held = store.model_blobs() | store.state_blobs(), {*models, *states}
    if held and (owner is not None or not named & held):
        raise ConfigError(
            "the models where blobs_url points belong to another database, and a start with this one would erase them: "
            "correct database_url or blobs_url (empty: the --home folder), or restore both from one backup"
        )
    if named and not held:
        raise ConfigError(
            "the place where blobs_url points does not hold the database's models: correct database_url or blobs_url "
            "(empty: the --home folder), or restore both from one backup"
        )
    if known is None:
        known = uuid.uuid4().hex
        store.remember(_SETTING, known)  # first: blobs with an id that no database knows would be refused
    models.give_to(known)
