"""The client against faults: lost connections, wrong bytes, wrong clocks, servers that are not the right one."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.keys import pki
from device_sdk.server.client import UNSAID_PAUSE_S, ClientSettings, CoordinatorClient
from device_sdk.server.retry import Retries, RetryPolicy
from device_sdk.server.rpc import UNARY_S
from mien.errors import (
    CertificateError,
    CorruptDataError,
    DatabaseError,
    DiskFullError,
    DrainingError,
    FileAccessError,
    FingerprintError,
    KeyStoreError,
    LateError,
    MienError,
    OffsetError,
    RateLimitedError,
    ReplayError,
    UnreachableError,
    VersionError,
    ViolationError,
)
from mien.format import spell_duration
from mien.protocol import CHUNK_BYTES
from mien.protocol.rounds import BlobId, RoundRef, Stage, Wait
from mien.protocol.v1 import common_pb2, models_pb2, rounds_pb2
from mien.protocol.words import MAX_WORDS
from simulation.testing import free_port
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script, scripted_coordinator

pytestmark = pytest.mark.usefixtures("patient_glances")

FAST = RetryPolicy(first_s=0.5, longest_s=4.0, give_up_s=30.0)
SETTINGS = ClientSettings(connect=RetryPolicy(give_up_s=1.0), retry=FAST, stream_s=60.0)
REF = RoundRef("task", 2, 1)
CONTENT = random.Random(0).randbytes(3 * CHUNK_BYTES + 17)
BLOB = BlobId(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


@contextmanager
def connected(
    fleet: Fleet,
    script: Script,
    *,
    clock: ShiftedClock | None = None,
    settings: ClientSettings = SETTINGS,
    server_issued: timedelta = timedelta(0),
    issued: timedelta = timedelta(0),
    **changes: object,
) -> Iterator[CoordinatorClient]:
    with scripted_coordinator(fleet, script, server_issued=server_issued) as address:
        identity = fleet.identity(address, issued=issued, **changes)
        with CoordinatorClient(identity, clock or ShiftedClock(), random.Random(0), settings) as client:
            yield client


def chunks(data: bytes, offset: int = 0, size: int = CHUNK_BYTES) -> Iterable[common_pb2.DataChunk]:
    for start in range(offset, len(data), size):
        yield common_pb2.DataChunk(offset=start, data=data[start : start + size])


# --- what a server says ---

TRAP = "\x1b]0;mine\x07\x1b[2J\u202egnp\r\nMatch: Bob"
HARMLESS = "]0;mine[2Jgnp  Match: Bob"


def test_nothing_that_a_server_says_moves_a_terminal(fleet: Fleet) -> None:
    ref = rounds_pb2.RoundRef(task_id=TRAP, round=1, attempt=1)
    task = b'{"name": "x"}'
    script = Script(
        hello=lambda: common_pb2.HelloReply(protocol_version=1, software=TRAP, unix_ms=int(time.time() * 1000)),
        check_in=lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.5, reason=TRAP)),
        follow=lambda: [rounds_pb2.StageEvent(stage=rounds_pb2.ABORTED, reason=TRAP, model_id=TRAP)],
        manifest=lambda: models_pb2.ModelManifest(model_id=TRAP, theta=common_pb2.BlobRef(sha256="a" * 64)),
    )
    with connected(fleet, script) as client:
        assert client.hello().software == HARMLESS
        assert client.check_in(()) == Wait(1.5, HARMLESS)
        for event in (client.glance(REF), *client.follow(REF)):
            assert (event.reason, event.model_id) == (HARMLESS, HARMLESS)
        assert client.manifest().model_id == HARMLESS
        script.check_in = lambda: rounds_pb2.CheckInReply(
            assignment=rounds_pb2.Assignment(round=ref, task_json=task, model_id=TRAP)
        )
        answer = client.check_in(())
        assert not isinstance(answer, Wait)
        assert (answer.round.task_id, answer.model_id) == (HARMLESS, HARMLESS)
        script.check_in = lambda: rounds_pb2.CheckInReply(
            assignment=rounds_pb2.Assignment(round=ref, task_json=json.dumps({"name": "x", TRAP: 1}).encode())
        )
        with pytest.raises(VersionError) as unreadable:
            client.check_in(())
        assert unreadable.value.message.isprintable()
        script.check_in = script.fails_first(1, LateError(TRAP.replace("\r", "")), None)
        with pytest.raises(LateError) as late:
            client.check_in(())
        assert late.value.message == HARMLESS.replace("  ", " ")


def test_a_servers_words_are_cut_off(fleet: Fleet) -> None:
    script = Script(check_in=lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(reason="A" * 500_000)))
    with connected(fleet, script) as client:
        answer = client.check_in(())
        assert isinstance(answer, Wait)
        assert answer.reason == "A" * (MAX_WORDS - 1) + "…"


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf])
def test_a_pause_that_is_no_number_was_not_said(fleet: Fleet, said: float) -> None:
    script = Script(check_in=lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=said, reason="x")))
    with connected(fleet, script) as client:
        assert client.check_in(()) == Wait(UNSAID_PAUSE_S, "x")


# --- pauses ---


def test_pauses_grow_are_jittered_and_end() -> None:
    clock, rng = ShiftedClock(), random.Random(7)
    backoff = Retries(RetryPolicy(first_s=1.0, longest_s=8.0, give_up_s=25.0), clock, rng)

    def try_often() -> None:
        for _ in range(100):
            backoff.wait(UnreachableError("down"))

    with pytest.raises(UnreachableError):
        try_often()
    twin = random.Random(7)
    assert clock.pauses == [twin.uniform(0, min(8.0, 2.0**n)) for n in range(len(clock.pauses))]
    assert len(clock.pauses) > 4
    assert sum(clock.pauses) <= 25.0


def test_a_servers_own_pause_is_the_least() -> None:
    clock = ShiftedClock()
    backoff = Retries(FAST, clock, random.Random(0))
    backoff.wait(RateLimitedError("slow down", retry_after_s=9.0))
    assert clock.pauses == [9.0]


def test_progress_starts_the_count_over() -> None:
    clock = ShiftedClock()
    backoff = Retries(RetryPolicy(first_s=40.0, longest_s=40.0, give_up_s=50.0), clock, random.Random(1))
    for _ in range(10):
        backoff.wait(UnreachableError("down"))
        backoff.progress()
    assert len(clock.pauses) == 10
    assert sum(clock.pauses) > 100


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (85800, "23 h 50 min"), (-86400, "1 day"), (200000, "2 days 7 h"), (3605, "1 h")],
)
def test_durations_are_spelled_to_two_units(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text


# --- greeting ---


def test_the_greeting_tells_version_and_clock(fleet: Fleet) -> None:
    with connected(fleet, Script()) as client:
        hello = client.hello()
    assert (hello.protocol_version, hello.software) == (1, "scripted")
    # The server's clock is read somewhere between the call and its answer, which may take up to UNARY_S.
    assert abs(hello.skew_s) <= UNARY_S / 2


def test_a_server_of_another_version_is_told_apart(fleet: Fleet) -> None:
    script = Script(hello=lambda: common_pb2.HelloReply(protocol_version=99, unix_ms=int(time.time() * 1000)))
    with connected(fleet, script) as client, pytest.raises(VersionError, match="upgrade"):
        client.hello()


@pytest.mark.parametrize(("shift_s", "words"), [(3630.0, "1 h ahead of"), (-7230.0, "2 h behind")])
def test_a_clock_that_is_off_is_told_by_how_much(fleet: Fleet, shift_s: float, words: str) -> None:
    # The server's certificate is a day old, so that only the greeting can tell. A slow answer moves what it tells by up
    # to UNARY_S / 2, which changes no word half a minute beyond the hour.
    with (
        connected(fleet, Script(), clock=ShiftedClock(shift_s), server_issued=-timedelta(days=1)) as client,
        pytest.raises(CertificateError, match=words),
    ):
        client.hello()


def test_a_server_certificate_of_tomorrow_means_a_clock_that_is_behind(fleet: Fleet) -> None:
    with (
        connected(fleet, Script(), server_issued=timedelta(days=1)) as client,
        pytest.raises(CertificateError, match=r"begins 23 h (50|49) min after this device's time"),
    ):
        client.hello()


def test_our_own_certificate_that_has_ended_is_named(fleet: Fleet) -> None:
    with (
        connected(fleet, Script(), issued=-timedelta(days=9)) as client,
        pytest.raises(CertificateError, match=r"this device's own certificate ended 2 days before"),
    ):
        client.hello()


def test_another_server_at_the_address_is_told_apart(fleet: Fleet) -> None:
    other = Fleet.create()
    with (
        connected(fleet, Script(), coordinator_ca=other.coordinator.certificate) as client,
        pytest.raises(FingerprintError, match="another authority"),
    ):
        client.hello()


def test_a_coordinator_that_is_down_is_named_once(fleet: Fleet) -> None:
    clock = ShiftedClock()
    with (
        CoordinatorClient(fleet.identity(f"127.0.0.1:{free_port()}"), clock, random.Random(0), SETTINGS) as client,
        pytest.raises(UnreachableError, match="check address and network"),
    ):
        client.hello()
    assert sum(clock.pauses) <= 1.0


# --- calls ---


def test_calls_are_repeated_while_that_can_help(fleet: Fleet) -> None:
    script = Script()
    script.check_in = script.fails_first(3, DrainingError("later", retry_after_s=2.0), Script().check_in())
    clock = ShiftedClock()
    with connected(fleet, script, clock=clock) as client:
        assert client.check_in(()) == Wait(1.5, "nothing")
    assert script.calls == ["check_in"] * 4
    assert all(pause >= 2.0 for pause in clock.pauses)


def test_an_error_that_repetition_cannot_help_is_raised_at_once(fleet: Fleet) -> None:
    script = Script()
    script.check_in = script.fails_first(1, LateError("over"), None)
    with connected(fleet, script) as client, pytest.raises(LateError, match="over"):
        client.check_in(())
    assert script.calls == ["check_in"]


@pytest.mark.parametrize(
    "error",
    [DiskFullError("no space left"), KeyStoreError("locked"), DatabaseError("refused"), FileAccessError("read-only")],
)
def test_a_server_that_cannot_store_is_waited_for_like_one_that_is_away(fleet: Fleet, error: MienError) -> None:
    """Its full disk is not this phone's: a phone that ended with that error would not be back when there is room."""
    script = Script()
    script.check_in = script.fails_first(2, error, Script().check_in())
    script.upload = script.fails_first(2, error, rounds_pb2.UploadStatus(accepted=True))
    with connected(fleet, script) as client:
        assert client.check_in(()) == Wait(1.5, "nothing")
        client.upload(REF, CONTENT)
    assert script.calls == ["check_in"] * 3 + ["upload_status", "upload"] * 3
    script.check_in = script.fails_first(1000, error, None)
    with connected(fleet, script) as client, pytest.raises(UnreachableError, match="for its operator to mend"):
        client.check_in(())


