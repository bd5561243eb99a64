"""A new release on a phone that may die at any instant: its gallery is the old model's or the new one's, never both."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk.people.enrolled import Template
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import FileKeyStore
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, noise_crops, project

NUM_PEOPLE = 6
SEEDS = {MODEL_A: 1, MODEL_B: 2}
KILLS = int(os.environ.get("MIEN_KILLS", "8"))
"""How often the phone dies; MIEN_KILLS=300 for a long run."""

SWITCHING = """
import sys
from pathlib import Path
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import FileKeyStore
from tests.device_sdk.made_up_people import MODEL_A, MODEL_B, SPEC, project
from tests.device_sdk.models.test_model_switch import NUM_PEOPLE, SEEDS

home = Path(sys.argv[1])
gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
print("ready", flush=True)
while True:
    model = MODEL_B if gallery.model_id == MODEL_A else MODEL_A
    made = []
    def embed(crops):
        made.append(project(crops, seed=SEEDS[model]))
        if len(made) == NUM_PEOPLE:
            print("embedded", flush=True)  # the switch itself is next
        return made[-1]
    gallery.reembed(model, SPEC, embed)
"""


def template(i: int, model: str) -> Template:
    """Return what a model makes of a person's crops."""
    return Template.of(project(noise_crops(i), seed=SEEDS[model]), model, SPEC)


def check(home: Path) -> str:
    """Return the model in use; every template is what exactly this model makes of its crops."""
    gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
    model = gallery.model_id
    assert model is not None
    references = gallery.references(model)
    assert sorted(references.names) == sorted(f"p{i}" for i in range(NUM_PEOPLE))
    for name, embedding in zip(references.names, references.embeddings, strict=True):
        np.testing.assert_allclose(embedding, template(int(name[1:]), model).embedding, atol=1e-6)
    gallery.close()
    return model


@pytest.mark.slow
def test_killed_at_random_points_the_gallery_is_one_models(tmp_path: Path) -> None:
    gallery = Gallery.open(tmp_path / "device.db", FileKeyStore(tmp_path / "keys"))
    for i in range(NUM_PEOPLE):
        gallery.enroll(f"p{i}", noise_crops(i), template(i, MODEL_A), now_unix_s=0, consent=False)
    gallery.close()
    assert check(tmp_path) == MODEL_A

    draw = random.Random(7)
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", SWITCHING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            near_the_switch = draw.random() < 0.7
            for _ in range(draw.randrange(1, 3) if near_the_switch else 0):
                assert process.stdout.readline() == "embedded\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.0, 0.02 if near_the_switch else 0.3))
            process.kill()
        before = check(tmp_path)
    # On which side of a switch a kill falls is chance; that the next one goes through is not.
    after = MODEL_B if before == MODEL_A else MODEL_A
    gallery = Gallery.open(tmp_path / "device.db", FileKeyStore(tmp_path / "keys"))
    gallery.reembed(after, SPEC, lambda crops: project(crops, seed=SEEDS[after]))
    gallery.close()
    assert check(tmp_path) == after
