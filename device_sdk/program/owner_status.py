"""Status of a device in sentences for its owner: who is enrolled, what it took part in, what is to be done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from device_sdk.people.enrolled import said_of_threshold
from device_sdk.status import DeviceStatus
from mien.format import spell_duration
from mien.models.variants import FLOAT32
from mien.protocol.names import isolated


def sentences(status: DeviceStatus, now_unix_s: float) -> Iterator[tuple[str, str]]:
    """Yield what an owner wants to know: a heading and a sentence each."""
    yield "fleet", _fleet(status)
    yield "people", _people(status)
    yield "model", _model(status)
    if status.model_id is not None:
        yield "measured on", _measured(status)
    yield "last took part", _last(status, now_unix_s)
    yield "sent so far", _sent(status)
    yield "next chance", _next(status)
    yield "keys", _keys(status)
    for number, step in enumerate(_to_do(status, now_unix_s)):
        yield "to do" if number == 0 else "", step


def _fleet(status: DeviceStatus) -> str:
    if status.device_id is None:
        return "This device belongs to no fleet: it recognises people by itself, and trains nothing."
    unsigned = " Its releases are not signed: whoever has the coordinator chooses the model that recognises people."
    belongs = f"Belongs to {status.population} at {status.coordinator}, as device {status.device_id}."
    return belongs + (unsigned if status.takes_unsigned_releases else "")


def _people(status: DeviceStatus) -> str:
    if status.num_people == 0:
        return "Nobody is enrolled."
    number = f"{status.num_people} {'person is' if status.num_people == 1 else 'people are'} enrolled"
    return f"{number}; {status.num_agreed} agreed that their pictures train the shared model."


def _model(status: DeviceStatus) -> str:
    if status.model_id is None:
        return "None yet: it comes with the first enrolment."
    personal = "" if status.personal_model is None else ", with a personal model for the people here"
    threshold = status.threshold_by_hand
    by_hand = "" if threshold is None else f" {said_of_threshold(threshold, status.tier or FLOAT32)}"
    return f"{status.backbone or 'Model'} {status.model_id[:12]} in {status.tier}{personal}.{by_hand}"


def _measured(status: DeviceStatus) -> str:
    """Return whom the model's false match rate was measured on, and whom it should not be relied on for."""
    told = "No group of people was measured by itself."
    if status.groups_measured:
        told = f"By groups of people: {', '.join(map(isolated, status.groups_measured))}."
    if status.groups_above_rate:
        above = ", ".join(map(isolated, status.groups_above_rate))
        told += f" Do not rely on it for {above}: strangers match more than 10 times as often as the threshold says."
    if status.never_measured:
        told += f" Nobody measured, so do not rely on it for: {'; '.join(status.never_measured)}."
    return told


def _last(status: DeviceStatus, now_unix_s: float) -> str:
    if status.last_round_unix_s is None:
        return "Not yet, as far as is noted here."
    ago = spell_duration(max(0.0, now_unix_s - status.last_round_unix_s))
    counted = "it is in the shared model's sum" if status.last_round_counted else "that round went on without it"
    when = f"{datetime.fromtimestamp(status.last_round_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{ago} ago ({when}); {counted}. {status.last_round_peers}".rstrip()


def _sent(status: DeviceStatus) -> str:
    number = status.num_private_sums
    sums = "No masked update" if number == 0 else f"Masked updates for {number} {'sum' if number == 1 else 'sums'}"
    most, per_model = status.max_sums_per_day, status.max_sums_per_model
    times = "once" if per_model == 1 else f"{per_model} times"
    limits = f"{status.num_sums_today} of at most {most} in 24 hours, the same pictures {times} for a model"
    return f"{sums} ({limits}); no picture ever leaves this device."


def _next(status: DeviceStatus) -> str:
    if status.revoked_unix_s is not None:
        when = datetime.fromtimestamp(status.revoked_unix_s, UTC)
        return f"None: this device was refused as revoked on {when:%Y-%m-%d %H:%M} UTC, and its key is over."
    if status.device_id is None:
        return "None: training needs a fleet."
    if status.asked_to_stay_out:
        return "None: nobody here agrees to training, and the coordinator is asked to leave this device out."
    if status.pending_round is not None:
        return "A trained round waits to be sent: it goes on when `mien-device participate` runs."
    if status.num_people and not status.num_agreed:
        return "None until somebody here agrees: mien-device gallery consent NAME --give."
    measures = "" if status.measures_models else " It does not measure new models (participation.allow_evaluation)."
    chance = "Whenever `mien-device participate` runs and the coordinator looks for devices"
    if status.used_up_model is None:
        return f"{chance}.{measures}"
    return (
        f"{chance} for another model than {status.used_up_model[:12]}: over that one the same pictures are, or may be, "
        f"in as many sums as they may.{measures}"
    )


def _keys(status: DeviceStatus) -> str:
    if status.keystore == "platform":
        return "In the operating system's key store."
    return "In files of this home that only you can read; encrypt the disk, so that a thief cannot."


def _to_do(status: DeviceStatus, now_unix_s: float) -> Iterator[str]:
    """Yield what the owner should do, the first thing first."""
    if status.revoked_unix_s is not None:
        yield (
            "This device was revoked: to go on, mien-device gallery export FILE here, then join with a new invite in "
            "another --home and gallery import FILE there."
        )
    elif status.device_id is not None and _ends_s(status) - now_unix_s < 0:
        yield "The certificate has ended: ask the operator for a new invite, then mien-device join."
    elif status.renewal_is_due:
        yield "The certificate ends soon: mien-device renew."
    if status.personal_model_is_stale:
        yield (
            "The personal model was made for another threshold, so the released model serves alone: "
            "mien-device personalise fits the personal model again."
        )
    if status.lacks_threshold:
        yield f"Nobody is recognised without a threshold: {status.lacks_threshold}."
    if status.num_people == 0:
        yield "Enrol somebody: mien-device enroll NAME FOLDER."
    elif status.pending_round is not None:
        yield "Run mien-device participate, so that what was trained counts."
    if status.device_id is None:
        yield "To take part in training, join a fleet with an invite of its operator: mien-device join 'mien://...'."


def _ends_s(status: DeviceStatus) -> float:
    return 0.0 if status.certificate_ends is None else datetime.fromisoformat(status.certificate_ends).timestamp()