# --- following ---


def events(*stages: int) -> list[rounds_pb2.StageEvent]:
    return [rounds_pb2.StageEvent(stage=stage, remaining_ms=1500) for stage in stages]


def test_a_broken_stream_of_stages_is_taken_up_again(fleet: Fleet) -> None:
    rounds = iter(
        [
            (events(rounds_pb2.TRAINING), True),
            ([], True),
            (events(rounds_pb2.TRAINING, rounds_pb2.UPLOAD), False),
            (events(rounds_pb2.UPLOAD, rounds_pb2.CLOSED), False),
        ]
    )

    def follow() -> Iterable[rounds_pb2.StageEvent]:
        told, breaks = next(rounds)
        yield from told
        if breaks:
            raise BrokenConnectionError

    with connected(fleet, Script(follow=follow)) as client:
        seen = list(client.follow(REF))
    assert [event.stage for event in seen] == [Stage.TRAINING, Stage.TRAINING, Stage.UPLOAD, Stage.UPLOAD, Stage.CLOSED]
    assert seen[0].remaining_s == 1.5


def test_a_stream_longer_than_its_deadline_goes_on(fleet: Fleet) -> None:
    calls, is_over = itertools.chain([True], itertools.repeat(False)), threading.Event()

    def follow() -> Iterable[rounds_pb2.StageEvent]:
        yield from events(rounds_pb2.TRAINING)
        if next(calls):
            is_over.wait(60)
        yield from events(rounds_pb2.ABORTED)

    clock = ShiftedClock()
    settings = ClientSettings(retry=FAST, stream_s=5.0)
    with connected(fleet, Script(follow=follow), clock=clock, settings=settings) as client:
        client.hello()  # the connection is there: none of the stream's time goes into it
        seen = [event.stage for event in client.follow(REF)]
        is_over.set()
    assert seen == [Stage.TRAINING, Stage.TRAINING, Stage.ABORTED]
    assert clock.pauses == []


