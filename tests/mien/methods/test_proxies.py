"""What methods over class embeddings share: which form a task is in."""

from __future__ import annotations

import pytest

from mien.errors import ConfigError
from mien.methods.registry import find_method
from mien.specs import PrivacySpec, TaskSpec
from tests.tiny import tiny_cnn


@pytest.mark.parametrize(("method", "form"), [("fedface", "everybody"), ("fedaws", "hinge"), ("fedgc", "public")])
def test_a_task_that_shows_class_embeddings_names_no_private_form(method: str, form: str) -> None:
    """It would be the published form, and show what its author took for hidden."""
    tiny = tiny_cnn()
    task = TaskSpec(
        "both",
        method=method,
        options={"private_form": form},
        privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=3),
    )
    with pytest.raises(ConfigError, match=f'private_form is "{form}", and privacy.reveals has class_embeddings'):
        find_method(method).contribution_layout(task, tiny.part(), tiny.spec.input.dim)
