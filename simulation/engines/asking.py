"""Device halves that are asked in pieces, so that what many of them want trained can be trained together.

A device half is a pure function: it asks its runtime for something, and goes on with the answer. A `Device` runs it up
to its next training, which it does not answer; once the answer is there, the half is run again from the beginning, with
what it was answered before, and gets further. So a method is run as it is, on no other stack and in no other thread.
What comes before the training is worked out twice, which is little beside the training.
"""

from __future__ import annotations

from collections.abc import Callable

from mien.layout import Vector
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Embeddings,
    Method,
    Runtime,
    Trained,
    TrainingJob,
    never_stop,
)
from simulation.engines.base import RoundWork

Embed = Callable[[Vector, Crops], Embeddings]


class Device:
    """One device's round in progress: after `go_on`, either `output` is there or `job` waits for `answer`."""

    def __init__(self, name: str, method: Method, inp: DeviceInput, embed: Embed) -> None:
        self.name = name
        self.job: TrainingJob | None = None
        self.output: DeviceOutput | None = None
        self._method = method
        self._inp = inp
        self._embed = embed
        self._answers: list[Embeddings | Trained] = []

    def answer(self, trained: Trained) -> None:
        """Give the device what became of its job."""
        self._answers.append(trained)
        self.job = None

    def go_on(self) -> None:
        """Run the device half to its next job or to its end; raises as it does."""
        try:
            self.output = self._method.device_round(self._inp, _Told(self._answers, self._embed))
        except _Waits as waits:
            self.job = waits.job


class _Waits(Exception):  # noqa: N818 - nothing went wrong
    """Unwinds a device half whose job has no answer yet; never seen outside this module."""

    def __init__(self, job: TrainingJob) -> None:
        super().__init__("a device half waits for its training")
        self.job = job


class _Told:
    """A runtime that knows its first answers already, and adds those that it can give at once."""

    def __init__(self, answers: list[Embeddings | Trained], embed: Embed) -> None:
        self._answers = answers
        self._embed = embed
        self._next = 0

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the embeddings that were given before, or new ones."""
        if self._next == len(self._answers):
            self._answers.append(self._embed(theta, crops))
        given = self._given()
        assert not isinstance(given, Trained), "a device half asked for another thing than it did at first"
        return given

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what was trained before, or unwind the device half until it is."""
        if self._next == len(self._answers):
            raise _Waits(job)
        given = self._given()
        assert isinstance(given, Trained), "a device half asked for another thing than it did at first"
        return given

    def _given(self) -> Embeddings | Trained:
        given = self._answers[self._next]
        self._next += 1
        return given


class Embedder:
    """Embeds by a runtime; what all devices ask for, the public faces, once a round."""

    def __init__(self, runtime: Runtime, work: RoundWork) -> None:
        self._runtime = runtime
        self._theta = work.state.theta
        self._public = work.cohort.public.crops if work.cohort.public else None
        self._known: Embeddings | None = None

    def __call__(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the embeddings of crops."""
        if crops is not self._public or theta is not self._theta:
            return self._runtime.embed(theta, crops)
        if self._known is None:
            self._known = self._runtime.embed(theta, crops)
            self._known.flags.writeable = False
        return self._known