def test_a_late_device_is_told_in_the_stream(fleet: Fleet) -> None:
    def follow() -> Iterable[rounds_pb2.StageEvent]:
        yield from events(rounds_pb2.TRAINING)
        raise LateError("too late")

    with connected(fleet, Script(follow=follow)) as client, pytest.raises(LateError, match="too late"):
        list(client.follow(REF))


@pytest.mark.parametrize("breaks", [False, True])
def test_a_coordinator_that_never_ends_a_stage_keeps_no_phone(fleet: Fleet, breaks: bool) -> None:
    def follow() -> Iterable[rounds_pb2.StageEvent]:
        for _ in range(1 if breaks else 10_000):
            yield from events(rounds_pb2.TRAINING)
        raise BrokenConnectionError

    def listen(client: CoordinatorClient) -> None:
        for event in client.follow(REF):
            seen.append(event.stage)
            assert len(seen) < 1000, "it listens on"
            clock.sleep(20)

    clock, seen = ShiftedClock(), list[Stage | None]()
    with connected(fleet, Script(follow=follow), clock=clock) as client, pytest.raises(LateError, match="did not end"):
        listen(client)
    assert set(seen) == {Stage.TRAINING}
    assert 20 < len(seen) <= 31  # pauses after breaks count too


def test_a_stage_of_a_newer_server_is_no_error(fleet: Fleet) -> None:
    script = Script(follow=lambda: events(99, rounds_pb2.CLOSED))
    with connected(fleet, script) as client:
        assert [event.stage for event in client.follow(REF)] == [None, Stage.CLOSED]


