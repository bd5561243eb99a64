"""Staged roll-outs of signed releases, real servers, phones of the SDK: what phones say in sums widens them or not."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from coordinator.commands.cli import app
from coordinator.commands.models.folder import read_signed
from coordinator.release.signing import create_key, sign_folder
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER
from device_sdk.models.models import Model
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from mien.backbones import build_backbone, load_theta
from mien.errors import ConfigError
from mien.evaluation.rollout_spec import RollOutDeadlines, RollOutSpec
from mien.layout import model_id
from mien.models.bundles import hash_of
from mien.protocol.canonical import model_to_json
from mien.protocol.tensors import PublicShard
from mien.protocol.v1 import operator_pb2
from mien.rounds.releases import place
from mien.specs import CohortSpec, Threshold
from simulation.synthetic import committed_faces
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow

PHONES = ("p0", "p1", "p2", "p3")
PUBLIC = ("african_0003", "asian_0004", "caucasian_0005")
WEIGHT, BIAS = "embedding.fc.weight", "embedding.fc.bias"


def public_shard() -> PublicShard:
    """Return a few crops of nobody's faces."""
    pipeline, crops = FacePipeline(MASTER, None, ChoiceRule.CENTRE), []
    for identity in PUBLIC:
        crops += [pipeline.acquire_source(path).crop for path in list(committed_faces("phones")[identity])[:3]]
    return PublicShard(np.stack(crops), np.repeat(np.arange(3), 3).astype(np.int64), "CC0", "rendered")


def versions(shard: PublicShard) -> tuple[Model, Model, Model]:
    """Return random features about their mean (a recogniser of sorts), the same times 2, and one that has collapsed."""
    raw = small_model()
    net = build_backbone(raw.spec.backbone, raw.spec.input)
    load_theta(net, raw.layout, raw.theta)
    with torch.no_grad():
        mean_D = net(torch.from_numpy(raw.spec.input.network_input(shard.crops))).numpy().mean(axis=0)
    tensors = dict(raw.layout.unflatten(raw.theta))
    tensors[BIAS] = tensors[BIAS] - mean_D
    doubled = {**tensors, WEIGHT: 2 * tensors[WEIGHT], BIAS: 2 * tensors[BIAS]}
    collapsed = {**tensors, WEIGHT: 0 * tensors[WEIGHT], BIAS: np.ones_like(tensors[BIAS])}
    made = []
    for each in (tensors, doubled, collapsed):
        theta = raw.layout.flatten(each)
        identity = model_id(raw.layout.sha256, theta)
        threshold = Threshold(0.5, 1e-3, "made up", 100, 30_000, identity, "2026-01-01")
        spec = dataclasses.replace(raw.spec, thresholds=(threshold,))
        made.append(Model(identity, spec, raw.layout, theta, None))
    return made[0], made[1], made[2]


