"""A process that changes a gallery at random until it is killed, over and over: each opening must find one state.

`python -m tests.device_sdk.gallery_under_kills HOME KILLS SEED` forks a child a kill, ends it with SIGKILL after a
random time, opens the gallery, and checks that all of it belongs together. The last line counts what the children did.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from device_sdk.people.enrolled import Template
from device_sdk.people.gallery import Gallery
from device_sdk.people.trained import Pending
from device_sdk.storage.keystore import FileKeyStore
from mien.models.variants import form_id
from mien.specs import FaceInputSpec

SPEC = FaceInputSpec(dim=16)
# Two models, and a variant of the first: three forms, whose templates must never be found side by side.
MODELS = {"a" * 64: 3, "b" * 64: 5, form_id("a" * 64, "c" * 64): 7}
PICTURES = np.random.default_rng(0).integers(0, 256, (12, 3, 112, 112, 3), dtype=np.uint8)


def embed(model_id: str, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return features (N, 16): sums over some pixels, other ones for each model."""
    flat = crops.reshape(len(crops), -1)[:, :: MODELS[model_id]].astype(np.float32)
    usable = flat[:, : flat.shape[1] // 16 * 16].reshape(len(crops), 16, -1)
    return np.asarray(usable[:, :, :50].mean(axis=2) - 127.5, np.float32)


def template(model_id: str, crops: NDArray[np.uint8]) -> Template:
    return Template.of(embed(model_id, crops), model_id, SPEC)


def work(home: Path, random: Random) -> None:
    """Do one thing after another, each told once it has happened, until the process is killed."""
    with (home / "done").open("a") as done:
        gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
        for number in itertools.count():
            did = one_thing(gallery, random, number)
            done.write(f"{did}\n")
            done.flush()


def one_thing(gallery: Gallery, random: Random, number: int) -> str:
    people = gallery.people()
    someone = random.choice(people) if people else None
    model = gallery.form_id or next(iter(MODELS))
    if someone is None or (len(people) < 6 and random.random() < 0.4):
        which = random.randrange(len(PICTURES))
        crops = PICTURES[which]
        gallery.enroll(f"{which}-{time.time_ns()}", crops, template(model, crops), now_unix_s=0, consent=True)
        return "enroll"
    what = random.choice(("add", "remove", "reembed", "rotate_key", "renew", "train", "withdraw"))
    match what:
        case "add":
            crops = PICTURES[int(someone.name.split("-")[0])]
            gallery.enroll(someone.name, crops, template(model, crops), now_unix_s=0, consent=True, add=True)
        case "remove":
            gallery.remove(someone.name)
        case "reembed":
            other = random.choice([each for each in MODELS if each != model])
            gallery.reembed(other, SPEC, lambda crops: embed(other, crops))
        case "rotate_key":
            gallery.rotate_key()
        case "renew":
            gallery.renew(someone.name)
        case "train" if someone.trains:
            train(gallery, someone.id, number, counted=random.random() < 0.7)
        case "withdraw":
            gallery.set_consent(someone.name, granted_unix_s=None if someone.trains else 1)
    return what


def train(gallery: Gallery, person: int, number: int, *, counted: bool) -> None:
    """Keep a trained round and bring it to its end; its number is all over what is kept."""
    kept = np.full((1, 4), number, np.float32)
    pending = Pending((person,), "task", number, 1, bytes([number % 256]) * 9, {"w": kept}, per_identity=("w",))
    gallery.keep_pending(pending)
    assert gallery.is_pending(pending)
    gallery.settle(replace(pending), counted=counted)


def check(home: Path) -> None:
    """Open the gallery and see that all of it belongs together, and that one key of the two is left."""
    gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    try:
        people, model = gallery.people(), gallery.form_id
        for person in people:
            assert person.num_images == 3 * person.num_templates > 0
        if model is not None:
            references = gallery.references(model)
            assert len(references.names) == sum(person.num_templates for person in people)
            for name, row in zip(references.names, references.embeddings, strict=True):
                expected = template(model, PICTURES[int(name.split("-")[0])]).embedding
                np.testing.assert_allclose(row, expected, atol=1e-5)
                np.testing.assert_allclose(gallery.scores(name, model, expected), 1.0, atol=1e-5)
        pending = gallery.pending()
        if pending is not None:
            assert set(pending.people) <= {person.id for person in people if person.trains}
            assert pending.contribution == bytes([pending.round % 256]) * 9
            np.testing.assert_array_equal(pending.private["w"], pending.round)
            gallery.settle(pending, counted=True)
    finally:
        gallery.close()
    keys = {path.name for path in (home / "keys").iterdir() if path.name.startswith("gallery")}
    assert keys in ({"gallery.key"}, {"gallery-2.key"}), keys


def until_done(home: Path, count: int, child: int) -> None:
    """Return once so many more things have been done, or the child has ended by itself."""
    done = home / "done"
    begin = done.read_bytes().count(b"\n") if done.exists() else 0
    while not done.exists() or done.read_bytes().count(b"\n") < begin + count:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)


def main(home: Path, kills: int, seed: int) -> None:
    random, at_work = Random(seed), 0
    home.mkdir()
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                work(home, Random(f"{seed}/{number}"))
            finally:
                os._exit(1)  # only an error ends the work
        if random.random() < 0.7:  # amid its work, however long the machine takes to begin with it
            until_done(home, random.randrange(1, 4), child)
        time.sleep(random.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        at_work += os.WTERMSIG(status) == signal.SIGKILL
        check(home)
    print(json.dumps({"kills": at_work, "did": Counter((home / "done").read_text().split())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
