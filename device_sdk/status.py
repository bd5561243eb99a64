"""Status of a device for its owner and for programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceStatus:
    """Status of a device; `pending_round` is a round that it trained for and that has not ended.

    `num_private_sums` counts the masked vectors that it has sent, or may have. `measures_models` tells whether pictures
    of those who agreed may also measure models, by sums of scores. `tier`: float32 or a variant of the model.
    `last_round_...`: when the last round that it took part in ended, whether its contribution is in the sum, and by
    which rule peers counted, where the owner asks for an age.
    `threshold_by_hand`: the cosine that decides in place of the form's own threshold, None where that one does.
    `personal_model` is the form of the personal model that decides; one that is stale was made for another threshold,
    and the released model decides. `renewal_is_due`: less than a third of the certificate's life is left.
    `takes_unsigned_releases`: the fleet has no release key that this device knows of.
    `lacks_threshold`: why the form in use has none that decides, and what helps; empty where one does.
    `revoked_unix_s`: when a server last refused this device as revoked, None where it was admitted since.
    `num_sums_today` of at most `max_sums_per_day`: sums without phones' own noise in the last 24 hours; the same
    pictures go into at most `max_sums_per_model` over one model. `used_up_model`: the model of the newest sum, where no
    other one over it may have the same pictures; None where one may, or there is no sum.
    Of the model in use, as its release says: `groups_measured`, the groups of people that its false match rate was
    measured on; `groups_above_rate`, those of them in which it is more than 10 times what it should be;
    `never_measured`, whom or what nobody measured it on. All are empty where there is no model yet.
    """

    home: str
    keystore: str
    device_id: str | None
    population: str | None
    coordinator: str | None
    certificate_ends: str | None
    model_id: str | None
    backbone: str | None
    num_people: int
    num_agreed: int
    pending_round: str | None
    num_private_sums: int
    measures_models: bool
    asked_to_stay_out: bool
    personal_model: str | None
    liveness_check: str | None
    tier: str | None = None
    last_round_unix_s: int | None = None
    last_round_counted: bool | None = None
    last_round_peers: str = ""
    threshold_by_hand: float | None = None
    personal_model_is_stale: bool = False
    renewal_is_due: bool = False
    lacks_threshold: str = ""
    revoked_unix_s: int | None = None
    num_sums_today: int = 0
    max_sums_per_day: int = 24
    max_sums_per_model: int = 1
    used_up_model: str | None = None
    groups_measured: tuple[str, ...] = ()
    groups_above_rate: tuple[str, ...] = ()
    never_measured: tuple[str, ...] = ()
    takes_unsigned_releases: bool = False