@dataclasses.dataclass
class Story:
    """A running fleet, its release key, and what was signed."""

    fleet: RealFleet
    key: Any
    shard: Path
    signed: list[Path] = dataclasses.field(default_factory=list)
    sequence: int = 0

    def release(self, model: Model, spec: RollOutSpec | None = None, *, may_go_back: bool = True) -> None:
        """Import, sign and release a model, to all or in stages; the newest one before may come back."""
        self.sequence += 1
        folder = self.fleet.folder / f"bundle-{self.sequence}"
        folder.mkdir()
        (folder / "model.json").write_bytes(model_to_json(model.spec, model.layout))
        (folder / "theta.f32").write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())
        (folder / "public_shard.safetensors").write_bytes(self.shard.read_bytes())
        fallbacks = [hash_of((each / "manifest.json").read_bytes()) for each in self.signed] if may_go_back else []
        sign_folder(folder, self.key, sequence=self.sequence, fallbacks=fallbacks)

        async def story() -> None:
            async with self.fleet.coordinator.operator() as operator:
                await operator.import_model((folder / "model.json").read_bytes(), folder / "theta.f32", self.shard)
                await operator.release(model.model_id, signed=read_signed(folder), roll_out=spec)

        self.fleet.loop.run(story())
        self.signed.append(folder)

    def roll_out(self, *states: str) -> operator_pb2.RollOutStatus:
        """Return the newest roll-out once it is in one of these states."""

        async def story() -> operator_pb2.RollOutStatus:
            async with self.fleet.coordinator.operator() as operator:
                return (await operator.roll_outs())[-1]

        end = time.monotonic() + 120
        while (now := self.fleet.loop.run(story())).state not in states:
            assert time.monotonic() < end, now
            time.sleep(0.05)
        return now

    def stages(self, model: Model, *more: float) -> tuple[RollOutSpec, list[str], str]:
        """Return a roll-out whose first stage has three of the four phones, those three, and the one left out."""
        places = {}
        for name in PHONES:
            with self.fleet.open(name) as device:
                places[name] = place(device.identity.device_id, model.model_id)
        *first, last = sorted(places, key=places.__getitem__)
        share = (places[first[-1]] + places[last]) / 2
        deadlines = RollOutDeadlines(*(150.0,) * 7)
        spec = RollOutSpec((share, *more), "default", min_cohort=3, cohort=CohortSpec(3, 3), deadlines=deadlines)
        return spec, first, last

    def take_part(self, names: list[str]) -> tuple[list[list[RoundOutcome]], set[str]]:
        """Return how these phones' next round ended, and the events that they told of."""
        events: list[Event] = []

        def one(name: str) -> list[RoundOutcome]:
            def tell(event: Event | Transfer) -> None:
                if isinstance(event, Event):
                    events.append(event)

            options = {"participation.min_cohort": 3, "participation.allow_plain_sums": False}
            with self.fleet.open(name, tell=tell, **options) as device:
                return list(device.participate(rounds=1, idle_s=120.0))

        with ThreadPoolExecutor(len(names)) as pool:
            outcomes = list(pool.map(one, names))
        return outcomes, {f"{event.kind}: {event.text}" for event in events}

    def updated(self, name: str) -> tuple[str, int]:
        """Return the model that a phone verifies with after an update, and whose templates it holds."""
        with self.fleet.open(name) as device:
            device.update()
            model = device.gallery.model_id
            assert model is not None
            return model, len(device.gallery.references(model).names)  # which raises where one is of another model


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Story, Model, Model, Model]]:
    """Four phones whose owners agreed, with a signed first model in force for all."""
    folder = tmp_path_factory.mktemp("roll-out")
    private = create_key(folder / "release.key")
    key = private.public_key().public_bytes_raw().hex()
    shard = folder / "public.safetensors"
    faces = public_shard()
    shard.write_bytes(faces.to_bytes())
    first, good, bad = versions(faces)
    with real_fleet(folder, release_key=key) as fleet:
        running = Story(fleet, private, shard)
        running.release(first)
        for name, identity in zip(PHONES, IDENTITIES, strict=False):
            fleet.phone(name, "default", identity, **{"verification.threshold": -1.0}).close()
        yield running, first, good, bad


def test_what_holds_on_phones_widens_and_what_does_not_goes_back(story: tuple[Story, Model, Model, Model]) -> None:
    running, first, good, bad = story
    fleet = running.fleet.coordinator

    # As good as before: three phones of the first share say so, across a crash, and then all have it.
    spec, asked, left_out = running.stages(good, 1.0)
    running.release(good, spec)
    assert running.roll_out("evaluating").reference_model_id == first.model_id
    fleet.kill()
    fleet.start()
    with running.fleet.open(left_out) as device:
        assert list(device.participate(idle_s=0.1)) == []
        assert device.gallery.model_id == first.model_id
    outcomes, told = running.take_part(asked)
    assert all(isinstance(outcome, Counted) for each in outcomes for outcome in each)
    assert any("which share of its comparisons gave which score" in text for text in told)
    done = running.roll_out("done", "rolled_back", "held")
    assert (done.state, done.share, done.figures["phones"]) == ("done", 1.0, 3)
    assert abs(done.figures["tar_drop"]) < 1e-3  # the same directions: nothing but float rounding
    assert {running.updated(name) for name in PHONES} == {(good.model_id, 1)}

    # An operator may ask at any time; nothing follows from it.
    home = ("--home", str(fleet.home.folder), "--json")
    options = ("--against", first.model_id[:16], "--size", "3", "--min-reports", "3")
    asked_for = json.loads(CliRunner().invoke(app, ["fleet", "evaluate", *options, *home]).stdout)
    assert asked_for["model_id"] == good.model_id
    assert "warning" not in asked_for
    elsewhere = json.loads(CliRunner().invoke(app, ["fleet", "evaluate", "--population", "defualt", *home]).stdout)
    assert "no phone of population 'defualt' has called yet; did you mean 'default'?" in elsewhere["warning"]

    async def cancel() -> None:
        async with fleet.operator() as operator:
            await operator.cancel(elsewhere["task_id"])

    running.fleet.loop.run(cancel())
    with running.fleet.open(PHONES[2], **{"participation.allow_evaluation": False}) as device:
        assert list(device.participate(idle_s=0.1)) == []  # its owner does not want it: it is not even asked
        assert device.status().measures_models is False
    running.take_part([PHONES[0], PHONES[1], PHONES[3]])
    said = json.loads(CliRunner().invoke(app, ["fleet", "show", *home]).stdout)["evaluations"]
    assert [(each["num_phones"], each["reference_model_id"]) for each in said] == [(3, first.model_id)] * 2
    assert said[1]["task_id"] == asked_for["task_id"]

    # Collapsed: phones accept everybody, its gates on public sets were never asked, and it goes back by itself.
    spec, asked, left_out = running.stages(bad, 1.0)
    running.release(bad, spec)
    assert running.updated(asked[0])[0] == bad.model_id
    running.take_part(asked)
    back = running.roll_out("done", "rolled_back", "held")
    assert back.state == "rolled_back"
    assert back.figures["fmr"] == pytest.approx(1.0, abs=1e-6)
    assert "phones take more strangers for their owners" in back.reason
    assert {running.updated(name) for name in PHONES} == {(good.model_id, 1)}

    shown = json.loads(CliRunner().invoke(app, ["fleet", "roll-outs", *home]).stdout)["roll_outs"]
    assert [each["state"] for each in shown] == ["done", "rolled_back"]
    said = json.loads(CliRunner().invoke(app, ["fleet", "show", bad.model_id, *home]).stdout)["evaluations"]
    assert [(each["protocol"], each["num_phones"], each["share"]) for each in said] == [("fleet", 3, spec.stages[0])]
    with fleet.store() as store:
        actions = [action for _, _, action in store.events(bad.model_id)]
        releases = [(r.model_id, r.is_rollback) for r in (store.newest_release("default"),) if r is not None]
    assert [action for action in actions if action.startswith("rollout.")] == ["rollout.start", "rollout.rolled_back"]
    assert releases == [(good.model_id, True)]


