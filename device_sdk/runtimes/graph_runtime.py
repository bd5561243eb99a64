"""Embeds and trains with exported graphs, the same update as torch's, whatever engine runs the graphs. No torch here.

The graphs (`device_sdk.export`) hold a whole step of SGD; parameters, momentum and batches go in, and come out changed.

Suffixes of tensors: N crops, B batch, D embedding, C channels.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.feature_cache import DEFAULT_CAPACITY_BYTES, FeatureCache
from device_sdk.runtimes.forms import SAMPLE_WEIGHT, ObjectiveForm, exportable, form_of
from device_sdk.runtimes.manifest import Cut, Graph, GraphFolder, GraphKind, cut_for
from device_sdk.runtimes.schedule import (
    Batch,
    adds_up_over_pieces,
    cannot_add_up,
    check_offset,
    check_trainable,
    take_steps,
)
from mien.contribution import Arrays
from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError
from mien.layout import ParameterLayout, Vector
from mien.methods.base import Crops, Embeddings, Objective, Trained, TrainingJob, never_stop
from mien.shell.doing import COMPUTING, counting
from mien.shell.memory import forget_pages
from mien.specs import FaceInputSpec, LocalSpec, ModelSpec

# Crops of one forward pass without gradients. A second one beside it takes as long and twice the memory: activations of
# the first layers, which are more than a tail's whole step takes.
INFERENCE_BATCH: Final = 1
TAIL_BATCH: Final = 32
_WEIGHTS: Final = f"per_crop.{SAMPLE_WEIGHT}"
_NO_CORRECTION: Final = np.zeros(1, np.float32)
Feed = dict[str, NDArray[np.float32]]
_UNDISTILLED: Final[Feed] = {"constant.distillation": np.zeros((), np.float32)}
Flags = NDArray[np.bool_]


class Engine(Protocol):
    """Engine of an architecture's graphs: named tensors in, named tensors out."""

    def __init__(self, graphs: GraphFolder, threads: int) -> None: ...

    def run(self, graph: Graph, feed: Feed, into: Feed | None = None) -> dict[str, Any]:
        """Return the outputs of a graph by name; `feed` may hold more than its inputs.

        `into` has arrays that an engine may write the outputs of these names to, each of its output's shape. They may
        be inputs: of a step its vectors, that nothing else reads once what they become is known. Raises ConfigError
        for tensors that do not fit the graph, CorruptDataError for a graph that cannot be loaded.
        """

    def most_images(self, graph: Graph) -> int:
        """Return the number of images that one run of a graph can take."""

    def release(self, graph: Graph) -> None:
        """Give back the memory that a graph holds between runs; it is loaded anew when it is next run."""


