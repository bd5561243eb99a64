"""The JVM trains as Python does: the same batches through the same graphs, and the same numbers to send."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.models.models import Model
from device_sdk.runtimes.forms import standard_forms
from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.contribution import Arrays, Total
from mien.layout import Vector, model_id
from mien.methods import METHODS
from mien.methods.base import Crops, DeviceInput
from mien.protocol.canonical import model_to_json, task_to_json
from mien.protocol.tensors import PublicShard, pack_tensors
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import command
from tests.graphs import FOLDER
from tests.integration.real_fleet import small_model
from tests.mien.backbones._models import real_crops
from tests.tiny import made_up_crops, tiny_cnn

SEED = 20260101
TWENTY_STEPS = LocalSpec(lr=0.05, momentum=0.9, weight_decay=0.001, batch_size=3, steps=20)
PUBLIC = PublicShard(
    np.concatenate([made_up_crops(2, seed=40 + k) for k in range(5)]), np.repeat([7, 3, 9, 3, 1], 2), "none", "made up"
)


@dataclass(frozen=True)
class Compared:
    """What both sent: `update` is Python's change of the parameters in each round, `error` the largest difference."""

    update: NDArray[np.floating[Any]]
    error: float
    loss_error: float


def given_to_jvm(
    folder: Path,
    model: Model,
    graphs: Path,
    task: TaskSpec,
    crops: Crops,
    labels: Sequence[int] | None,
    files: Mapping[str, bytes],
    memory: Sequence[str] = ("-Xmx256m",),
) -> subprocess.CompletedProcess[str]:
    """Return how two rounds of training ended on the JVM, which leaves what it would send in the folder."""
    files = {
        "model_id": model.model_id.encode(),
        "model.json": model_to_json(model.spec, model.layout),
        "theta.f32": np.ascontiguousarray(model.theta, "<f4").tobytes(),
        "crops": crops.tobytes(),
        "labels": bytes(labels or [0] * len(crops)),
        "task.json": task_to_json(task),
        **files,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return subprocess.run(
        command("mien.e2e.Train", folder, graphs, SEED, memory=memory),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def compared(
    folder: Path,
    model: Model,
    graphs: Path,
    task: TaskSpec,
    crops: Crops,
    labels: Sequence[int] | None = None,
    replies: Sequence[Arrays] = ({}, {}),
    memory: Sequence[str] = ("-Xmx256m",),
) -> Compared:
    """Train two rounds in both languages, the second with what the first left on the device, each told a reply."""
    shard = PUBLIC if METHODS[task.method].requirements(task).public_faces else None
    files = {
        **({"shard": shard.to_bytes()} if shard else {}),
        **{f"reply-{number}": pack_tensors(reply) for number, reply in enumerate(replies) if reply},
    }
    done = given_to_jvm(folder, model, graphs, task, crops, labels, files, memory)
    assert done.returncode == 0, done.stderr[-4000:]
    runtime = OnnxRuntime(model.spec, model.layout, GraphFolder.at(graphs, model.spec, model.layout))
    part, kept = model.layout.part(task.trainable or model.spec.trainable), dict[str, Any]()
    ours: list[Vector] = []
    for number in range(2):
        inp = DeviceInput(
            task=task,
            part=part,
            dim=model.spec.input.dim,
            theta=model.theta,
            crops=crops,
            labels=None if labels is None else np.array(labels),
            private=kept,
            reply=replies[number],
            public_crops=shard.crops if shard else None,
            public_labels=shard.labels if shard else None,
            seed=SEED + number,
            device="device",
        )
        output = METHODS[task.method].device_round(inp, runtime)
        kept = dict[str, Any](output.private)
        ours.append(output.contribution.vector)
    theirs = [np.frombuffer((folder / f"sent-{number}").read_bytes(), "<f4") for number in range(2)]
    weight = ours[0][1]
    assert [list(each[:2]) for each in theirs] == [[1.0, weight]] * 2
    difference = (np.stack(theirs) - np.stack(ours)) / weight
    update = np.stack(ours)[:, 4:] / weight
    return Compared(update, float(np.abs(difference[:, 4:]).max()), float(np.abs(difference[:, 2:4]).max()))


def task_of(method: str, **options: Any) -> TaskSpec:
    # A softmax of scale 16 has gradients many times those of the hinge.
    local = TWENTY_STEPS if "margin" in options else replace(TWENTY_STEPS, lr=0.001)
    return TaskSpec("train", method=method, local=local, options=options, privacy=PrivacySpec(min_cohort=4))


@pytest.mark.parametrize(
    "task",
    [
        task_of("fedavg", margin=1.0),
        task_of("fedface", private_form="hinge", margin=1.0),
        task_of("fedface", public={"identities": 3, "images": 4, "weight": 0.5}),
        replace(task_of("fedface"), trainable=("*",)),
    ],
    ids=["fedavg", "hinge", "softmax", "softmax-whole"],
)
def test_twenty_steps_of_a_small_network(task: TaskSpec, tmp_path: Path) -> None:
    tiny = tiny_cnn()
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    found = compared(tmp_path, model, FOLDER / tiny.layout.sha256, task, made_up_crops(5, seed=9))
    assert np.abs(found.update).max() > 1e-3, "training moved something"
    assert found.error <= 1e-5
    assert found.loss_error <= 1e-5


@pytest.mark.parametrize(
    "task",
    [
        task_of("fedavg", margin=1.0),
        task_of("fedavg", loss="cosface"),
        task_of("fedavg", loss="cosface", cosface={"scale": 8.0, "margin": 0.2, "public_images": 5}),
        task_of("fedprox", margin=1.0, mu=0.5),
        task_of("fedprox", loss="softmax", mu=2.0),
        task_of("fedprox", loss="cosface"),
        task_of("fedprox", loss="arcface"),
        replace(
            task_of("fedprox", loss="softmax", mu=0.5),
            local=replace(TWENTY_STEPS, lr=0.01, private_lr=0.5, private_weight_decay=0.2),
        ),
    ],
    ids=["positive", "cosface", "beside", "fedprox", "fedprox-softmax", "fedprox-cosface", "fedprox-arcface", "decay"],
)
def test_several_people_of_one_phone(task: TaskSpec, tmp_path: Path) -> None:
    tiny = tiny_cnn()
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    crops = np.concatenate([made_up_crops(2, seed=k) for k in range(3)])
    found = compared(tmp_path, model, FOLDER / tiny.layout.sha256, task, crops, [0, 0, 1, 1, 2, 2])
    assert np.abs(found.update).max() > 1e-4, "training moved something"
    assert found.error <= 1e-5
    assert found.loss_error <= 1e-4


def test_private_tensors_that_diverge_are_an_error_and_are_not_sent_or_kept(tmp_path: Path) -> None:
    """Each step makes class embeddings a million times as long, of which the cosines of the loss tell nothing."""
    tiny = tiny_cnn()
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    local = LocalSpec(lr=0.001, batch_size=0, steps=7, private_lr=1e3, private_weight_decay=1e3)
    task = replace(task_of("fedprox", loss="cosface", scale=8.0), local=local)
    crops = np.concatenate([made_up_crops(2, seed=k) for k in range(3)])
    done = given_to_jvm(tmp_path, model, FOLDER / tiny.layout.sha256, task, crops, [0, 0, 1, 1, 2, 2], {})
    assert done.returncode != 0
    assert "diverged to NaN or infinity" in done.stderr
    assert not list(tmp_path.glob("sent-*"))


PEOPLE, LABELS = np.concatenate([made_up_crops(2, seed=k) for k in range(3)]), [0, 0, 1, 1, 2, 2]


def check_rounds(task: TaskSpec, folder: Path, *, others: int = 0, gain: float = 1.0) -> None:
    """Fail unless two rounds of a phone of three people, and of others, are Python's.

    `gain` is by how much more than the update a method's other numbers show what rounding does to a step.
    """
    tiny = tiny_cnn()
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    crops = [PEOPLE, *(PEOPLE[:, :, ::-1] // np.uint8(2 + number) for number in range(others))]
    replies = after_a_round(task, crops)
    found = compared(folder, model, FOLDER / tiny.layout.sha256, task, PEOPLE, LABELS, replies=replies)
    assert np.abs(found.update).max() > 1e-4, "training moved something"
    assert found.error <= 1e-5 * gain
    assert found.loss_error <= 1e-4


def after_a_round(task: TaskSpec, phones: Sequence[Crops]) -> tuple[Arrays, Arrays]:
    """Return what a method's server tells the first phone before the first round and after it."""
    method, tiny = METHODS[task.method], tiny_cnn()
    part = tiny.layout.part(task.trainable or tiny.spec.trainable)
    begun = method.server_start(task, part, tiny.theta)
    total = Total.empty(method.contribution_layout(task, part, 8))
    for number, crops in enumerate(phones):
        device = "device" if number == 0 else f"other-{number}"
        inp = DeviceInput(
            *(task, part, 8, tiny.theta, crops, np.array(LABELS)),
            reply=method.reply(begun, device),
            public_crops=PUBLIC.crops,
            public_labels=PUBLIC.labels,
            seed=SEED if number == 0 else number,
            device=device,
        )
        total = total.plus(method.device_round(inp, tiny.runtime()).contribution)
    if method.validation is not None and method.requirements(task).validators:
        scores = method.validation.contribution_layout(task)
        judged = Total(scores, np.arange(scores.summed_size) + 1.0, 4)  # the last candidate is the best
        stepped = method.validation.server_step(task, part, begun, total, judged)
    else:
        stepped = method.server_step(task, part, begun, total, {})
    return method.reply(begun, "device"), method.reply(stepped, "device")


FEDFR = replace(
    task_of("fedfr", public_classes=4, max_negatives=6, hard_negative_threshold=-1.0),
    local=replace(TWENTY_STEPS, lr=0.001, steps=6),
)


def fedfr(**options: Any) -> TaskSpec:
    return replace(FEDFR, options={**FEDFR.options, **options})


def fedgc(privacy: PrivacySpec | None = None, **options: Any) -> TaskSpec:
    task = task_of("fedgc", identities=3, **options)
    return replace(task, rounds=2, local=replace(TWENTY_STEPS, lr=0.005), privacy=privacy or task.privacy)


MOMENTS = PrivacySpec(min_cohort=4, reveals=("class_moment",))


PLAIN = LocalSpec(lr=0.01, batch_size=3, steps=9)
VALIDATED = replace(
    task_of("pfm_fv", scale=16.0, candidates=3, mixing=0.5),
    cohort=CohortSpec(size=8, min_reports=8),
    validators=CohortSpec(size=4, min_reports=4),
)


@pytest.mark.parametrize(
    "task",
    [
        replace(task_of("scaffold", loss="cosface", scale=8.0), local=PLAIN),
        replace(task_of("scaffold", margin=1.0), local=PLAIN, privacy=PrivacySpec(min_cohort=4, l2_clip=1e-3)),
        replace(task_of("mime", loss="softmax", beta=0.7), local=replace(PLAIN, weight_decay=0.01)),
        replace(task_of("mime", loss="arcface", class_start="random"), local=PLAIN),
        replace(task_of("pfm_fv", validation="off", scale=16.0), local=PLAIN),
        replace(task_of("pfm_fv", validation="off", loss="positive", margin=1.0, lr_drop_rounds=(1,)), local=PLAIN),
        replace(task_of("pfm_fv", validation="off", loss="softmax", momentum="local"), local=PLAIN),
        replace(task_of("pfm_fv", validation="off", first_weighting="uniform", scale=16.0), local=PLAIN),
        replace(VALIDATED, local=PLAIN),
    ],
    ids=[
        "scaffold",
        "scaffold-cut",
        "mime",
        "mime-arcface",
        "pfm",
        "pfm-drops",
        "pfm-local",
        "pfm-alike",
        "pfm-validated",
    ],
)
def test_rounds_of_federated_optimisers(task: TaskSpec, tmp_path: Path) -> None:
    """In the second round there are control variates, or momentum of server and classifiers."""
    # What SCAFFOLD sends beside the update is a gradient: the update by the steps and their rate.
    check_rounds(task, tmp_path, others=1, gain=1 / (PLAIN.steps * PLAIN.lr) if task.method == "scaffold" else 1.0)


@pytest.mark.parametrize(
    "task",
    [
        fedgc(),
        fedgc(head={"kind": "cosface", "scale": 8.0, "margin": 0.1}, start="mean_feature"),
        fedgc(correction={"kind": "cosine", "strength": 2.0}),
        fedgc(correction={"duplicate_cosine": 0.5}, shared=((("device", 1), ("other", 0)),)),
        fedgc(correction={"kind": "none"}, fixed=True),
        fedgc(MOMENTS, head={"kind": "cosface", "scale": 8.0}, start="mean_feature", correction={"strength": 4.0}),
        fedgc(MOMENTS, correction={"kind": "cosine"}, shared=((("device", 1), ("other", 0)),)),
        fedgc(MOMENTS),
    ],
    ids=["fedgc", "cosface", "cosine", "duplicates", "fixed", "everybody", "everybody-cosine", "everybody-softmax"],
)
def test_rounds_of_fedgc(task: TaskSpec, tmp_path: Path) -> None:
    """In the second round vectors were kept and corrected, and against everybody there are others' moments."""
    check_rounds(task, tmp_path, others=2)


@pytest.mark.parametrize(
    "task",
    [
        fedfr(),
        fedfr(first_contrast="global", detach_branch=True),
        fedfr(first_contrast="random", local_init="random", aggregate_public_head=False),
        fedfr(branch="cosface", alpha=(2.0, 1.0, 3.0)),
        fedfr(branch="none", alpha=(1.0, 0.0, 0.0)),
        replace(fedfr(preset="released_code", first_epochs=3), local=replace(FEDFR.local, steps=0, epochs=1)),
    ],
    ids=["fedfr", "detached", "own-head", "cosface-branch", "no-branch", "released-code"],
)
def test_rounds_of_fedfr(task: TaskSpec, tmp_path: Path) -> None:
    """In the second round there is a previous model, a branch that was kept, and the server's public proxies."""
    check_rounds(task, tmp_path)


def uda(**options: Any) -> TaskSpec:
    # At this distance two of the three people's pictures find each other under this network.
    task = task_of("fedfr_uda", **{"clustering": {"distance": 0.25}, "scale": 8.0, **options})
    return replace(task, local=replace(TWENTY_STEPS, lr=0.001, steps=6))


@pytest.mark.parametrize(
    "task",
    [
        uda(),
        uda(clustering={"distance": 0.25, "min_images": 2}),
        uda(target_weight=3, head="cosface", clustering={"distance": 0.5, "max_levels": 1}),
        uda(head="softmax", clustering={"algorithm": "finch"}),
        uda(clustering={"distance": 0.0, "metric": "cosine", "max_levels": 1}),
        uda(head="softmax", clustering={"distance": 0.0, "purity": 0.6, "max_levels": 2}),
    ],
    ids=["uda", "without-small", "cosface", "finch", "measured", "pure"],
)
def test_rounds_of_a_target_that_clusters_its_pictures(task: TaskSpec, tmp_path: Path) -> None:
    """The second round goes on with labels and classes of the first."""
    tiny = tiny_cnn()
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    found = compared(tmp_path, model, FOLDER / tiny.layout.sha256, task, PEOPLE)
    assert np.abs(found.update).max() > 1e-4, "training moved something"
    assert found.error <= 1e-5
    assert found.loss_error <= 1e-4


@pytest.mark.parametrize("was_there", [True, False])
def test_steps_against_everybody(was_there: bool, tmp_path: Path) -> None:
    """The first round opens moments, with this phone's in them; it is told those, or those of a sum without it."""
    tiny, fedface = tiny_cnn(), METHODS["fedface"]
    model = Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None)
    task = replace(
        task_of("fedface", everybody={"scale": 6.0}),
        rounds=2,
        local=replace(TWENTY_STEPS, lr=0.01),
        privacy=PrivacySpec(min_cohort=4, reveals=("class_moment",)),
    )
    part, runtime = tiny.part(), tiny.runtime()
    begun = fedface.server_start(task, part, tiny.theta)
    # The moments are of another model than the round's, as they are after a step.
    earlier = part.scatter(tiny.theta, part.gather(tiny.theta) * np.float32(1.1))
    total = Total.empty(fedface.contribution_layout(task, part, 8))
    crops = [made_up_crops(5, seed=9 + number) for number in range(4)]
    for each in crops if was_there else crops[1:]:
        theta = tiny.theta if each is crops[0] else earlier
        inp = DeviceInput(task, part, 8, theta, each, reply=fedface.reply(begun, "device"), seed=1, device="device")
        total = total.plus(fedface.device_round(inp, runtime).contribution)
    opened = fedface.server_step(task, part, replace(begun, theta=earlier), total, {})
    if not was_there:
        opened = replace(opened, arrays={**opened.arrays, "moment_number": np.array([7], np.float32)})
    replies = [fedface.reply(state, "device") for state in (begun, opened)]
    found = compared(tmp_path, model, FOLDER / tiny.layout.sha256, task, crops[0], replies=replies)
    assert np.abs(found.update[1, : part.size]).max() > 1e-3, "training moved something"
    assert found.error <= 1e-5
    assert found.loss_error <= 1e-5


def test_twenty_steps_of_mobilefacenet_on_real_crops(tmp_path: Path) -> None:
    from device_sdk.export.build import export_graphs  # torch, which takes seconds

    crops = real_crops(6)
    model, graphs = small_model(), tmp_path / "graphs"
    forms = [form for name in ("positive_hinge", "cosface") for form in standard_forms(name)]
    export_graphs(model.spec, model.layout, graphs, forms=forms)
    for number, task in enumerate((task_of("fedavg", margin=1.0), task_of("fedface"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = compared(folder, model, graphs, task, np.ascontiguousarray(crops))
        assert np.abs(found.update).max() > 1e-4, "training moved something"
        assert found.error <= 1e-5
        assert found.loss_error <= 1e-4