# --- download ---


def test_a_download_arrives_whole_and_checked(fleet: Fleet, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with connected(fleet, Script(download=lambda offset: chunks(CONTENT, offset))) as client:
        client.download(BLOB, tmp_path / "it", what="it", progress=lambda done, total: seen.append((done, total)))
    assert (tmp_path / "it").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_broken_download_goes_on_where_it_was(fleet: Fleet, tmp_path: Path) -> None:
    asked: list[int] = []

    def download(offset: int) -> Iterable[common_pb2.DataChunk]:
        asked.append(offset)
        yield from chunks(CONTENT[: offset + CHUNK_BYTES], offset)
        if len(asked) < 4:
            raise BrokenConnectionError

    with connected(fleet, Script(download=download)) as client:
        client.download(BLOB, tmp_path / "it", what="it")
    assert (tmp_path / "it").read_bytes() == CONTENT
    assert asked == [0, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES]


def test_what_an_earlier_process_received_is_not_fetched_again(fleet: Fleet, tmp_path: Path) -> None:
    asked: list[int] = []

    def download(offset: int) -> Iterable[common_pb2.DataChunk]:
        asked.append(offset)
        return chunks(CONTENT, offset)

    (tmp_path / "it.part").write_bytes(CONTENT[:1000])
    with connected(fleet, Script(download=download)) as client:
        client.download(BLOB, tmp_path / "it", what="it")
    assert asked == [1000]
    assert (tmp_path / "it").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"\x00" * 1000, b"\x00" * (len(CONTENT) + 5)])