class GraphRuntime:
    """Embeds and trains one architecture with the graphs in a folder; behaves as `TorchRuntime`, with the same draws.

    Crops' features before the first trained stage are kept in memory (`cache_bytes`). Equal inputs and seeds give equal
    results on one machine with one thread.
    """

    engine: ClassVar[type[Engine]]

    def __init__(
        self,
        spec: ModelSpec,
        layout: ParameterLayout,
        graphs: GraphFolder,
        *,
        threads: int = 1,
        cache_bytes: int = DEFAULT_CAPACITY_BYTES,
        cache: FeatureCache | None = None,
    ) -> None:
        """Take the graphs of the model's layout; raises LayoutMismatchError for those of another one."""
        if graphs.manifest.layout_sha256 != layout.sha256:
            raise LayoutMismatchError("the graphs are for another model; export them for this one")
        self._layout = layout
        cache = FeatureCache(cache_bytes) if cache is None else cache
        self._engine = _Runner(spec.input, graphs, self.engine(graphs, threads), cache)
        self._known: tuple[Vector, str, bytes] | None = None
        self._most_images = sys.maxsize
        default = cut_for(layout.part(spec.trainable or ("*",)))
        # Before anything is trained, embedding takes the two pieces only where they were exported.
        self._cut = default if graphs.holds("trunk", stage=default.stage) else cut_for(layout.part())

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return L2-normalised embeddings (N, dim) of aligned crops (N, H, W, 3) uint8 RGB.

        Raises NonFiniteError for an embedding that is not finite, ConfigError for crops of another size.
        """
        return _normalised(self.features(theta, crops))

    def features(self, theta: Vector, crops: Crops) -> NDArray[np.float32]:
        """Return embeddings (N, dim) of aligned crops as the backbone gives them, not normalised (see `embed`)."""
        parameters = _parameters(self._layout, theta)
        emb_ND = _Images(self._engine, self._cut, parameters, self._trunk_id(theta), crops).embed_all(parameters)
        if not np.isfinite(emb_ND).all():
            raise NonFiniteError("the model gave an embedding that is NaN or infinite; fetch the model again")
        return emb_ND

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return SGD's result on the job's part and private tensors, on its crops, starting from its theta.

        The losses before and after are those of all crops, not mirrored. Raises NonFiniteError when the loss or a
        parameter stops being finite, LayoutMismatchError for a part of another model, LateError when `should_stop`,
        which is asked before every step, says so, NotFoundError where no graph trains that part and objective.
        """
        check_trainable(self._layout, job.part, len(job.crops))
        if job.local.batch_norm == "train":
            raise ConfigError("local.batch_norm is 'train', which is for silos with torch; use eval")
        parameters = _parameters(self._layout, job.theta)
        cut = self._cut = cut_for(job.part)
        training = _Training(self._engine, cut, job, parameters, self._most_images)
        images = _Images(self._engine, cut, parameters, self._trunk_id(job.theta), job.crops)
        loss_before = training.evaluate(images)
        try:
            num_steps = take_steps(
                job.local, len(images), job.seed, lambda batch: training.step(images, batch), should_stop
            )
        finally:
            training.release()
        loss_after = training.evaluate(images)
        private, velocity = dict(training.private), dict(training.private_velocity)
        return Trained(job.part, job.theta, training.values, private, loss_before, loss_after, num_steps, velocity)

    def can_divide(self, objective: Objective, local: LocalSpec) -> bool:
        """Return whether a batch's images can be worked out one after another (`in_pieces`), with the same step."""
        return local.batch_norm == "eval" and objective.name in exportable() and adds_up_over_pieces(objective)

    @contextlib.contextmanager
    def in_pieces(self, num_images: int) -> Iterator[None]:
        """Hold at most so many images of a batch in memory at once, while the block runs; the steps stay the same."""
        before = self._most_images
        self._most_images = min(before, num_images)
        try:
            yield
        finally:
            self._most_images = before

    def _trunk_id(self, theta: Vector) -> bytes:
        """Return a digest of the cut and of every parameter before it; of a vector that nobody can write to, once."""
        if self._cut.trunk is None:
            return b""
        stage, known = self._cut.stage, self._known
        if known is None or known[0] is not theta or known[1] != stage or theta.flags.writeable:
            hashed = hashlib.sha256(stage.encode())
            for run in self._cut.trunk.runs(theta):  # as they lie: put together they are a second model in memory
                hashed.update(np.ascontiguousarray(run).data)
            self._known = known = (theta, stage, hashed.digest())
        return known[2]


@dataclass(frozen=True)
class _Runner:
    """Finds graphs by what they are for, and runs them."""

    spec: FaceInputSpec
    graphs: GraphFolder
    engine: Engine
    cache: FeatureCache

    def run(
        self, kind: GraphKind, feed: Feed, *, stage: str = "", part: tuple[str, ...] = (), form: str = ""
    ) -> dict[str, Any]:
        """Return the outputs of a graph by name; raises NotFoundError where there is none of that description."""
        return self.engine.run(self.graphs.find(kind, stage=stage, part=part, form=form), feed)

    def pieces(self, kind: GraphKind, num_images: int, size: int, *, stage: str = "", form: str = "") -> list[slice]:
        """Return images cut into runs of a graph, of `size` or as many as it takes."""
        most = min(size, self.engine.most_images(self.graphs.find(kind, stage=stage, form=form)))
        return [slice(start, min(start + most, num_images)) for start in range(0, num_images, most)]


