"""One round step by step against a scripted coordinator: what is sent, kept, refused and forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.faces.source import SourceFaces
from device_sdk.models.models import Model
from device_sdk.people.enrolled import Person, Template
from device_sdk.people.gallery import Gallery
from device_sdk.people.trained import Pending
from device_sdk.rounds import participate
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.disclosure import Agreement
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import FAILED_PAUSE_S, Counted, Failed, NotCounted, NotNow, take_part
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import (
    BudgetExceededError,
    ConfigError,
    CorruptDataError,
    DrainingError,
    FileAccessError,
    LateError,
    LayoutMismatchError,
    MienError,
    ModelMismatchError,
    NonFiniteError,
    NotFoundError,
    ReplayError,
    UnreachableError,
    VersionError,
    ViolationError,
)
from mien.methods import METHODS
from mien.methods.base import DeviceInput, DeviceOutput, Method, Runtime
from mien.protocol.canonical import task_to_json
from mien.protocol.replies import INLINE_BYTES, TensorStream, longest_reply
from mien.protocol.rounds import Role, RoundRef, Wait
from mien.protocol.tensors import pack_tensors
from mien.protocol.v1 import common_pb2, rounds_pb2
from mien.secagg.config import Mechanism, NoiseTerms
from mien.specs import LocalSpec, PrivacySpec, TaskSpec
from tests.device_sdk.bench import ALL_THE_WAY, PLAIN, TASK, Bench, assignment, layout_of, open_bench, stages
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.made_up_people import SPEC, noise_crops, project, template_of
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script
from tests.integration.real_fleet import small_model
from tests.mien.secagg.cohort import NUMBERS, make_config

PROMISED = replace(
    make_config(7),
    numbers=replace(NUMBERS, max_weight=1, frac_bits=8),
    noise=NoiseTerms(Mechanism.SKELLAM, 4.0, 8.0, 1e-6),
)
SHOWN = PrivacySpec(("class_embeddings",), 2, secure_aggregation="off")


@pytest.fixture
def bench(tmp_path: Path, key_store: FileKeyStore) -> Iterator[Bench]:
    with open_bench(tmp_path / "home", key_store, Fleet.create()) as made:
        yield made


def refusal(bench: Bench, error: type[MienError], match: str | None = None) -> None:
    """The next step ends with this error, be it the round's or not."""

    def step() -> None:
        outcome = bench.participant.step()
        if isinstance(outcome, Failed):
            raise outcome.error

    with pytest.raises(error, match=match):
        step()


# --- a round that counts ---


def test_no_update_goes_in_clear_after_a_promise_that_holds_over_all_tasks(bench: Bench) -> None:
    """Without masks there is no sum in which the promised epsilon could be counted; it is broken all the same."""
    attempts = bench.participant.attempts
    attempts.begin(PROMISED)
    attempts.record_masked(PROMISED.attempt_id)
    refusal(bench, BudgetExceededError, "promised epsilon 8 at delta 1e-06 over all.* in clear would break it")
    assert bench.uploads == []
    assert "training" not in bench.kinds()


def test_a_round_is_announced_trained_uploaded_and_forgotten(bench: Bench) -> None:
    assert bench.participant.step() == Counted(RoundRef("t1", 2, 1), "next", 3)
    assert [each.labelled for each in bench.script.check_ins] == [False], "a phone's own people are no source"
    kinds = bench.kinds()
    order = [
        "assigned",
        "fetching",
        "disclosure",
        "training",
        "trained",
        "reported",
        "uploading",
        "uploaded",
        "counted",
    ]
    assert list(dict.fromkeys(kinds)) == order
    (sent,) = bench.uploads
    contribution = layout_of(TASK).parse(sent)
    lanes = layout_of(TASK).slices
    assert contribution.vector[lanes["weight"]] == 3
    assert np.abs(contribution.vector[lanes["delta"]]).max() > 0
    assert bench.gallery.pending() is None
    assert np.linalg.norm(bench.state["class_embedding"]) == pytest.approx(1, abs=1e-5)