def test_a_damaged_part_is_thrown_away(fleet: Fleet, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "it.part").write_bytes(left)
    with connected(fleet, Script(download=lambda offset: chunks(CONTENT, offset))) as client:
        client.download(BLOB, tmp_path / "it", what="it")
    assert (tmp_path / "it").read_bytes() == CONTENT


def test_a_server_with_other_bytes_is_refused_after_two_tries(fleet: Fleet, tmp_path: Path) -> None:
    other = bytes(len(CONTENT))
    script = Script(download=lambda offset: chunks(other, offset))
    with connected(fleet, script) as client, pytest.raises(CorruptDataError, match="damaged twice"):
        client.download(BLOB, tmp_path / "it", what="it")
    assert script.calls == ["download"] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "pieces",
    [
        [common_pb2.DataChunk(offset=5, data=b"abc")],
        [common_pb2.DataChunk(offset=0, data=b"")],
        [common_pb2.DataChunk(offset=0, data=b"abc"), common_pb2.DataChunk(offset=0, data=b"abc")],
        list(chunks(CONTENT + b"more")),
    ],
)
def test_pieces_that_do_not_fit_are_refused(fleet: Fleet, tmp_path: Path, pieces: list[common_pb2.DataChunk]) -> None:
    with (
        connected(fleet, Script(download=lambda _offset: pieces)) as client,
        pytest.raises(CorruptDataError, match="other pieces"),
    ):
        client.download(BLOB, tmp_path / "it", what="it")
    assert not (tmp_path / "it").exists()


def test_a_server_that_sends_nothing_is_given_up(fleet: Fleet, tmp_path: Path) -> None:
    clock = ShiftedClock()
    with connected(fleet, Script(), clock=clock) as client, pytest.raises(UnreachableError, match="only a part"):
        client.download(BLOB, tmp_path / "it", what="it")
    assert 10 < sum(clock.pauses) <= FAST.give_up_s


# --- the long part of a reply ---


def fetch_reply(client: CoordinatorClient, *, most_bytes: int = BLOB.size_bytes) -> bytes:
    return client.download_reply(REF, BLOB, most_bytes=most_bytes, what="it")


def test_a_reply_that_breaks_off_goes_on_where_it_was_and_touches_no_disk(fleet: Fleet, tmp_path: Path) -> None:
    asked: list[int] = []

    def reply(offset: int) -> Iterable[common_pb2.DataChunk]:
        asked.append(offset)
        yield from list(chunks(CONTENT, offset))[:1]
        if len(asked) < 3:
            raise BrokenConnectionError

    with connected(fleet, Script(reply=reply)) as client:
        assert fetch_reply(client) == CONTENT
    assert asked == [0, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES]
    assert not any(tmp_path.iterdir())


def test_a_reply_longer_than_the_task_can_need_is_not_fetched(fleet: Fleet) -> None:
    script = Script(reply=lambda offset: chunks(CONTENT, offset))
    with connected(fleet, script) as client, pytest.raises(CorruptDataError, match="the most that the task can need"):
        fetch_reply(client, most_bytes=BLOB.size_bytes - 1)
    assert script.calls == []


def test_a_reply_of_other_bytes_is_refused_after_two_tries(fleet: Fleet) -> None:
    other = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    script = Script(reply=lambda offset: chunks(other, offset))
    with connected(fleet, script) as client, pytest.raises(CorruptDataError, match="damaged twice"):
        fetch_reply(client)
    assert script.calls == ["reply"] * 2


@pytest.mark.parametrize("kept", [0, CHUNK_BYTES])
def test_a_reply_cut_short_is_given_up(fleet: Fleet, kept: int) -> None:
    clock = ShiftedClock()
    script = Script(reply=lambda offset: chunks(CONTENT[:kept], offset))
    with connected(fleet, script, clock=clock) as client, pytest.raises(UnreachableError, match="only a part"):
        fetch_reply(client)
    assert sum(clock.pauses) <= FAST.give_up_s


def test_more_than_was_announced_is_refused(fleet: Fleet) -> None:
    script = Script(reply=lambda offset: chunks(CONTENT + b"more", offset))
    with connected(fleet, script) as client, pytest.raises(CorruptDataError, match="other pieces"):
        fetch_reply(client)