class _Images:
    """One device's crops as the tail sees them: what the frozen trunk makes of them is computed once and remembered."""

    def __init__(self, engine: _Runner, cut: Cut, parameters: Feed, trunk_id: bytes, crops: Crops) -> None:
        self._engine = engine
        self._cut = cut
        self._crops = crops
        self._parameters = parameters
        self._trunk_id = trunk_id

    def __len__(self) -> int:
        return len(self._crops)

    def batch(self, indices: NDArray[np.int64], flipped: Flags) -> NDArray[np.float32]:
        """Return the tail's input for some crops, mirrored where `flipped` says so."""
        crops = self._crops[indices]
        if self._cut.trunk is None:
            return self._engine.spec.network_input(np.where(flipped[:, None, None, None], crops[:, :, ::-1], crops))
        return np.stack(self._engine.cache.features(self._trunk_id, crops, flipped, self._compute))

    def embed_all(self, parameters: Feed) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of all crops as they are, with the tail's parameters as they are given."""
        kind: GraphKind = "embed" if self._cut.trunk is None else "tail"
        stage, size = ("", INFERENCE_BATCH) if self._cut.trunk is None else (self._cut.stage, TAIL_BATCH)
        images = np.arange(len(self))
        wanted = list(self._engine.pieces(kind, len(self), size, stage=stage))
        pieces = [self._embed(kind, stage, images[piece], parameters) for piece in counting(COMPUTING, wanted)]
        return np.concatenate(pieces) if pieces else np.empty((0, self._engine.spec.dim), np.float32)

    def _embed(self, kind: GraphKind, stage: str, indices: NDArray[np.int64], parameters: Feed) -> NDArray[np.float32]:
        x = self.batch(indices, np.zeros(len(indices), np.bool_))
        self._forget()  # the trunk's
        embeddings: NDArray[np.float32] = self._engine.run(kind, {**parameters, "x": x}, stage=stage)["embeddings"]
        return embeddings

    def _forget(self) -> None:
        """Give back the memory of a model that lies in its file: the layers that come next read what they need."""
        forget_pages(next(iter(self._parameters.values())))

    def _compute(self, crops: Crops) -> Iterator[NDArray[np.float32]]:
        self._forget()  # what was read for the trunk's digest
        for piece in self._engine.pieces("trunk", len(crops), INFERENCE_BATCH, stage=self._cut.stage):
            x = self._engine.spec.network_input(crops[piece])
            yield from self._engine.run("trunk", {**self._parameters, "x": x}, stage=self._cut.stage)["features"]


@dataclass(frozen=True)
class _Gradient:
    """A loss's gradient: of the part's vector, or one number where it is 0, and of the private tensors."""

    part: NDArray[np.float32] = field(repr=False)
    private: Arrays = field(repr=False)