def test_the_same_round_trained_twice_gives_the_same_update(bench: Bench) -> None:
    bench.script.follow = stages(rounds_pb2.UPLOAD, rounds_pb2.ABORTED)
    for _ in range(2):
        bench.participant.step()
    assert bench.uploads[0] == bench.uploads[1]


def test_a_kept_model_is_not_fetched_again(bench: Bench) -> None:
    bench.participant.step()
    before = bench.script.calls.count("download")
    bench.participant.step()
    assert bench.script.calls.count("download") == before == 1


# --- rounds that do not count ---


@pytest.mark.parametrize(
    ("follow", "code"),
    [
        (stages(rounds_pb2.TRAINING, rounds_pb2.ABORTED, reason="too few"), "aborted"),
        (stages(rounds_pb2.UPLOAD, rounds_pb2.ABORTED, reason="too few"), "aborted"),
        (stages(rounds_pb2.TRAINING, rounds_pb2.CLOSED), "late"),
    ],
)
def test_a_round_that_ends_without_us_changes_nothing(bench: Bench, follow: Any, code: str) -> None:
    bench.keep_old_state()
    bench.script.follow = follow
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert outcome.code == code
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


@pytest.mark.parametrize("error", [LateError("went on"), NotFoundError("who?"), ReplayError("other bytes")])
@pytest.mark.parametrize("where", ["report_trained", "upload", "follow"])
def test_a_refusal_by_the_round_changes_nothing(bench: Bench, error: MienError, where: str) -> None:
    bench.keep_old_state()
    setattr(bench.script, where, bench.script.fails_first(9, error, None))
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert outcome.code == error.code
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


@pytest.mark.parametrize("error", [CorruptDataError("bytes"), NonFiniteError("NaN"), LayoutMismatchError("length")])
def test_an_update_that_the_server_cannot_use_is_a_visible_error(bench: Bench, error: MienError) -> None:
    bench.keep_old_state()
    bench.script.upload = bench.script.fails_first(1, error, None)
    refusal(bench, type(error))
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


def test_a_coordinator_that_stays_away_leaves_the_round_pending(bench: Bench) -> None:
    bench.keep_old_state()
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    pending = bench.gallery.pending()
    assert pending is not None
    assert bench.state_is_old()
    # Later: the very same bytes, and the state that was trained with them.
    sent: list[bytes] = []

    def upload(chunks: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
        sent.append(b"".join(chunk.data for chunk in chunks))
        return rounds_pb2.UploadStatus(accepted=True)

    bench.script.upload = upload
    assert isinstance(bench.participant.step(), Counted)
    assert sent == [pending.contribution]
    np.testing.assert_array_equal(bench.state["class_embedding"], pending.private["class_embedding"])
    assert bench.kinds().count("training") == 1


def test_an_upload_that_counts_already_is_only_waited_for(bench: Bench) -> None:
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    bench.script.upload_status = lambda: rounds_pb2.UploadStatus(accepted=True)
    calls = len(bench.script.calls)
    assert isinstance(bench.participant.step(), Counted)
    assert bench.script.calls[calls:] == ["upload_status", "follow"]


def test_a_validator_whose_faces_cannot_judge_is_nobody_to_count_on(bench: Bench) -> None:
    """It called, was chosen in every attempt, fetched the model and left; validators' sums waited for it."""
    bench.participant = replace(bench.participant, role=Role.VALIDATE)
    with pytest.raises(ConfigError, match="four people or more, with two pictures or more each; here are 1 people"):
        bench.participant.step()
    assert bench.script.calls == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agreement": Agreement(min_cohort=2)}, "plain sums"),
        ({"agreement": replace(PLAIN, min_cohort=64)}, "agrees to 64 or more"),
        ({"agreement": replace(PLAIN, person="Other")}, "other faces"),
        ({"agreement": replace(PLAIN, person="Nobody")}, "nobody called"),
        ({"source": SourceFaces("1" * 64, noise_crops(7), np.zeros(3, np.int64))}, "other faces"),
        ({"role": Role.VALIDATE}, "was to train"),
    ],
)
def test_what_the_owner_no_longer_agrees_to_is_not_sent_after_a_restart(
    bench: Bench, changes: dict[str, Any], why: str
) -> None:
    bench.keep_old_state()
    crops = noise_crops(3)
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    bench.gallery.enroll("Other", crops, template_of(crops), now_unix_s=0, consent=True)
    bench.restart()
    bench.events.clear()
    calls, agreed = len(bench.script.calls), bench.participant
    bench.participant = replace(agreed, **changes)
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert why in outcome.reason
    assert bench.script.calls[calls:] == ["upload_status"]
    assert len(bench.script.left_with) == 1
    assert bench.kinds() == ["resumed", "not_counted"]
    assert bench.gallery.pending() is None
    assert bench.state_is_old()


