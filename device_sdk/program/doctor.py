"""Checks of a device, piece by piece: what could keep it from working, each finding with what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from device_sdk.device import Device
from device_sdk.faces import load_detector
from device_sdk.models.models import Model
from device_sdk.models.packaged import packaged_model
from device_sdk.program.words import typed
from device_sdk.runtimes import embedding_engine, resolve
from device_sdk.server.certificates import check_period
from mien.errors import ConfigError, NotFoundError
from mien.format import several, spell_duration
from mien.models.variants import FLOAT32, model_of, variant_of
from mien.shell.doctor import Finding, look


def examine(device: Device, home: Path) -> tuple[Finding, ...]:
    """Return the findings, in the order in which the pieces depend on each other. Nothing is changed.

    `home` is the folder that was named; where there is none yet, `device` is an empty one in passing.
    """
    checks: tuple[tuple[str, Callable[[Device], str]], ...] = (
        ("home folder", lambda _device: _home(home)),
        ("key store", _key_store),
        ("gallery", _gallery),
        ("private sums", _private_sums),
        ("detector", _detector),
        ("engine", _engine),
        ("membership", _membership),
        ("coordinator", _coordinator),
        ("model", _model),
        ("threshold", _threshold),
    )
    return tuple(look(name, functools.partial(check, device), typed) for name, check in checks)


def _home(root: Path) -> str:
    if not root.exists():
        return f"{root} is not there yet: the first enrolment makes it, or `mien-device join`"
    if root.stat().st_mode & 0o077:
        raise ConfigError(f"others can look into {root}; run chmod 700 on it")
    return str(root)


def _key_store(device: Device) -> str:
    return {
        "platform": "the operating system's key store",
        "file": "files with mode 0600; full-disk encryption is what protects them from a thief",
    }[device.status().keystore]


def _gallery(device: Device) -> str:
    people = device.people()
    agreed = sum(person.trains for person in people)
    return f"opens; {several(len(people), 'person', 'people')}, {agreed} agreed to training"


def _private_sums(device: Device) -> str:
    number = device.status().num_private_sums
    return f"the log opens; this phone is or may be in {several(number, 'sum')}"


def _detector(_device: Device) -> str:
    load_detector()
    return "YuNet, file checked"


def _engine(device: Device) -> str:
    choice, chosen = device.config.runtime, device.gallery.model_id
    model = packaged_model() if chosen is None else device.models.load(chosen)
    embeds = embedding_engine(model.spec, model.layout, choice, device.home.graphs)
    if not device.is_in_fleet:  # nothing is trained there
        return embeds
    trains = resolve(choice)
    return f"{embeds} embeds and trains" if embeds == trains else f"{embeds} embeds, {trains} trains"


def _membership(device: Device) -> str:
    if not device.is_in_fleet:
        return "in no fleet, and none is needed to recognise people; `mien-device join` takes part in training"
    identity = device.identity
    now = device.clock.now_utc()
    check_period(identity.certificate, now, whose="this device's own")
    left = spell_duration((identity.certificate.not_valid_after_utc - now).total_seconds())
    return f"device {identity.device_id} in population {identity.population}; certificate valid for {left}"


def _coordinator(device: Device) -> str:
    if not device.is_in_fleet:
        return "none: in no fleet"
    told = device.gallery.owner_address  # where its tasks were run last; left for good where that does not answer
    with device.connect() as client:
        hello, found = client.hello(), client.address
    left = f" ({told}, which it named for this phone, does not answer as it)" if told and told != found else ""
    return f"{hello.software} at {found}{left}; clocks differ by {abs(hello.skew_s):.1f} s"


def _model(device: Device) -> str:
    chosen = device.gallery.model_id
    if chosen is None and not device.is_in_fleet:
        return _described(packaged_model(), FLOAT32)
    if chosen is None:
        raise NotFoundError("none was fetched yet; run `mien-device update`")
    model = device.models.load(chosen)
    form = device.gallery.form_id or chosen
    tier = FLOAT32
    if variant_of(form):
        variant = device.variants.load(form)
        device.variants.read(variant)
        tier = variant.tier
    return _described(model, tier)


def _described(model: Model, tier: str) -> str:
    return f"{model.spec.backbone} {model.model_id[:12]} in {tier}, {model.spec.input.dim}-d ({model.spec.terms})"


def _threshold(device: Device) -> str:
    form = device.gallery.form_id
    if form is None and not device.is_in_fleet:
        return str(device.operating_point(packaged_model()))
    if form is None:
        raise NotFoundError("comes with the model; run `mien-device update`")
    variant = device.variants.load(form) if variant_of(form) else None
    return str(device.operating_point(device.models.load(model_of(form)), variant))