class _Training:
    """One device's local training: the part's values, the private tensors, and the momentum of both."""

    def __init__(self, engine: _Runner, cut: Cut, job: TrainingJob, parameters: Feed, most_images: int) -> None:
        part, objective, local = job.part, job.objective, job.local
        self._engine = engine
        self._part = part
        self._objective = objective
        self._form = form_of(objective)
        self._graph = engine.graphs.find("train", stage=cut.stage, part=part.names, form=self._form.name)
        self._most_images = min(most_images, engine.engine.most_images(self._graph))
        self._local = local
        self._rule = objective.step_rule
        check_offset(self._rule, part)
        self._parameters = parameters
        self.values = np.concatenate([parameters[f"parameter.{name}"].reshape(-1) for name in part.names])
        self._received = self.values.copy() if self._rule.proximal else None
        self.private: Arrays = {name: np.array(objective.private[name], np.float32) for name, _ in self._form.private}
        self.private_velocity: Arrays = {
            name: np.array(objective.velocity.get(name, np.zeros_like(values)), np.float32)
            for name, values in self.private.items()
        }
        self._velocity = np.zeros(part.size, np.float32)
        self._per_crop = dict(objective.per_crop)
        self._constant_feed = _constant_feed(self._form, objective, local)

    def release(self) -> None:
        """Give back what steps hold, which is most of what training takes; results lie in it until they are copied."""
        self._velocity = np.zeros(0, np.float32)
        self.values = np.require(self.values, requirements="O")
        self.private = {name: values.copy() for name, values in self.private.items()}
        self.private_velocity = {name: values.copy() for name, values in self.private_velocity.items()}
        self._engine.engine.release(self._graph)

    def evaluate(self, images: _Images) -> float:
        """Return the loss over all crops as they are."""
        everything = Batch(np.arange(len(images)), np.zeros(len(images), np.bool_), 1.0)
        emb_ND = images.embed_all({**self._parameters, **self._trained_now()})
        rows = {**self._rows(everything, len(images)), "embeddings": emb_ND}
        if adds_up_over_pieces(self._objective):
            return self._mean_loss(rows)
        # The one term weighs images, the other counts them: their means are taken apart, and each over pieces.
        counted = {**rows, _WEIGHTS: np.ones(len(images), np.float32)}
        divergence = self._mean_loss(counted) - self._mean_loss(counted, _UNDISTILLED)
        return self._mean_loss(rows, _UNDISTILLED) + divergence

    def _mean_loss(self, rows: Feed, changed: Feed | None = None) -> float:
        """Return the mean loss over all images by weight, worked out in pieces; `changed` constants replace others."""
        fixed = {**self._constant_feed, **self._private_feed(), **(changed or {})}
        num_images, total, weight = len(rows["embeddings"]), 0.0, 0.0
        for piece in self._engine.pieces("loss", num_images, num_images, form=self._form.name):
            feed = {**fixed, **{name: values[piece] for name, values in rows.items()}}
            share = float(rows[_WEIGHTS][piece].sum()) if _WEIGHTS in rows else float(len(feed["embeddings"]))
            if share:
                total += share * float(self._engine.run("loss", feed, form=self._form.name)["loss"])
                weight += share
        return total / weight if weight else 0.0

    def _trained_now(self) -> Feed:
        """Return the trained tensors as they are now, views of their vector."""
        trained: Feed = {}
        start = 0
        for name in self._part.names:
            shape = self._parameters[f"parameter.{name}"].shape
            stop = start + math.prod(shape)
            trained[f"parameter.{name}"] = self.values[start:stop].reshape(shape)
            start = stop
        return trained

    def step(self, images: _Images, batch: Batch) -> None:
        """Take one step on a batch; raises NonFiniteError where its loss is not finite.

        A batch of more images than fit is cut into pieces (`_pieces`). All but the last are run without moving
        anything, and only add to the gradient so far; the last one's step takes that along.
        """
        pieces = self._pieces(batch)
        so_far = self._gradient_of(images, pieces[:-1])
        self._move(images, *pieces[-1], so_far)

    def _pieces(self, batch: Batch) -> list[tuple[Batch, float]]:
        """Return a batch cut into runs of the graph, with their shares of its mean; what weighs nothing is left out."""
        starts = range(0, len(batch.indices), self._most_images)
        slices = [slice(start, start + self._most_images) for start in starts]
        given = self._per_crop.get(SAMPLE_WEIGHT)
        weights = np.ones(len(batch.indices)) if given is None else np.asarray(given, np.float64)[batch.indices]
        cut = [(Batch(batch.indices[each], batch.flipped[each], batch.rate), weights[each].sum()) for each in slices]
        total = weights.sum()
        if len(cut) == 1 or total == 0:
            return [(cut[0][0], 1.0)]
        if not adds_up_over_pieces(self._objective):
            raise cannot_add_up(self._objective)
        return [(piece, float(weight / total)) for piece, weight in cut if weight > 0]

    def _gradient_of(self, images: _Images, pieces: list[tuple[Batch, float]]) -> _Gradient:
        """Return the loss's gradient over some pieces of a batch, each with its share."""
        part: NDArray[np.float32] = np.zeros(1, np.float32)
        private = {name: np.zeros_like(values) for name, values in self.private.items()}
        # A step of rate 0 without momentum moves nothing, and gives the gradient as the momentum that it would leave.
        still = dict.fromkeys(("lr", "private_lr", "momentum", "private_momentum", "weight_decay"), _number(0.0))
        still |= {"gradient_scale": _number(1.0), "correction": _NO_CORRECTION}
        for piece, share in pieces:
            out = self._run({**self._feed(images, piece), **still})
            part = part + np.float32(share) * out["velocity_out"]
            private = {name: private[name] + np.float32(share) * out[f"velocity_out.{name}"] for name in private}
        return _Gradient(part, private)

    def _move(self, images: _Images, piece: Batch, share: float, so_far: _Gradient) -> None:
        """Take the step of a batch from its last piece, of that share, and the gradient of the others.

        The part's gradient is scale (so_far + share g + decay p). The graph scales no private tensor's, and knows of no
        decay of its own, so that its momentum is worked out here, over `share`, and its rate times it.
        """
        local, decay = self._local, np.float32(self._local.private_weight_decay or 0.0)
        private_lr = local.lr if local.private_lr is None else local.private_lr
        scale = self._rule.gradient_scale
        feed = {
            **self._feed(images, piece),
            "lr": _number(piece.rate * local.lr),
            "private_lr": _number(piece.rate * private_lr * share),
            "weight_decay": _number(local.weight_decay / share),
            "gradient_scale": _number(scale * share),
            "correction": self._correction() + np.float32(scale) * so_far.part,
        }
        if share < 1 or decay:
            momentum = feed["private_momentum"]
            carried = {
                name: momentum * v + so_far.private[name] + decay * self.private[name]
                for name, v in self.private_velocity.items()
            }
            feed |= {f"velocity.{name}": values / np.float32(share) for name, values in carried.items()}
            feed["private_momentum"] = _number(1.0)
        # What a step starts from is of no use after it; without a second copy of it a step takes less memory.
        out = self._run(feed, {"trained_out": self.values, "velocity_out": self._velocity})
        self.values, self._velocity = out["trained_out"], out["velocity_out"]
        self.private = {name: out[f"private_out.{name}"] for name in self.private}
        self.private_velocity = {name: out[f"velocity_out.{name}"] for name in self.private}
        if share < 1:
            self.private_velocity = {name: v * np.float32(share) for name, v in self.private_velocity.items()}

    def _run(self, feed: Feed, into: Feed | None = None) -> dict[str, Any]:
        out = self._engine.engine.run(self._graph, feed, into)
        if not np.isfinite(out["loss"]):
            raise NonFiniteError("the training loss is NaN or infinite; lower local.lr")
        return out

    def _feed(self, images: _Images, batch: Batch) -> Feed:
        """Return the inputs of a step on a batch."""
        return {
            **self._parameters,
            **self._constant_feed,
            **self._private_feed(),
            **self._rows(batch, len(images)),
            **{f"velocity.{name}": values for name, values in self.private_velocity.items()},
            "trained": self.values,
            "velocity": self._velocity,
            "x": images.batch(batch.indices, batch.flipped),
        }

    def _correction(self) -> NDArray[np.float32]:
        """Return the step rule's addition to the gradient: offset + mu (theta - theta_received)."""
        rule = self._rule
        added = _NO_CORRECTION if rule.offset is None else rule.offset
        if self._received is not None:
            added = added + np.float32(rule.proximal) * (self.values - self._received)
        return np.asarray(added, np.float32)

    def _private_feed(self) -> Feed:
        return {f"private.{name}": values for name, values in self.private.items()}

    def _rows(self, batch: Batch, num_crops: int) -> Feed:
        """Return the batch's rows of what the objective has for each crop; weights are 1 where it has none."""
        given = {SAMPLE_WEIGHT: np.ones(num_crops, np.float32), **self._per_crop}
        rows = {
            f"per_crop.{name}": np.asarray(given[name], np.float32)[batch.indices] for name, _ in self._form.per_crop
        }
        return rows | {"mirrored": batch.flipped.astype(np.float32)}