def test_a_disk_that_fails_for_a_moment_has_refused_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_gallery: object) -> None:
        raise FileAccessError("the disk does not answer; run again")

    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    with monkeypatch.context() as patched:
        patched.setattr(type(bench.gallery), "people", away)
        refusal(bench, FileAccessError)
    assert bench.script.left_with == []
    bench.script.upload = lambda _: rounds_pb2.UploadStatus(accepted=True)
    assert bench.gallery.pending() is not None
    assert isinstance(bench.participant.step(), Counted)


def test_what_was_revealed_with_leave_is_not_shown_after_it_ended(bench: Bench) -> None:
    allowed = replace(PLAIN, allow_reveal=SHOWN.reveals)
    bench.participant = replace(bench.participant, agreement=allowed)
    bench.script.check_in = lambda: assignment(changed(method="fedface", privacy=SHOWN))
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    bench.participant = replace(bench.participant, agreement=PLAIN)
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert 'allow_reveal = ["class_embeddings"]' in outcome.reason


def test_an_update_kept_without_its_agreement_is_not_sent(bench: Bench) -> None:
    bench.gallery.keep_pending(Pending((bench.owner,), "t1", 2, 1, b"update"))
    assert isinstance(bench.participant.step(), NotCounted)
    assert bench.uploads == []
    assert bench.gallery.pending() is None


def test_what_counts_already_is_settled_whatever_the_owner_says_now(bench: Bench) -> None:
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    bench.script.upload_status = lambda: rounds_pb2.UploadStatus(accepted=True)
    bench.participant = replace(bench.participant, agreement=Agreement())
    assert isinstance(bench.participant.step(), Counted)


def test_a_person_removed_in_the_meantime_takes_the_round_along(bench: Bench) -> None:
    bench.script.upload = bench.script.fails_first(999, None, None)
    refusal(bench, UnreachableError)
    bench.gallery.remove("Owner")
    assert bench.gallery.pending() is None


# --- what a device does not take part in ---


def changed(**values: Any) -> TaskSpec:
    return replace(TASK, **values)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (assignment(contribution_sha256="0" * 64), LayoutMismatchError, "of form 000000000000"),
        (assignment(model_id="b" * 64), ModelMismatchError, "another model"),
        (assignment(task_json=task_to_json(TASK).replace(b'"seed"', b'"seeds"')), VersionError, "upgrade mien"),
        (assignment(changed(options={"margins": 1.0})), ConfigError, "options.margins"),
        (assignment(changed(trainable=("nothing.*",)), contribution_sha256="1" * 64), ConfigError, "nothing"),
        (assignment(changed(local=LocalSpec(lr=1e3, weight_decay=1e3, flip=False, epochs=20))), NonFiniteError, None),
    ],
)
def test_assignments_that_do_not_fit_are_left_with_their_error(
    bench: Bench, reply: Any, error: type[MienError], message: str | None
) -> None:
    bench.keep_old_state()
    bench.script.check_in = lambda: reply
    refusal(bench, error, message)
    assert "upload" not in bench.script.calls
    assert bench.state_is_old()
    assert bench.gallery.pending() is None
    # A task that cannot even be read names no round to leave.
    assert bench.script.left_with == ([] if error is VersionError else [error.code])


