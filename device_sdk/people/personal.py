"""The personal model: what the released one becomes on this phone for the people on it, and never leaves it.

Two forms. "released": a branch (Pi) on the released backbone, fitted here to enrolled people who agreed and the public
faces that come with the model; kept only where it is better on pictures that were left out, and fitted again after each
release. "local": FedFR's own [Theta_l, Pi_l], which a counted round of a fedfr task has left here. Either serves until
the people, their pictures or the model change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.crops import fit_crops
from device_sdk.people.enrolled import Person
from device_sdk.people.gallery import Gallery
from device_sdk.people.recogniser import Recogniser
from device_sdk.people.stored_personal import Form, StoredPersonal
from mien.errors import ConfigError, NotFoundError
from mien.evaluation.intervals import upper_bound
from mien.methods.base import Crops, Embeddings
from mien.methods.personal import FeatureRuntime, PersonalModel, personal_model
from mien.methods.personal_branch import (
    Branch,
    BranchSpec,
    PersonalThreshold,
    carried_over,
    check_enough,
    judge,
    template,
)
from mien.protocol.tensors import PublicShard

_SEED: Final = 0

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Personalised:
    """Result of personalising: the people, the thresholds by name, and whether it is in use from now on.

    `gain` is by how much more non-mated standard deviations left-out pictures lie above the threshold than under the
    released model; None for the local form, which nothing was left out of.
    """

    form: Form
    thresholds: Mapping[str, PersonalThreshold]
    gain: float | None
    gain_error: float | None
    is_used: bool


@dataclass(frozen=True)
class PersonalRecogniser:
    """Embeds and compares with the personal model."""

    released: Recogniser
    stored: StoredPersonal = field(repr=False)

    def covers(self, person: Person) -> bool:
        """Return whether the personal model was made for a person."""
        return person.id in self.stored.thresholds

    def embed(self, crops: Crops) -> Embeddings:
        """Return personal embeddings (N, dim), of length 1, of master crops (N, 112, 112, 3)."""
        branch = Branch(self.stored.pi_weight, self.stored.pi_bias)
        return _embedder(self.released, branch, self.stored.values)(crops)

    def references(self, gallery: Gallery, person: Person) -> Embeddings:
        """Return a person's personal templates (N, dim)."""
        branch = Branch(self.stored.pi_weight, self.stored.pi_bias)
        if self.stored.values is None:
            return branch(gallery.references(self.released.model_id).of(person.name))
        return template(self.embed(gallery.training_crops(person.name)))[None]


def personalise(
    gallery: Gallery, recogniser: Recogniser, shard: PublicShard | None, released_threshold: float, form: Form
) -> Personalised:
    """Return the personal model's result for everybody here who agreed, stored where it is to be used.

    The released form is used only where it is better; one that is not takes an earlier one along. Raises ConfigError
    where nobody agreed, a person has too few pictures or the model brings too few public faces, NotFoundError for the
    local form without a counted fedfr round, UnreachableError when the gallery changes meanwhile.
    """
    if shard is None:
        raise ConfigError("the released model brings no public faces, which a personal model needs; ask the operator")
    state = gallery.state
    people = [person for person in gallery.people() if person.trains]
    if not people:
        raise ConfigError("a personal model needs somebody enrolled who agreed to training; see `Device.set_consent()`")
    crops = [gallery.training_crops(person.name) for person in people]
    label_N = np.repeat(np.arange(len(people)), [len(each) for each in crops])
    own = _Own(np.concatenate(crops), label_N, shard.crops, np.asarray(shard.labels, np.int64), released_threshold)
    made = _released(own, recogniser) if form == "released" else _local(own, recogniser, gallery)
    thresholds = dict(zip([person.id for person in people], made.thresholds, strict=True))
    if made.is_better:
        weight, bias = made.branch.weight, made.branch.bias
        kept = StoredPersonal(recogniser.model_id, form, weight, bias, made.values, thresholds, released_threshold)
        gallery.keep_personal(kept, state)
    else:
        gallery.forget_personal()
    by_name = {person.name: at for person, at in zip(people, made.thresholds, strict=True)}
    return Personalised(form, by_name, made.gain, made.gain_error, made.is_better)