def _parameters(layout: ParameterLayout, theta: Vector) -> Feed:
    """Return every tensor of a model as an input of its graphs: views, so that nothing is copied."""
    return {f"parameter.{name}": values for name, values in layout.unflatten(theta).items()}


def _constant_feed(form: ObjectiveForm, objective: Objective, local: LocalSpec) -> Feed:
    """Return the inputs that stay the same from step to step."""
    private_momentum = local.momentum if local.private_momentum is None else local.private_momentum
    feed = {f"constant.{name}": _number(objective.constants[name]) for name in form.constants}
    feed |= {f"fixed.{name}": np.asarray(objective.fixed[name], np.float32) for name, _ in form.fixed}
    feed |= {f"unit_norm.{name}": _number(float(name in objective.unit_norm)) for name, _ in form.private}
    return feed | {
        "momentum": _number(local.momentum),
        "private_momentum": _number(private_momentum),
        "weight_decay": _number(local.weight_decay),
        "gradient_scale": _number(objective.step_rule.gradient_scale),
    }


def _number(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)


def _normalised(emb_ND: NDArray[np.float32]) -> Embeddings:
    """Return the rows at length 1 as `mien.objectives.heads.l2_normalise` makes them."""
    unit: Embeddings = emb_ND / np.sqrt((emb_ND * emb_ND).sum(1, keepdims=True) + np.float32(1e-12))
    return unit