@pytest.mark.parametrize(
    "values",
    [
        np.full(128, np.nan, np.float32),
        np.full(128, np.inf, np.float32),
        np.full(128, 1e300),
        np.zeros(128, np.int64),
        np.zeros(128, np.bool_),
        np.zeros(0, np.float32),
        np.zeros((0, 0), np.float32),
        np.zeros((1, 128), np.float32),
        np.zeros((2, 1, 128), np.float32),
        np.zeros(129, np.float32),
        np.zeros((), np.float32),
    ],
)
def test_a_hostile_reply_is_left_like_any_bad_round(bench: Bench, values: Any) -> None:
    task = changed(method="fedface", privacy=SHOWN)
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, allow_reveal=SHOWN.reveals))
    bench.keep_old_state()
    bench.script.check_in = lambda: assignment(task, reply=pack_tensors({"class_embedding": values}))
    refusal(bench, CorruptDataError, "class_embedding")
    assert bench.script.left_with == ["corrupt_data"]
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


def test_a_reply_longer_than_the_method_has_use_for_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participate, "reply_names", lambda *_: {"momentum"})
    most = longest_reply(layout_of(TASK).size)
    long = pack_tensors({"momentum": np.zeros(most // 4 + 1, np.float32)})
    assert most > INLINE_BYTES
    bench.script.check_in = lambda: assignment(reply=long)
    refusal(bench, CorruptDataError, r"no use for more than \d+")
    assert bench.script.left_with == ["corrupt_data"]


def test_a_reply_that_the_method_does_not_name_is_refused(bench: Bench) -> None:
    bench.script.check_in = lambda: assignment(reply=pack_tensors({"class_embedding": np.ones(4, np.float32)}))
    refusal(bench, ViolationError, r"told 'class_embedding', which phones of this task are not told")
    assert bench.script.left_with == ["violation"]


@pytest.mark.parametrize(
    "defect", [ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, ZeroDivisionError]
)
def test_a_defect_in_training_leaves_the_round_and_tells_its_class_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, defect: type[Exception]
) -> None:
    def fails(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
        raise defect(f"secret {inp.crops}")

    monkeypatch.setattr(participate, "METHODS", {"fedavg": replace(METHODS["fedavg"], device_round=fails)})
    outcome = bench.participant.step()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CorruptDataError)
    assert defect.__name__ in outcome.error.message
    assert "secret" not in outcome.error.message
    assert outcome.error.__suppress_context__
    assert bench.script.left_with == ["corrupt_data"]
    assert bench.gallery.pending() is None


def test_an_unknown_method_asks_for_an_upgrade(bench: Bench) -> None:
    unknown = task_to_json(TASK).replace(b'"fedavg"', b'"fednew"')
    bench.script.check_in = lambda: assignment(task_json=unknown)
    refusal(bench, ConfigError, "'fednew', unknown to this program; upgrade")
    assert bench.script.left_with == ["config"]


def test_the_floor_is_checked_before_anything_is_fetched(bench: Bench) -> None:
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, min_cohort=16))
    refusal(bench, ConfigError, "agrees to 16 or more")
    assert bench.script.calls == ["check_in"]
    assert "disclosure" not in bench.kinds()


def test_conditions_that_end_while_the_model_is_fetched_end_the_round(bench: Bench) -> None:
    class Unplugged:
        """Charging at first, not any more at the second look."""

        looks = 0

        def unmet(self) -> tuple[str, ...]:
            self.looks += 1
            return ("charging",) if self.looks > 1 else ()

    bench.participant = replace(bench.participant, conditions=Unplugged())
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert "no longer charging" in outcome.reason
    assert bench.script.left_with == ["late"]
    assert "training" not in bench.kinds()


def test_unmet_conditions_ask_nobody(bench: Bench) -> None:
    bench.participant = replace(bench.participant, conditions=StatedConditions(idle=False, unmetered=False))
    assert bench.participant.step() == NotNow(("idle", "unmetered"))
    assert bench.script.calls == []