@dataclass(frozen=True)
class _Own:
    """Master crops of all who take part, the owner of each, public crops of the model's width, and the threshold."""

    crops: Crops = field(repr=False)
    labels: Indices = field(repr=False)
    public_crops: Crops = field(repr=False)
    public_labels: Indices = field(repr=False)
    threshold: float


@dataclass(frozen=True)
class _Made:
    branch: Branch
    values: NDArray[np.float32] | None = field(repr=False)
    thresholds: Sequence[PersonalThreshold]
    is_better: bool
    gain: float | None = None
    gain_error: float | None = None


def _released(own: _Own, recogniser: Recogniser) -> _Made:
    unit_ND, public_MD = recogniser.embed(own.crops), recogniser.embed_fitted(own.public_crops)
    judged = judge(unit_ND, own.labels, public_MD, own.public_labels, own.threshold, BranchSpec(), _SEED)
    return _Made(judged.branch, None, judged.thresholds, judged.is_better, judged.gain, judged.gain_error)


def _local(own: _Own, recogniser: Recogniser, gallery: Gallery) -> _Made:
    """Return [Theta_l, Pi_l] with thresholds from faces that it has learned from: no others are here."""
    check_enough(own.labels, own.public_labels)
    part = recogniser.model.layout.part(recogniser.model.spec.trainable or ("*",))
    private = gallery.latest_shared_state()
    model = personal_model(part, recogniser.model.theta, private)
    if model.pi_weight is None or model.pi_bias is None:
        raise NotFoundError("that task trains no personal branch; take part in one that does")
    values, branch = part.gather(model.theta), Branch(model.pi_weight, model.pi_bias)
    embed = _embedder(recogniser, branch, values)
    personal_MD = _at_length_1(model, recogniser, own.public_crops)
    released_ND, released_MD = recogniser.embed(own.crops), recogniser.embed_fitted(own.public_crops)
    personal_ND, rng = embed(own.crops), np.random.default_rng(_SEED)
    thresholds = []
    for k in range(int(own.labels.max()) + 1):
        mine_N = own.labels == k
        released_D, personal_D = template(released_ND[mine_N]), template(personal_ND[mine_N])
        value, num_false, num_public = carried_over(
            released_MD @ released_D, personal_MD @ personal_D, own.public_labels, own.threshold, rng
        )
        missed = int((personal_ND[mine_N] @ personal_D < value).sum())
        missed_released = int((released_ND[mine_N] @ released_D < own.threshold).sum())
        upper = upper_bound(num_false, num_public)
        thresholds.append(
            PersonalThreshold(
                value, num_false, num_public, upper, missed, missed_released, int(mine_N.sum()), is_held_out=False
            )
        )
    return _Made(branch, values, thresholds, is_better=True)


def _embedder(
    recogniser: Recogniser, branch: Branch, values: NDArray[np.float32] | None
) -> Callable[[Crops], Embeddings]:
    """Return the embedder of master crops: the branch on the released backbone, or on one with these trained values."""
    if values is None:
        return lambda crops: branch(recogniser.embed(crops))
    part = recogniser.model.layout.part(recogniser.model.spec.trainable or ("*",))
    model = PersonalModel(part.scatter(recogniser.model.theta, values), branch.weight, branch.bias)
    return lambda crops: _at_length_1(model, recogniser, fit_crops(crops, recogniser.input))


def _at_length_1(model: PersonalModel, recogniser: Recogniser, fitted: Crops) -> Embeddings:
    if not isinstance(recogniser.runtime, FeatureRuntime):
        raise ConfigError("this runtime gives no plain features, which an own backbone needs; choose another `runtime`")
    return model.embed(recogniser.runtime, fitted)
