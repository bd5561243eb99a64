"""Work of `mien-device bench`: measures engines and forms of the model, keeps the choice, and changes over."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from device_sdk.config import InferenceConfig, load_config
from device_sdk.device import Device
from device_sdk.models.variants import LoadedVariant, load_variant
from device_sdk.people.enrolled import said_of_threshold
from device_sdk.program.bench import EngineFigures, fastest, measure_engines
from device_sdk.program.kept_settings import keep_setting
from device_sdk.program.tiers import FormFigures, choose, measure_variant
from device_sdk.program.words import typed
from device_sdk.runtimes import RuntimeName, embedding_engine, resolve
from device_sdk.storage.home import Home
from mien.errors import ConfigError, InviteError, UnavailableError, VersionError
from mien.models.variants import FLOAT32, Variant
from mien.shell import cli as shell
from mien.shell.cli import say

_COMPARED_WITH: Final = "what the others are compared with"


@dataclass(frozen=True)
class Looked:
    """Measurements, the fastest engine, the form that the budget chooses, and what kept variants from it.

    A device in no fleet does not train: no step is measured there, and the fastest engine is that to verify.
    """

    engines: tuple[EngineFigures, ...]
    fastest: EngineFigures
    forms: tuple[FormFigures, ...]
    chosen: FormFigures
    budget: InferenceConfig
    unseen: str = ""
    variants: tuple[Variant, ...] = ()
    threshold_by_hand: float | None = None
    trains: bool = True
    auto_embeds: str = ""
    auto_trains: str = ""

    @property
    def runtime(self) -> RuntimeName:
        """The setting to keep: the fastest engine, or "auto", which may embed with another one than it trains with.

        That is kept where no other engine trains, or where nothing is faster than its two at what each of them does. Of
        a device that trains nothing only a verification counts.
        """
        if not self.trains:
            return "auto" if self.fastest.engine == self.auto_embeds else self.fastest.engine
        if self.fastest.engine != self.auto_trains:
            return self.fastest.engine
        is_alone = sum(each.step_ms is not None for each in self.engines) <= 1
        verifies = next((each.verify_ms for each in self.engines if each.engine == self.auto_embeds), None)
        is_as_fast = verifies is not None and verifies <= (self.fastest.verify_ms or 0.0)
        return "auto" if is_alone or is_as_fast else self.fastest.engine

    def to_plain(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "engines": [dataclasses.asdict(each) for each in self.engines],
            "fastest": self.fastest.engine,
            "forms": [dataclasses.asdict(each) for each in self.forms],
            "chosen": self.chosen.tier,
            "variants_unseen": self.unseen,
            "threshold_by_hand": self.threshold_by_hand,
        }

    def forget_others(self, device: Device) -> None:
        """Remove the variants that were fetched to be measured and are neither in use nor about to be."""
        wanted = load_config(device.home.config).config.inference.tier
        device.variants.forget_fetched(each for each in self.variants if each.tier == wanted)

    def change_over(self, device: Device) -> str | None:
        """Make the gallery's templates again with the form that is kept; None where the coordinator is away."""
        try:
            return device.update().tier
        except UnavailableError:
            return None

    def show(self, tier: str, now_used: str | None, config: Path, *, saved: bool) -> None:
        """Print it for people; `config` is where the engine is kept, if it was `saved`."""
        heads = ("step (ms)", "memory of a step (MB)") if self.trains else ()
        table = Table("engine", "verification (ms)", "embedding (ms)", *heads, box=None)
        for engine in self.engines:
            of_step = (engine.step_ms, engine.step_mb) if self.trains else ()
            table.add_row(engine.engine, *map(_number, (engine.verify_ms, engine.embed_ms, *of_step)))
        shell.OUT.print(table)
        for engine in self.engines:
            if engine.lacks:
                say(f"{engine.engine}: {engine.lacks}.")
        say(self._of_engines())
        forms = Table("form", "embedding (ms)", "memory (MB)", "file (MB)", "accuracy", box=None)
        for form in self.forms:
            numbers = map(_number, (form.embed_ms, form.memory_mb, form.size_mb))
            is_alone = len(self.forms) == 1
            forms.add_row(form.tier, *numbers, form.lacks or form.cost or ("" if is_alone else _COMPARED_WITH))
        shell.OUT.print(forms)
        if self.unseen:
            say(self.unseen)
        say(self._conclusion(tier, now_used, saved=saved))
        if self.threshold_by_hand is not None:
            say(said_of_threshold(self.threshold_by_hand, now_used or tier))
        if saved:
            say(f'Kept: runtime = "{self.runtime}" in {config}{self._of_auto()}.')

    def _of_auto(self) -> str:
        """Return which engines "auto" is on this device, where that is kept."""
        if self.runtime != "auto":
            return ""
        if not self.trains or self.auto_embeds == self.auto_trains:
            return f" ({self.auto_embeds})"
        return f" ({self.auto_embeds} embeds, {self.auto_trains} trains)"

    def _of_engines(self) -> str:
        """Return which engine is the fastest, at what, and what a dash stands for where there is one."""
        name, engines = self.fastest.engine, self.engines
        by_step = self.trains and self.fastest.step_ms is not None
        told = f"{name} has the shortest training step." if by_step else f"{name} is the fastest to verify."
        if not self.trains:
            told += " A device in no fleet trains nothing."
        if any(each.lacks for each in engines):
            told += " A dash: the engine cannot do that here, as said above."
        return told

    def _conclusion(self, tier: str, now_used: str | None, *, saved: bool) -> str:
        limit = f"{self.budget.max_ms:g} ms" + ("" if self.budget.max_mb is None else f" and {self.budget.max_mb:g} MB")
        if self.unseen and tier == self.budget.tier:
            stays = f"No variant was measured, so the model stays in {tier} (inference.tier)"
            return f"{stays}." if saved else f"{stays}; --save keeps the engine."
        if not saved:
            return f"Within {limit}, {tier} is the form to use; --save keeps engine and form."
        if now_used is None:
            return f"{tier} is kept; the phone changes over at the next `mien-device update`."
        return f"The model is used in {now_used} from now on."