def enrol(bench: Bench, name: str, seed: int, *, consent: bool = True) -> Person:
    crops = noise_crops(seed)
    template = Template.of(project(crops), "a" * 64, SPEC)
    return bench.gallery.enroll(name, crops, template, now_unix_s=0, consent=consent)


def test_a_method_over_one_person_takes_the_first_and_says_so(bench: Bench) -> None:
    """Such a phone left the round before, and with it every round of its task."""
    other, one_person = enrol(bench, "Other", 2), changed(method="fedface", privacy=SHOWN)
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, allow_reveal=SHOWN.reveals))
    bench.script.check_in = lambda: assignment(one_person)
    assert isinstance(bench.participant.step(), Counted)
    (said,) = [event.text for event in bench.events if event.kind == "narrowed"]
    assert said.startswith("2 people agreed to training, and method fedface trains on one's pictures: on Owner's,")
    assert bench.state
    assert not bench.gallery.private_state(other.id, "t1")
    bench.participant = replace(bench.participant, agreement=replace(bench.participant.agreement, person="other"))
    assert isinstance(bench.participant.step(), Counted)
    assert bench.gallery.private_state(other.id, "t1")


def test_a_named_person_has_to_agree(bench: Bench) -> None:
    enrol(bench, "Other", 2, consent=False)
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, person="other"))
    refusal(bench, ConfigError, "'Other' has not agreed")
    assert bench.script.calls == []


@dataclass
class Recorder:
    """A method that keeps what its device half was given; the training is the real one."""

    method: Method
    inputs: list[DeviceInput]

    def __call__(self, inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
        self.inputs.append(inp)
        return self.method.device_round(inp, runtime)


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[DeviceInput]:
    """Return what device halves are given from now on."""
    inputs: list[DeviceInput] = []
    spied = {name: replace(method, device_round=Recorder(method, inputs)) for name, method in METHODS.items()}
    monkeypatch.setattr(participate, "METHODS", spied)
    return inputs


def test_everybody_who_agreed_trains_with_their_number(bench: Bench, trained_on: list[DeviceInput]) -> None:
    enrol(bench, "Not her", 3, consent=False)
    other = enrol(bench, "Other", 2)
    bench.script.check_in = lambda: assignment(changed(options={"loss": "cosface"}))
    assert isinstance(bench.participant.step(), Counted)
    (inp,) = trained_on
    assert inp.labels is not None
    np.testing.assert_array_equal(inp.labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(inp.crops, np.concatenate([noise_crops(1), noise_crops(2)]))
    assert any("training on 6 images of 2 people" in event.text for event in bench.events)
    own, others = bench.state["class_embedding"], bench.gallery.private_state(other.id, "t1")["class_embedding"]
    assert own.shape == others.shape == (128,)
    assert not np.array_equal(own, others)


def test_a_method_is_given_bytes_that_nobody_else_knows(bench: Bench, trained_on: list[DeviceInput]) -> None:
    enrol(bench, "Other", 2)
    bench.script.check_in = lambda: assignment(changed(options={"loss": "cosface"}))
    for _ in range(2):
        assert isinstance(bench.participant.step(), Counted)
    assert [len(inp.secret) for inp in trained_on] == [32, 32]
    assert trained_on[0].secret != trained_on[1].secret


def test_who_leaves_takes_their_vector_and_nobody_elses(bench: Bench, trained_on: list[DeviceInput]) -> None:
    other, third = enrol(bench, "Other", 2), enrol(bench, "Third", 4)
    bench.script.check_in = lambda: assignment(changed(options={"loss": "cosface"}))
    assert isinstance(bench.participant.step(), Counted)
    kept = [bench.gallery.private_state(person.id, "t1")["class_embedding"] for person in (other, third)]
    bench.gallery.remove("Owner")
    fourth = enrol(bench, "A fourth", 5)
    assert isinstance(bench.participant.step(), Counted)
    np.testing.assert_array_equal(trained_on[-1].private["class_embedding"], kept)
    np.testing.assert_array_equal(
        trained_on[-1].crops, np.concatenate([noise_crops(2), noise_crops(4), noise_crops(5)])
    )
    assert bench.gallery.private_state(fourth.id, "t1")


def test_what_several_have_together_goes_with_anybody(bench: Bench, trained_on: list[DeviceInput]) -> None:
    enrol(bench, "Other", 2)
    task = changed(method="scaffold", options={"loss": "cosface"})
    bench.script.check_in = lambda: assignment(task)
    for _ in range(2):
        assert isinstance(bench.participant.step(), Counted)
    assert set(trained_on[-1].private) == {"control", "class_embeddings"}
    bench.gallery.set_consent("Other", granted_unix_s=None)
    bench.gallery.set_consent("Other", granted_unix_s=9)
    assert isinstance(bench.participant.step(), Counted)
    assert set(trained_on[-1].private) == {"class_embeddings"}
    assert trained_on[-1].private["class_embeddings"].shape == (1, 128)


def test_what_the_server_knows_by_number_is_not_given_to_another(bench: Bench, trained_on: list[DeviceInput]) -> None:
    enrol(bench, "Other", 2)
    task = changed(method="fedgc", privacy=SHOWN, options={"identities": 2})
    servers = {"class_embeddings": np.full(2 * 128, 0.5, np.float32)}
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, allow_reveal=SHOWN.reveals))
    bench.script.check_in = lambda: assignment(task)
    assert isinstance(bench.participant.step(), Counted)
    bench.script.check_in = lambda: assignment(task, reply=pack_tensors(servers))
    assert isinstance(bench.participant.step(), Counted)
    assert "class_embeddings" in trained_on[-1].reply
    bench.gallery.remove("Owner")
    enrol(bench, "New", 5)
    assert isinstance(bench.participant.step(), Counted)
    assert trained_on[-1].reply == {}
    assert len(trained_on[-1].private["class_embeddings"]) == 1


