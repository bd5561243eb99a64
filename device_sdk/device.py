"""A device one can hold in one's head: open a home, join, enrol, verify, identify, take part."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from device_sdk.config import DeviceConfig, load_config
from device_sdk.models.abilities import UNSAID, Abilities, GraphLook, abilities_of
from device_sdk.models.graphs import fetch_graphs, list_in_force
from device_sdk.models.models import KnownModel, Model, ModelStore
from device_sdk.models.releases import CheckedRelease, ReleaseGuard
from device_sdk.models.variants import LoadedVariant, VariantStore, load_variant
from device_sdk.people.enrolled import LastRound, Person, name_is_taken, said_of_threshold
from device_sdk.people.gallery import Gallery, from_plain
from device_sdk.people.liveness import PadCheck, checked
from device_sdk.people.recogniser import Operating, Recogniser, operating_point, point_among
from device_sdk.people.stored_personal import Form, StoredPersonal
from device_sdk.rounds.conditions import Conditions, StatedConditions, conditions_from
from device_sdk.rounds.events import Event, Listener, transfer
from device_sdk.runtimes import load_embedder, load_runtime
from device_sdk.status import DeviceStatus
from device_sdk.storage.home import Home, default_root
from device_sdk.storage.keystore import KeyStore, open_key_store
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    IntegrityError,
    MienError,
    MissingDependencyError,
    NonFiniteError,
    NotFoundError,
    RevokedError,
    StorageError,
    UnavailableError,
    UnreachableError,
    VersionError,
)
from mien.methods.base import Runtime
from mien.models.variants import FLOAT32, Variant, form_id, model_of, variant_of
from mien.protocol.ids import ModelId
from mien.protocol.rounds import Role, Wait
from mien.shell.clock import Clock, WallClock
from mien.shell.doing import counting
from mien.shell.files import read_limited, write_atomically
from mien.shell.keys import secret_bytes
from mien.shell.lock import exclusive
from mien.shell.settings import Resolved
from mien.specs import GroupRate, ModelSpec

# What only some take is imported where it is used: recognising people does without gRPC, and asking how things stand
# without what looks at pictures or speaks to servers.
if TYPE_CHECKING:
    from device_sdk.faces import FacePipeline, ImageSource
    from device_sdk.faces.source import SourceFaces
    from device_sdk.people.enroll import Enrollment, RefusedImage
    from device_sdk.people.personal import Personalised, PersonalRecogniser
    from device_sdk.people.verify import Comparer, Outcome
    from device_sdk.rounds.attempts import Attempts, OwnSum
    from device_sdk.rounds.masked import WaitingKeys
    from device_sdk.rounds.participate import Participant, RoundOutcome
    from device_sdk.rounds.round_log import LogFiles, RoundLog
    from device_sdk.server.client import CoordinatorClient
    from device_sdk.server.identity import Identity, IdentityFiles

RuntimeLoader = Callable[[Model], Runtime]

MAX_BACKUP_BYTES: Final = 2**32

RENEWAL_RETRY_S: Final = 3600.0
"""Pause before a renewal is tried again when the registrar did not answer."""


@dataclass(frozen=True)
class ModelUpdate:
    """Result of `Device.update`: the model now in use and as what (`tier`: float32, or a variant's name), whether that
    is another one than before, and how many templates it made.
    """

    model_id: str
    changed: bool
    num_templates: int
    tier: str = FLOAT32


class Device:
    """One device and its home folder. Use it in a `with` block, or close it.

    In no fleet it recognises people with the recogniser that comes with this package (`device_sdk.models.packaged`).
    Nothing is fetched or decrypted before it is needed; torch is imported to train, and to embed where no graphs do.
    """

    def __init__(
        self,
        home: Home,
        config: Resolved[DeviceConfig],
        key_store: KeyStore,
        *,
        clock: Clock,
        rng: random.Random,
        tell: Listener,
        runtime_loader: RuntimeLoader | None = None,
        pad: PadCheck | None = None,
    ) -> None:
        self.home = home
        self.config, self._origins = config.config, config.origins
        self.clock = clock
        self._key_store = key_store
        self._rng = rng
        self._tell = tell
        self._load_runtime = runtime_loader or self._default_runtime
        self._load_embedder = runtime_loader or self._default_embedder
        self._pad = checked(pad)
        self._gallery: Gallery | None = None
        self._attempts: Attempts | None = None
        self._waiting: WaitingKeys | None = None
        self._renewal_after_s = 0.0
        self._runtimes: dict[str, tuple[str, Runtime]] = {}
        self._loaded: LoadedVariant | None = None
        self.models = ModelStore(home.models)
        self.variants = VariantStore(home.variants)

    @classmethod
    def open(
        cls,
        home: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        warn: Callable[[str], None] = lambda _message: None,
        tell: Listener = lambda _event: None,
        runtime_loader: RuntimeLoader | None = None,
        pad: PadCheck | None = None,
    ) -> Device:
        """Return the device whose home is a folder, made anew where there is none.

        Without a folder it is the one of `default_root`. `options` are settings by dotted name that come before those
        of device.toml. `warn` hears what the owner should know, `tell` what happens during longer work.
        `runtime_loader` replaces the engine that embeds and trains. `pad` checks every face that is verified or
        identified for presentation attacks; it needs a measured report (see `device_sdk.people.liveness`).
        """
        opened = Home.open(default_root() if home is None else Path(home))
        config = load_config(opened.config, options)
        return cls(
            opened,
            config,
            open_key_store(opened.folder, config.config.keystore, warn=warn),
            clock=clock or WallClock(),
            rng=rng or random.Random(secret_bytes(16)),  # noqa: S311  (jitter of pauses)
            tell=tell,
            runtime_loader=runtime_loader,
            pad=pad,
        )

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._let_keys_go()
        if self._gallery is not None:
            self._gallery.close()
            self._gallery = None
        if self._attempts is not None:
            self._attempts.close()
            self._attempts = None

    # --- joining ---

    def join(self, invite: str) -> Identity:
        """Join the fleet that an invite URL names, and return who this device is there; may be repeated.

        Whoever is enrolled stays, with templates of the fleet's released model; where that cannot be had now, an event
        says so, and `update` fetches it later.
        """
        from device_sdk.server.join import join
        from mien.protocol.invite import Invite

        with self._revocation_noted():
            identity = join(Invite.from_url(invite), self._identity_files, self.clock, self._rng)
        if self.gallery.form_id is not None:
            self._update_or_tell(self.update)
        return identity

    def relocate(self, invite: str) -> Identity:
        """Follow this device's fleet to where an invite says it moved, and keep id, people and all else."""
        from device_sdk.server.join import relocate
        from mien.protocol.invite import Invite

        with self._revocation_noted():
            return relocate(self.identity, Invite.from_url(invite), self._identity_files, self.clock, self._rng)

    def renew_certificate(self) -> Identity:
        """Renew this device's certificate now, whatever is left of it; that also asks whether releases are signed.

        It renews itself when little is left. Raises InviteError in no fleet.
        """
        from device_sdk.server.join import renew

        with self._revocation_noted():
            return renew(self.identity, self._identity_files, self.clock, self._rng)

    @property
    def is_in_fleet(self) -> bool:
        """Whether this device has joined a fleet; without one it recognises people, and trains nothing."""
        return self.home.identity.exists()

    @property
    def identity(self) -> Identity:
        """Identity of this device in its fleet; raises InviteError before it has joined."""
        return self._identity_files.load()

    @cached_property
    def _identity_files(self) -> IdentityFiles:
        from device_sdk.server.identity import IdentityFiles

        return IdentityFiles(self.home, self._key_store)

    # --- people ---

    @property
    def gallery(self) -> Gallery:
        """The encrypted gallery."""
        if self._gallery is None:
            self._gallery = Gallery.open(self.home.gallery, self._key_store)
        return self._gallery

    def people(self) -> tuple[Person, ...]:
        """Return everybody enrolled."""
        return self.gallery.people()

    def enroll(
        self,
        name: str,
        images: Sequence[ImageSource] | ImageSource,
        *,
        consent: bool,
        add: bool = False,
        anyway: bool = False,
        on_refused: Callable[[RefusedImage], None] = lambda _image: None,
    ) -> Enrollment:
        """Enrol a person from pictures (a folder, or a sequence of folders and pictures), all or nothing.

        `consent` is the person's own agreement that their pictures train the shared model. The first enrolment fetches
        the released model. With `anyway` nobody is compared with anybody: the pictures are this person's, and this
        person is nobody else. A picture is a file, its bytes, a Pillow picture, a `Frame`, or pixels (H, W, 3) uint8,
        which are taken for RGB. Errors as `device_sdk.people.enroll.enroll`.
        """
        from device_sdk.people.enroll import enroll

        # What costs nothing to find out comes before the model is fetched.
        gathered = _gather(images)
        if self.gallery.has(name) and not add:
            raise name_is_taken(name)
        recogniser = self.recogniser()
        unlike_below, alike_from = self._consistency(recogniser, 1, anyway=anyway)
        return enroll(
            name,
            gathered,
            self.gallery,
            recogniser,
            self._pipeline,
            now_unix_s=int(self.clock.now()),
            consent=consent,
            add=add,
            min_images=self.config.enrollment.min_images,
            unlike_below=unlike_below,
            alike_from=alike_from,
            on_refused=on_refused,
        )

    def verify(self, name: str, image: ImageSource) -> Outcome:
        """Return whether the face in an image is the enrolled person's of that name."""
        self.gallery.person(name)
        return self._comparer().verify(name, image)

    def identify(self, image: ImageSource) -> Outcome:
        """Return the enrolled person whose face is in an image, or Unknown."""
        from device_sdk.people.verify import nobody_is_enrolled

        if not self.people():
            raise nobody_is_enrolled()
        return self._comparer().identify(image)

    def verify_pair(self, reference: ImageSource, probe: ImageSource) -> Outcome:
        """Return whether two pictures show one person, whom a `Match` calls by the name of `reference`.

        It takes the recogniser of this home, or where nobody is enrolled the packaged one, and stores nothing.
        """
        from device_sdk.models.packaged import packaged_model
        from device_sdk.people.verify import compare

        form = self.gallery.form_id
        recogniser = self._recogniser(packaged_model()) if form is None else self.recogniser()
        at = self.operating_point(recogniser.model, recogniser.variant)
        return compare(reference, probe, recogniser, self._pipeline, at, self._pad)

    def _comparer(self) -> Comparer:
        from device_sdk.people.verify import Comparer

        recogniser = self.recogniser()
        at = self.operating_point(recogniser.model, recogniser.variant)
        among = partial(self._point_among, recogniser)
        return Comparer(self.gallery, recogniser, self._pipeline, at, self._personal(recogniser), self._pad, among)

    def _point_among(self, recogniser: Recogniser, num_enrolled: int) -> Operating:
        settings = self.config.verification
        return point_among(
            recogniser.model,
            recogniser.variant,
            num_enrolled,
            threshold=settings.threshold,
            max_fmr=settings.max_fmr,
            max_fpir=settings.max_fpir,
            signed=self._is_signed(),
        )

    def personalise(self, form: Form | None = None) -> Personalised:
        """Fit the personal model to everybody here who agreed, and use it where it is better; see `personalise`.

        It never leaves this device and is fitted again after each release. `form` is by default what
        `personal_backbone` says.
        """
        recogniser = self.recogniser()
        if recogniser.variant is not None:
            raise ConfigError(
                f"a personal model is made on the model in float32, this phone uses {recogniser.variant.tier}; set "
                "inference.tier to float32 and call `Device.update()` first"
            )
        return self._personalise(recogniser, form or self.config.personal_backbone)

    def _personalise(self, recogniser: Recogniser, form: Form) -> Personalised:
        from device_sdk.people.personal import personalise

        shard = self.models.load_shard(recogniser.model)
        if shard is None and not self.is_in_fleet:
            raise ConfigError(
                "a personal model needs public faces, which come with a fleet's release; join a fleet with an invite "
                "of its operator"
            )
        at = self.operating_point(recogniser.model)
        return personalise(self.gallery, recogniser, shard, at.value, form)

    def forget_personal(self) -> bool:
        """Go back to the released model; tells whether there was a personal one."""
        return self.gallery.forget_personal()

    def _personal(self, recogniser: Recogniser) -> PersonalRecogniser | None:
        """Return the personal model; under another threshold than it was carried over from the released one serves.

        It is made on the model in float32, and no variant of it has one.
        """
        if recogniser.variant is not None:
            return None
        stored = self.gallery.personal(recogniser.model_id)
        if stored is None or not self._is_fitted_to(stored, recogniser.model):
            return None
        from device_sdk.people.personal import PersonalRecogniser

        return PersonalRecogniser(recogniser, stored)

    def _is_fitted_to(self, stored: StoredPersonal, model: KnownModel) -> bool:
        return stored.released_threshold == self.operating_point(model).value

    def remove(self, name: str) -> Person:
        """Remove a person and everything that was made of them."""
        removed = self.gallery.remove(name)
        self._let_keys_go()
        return removed

    def set_consent(self, name: str, *, agreed: bool) -> Person:
        """Record that a person agrees, or no longer agrees, that their pictures train the shared model.

        Withdrawal removes the private state of training and an update that has not been sent; a round that runs goes on
        without it. What was sent or summed already cannot be taken back.
        """
        person = self.gallery.person(name)
        if agreed and person.trains:
            return person
        person = self.gallery.set_consent(name, granted_unix_s=int(self.clock.now()) if agreed else None)
        if not agreed:
            self._let_keys_go()
        return person

    def _let_keys_go(self) -> None:
        """Destroy keys of a sum that wait for the coordinator: what they hide goes with who leaves."""
        if self._waiting is not None:
            self._waiting.let_go()

    def export(self, path: str | os.PathLike[str], password: str) -> int:
        """Write the gallery to a file under a password; returns how many people are in it."""
        from device_sdk.people.backup import seal_backup

        target = Path(path)
        if target.exists():
            raise AlreadyExistsError(f"{target} exists already; name another file")
        people = self.people()
        write_atomically(target, seal_backup(self.gallery.to_plain(), password), private=True)
        return len(people)

    def restore(self, path: str | os.PathLike[str], password: str, *, anyway: bool = False) -> int:
        """Add everybody in an exported gallery, all or none, with templates of the model in use; returns how many.

        They are compared with who is enrolled and with one another (`check_restored`), but with `anyway`.
        """
        from device_sdk.people.backup import unseal_backup
        from device_sdk.people.enroll import check_restored

        if not Path(path).is_file():
            raise NotFoundError(f"there is no file {path}; check the path")
        data = read_limited(Path(path), MAX_BACKUP_BYTES, what="the exported gallery")
        people = from_plain(unseal_backup(data, password))
        recogniser = self.recogniser()
        made = [
            (person, [recogniser.template(recogniser.embed(crops)) for crops in person.crops])
            for person in counting("Making the templates", people)
        ]
        unlike_below, alike_from = self._consistency(recogniser, len(made), anyway=anyway)
        references = self.gallery.references(recogniser.form_id)
        check_restored(made, references, unlike_below=unlike_below, alike_from=alike_from)
        self.gallery.restore(made)
        return len(people)

    def rotate_keys(self) -> None:
        """Seal the gallery and the log of private sums anew under new keys and destroy the old ones.

        Copies of these files from before can never be read again. Raises UnreachableError while another one does so.
        """
        self.gallery.rotate_key()
        if self.is_in_fleet:
            self.attempts.rotate_key()

    def renew(self, name: str) -> int:
        """Give a person's stored templates new secret rotations; returns how many. Stolen old ones match nothing."""
        return self.gallery.renew(name)

    def tell_participation(self) -> bool:
        """Ask the coordinator to leave this device out of rounds, or no longer, if that is still to be told.

        Returns whether nothing is left to be told; where the coordinator is away, or no longer admits this device, it
        is told at the next connection that succeeds.
        """
        if not self.is_in_fleet or self.gallery.stays_out is None:
            return True
        try:
            with self.connect():
                return True
        except MienError:  # revoked, expired, a wrong clock: what was withdrawn here stays withdrawn all the same
            return False

    def wipe(self) -> None:
        """Destroy the gallery's keys and file. The device stays joined; copies of the file can never be read again.

        The coordinator is asked to leave this device out of rounds, if it can be reached.
        """
        if self.is_in_fleet:
            self._leave_rounds()
        self.close()
        Gallery.wipe(self.home.gallery, self._key_store)

    def _leave_rounds(self) -> None:
        try:
            for person in [person for person in self.people() if person.trains]:
                self.set_consent(person.name, agreed=False)
        except (CorruptDataError, StorageError):
            return  # a gallery that does not open, or takes nothing more, is wiped all the same
        self.tell_participation()

    # --- models ---

    def recogniser(self) -> Recogniser:
        """Return the recogniser that the gallery's templates are made with; at first, as `update` brings it."""
        form = self.gallery.form_id
        if form is None or not self._holds(form):
            self.update()
            form = self.gallery.form_id
        if form is None:
            raise NotFoundError("no model is here; call `Device.update()`")
        variant = self.variants.load(form) if variant_of(form) else None
        return self._recogniser(self.models.load(model_of(form)), variant)

    def _holds(self, form: str) -> bool:
        """Return whether a form can be loaded without a network."""
        return self.models.has(model_of(form)) and (not variant_of(form) or self.variants.has(form))

    def operating_point(self, model: KnownModel, variant: Variant | None = None) -> Operating:
        """Return the threshold that decides with a model, or with a variant of it."""
        settings = self.config.verification
        signed = self._is_signed()
        return operating_point(model, variant, threshold=settings.threshold, max_fmr=settings.max_fmr, signed=signed)

    def _is_signed(self) -> bool:
        """Return whether this fleet's releases are signed, and their thresholds with them."""
        return self.is_in_fleet and bool(self.identity.release_key)

    def lacks_threshold(self) -> str:
        """Return why no threshold decides with the form in use, and what helps; empty where one does, or none is."""
        form = self.gallery.form_id
        if form is None:
            return ""
        try:
            variant = self.variants.load(form) if variant_of(form) else None
            self.operating_point(self.models.known(model_of(form)), variant)
        except ConfigError as error:
            return error.message
        except (NotFoundError, IntegrityError, VersionError):
            return ""  # there is no model or variant to ask; `doctor` says so
        return ""

    def offered_variants(self) -> tuple[Variant, ...]:
        """Return the variants that come with the released model, fetched; none where nothing is signed."""
        with self.connect() as client:
            release = self._release_guard.check(client.manifest())
            offered = self.variants.offered(client, release.signed)
            for variant in offered:
                self.variants.fetch(client, variant, progress=transfer(self._tell, f"variant {variant.tier}"))
        return offered

    def update(self) -> ModelUpdate:
        """Fetch the released model and re-embed the gallery with it in one switch; the old one serves until then.

        The same happens where `inference.tier` names another form of the model than the one in use. In no fleet it is
        the recogniser that comes with this package.
        """
        if not self.is_in_fleet:
            return self._take_packaged()
        with self.connect() as client:
            return self._update(client)

    def _update_or_tell(self, update: Callable[[], ModelUpdate]) -> None:
        try:
            update()
        except (
            ConfigError,
            UnavailableError,
            NotFoundError,
            IntegrityError,
            MissingDependencyError,
            VersionError,
        ) as error:
            self._tell(Event("update_postponed", f"The released model was not fetched ({error.message})."))

    def _take_packaged(self) -> ModelUpdate:
        """Use the recogniser that comes with this program, with the thresholds that it brings now."""
        from device_sdk.models.packaged import packaged_model

        model, before = packaged_model(), self.gallery.form_id
        changed = before != model.model_id
        if changed:
            facts = {"model_id": model.model_id}
            self._tell(Event("packaged_model", "This device is in no fleet: it takes the packaged recogniser.", facts))
        with self.models.switching():
            self.models.put(model)
            recogniser = self._recogniser(model)
            num_templates = 0
            if changed:
                num_templates = self.gallery.reembed(recogniser.form_id, recogniser.input, recogniser.embed)
        return ModelUpdate(model.model_id, changed=changed, num_templates=num_templates)

    def _update(self, client: CoordinatorClient) -> ModelUpdate:
        release = self._release_guard.check(client.manifest())
        self._look_up(client, release.manifest.model_id)
        fetch_graphs(client, release.signed, self.home.graphs, self.config.runtime)
        return self._take_over(client, release, self._wanted(client, release))

    def _look_up(self, client: CoordinatorClient, model_id: ModelId) -> None:
        """Return once the log of rounds holds the release of a model that is not in use here yet.

        Raises TransparencyError where it does not, UnreachableError while that cannot be said.
        """
        log = self._round_log()
        if log is None or model_id == self.gallery.model_id:
            return
        found = log.check_release(client, model_id, self.identity.population)
        if isinstance(found, Wait):
            raise UnreachableError(found.reason)
        if found:
            self._tell(Event("uncosigned", found))

    @property
    def _release_guard(self) -> ReleaseGuard:
        return ReleaseGuard(self.identity.release_key, self.home.release)

    def _wanted(self, client: CoordinatorClient, release: CheckedRelease) -> Variant | None:
        """Return the variant that `inference.tier` names, fetched; None for float32, and where a release has none."""
        tier = self._wanted_tier()
        if tier == FLOAT32:
            return None
        why, offered = f"This release has no variant {tier} that this program can run", tuple[Variant, ...]()
        try:
            offered = self.variants.offered(client, release.signed)
        except VersionError as error:
            why = f"No variant of this release was looked at ({error.message})"
        found = next((each for each in offered if each.tier == tier), None)
        if found is not None:
            self.variants.fetch(client, found, progress=transfer(self._tell, f"variant {tier}"))
        elif self.gallery.form_id != (model_id := release.manifest.model_id):
            self._tell(Event("no_variant", f"{why}: it is used in float32.", {"model_id": model_id, "tier": tier}))
        return found

    def _wanted_tier(self) -> str:
        """Return the form that an option names, else device.toml as it is now: another process may have chosen anew."""
        if self._origins["inference.tier"] == "option":
            return self.config.inference.tier
        return load_config(self.home.config).config.inference.tier

    def _take_over(self, client: CoordinatorClient, release: CheckedRelease, variant: Variant | None) -> ModelUpdate:
        """Use a checked release; the gallery changes over in one switch.

        The release is remembered just before it comes into force: a device that dies in between takes it at its next
        update, one that died the other way round would let an older one in.
        """
        from device_sdk.rounds.participate import fetch_model

        manifest = release.manifest
        before, tier = self.gallery.form_id, FLOAT32 if variant is None else variant.tier
        if before == form_id(manifest.model_id, "" if variant is None else variant.sha256):
            self._refresh(client, release, variant)
            return ModelUpdate(manifest.model_id, changed=False, num_templates=0, tier=tier)
        with self.models.switching():
            if self.models.holds(manifest):
                model = self.models.load(manifest.model_id)
            else:
                model = fetch_model(client, self.models, manifest, self._tell)
            recogniser = self._recogniser(model, variant)
            personal = None if before is None else self.gallery.personal(model_of(before))
            self._release_guard.accept(release)
            if variant is not None:
                self.variants.keep(variant)
            num_templates = self.gallery.reembed(recogniser.form_id, recogniser.input, recogniser.embed)
        self.models.keep_only([recogniser.model_id])
        self.variants.keep_only([recogniser.form_id])
        facts = {"model_id": recogniser.model_id, "tier": tier, "num_templates": num_templates}
        text = f"Model {recogniser.model_id[:12]} is in use" + ("" if variant is None else f" as {tier}")
        made = "1 template was" if num_templates == 1 else f"{num_templates} templates were"
        text += f"; {made} made again with it." if num_templates else "."
        self._tell(Event("model_updated", text, facts))
        threshold = self.config.verification.threshold
        if threshold is not None and (before is not None or variant is not None):
            self._tell(Event("threshold_by_hand", said_of_threshold(threshold, tier), {"threshold": threshold}))
        if personal is not None:
            self._fit_again(recogniser, personal.form)
        return ModelUpdate(recogniser.model_id, changed=True, num_templates=num_templates, tier=tier)

    def _refresh(self, client: CoordinatorClient, release: CheckedRelease, variant: Variant | None) -> None:
        """Adopt news about the form in use: its thresholds, which are in force once they are fetched."""
        from device_sdk.rounds.participate import fetch_model

        manifest = release.manifest
        self._release_guard.accept(release)
        if variant is not None:
            self.variants.keep(variant)
        if self.models.holds(manifest):
            return
        recogniser = self._recogniser(fetch_model(client, self.models, manifest, self._tell), variant)
        if (personal := self.gallery.personal(manifest.model_id)) is not None and self._personal(recogniser) is None:
            self._fit_again(recogniser, personal.form)

    def _fit_again(self, recogniser: Recogniser, form: Form) -> None:
        """Fit the personal model to another release; until that works the release itself serves."""
        if recogniser.variant is not None:
            text = f"A personal model is made on float32; {recogniser.variant.tier} serves without one."
            self._tell(Event("personal_postponed", text))
            return
        try:
            made = self._personalise(recogniser, form)
        except (ConfigError, NotFoundError, UnavailableError, NonFiniteError) as error:
            self._tell(Event("personal_postponed", f"The personal model was not fitted again ({error.message})."))
            return
        used = "is in use again" if made.is_used else "is no better than this release, which serves alone"
        self._tell(Event("personalised", f"The personal model was fitted to the new release and {used}."))

    def _recogniser(self, model: Model, variant: Variant | None = None) -> Recogniser:
        return Recogniser(model, self._embedder(model) if variant is None else self._session(variant))

    def _session(self, variant: Variant) -> LoadedVariant:
        """Return a variant made ready, with the thresholds that it has now."""
        if self._loaded is None or self._loaded.variant.form_id != variant.form_id:
            self._loaded = load_variant(variant, self.variants.read(variant), threads=self.config.threads)
        return replace(self._loaded, variant=variant)

    def _runtime(self, model: Model) -> Runtime:
        """Return the engine that trains a model's backbone; one serves all versions of the same layout."""
        return self._loaded_once("train", model, self._load_runtime)

    def _embedder(self, model: Model) -> Runtime:
        """Return the engine that embeds with it, which may be the same."""
        trains_too = self._load_embedder == self._load_runtime or self.config.runtime != "auto"
        return self._runtime(model) if trains_too else self._loaded_once("embed", model, self._load_embedder)

    def _loaded_once(self, what: str, model: Model, load: RuntimeLoader) -> Runtime:
        """Return an engine that is kept until one is wanted for another layout, or for other graphs.

        Another process of this phone may have taken over other graphs, and those that this one opened are gone then.
        """
        graphs = list_in_force(self.home.graphs, model.layout.sha256)
        key = f"{model.spec.backbone}/{model.layout.sha256}/{model.spec.input}/{graphs}"
        kept = self._runtimes.get(what)
        if kept is None or kept[0] != key:
            kept = self._runtimes[what] = (key, load(model))
        return kept[1]

    def _default_embedder(self, model: Model) -> Runtime:
        values = self.config
        return load_embedder(
            model.spec, model.layout, threads=values.threads, choice=values.runtime, graphs=self.home.graphs
        )

    def _default_runtime(self, model: Model) -> Runtime:
        values = self.config
        return load_runtime(
            model.spec, model.layout, threads=values.threads, choice=values.runtime, graphs=self.home.graphs
        )

    def _abilities(self) -> Abilities:
        """Return this device's abilities; unsaid for an engine that a program brought itself."""
        if self._load_runtime != self._default_runtime:
            return UNSAID
        return abilities_of(self.config.runtime, self.home.graphs)

    def _consistency(
        self, recogniser: Recogniser, num_more: int, *, anyway: bool
    ) -> tuple[float, float] | tuple[None, None]:
        """Return the cosines below which pictures are of another person, and from which on a face is somebody's here.

        `num_more` people are about to be enrolled. None where the model has no threshold, or nothing is to be compared.
        """
        if anyway:
            return None, None
        try:
            at = self.operating_point(recogniser.model, recogniser.variant)
            return at.value, self._point_among(recogniser, len(self.people()) + num_more).value
        except ConfigError:
            return None, None

    @cached_property
    def _pipeline(self) -> FacePipeline:
        from device_sdk.faces import ChoiceRule, FacePipeline
        from device_sdk.faces.crops import MASTER

        return FacePipeline(MASTER, self.config.quality, ChoiceRule.ONLY)

    # --- taking part ---

    @property
    def attempts(self) -> Attempts:
        """The encrypted log of private sums that this device took part in; raises InviteError before it has joined."""
        from device_sdk.rounds.attempts import Attempts

        population = self.identity.population  # another one since an invite into it was taken
        if self._attempts is None:
            self._attempts = Attempts.open(self.home.attempts, self._key_store, population, self.clock)
        return self._attempts.of(population)

    def participate(
        self,
        *,
        rounds: int | None = None,
        idle_s: float | None = None,
        conditions: Conditions | None = None,
        source: str | os.PathLike[str] | None = None,
        source_aligned: bool = False,
        validate: bool = False,
    ) -> Iterator[RoundOutcome]:
        """Take part in training, yielding the outcome of each round; see `device_sdk.rounds.participate.take_part`.

        After each round, and where tasks want graphs that are not here, the released model is taken over if it is
        another one. One process per home may take part.
        `conditions` say when it may; without them `participation.conditions` does. `source` is a folder of labelled
        faces that train in place of the people enrolled here; see `read_source`. With `validate` this device judges
        candidate models on its faces, and trains nothing. The program's priority is left as it is.
        """
        from device_sdk.rounds.budget import TrainingBudget
        from device_sdk.rounds.masked import WaitingKeys
        from device_sdk.rounds.participate import Counted, Participant, take_part
        from device_sdk.rounds.training_people import person_beside_source

        settings = self.config.participation
        asked = conditions or conditions_from(settings.conditions, StatedConditions())
        with (
            exclusive(self.home.participation_lock, program="program that takes part", option="`home`"),
            self._connections() as client,
        ):
            if source is not None and settings.person:
                raise person_beside_source()
            faces = None if source is None else self._read_source(source, aligned=source_aligned)
            waiting = self._waiting = self._waiting or WaitingKeys()

            def current() -> Participant:
                return Participant(
                    client(),
                    self.gallery,
                    self.models,
                    settings,
                    asked,
                    self._runtime,
                    self.attempts,
                    self.clock,
                    self._tell,
                    source=faces,
                    role=Role.VALIDATE if validate else Role.TRAIN,
                    budget=TrainingBudget(settings.max_training_s, settings.max_memory_mb),
                    abilities=self._abilities(),
                    log=self._round_log(),
                    waiting=waiting,
                )

            def update() -> None:
                # The round is settled; a release that cannot be had or used, or a device.toml that is being edited,
                # must not end the participation.
                self._update_or_tell(lambda: self._update(client()))

            def after_round(outcome: RoundOutcome) -> None:
                counted = isinstance(outcome, Counted)
                peers = outcome.peers if isinstance(outcome, Counted) else ""
                self.gallery.note_round(LastRound(int(self.clock.now()), counted, peers))
                update()

            look = GraphLook(self.clock, self._abilities, update)
            yield from take_part(
                current, self.clock, rounds=rounds, idle_s=idle_s, after_round=after_round, on_wait=look.on_wait
            )

    @property
    def log_files(self) -> LogFiles:
        """Files of the log of rounds: the last checkpoint, and the evidence of lies."""
        from device_sdk.rounds.round_log import LogFiles

        return LogFiles(self.home.round_log, self.home.log_evidence, self._key_store)

    def _round_log(self) -> RoundLog | None:
        """Return the check of rounds against the log; None for a device that was told no witness's key yet."""
        from device_sdk.rounds.round_log import RoundLog
        from device_sdk.server.join import registrar_answers
        from mien.log.checkpoints import NoteKey

        identity = self.identity
        if not identity.witness_key:
            return None
        answers = partial(registrar_answers, identity, self.clock)
        witness = NoteKey.parse(identity.witness_key)
        return RoundLog(witness, self.log_files, answers, self.clock, identity.quorum)

    def _read_source(self, folder: str | os.PathLike[str], *, aligned: bool) -> SourceFaces:
        """Return a source's faces, taken as a data set's are: the one nearest the middle, of whatever quality."""
        from device_sdk.faces import ChoiceRule, FacePipeline
        from device_sdk.faces.crops import MASTER
        from device_sdk.faces.source import read_source

        def on_refused(text: str) -> None:
            self._tell(Event("source_refused", text))

        faces = read_source(
            folder, FacePipeline(MASTER, None, ChoiceRule.CENTRE, aligned=aligned), on_refused=on_refused
        )
        facts = {"num_images": len(faces.crops), "num_people": faces.num_people}
        text = f"The source has {len(faces.crops)} faces of {faces.num_people} people; none of them is stored here."
        self._tell(Event("source", text, facts))
        return faces

    @contextmanager
    def connect(self) -> Iterator[CoordinatorClient]:
        """A connection to the coordinator, greeted, with a certificate that is renewed when little of it is left."""
        with self._connections() as client:
            yield client()

    @contextmanager
    def _connections(self) -> Iterator[Callable[[], CoordinatorClient]]:
        """A function that gives the connection to use now: another one after the certificate was renewed."""
        from device_sdk.server.client import CoordinatorClient

        opened: list[CoordinatorClient] = []

        def client() -> CoordinatorClient:
            if not opened or self._renewal_due(opened[-1].identity):
                while opened:
                    opened.pop().close()
                another = CoordinatorClient(
                    self._fresh_identity(),
                    self.clock,
                    self._rng,
                    last_address=self.gallery.owner_address,
                    on_moved=self.gallery.note_owner_address,
                )
                try:
                    another.hello()
                except MienError:
                    another.close()
                    raise
                opened.append(another)
                if self.gallery.revoked_unix_s is not None:
                    self.gallery.note_revoked(None)
            if (stays_out := self.gallery.stays_out) is not None:
                opened[-1].set_participation(stays_out=stays_out)
                self.gallery.note_told(stays_out=stays_out)
            return opened[-1]

        try:
            with self._revocation_noted():
                yield client
        finally:
            while opened:
                opened.pop().close()

    @contextmanager
    def _revocation_noted(self) -> Iterator[None]:
        """A block in which a server may refuse this device as revoked: `status` then says so without asking."""
        try:
            yield
        except RevokedError:
            if self.is_in_fleet:
                # What the server said is the news; a gallery that does not open is told by whoever uses it.
                with suppress(CorruptDataError, StorageError, UnavailableError):
                    self.gallery.note_revoked(int(self.clock.now()))
            raise

    def _renewal_due(self, identity: Identity) -> bool:
        return self._is_due(identity) and self.clock.monotonic_s() >= self._renewal_after_s

    def _is_due(self, identity: Identity) -> bool:
        from device_sdk.server.identity import renewal_due

        return renewal_due(identity, self.clock)

    def _fresh_identity(self) -> Identity:
        from device_sdk.server.join import renew

        identity = self.identity
        if not self._renewal_due(identity):
            return identity
        try:
            renewed = renew(identity, self._identity_files, self.clock, self._rng)
        except UnavailableError as error:
            # The old certificate may have days left; TLS says so if it has not.
            self._renewal_after_s = self.clock.monotonic_s() + RENEWAL_RETRY_S
            self._tell(Event("renewal_postponed", f"The certificate was not renewed ({error.message})."))
            return identity
        self._tell(Event("renewed", f"Certificate renewed until {renewed.certificate.not_valid_after_utc:%Y-%m-%d}."))
        return renewed

    # --- looking ---

    def _private_sums(self) -> Sequence[OwnSum]:
        """Return the sums that masked vectors went into; looking makes no log where there is none yet."""
        return self.attempts.sums() if self.is_in_fleet and (self._attempts or self.home.attempts.exists()) else ()

    def _num_sums_today(self, sums: Sequence[OwnSum]) -> int:
        if not sums:
            return 0
        from device_sdk.rounds.attempts import sums_today

        return sums_today(sums, int(self.clock.now()))

    def _used_up_model(self, sums: Sequence[OwnSum]) -> str | None:
        if not sums:
            return None
        from device_sdk.rounds.attempts import used_up

        return used_up(sums, self.config.participation.max_sums_per_model)

    def status(self) -> DeviceStatus:
        """Return this device's status, without asking the network."""
        identity = self.identity if self.is_in_fleet else None
        people, pending, model_id = self.people(), self.gallery.pending(), self.gallery.model_id
        last = self.gallery.last_round
        personal, serves = self._stored_personal()
        sums, settings = self._private_sums(), self.config.participation
        spec = self._spec(model_id)
        groups = [each for each in (spec and spec.groups) or () if each.model_id == model_id]
        return DeviceStatus(
            home=str(self.home.folder),
            keystore=self._key_store.kind,
            device_id=identity.device_id if identity else None,
            population=identity.population if identity else None,
            coordinator=identity.coordinator_address if identity else None,
            certificate_ends=identity.certificate.not_valid_after_utc.isoformat() if identity else None,
            takes_unsigned_releases=identity is not None and not identity.release_key,
            model_id=model_id,
            backbone=None if spec is None else spec.backbone,
            num_people=len(people),
            num_agreed=sum(person.trains for person in people),
            pending_round=f"{pending.task_id}/{pending.round}/{pending.attempt}" if pending else None,
            num_private_sums=len(sums),
            num_sums_today=self._num_sums_today(sums),
            max_sums_per_day=settings.max_sums_per_day,
            max_sums_per_model=settings.max_sums_per_model,
            used_up_model=self._used_up_model(sums),
            measures_models=settings.allow_evaluation,
            asked_to_stay_out=self.gallery.wants_out,
            revoked_unix_s=self.gallery.revoked_unix_s,
            personal_model=personal.form if personal is not None and serves else None,
            liveness_check=str(self._pad.report) if self._pad else None,
            tier=self._tier(),
            last_round_unix_s=None if last is None else last.unix_s,
            last_round_counted=None if last is None else last.counted,
            last_round_peers="" if last is None else last.peers,
            threshold_by_hand=self.config.verification.threshold,
            personal_model_is_stale=serves is False,
            renewal_is_due=identity is not None and self._is_due(identity),
            lacks_threshold=self.lacks_threshold(),
            groups_measured=tuple(_named(each) for each in groups if each.verdict != "too_small"),
            groups_above_rate=tuple(_named(each) for each in groups if each.verdict == "exceeds"),
            never_measured=() if spec is None else _never_measured(groups),
        )

    def _tier(self) -> str | None:
        """Return the name of the form that made the templates."""
        form = self.gallery.form_id
        if form is None or not variant_of(form):
            return None if form is None else FLOAT32
        try:
            return self.variants.load(form).tier
        except (NotFoundError, IntegrityError, VersionError):
            return "a variant that is missing here"

    def _stored_personal(self) -> tuple[StoredPersonal | None, bool | None]:
        """Return the personal model of the form in use, and whether it decides; None where nothing can decide."""
        form = self.gallery.form_id
        stored = self.gallery.personal(form) if form else None  # no variant has one
        if stored is None:
            return None, None
        try:
            return stored, self._is_fitted_to(stored, self.models.known(stored.model_id))
        except (ConfigError, NotFoundError):
            return stored, None

    def _spec(self, model_id: str | None) -> ModelSpec | None:
        try:
            return self.models.known(model_id).spec if model_id else None
        except NotFoundError:
            return None


def _named(group: GroupRate) -> str:
    return f"{group.attribute} {group.group}"


def _never_measured(groups: Sequence[GroupRate]) -> tuple[str, ...]:
    from mien.models.unmeasured import ALWAYS_UNMEASURED, never_measured

    return (*never_measured(groups), *ALWAYS_UNMEASURED)


def verify_pair(reference: ImageSource, probe: ImageSource, *, options: Mapping[str, Any] | None = None) -> Outcome:
    """Return whether two pictures show one person, whom a `Match` calls by the name of `reference`; nothing is stored.

    It takes the recogniser that comes with this package. `options` are settings by dotted name, such as
    `verification.max_fmr`.
    """
    with (
        TemporaryDirectory(prefix="mien-pair-") as folder,
        Device.open(folder, options={**(options or {}), "keystore": "file"}) as device,
    ):
        return device.verify_pair(reference, probe)


def _gather(images: Sequence[ImageSource] | ImageSource) -> Sequence[ImageSource]:
    from device_sdk.faces.images import is_picture
    from device_sdk.people.enroll import gather_images

    gathered: list[ImageSource] = []
    for image in cast("Sequence[ImageSource]", [images] if is_picture(images) else images):
        gathered.extend(gather_images([image]) if isinstance(image, str | os.PathLike) else [image])
    return gathered