def test_an_operator_is_waited_for(story: tuple[Story, Model, Model, Model]) -> None:
    running, first, good, bad = story
    home = ("--home", str(running.fleet.coordinator.home.folder), "--json")
    spec, asked, _ = running.stages(first, 1.0)
    with pytest.raises(ConfigError, match="a roll-out goes from a model that all phones have"):
        running.release(good, spec)
    with pytest.raises(ConfigError, match="has no threshold for a false match rate of at most 1e-05"):
        running.release(first, dataclasses.replace(spec, gates=dataclasses.replace(spec.gates, fmr=1e-5)))

    # By hand it goes on only when somebody says so.
    running.release(first, dataclasses.replace(spec, widen="manual"))
    running.take_part(asked)
    passed = running.roll_out("passed", "done", "rolled_back", "held")
    assert (passed.state, passed.share) == ("passed", spec.stages[0])
    go_on = CliRunner().invoke(app, ["fleet", "continue", str(passed.id), *home])
    assert json.loads(go_on.stdout)["state"] == "done"
    assert running.updated(PHONES[0])[0] == first.model_id

    # What should go back and cannot, because no signature lets phones follow, is left as it is.
    spec, asked, _ = running.stages(bad, 1.0)
    running.release(bad, spec, may_go_back=False)
    running.take_part(asked)
    held = running.roll_out("done", "rolled_back", "held")
    assert (held.state, held.share) == ("held", spec.stages[0])
    assert "and it cannot go back by itself" in held.reason
    stopped = json.loads(CliRunner().invoke(app, ["fleet", "stop", str(held.id), *home]).stdout)
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped by coordinator")
    refused = CliRunner().invoke(app, ["fleet", "continue", str(held.id), *home])
    assert isinstance(refused.exception, ConfigError)

    # A roll-back ends one that is under way at once, and the evaluation that phones were gathered for with it.
    running.release(bad, spec)
    while not (under_way := running.roll_out("evaluating")).task_id:
        time.sleep(0.05)
    assert CliRunner().invoke(app, ["model", "rollback", *home]).exit_code == 0
    shown = json.loads(CliRunner().invoke(app, ["fleet", "roll-outs", *home]).stdout)["roll_outs"][-1]
    assert (shown["id"], shown["state"], shown["reason"]) == (under_way.id, "replaced", "rolled back by coordinator")
    end = time.monotonic() + 30  # below the minute after which roll-outs are looked at anyway
    while task_state(home, under_way.task_id) != "cancelled":
        assert time.monotonic() < end
        time.sleep(0.05)


def task_state(home: tuple[str, ...], task_id: str) -> str:
    tasks = json.loads(CliRunner().invoke(app, ["task", "list", *home]).stdout)["tasks"]
    return str(next(each["state"] for each in tasks if each["task_id"] == task_id))