def test_a_phone_groups_its_faces_by_itself(bench: Bench, trained_on: list[DeviceInput]) -> None:
    enrol(bench, "Other", 2)
    bench.script.check_in = lambda: assignment(changed(method="fedfr_uda", local=LocalSpec(lr=0.001, flip=False)))
    for _ in range(2):
        assert isinstance(bench.participant.step(), Counted)
    assert [inp.labels for inp in trained_on] == [None, None]
    np.testing.assert_array_equal(trained_on[-1].private["labels"].shape, (6,))
    bench.gallery.remove("Other")
    assert isinstance(bench.participant.step(), Counted)
    assert trained_on[-1].private == {}


def test_a_source_trains_under_its_labels_and_is_nobodys(bench: Bench, trained_on: list[DeviceInput]) -> None:
    crops = np.concatenate([noise_crops(seed) for seed in (7, 8)])
    source = SourceFaces("1" * 64, crops, np.repeat(np.arange(2), 3))
    bench.participant = replace(bench.participant, source=source)
    bench.script.check_in = lambda: assignment(changed(method="fedfr_uda", local=LocalSpec(lr=0.001, flip=False)))
    for _ in range(2):
        assert isinstance(bench.participant.step(), Counted)
    assert [each.labelled for each in bench.script.check_ins] == [True, True], "a source says that it is one"
    assert trained_on[-1].labels is not None
    np.testing.assert_array_equal(trained_on[-1].labels, source.labels)
    assert trained_on[-1].private["class_embeddings"].shape == (2, 128)
    assert [person.name for person in bench.gallery.people()] == ["Owner"]
    assert bench.state == {}
    bench.participant = replace(bench.participant, source=replace(source, id="2" * 64))
    assert isinstance(bench.participant.step(), Counted)
    assert trained_on[-1].private == {}