def test_a_reply_of_a_round_that_went_on_is_late(fleet: Fleet) -> None:
    script = Script()
    script.reply = script.fails_first(1, LateError("went on"), ())
    with connected(fleet, script) as client, pytest.raises(LateError, match="went on"):
        fetch_reply(client)


# --- upload ---


def joined(sent: list[rounds_pb2.UploadChunk]) -> tuple[int, bytes]:
    """Return offset and bytes of a stream, after checking that its pieces follow each other."""
    header, pieces = sent[0], sent[1:]
    assert header.header.contribution.sha256 == BLOB.sha256
    assert header.header.contribution.size_bytes == len(CONTENT)
    position = header.offset
    for piece in pieces:
        assert piece.offset == position
        assert not piece.HasField("header")
        position += len(piece.data)
    return header.offset, b"".join(piece.data for piece in pieces)


def test_an_upload_is_one_stream_of_pieces(fleet: Fleet) -> None:
    received: list[tuple[int, bytes]] = []

    def upload(sent: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
        received.append(joined(sent))
        return rounds_pb2.UploadStatus(received_bytes=len(CONTENT), accepted=True)

    with connected(fleet, Script(upload=upload)) as client:
        client.upload(REF, CONTENT)
    assert received == [(0, CONTENT)]


def test_a_broken_upload_goes_on_from_the_servers_byte(fleet: Fleet) -> None:
    stored = bytearray()

    def upload(sent: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
        offset, data = joined(sent)
        assert offset == len(stored)
        if len(stored) < 2000:
            stored.extend(data[:1001])
            raise BrokenConnectionError
        stored.extend(data)
        return rounds_pb2.UploadStatus(received_bytes=len(stored), accepted=True)

    script = Script(upload=upload, upload_status=lambda: rounds_pb2.UploadStatus(received_bytes=len(stored)))
    with connected(fleet, script) as client:
        client.upload(REF, CONTENT)
    assert bytes(stored) == CONTENT


def test_an_upload_that_counts_already_is_not_sent_again(fleet: Fleet) -> None:
    script = Script(upload_status=lambda: rounds_pb2.UploadStatus(received_bytes=len(CONTENT), accepted=True))
    with connected(fleet, script) as client:
        client.upload(REF, CONTENT)
        assert client.upload_accepted(REF)
    assert "upload" not in script.calls


def test_what_fits_one_piece_is_sent_before_it_is_asked_about(fleet: Fleet) -> None:
    script = Script()
    script.upload = script.fails_first(1, OffsetError("have all"), rounds_pb2.UploadStatus(accepted=True))
    with connected(fleet, script) as client:
        client.upload(REF, CONTENT[:CHUNK_BYTES])
    assert script.calls == ["upload", "upload_status", "upload"]


def test_a_wrong_offset_asks_for_the_status_again(fleet: Fleet) -> None:
    script = Script()
    script.upload = script.fails_first(2, OffsetError("have 7"), rounds_pb2.UploadStatus(accepted=True))
    with connected(fleet, script) as client:
        client.upload(REF, CONTENT)
    assert script.calls == ["upload_status", "upload"] * 3


@pytest.mark.parametrize("error", [LateError("over"), ReplayError("other bytes")])
def test_an_upload_that_cannot_count_is_given_up_at_once(fleet: Fleet, error: LateError) -> None:
    script = Script()
    script.upload = script.fails_first(1, error, None)
    with connected(fleet, script) as client, pytest.raises(type(error)):
        client.upload(REF, CONTENT)
    assert script.calls == ["upload_status", "upload"]


def test_before_uploads_are_open_nothing_counts(fleet: Fleet) -> None:
    script = Script()
    script.upload_status = script.fails_first(9, RateLimitedError("not open", retry_after_s=1.0), None)
    with connected(fleet, script) as client:
        assert not client.upload_accepted(REF)
    assert script.calls == ["upload_status"]


def test_a_lost_connection_before_uploads_are_open_is_no_reason_to_wait_for_them(fleet: Fleet) -> None:
    answers = iter([BrokenConnectionError(), RateLimitedError("not open", retry_after_s=1.0)])

    def status() -> rounds_pb2.UploadStatus:
        raise next(answers)

    script = Script(upload_status=status)
    with connected(fleet, script) as client:
        assert not client.upload_accepted(REF)
    assert script.calls == ["upload_status"] * 2


def test_devices_of_another_registrar_cannot_connect(fleet: Fleet) -> None:
    stranger = Fleet(Fleet.create().registrar, fleet.coordinator, fleet.key)
    with scripted_coordinator(fleet, Script()) as address:
        identity = stranger.identity(address)
        with (
            CoordinatorClient(identity, ShiftedClock(), random.Random(0), SETTINGS) as client,
            pytest.raises(UnreachableError),
        ):
            client.hello()


def test_keys_are_not_shown(fleet: Fleet) -> None:
    assert pki.device_id(fleet.key.public_key()) in repr(fleet.identity("127.0.0.1:1"))
    assert "PRIVATE" not in repr(fleet.identity("127.0.0.1:1"))


# --- private sums ---


def test_a_step_is_sent_again_with_the_same_bytes_and_its_answer_is_the_stage(fleet: Fleet) -> None:
    heard: list[tuple[int, bytes]] = []

    def receive(request: rounds_pb2.SendStepRequest) -> rounds_pb2.SendStepReply:
        heard.append((request.stage, request.message))
        if len(heard) < 3:
            raise BrokenConnectionError
        return rounds_pb2.SendStepReply(stage=rounds_pb2.SHARES)

    with connected(fleet, Script(send_step=receive)) as client:
        assert client.send_step(REF, Stage.KEYS, b"keys") is Stage.SHARES
    assert heard == [(rounds_pb2.KEYS, b"keys")] * 3


@pytest.mark.parametrize("error", [LateError("over"), ReplayError("other bytes"), ViolationError("wrong")])
def test_a_step_that_is_refused_is_not_sent_again(fleet: Fleet, error: MienError) -> None:
    script = Script()
    script.send_step = script.fails_first(9, error, None)
    with connected(fleet, script) as client, pytest.raises(type(error)):
        client.send_step(REF, Stage.UNMASK, b"shares")
    assert script.calls == ["send_step"]


def test_an_event_carries_what_the_stage_tells_this_device(fleet: Fleet) -> None:
    told = [
        rounds_pb2.StageEvent(stage=rounds_pb2.KEYS, message=b"terms"),
        rounds_pb2.StageEvent(stage=rounds_pb2.CLOSED),
    ]
    with connected(fleet, Script(follow=lambda: told)) as client:
        assert [(event.stage, event.unverified_message) for event in client.follow(REF)] == [
            (Stage.KEYS, b"terms"),
            (Stage.CLOSED, b""),
        ]
        assert client.glance(REF).unverified_message == b"terms"


def test_a_masked_uploads_message_is_in_its_header_also_when_it_goes_on(fleet: Fleet) -> None:
    headers: list[rounds_pb2.UploadHeader] = []

    def upload(sent: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
        headers.append(sent[0].header)
        if len(headers) == 1:
            raise BrokenConnectionError
        assert sent[0].offset == 4
        return rounds_pb2.UploadStatus(accepted=True)

    script = Script(upload=upload, upload_status=lambda: rounds_pb2.UploadStatus(received_bytes=4 * len(headers)))
    with connected(fleet, script) as client:
        client.upload(REF, b"a masked vector", masked=b"message 5")
    assert [header.masked for header in headers] == [b"message 5"] * 2
    assert len({header.contribution.sha256 for header in headers}) == 1


def test_a_glance_gives_up_at_once(fleet: Fleet) -> None:
    def broken() -> Iterable[rounds_pb2.StageEvent]:
        raise BrokenConnectionError

    script, clock = Script(follow=broken), ShiftedClock()
    with connected(fleet, script, clock=clock) as client:
        with pytest.raises(UnreachableError):
            client.glance(REF)
        script.follow = lambda: ()
        with pytest.raises(UnreachableError, match="told nothing"):
            client.glance(REF)
    assert clock.pauses == []