def looked_at(device: Device) -> Looked:
    """Return the cost of engines and forms on this device."""
    settings = device.config
    model = device.recogniser().model
    engines = measure_engines(model, device.home.graphs, threads=settings.threads, trains=device.is_in_fleet)
    best = fastest(engines)
    forms = [FormFigures(FLOAT32, best.embed_ms, best.embed_mb, model.theta.nbytes / 1e6)]
    variants, unseen = _offered(device, model.model_id)
    for variant in variants:

        def load(variant: Variant = variant) -> LoadedVariant:
            return load_variant(variant, device.variants.read(variant), threads=settings.threads)

        forms.append(measure_variant(variant, load, max_fmr=settings.verification.max_fmr))
    by_hand = settings.verification.threshold
    return Looked(
        engines,
        best,
        tuple(forms),
        choose(forms, settings.inference),
        settings.inference,
        unseen,
        variants,
        by_hand,
        trains=device.is_in_fleet,
        auto_embeds=embedding_engine(model.spec, model.layout, "auto", device.home.graphs),
        auto_trains=resolve("auto"),
    )


def kept(found: Looked, home: Path, tier: str | None) -> str:
    """Write the engine to keep and a form, by default the chosen one, into device.toml; returns the form.

    Where variants were not looked at, nothing was chosen: without `tier` the form stays as the owner set it.
    """
    if tier is None and found.unseen:
        keep_setting(Home.at(home).config, "runtime", found.runtime)
        return found.budget.tier
    wanted = found.chosen.tier if tier is None else tier
    usable = [each.tier for each in found.forms if not each.lacks]
    if wanted not in usable:
        why = next((each.lacks for each in found.forms if each.tier == wanted), "the release brings no such variant")
        raise ConfigError(f"--tier {wanted} cannot be used here ({why}); choose from {', '.join(usable)}")
    config = Home.at(home).config
    if tier is not None or wanted != found.budget.tier:
        keep_setting(config, "inference.tier", wanted)
    keep_setting(config, "runtime", found.runtime)
    return wanted


def _offered(device: Device, model_id: str) -> tuple[tuple[Variant, ...], str]:
    """Return the variants of the model in use, and what kept this device from looking at them."""
    if not device.is_in_fleet:
        return (), "In no fleet there are no variants of the model: a release brings them."
    try:
        found = device.offered_variants()
    except (UnavailableError, InviteError, VersionError) as error:
        return (), f"Variants of the model were not looked at ({typed(error.message)})."
    if any(each.model_id != model_id for each in found):
        return (), "A newer model is released: run `mien-device update`, then measure again."
    return (
        found,
        "" if found else f"This release brings no variants that this program can run: it is used in {FLOAT32}.",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