def offer_reply(bench: Bench, arrays: dict[str, Any], sent: Callable[[bytes], bytes] = bytes) -> None:
    """Let the coordinator hand out a task whose reply is streamed."""
    data = b"".join(TensorStream(arrays).pieces())
    blob = common_pb2.BlobRef(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    task = changed(method="scaffold")
    bench.script.check_in = lambda: assignment(task, reply_stream=blob)
    bench.script.reply = lambda offset: [common_pb2.DataChunk(offset=offset, data=sent(data)[offset:])]


PART_SIZE = small_model().layout.part(small_model().spec.trainable).size


def test_a_long_reply_is_fetched_before_training(bench: Bench, trained_on: list[DeviceInput]) -> None:
    control = np.random.default_rng(0).normal(0, 1e-3, PART_SIZE).astype(np.float32)
    offer_reply(bench, {"control": control})
    assert isinstance(bench.participant.step(), Counted)
    np.testing.assert_array_equal(trained_on[0].reply["control"], control)
    assert bench.script.calls.index("reply") < bench.script.calls.index("report_trained")


@pytest.mark.parametrize(
    ("size", "sent", "message"),
    [
        (PART_SIZE, lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged twice"),
        (10 * PART_SIZE, bytes, "the most that the task can need"),
    ],
)
def test_a_long_reply_that_is_not_as_announced_ends_the_round(
    bench: Bench, size: int, sent: Callable[[bytes], bytes], message: str
) -> None:
    offer_reply(bench, {"control": np.zeros(size, np.float32)}, sent)
    refusal(bench, CorruptDataError, message)
    assert bench.script.left_with == ["corrupt_data"]
    assert "report_trained" not in bench.script.calls
    assert bench.gallery.pending() is None


def test_a_source_is_not_for_methods_over_one_person(bench: Bench) -> None:
    source = SourceFaces("1" * 64, noise_crops(7), np.zeros(3, np.int64))
    bench.participant = replace(bench.participant, source=source, agreement=replace(PLAIN, allow_reveal=SHOWN.reveals))
    bench.script.check_in = lambda: assignment(changed(method="fedface", privacy=SHOWN))
    refusal(bench, ConfigError, "`source` is for methods over many identities")
    bench.participant = replace(bench.participant, agreement=replace(PLAIN, person="Owner"))
    refusal(bench, ConfigError, "`participation.person` and `source` say two things")


@pytest.mark.parametrize("withdraw", [Gallery.remove, partial(Gallery.set_consent, granted_unix_s=None)])
def test_consent_withdrawn_in_the_middle_of_a_round_keeps_the_update_here(
    bench: Bench, withdraw: Callable[[Gallery, str], Person]
) -> None:
    def follow() -> Iterable[rounds_pb2.StageEvent]:
        withdraw(bench.gallery, "Owner")
        yield rounds_pb2.StageEvent(stage=rounds_pb2.UPLOAD)

    bench.script.follow = follow
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert "nothing was sent" in outcome.reason
    assert bench.uploads == []
    assert bench.script.left_with == ["config"]
    assert bench.gallery.pending() is None
    refusal(bench, ConfigError, "nobody enrolled has agreed")


def test_consent_withdrawn_during_training_keeps_the_update_here(bench: Bench) -> None:
    def tell(event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "trained":
            bench.gallery.set_consent("Owner", granted_unix_s=None)

    bench.participant = replace(bench.participant, tell=tell)
    refusal(bench, ConfigError, "no longer")
    assert bench.script.left_with == ["config"]
    assert "follow" not in bench.script.calls
    assert bench.gallery.pending() is None


# --- the loop ---


def test_the_loop_ends_after_its_rounds(bench: Bench) -> None:
    answers = iter([rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=0.3, reason="soon"))])
    bench.script.check_in = lambda: next(answers, None) or assignment()
    clock = ShiftedClock()
    ended = list(take_part(lambda: bench.participant, clock, rounds=2, idle_s=None))
    assert len(ended) == 2
    assert clock.pauses == [0.3]


def test_rounds_that_do_not_count_are_not_counted(bench: Bench) -> None:
    follows = iter([stages(rounds_pb2.ABORTED), stages(rounds_pb2.ABORTED)])
    bench.script.follow = lambda: next(follows, ALL_THE_WAY)()
    ended = list(take_part(lambda: bench.participant, ShiftedClock(), rounds=1, idle_s=None))
    assert [type(outcome) for outcome in ended] == [NotCounted, NotCounted, Counted]


def test_the_loop_ends_when_there_is_nothing_to_do(bench: Bench) -> None:
    bench.script.check_in = Script().check_in
    clock = ShiftedClock()
    assert list(take_part(lambda: bench.participant, clock, rounds=None, idle_s=60.0)) == []
    assert 30.0 <= sum(clock.pauses) <= 60.0


def test_a_server_that_drains_is_asked_again(bench: Bench) -> None:
    bench.script.check_in = bench.script.fails_first(2, DrainingError("bye", retry_after_s=0.1), assignment())
    assert isinstance(bench.participant.step(), Counted)


def test_a_broken_stream_during_upload_is_no_end(bench: Bench) -> None:
    parts = iter([[rounds_pb2.UPLOAD], [rounds_pb2.UPLOAD, rounds_pb2.CLOSED]])

    def follow() -> Iterable[rounds_pb2.StageEvent]:
        numbers = next(parts)
        yield from (rounds_pb2.StageEvent(stage=number) for number in numbers)
        if numbers[-1] != rounds_pb2.CLOSED:
            raise BrokenConnectionError

    bench.script.follow = follow
    assert isinstance(bench.participant.step(), Counted)
    assert len(bench.uploads) == 1


def test_waiting_is_an_answer(bench: Bench) -> None:
    bench.script.check_in = Script().check_in
    assert bench.participant.step() == Wait(1.5, "nothing")


def test_models_of_no_use_are_cleared_away(bench: Bench, tmp_path: Path) -> None:
    stale = tmp_path / "home" / "models" / ("d" * 64)
    stale.parent.mkdir()
    stale.write_bytes(b"old")
    bench.participant.step()
    assert not stale.exists()
    assert bench.participant.models.has(small_model().model_id)


def test_the_update_and_the_state_are_not_in_any_event(bench: Bench) -> None:
    bench.participant.step()
    assert all("array" not in repr(event) and len(repr(event)) < 500 for event in bench.events)
    model: Model = small_model()
    assert "array" not in repr(model)


class _Failing:
    """A participant that fails thus, and whose last step counts."""

    def __init__(self, *failures: Failed) -> None:
        self.told: list[tuple[str, str]] = []
        self._steps = iter((*failures, Counted(RoundRef("t", 1, 1), "a" * 64, 3)))

    def tell(self, event: Any) -> None:
        self.told.append((event.kind, event.facts["task_id"]))

    def step(self) -> Any:
        return next(self._steps)


def failed(task_id: str, error: MienError) -> Failed:
    return Failed(RoundRef(task_id, 1, 1), error)


def test_a_phone_left_to_itself_outlives_bad_tasks_says_so_once_for_each_and_backs_off() -> None:
    refused, bad = ConfigError("not agreed to."), NonFiniteError("the update holds NaN.")
    failing = _Failing(failed("a", refused), failed("a", refused), failed("b", bad), failed("a", refused))
    clock = ShiftedClock()
    slept: list[float] = []
    clock.sleep = slept.append  # type: ignore[method-assign]
    outcomes = take_part(lambda: failing, clock, rounds=None, idle_s=None)  # type: ignore[arg-type,return-value]
    assert isinstance(next(outcomes), Counted)
    assert failing.told == [("task_failed", "a"), ("task_failed", "b")]
    assert slept == [FAILED_PAUSE_S * factor for factor in (1, 2, 4, 8)]


@pytest.mark.parametrize("limits", [{"rounds": 1, "idle_s": None}, {"rounds": None, "idle_s": 9.0}])
def test_a_person_who_waits_is_told_at_once_what_failed(limits: dict[str, Any]) -> None:
    failing = _Failing(failed("a", NonFiniteError("the update holds NaN.")))
    with pytest.raises(NonFiniteError):
        next(take_part(lambda: failing, ShiftedClock(), **limits))  # type: ignore[arg-type,return-value]
