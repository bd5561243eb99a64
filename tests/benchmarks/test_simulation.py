"""The simulation benchmark: pinned peers, ratios by hand, and a table that goes on without a peer."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import simulation
from benchmarks._peers import environment
from benchmarks._peers.environment import FLOWER, PEERS, PFL, Figures, Unavailable
from benchmarks._peers.order import Order, RoundClock, Timed, tree_cpu_s
from simulation.bench.measure import Row

ORDER = Order("1e4", 10, 2, 5, 1, 1)


def row(engine: str, wall_ms: float, images_per_s: float) -> Row:
    return Row("1e4", 10_432, 10, 5, 1, engine, wall_ms, wall_ms / 2, images_per_s)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_version_is_pinned_with_hashes_and_no_address(peer: environment.Peer) -> None:
    text = (Path(environment.__file__).parent / peer.lock).read_text()
    pins = re.findall(r"^\S+==\S+ \\$", text, re.MULTILINE)
    assert len(pins) > 10
    assert all(re.search(rf"^{re.escape(pin)}\n    --hash=sha256:", text, re.MULTILINE) for pin in pins)
    assert "://" not in text
    assert not re.search(r"^(torch|nvidia\S*)==", text, re.MULTILINE)


def test_ratios_by_hand() -> None:
    rows = [row("torch, bare loop", 0.5, 100.0), row("torch, large batch", 0.1, 400.0), row("stacked", 0.8, 50.0)]
    theirs = {
        ORDER: {PFL.name: Figures("0.6.0", Timed((2.0, 1.6), (1.0, 1.2))), FLOWER.name: Unavailable("no network")}
    }
    assert simulation._over_loops({"1e4": rows}) == {"over_bare_loop_1e4": 1.6, "fused_over_large_batch_1e4": None}
    fused = [*rows, row("fused", 0.4, 360.0)]
    assert simulation._over_loops({"1e4": fused}) == {"over_bare_loop_1e4": 0.8, "fused_over_large_batch_1e4": 0.9}
    assert simulation._over_peers({ORDER: rows}, theirs) == {
        "pfl_research_over_mien_1e4_1_steps": 2.0,
        "pfl_research_over_mien_1e4_1_steps_cpu": 2.5,
    }
    larger = replace(ORDER, size="1e6", images=8)
    pfl: dict[Order, Figures | Unavailable] = {
        larger: Figures("0.6.0", Timed((1.0,), (1.0,))),
        replace(larger, images=32): Unavailable("no network"),
        replace(larger, images=5): Figures("0.6.0", Timed((2.0,), (0.1,))),
    }
    ours = dict.fromkeys(pfl, fused)
    assert simulation._pfl_ratios(ours, pfl) == {"pfl_ratio_1_step": 0.4, "pfl_ratio_1_step_cpu": 2.0}
    record = simulation._several_record(larger, fused[2:], pfl[larger])
    assert (record["pfl_ratio"], record["fused_ms"], record["stacked_cpu_ms"]) == (0.4, 0.4, 0.4)
    assert "unavailable" in simulation._several_record(larger, fused[2:], Unavailable("no network"))
    records = [simulation._peer_record(ORDER, peer, found) for peer, found in theirs[ORDER].items()]
    assert (records[0]["wall_ms"], records[0]["cpu_ms"], records[0]["version"]) == (1.6, 1.0, "0.6.0")
    assert records[1]["unavailable"] == "no network"


def test_a_quick_run_measures_what_a_whole_one_does() -> None:
    """Fewer rounds, sizes and numbers of steps, and each of them with as many phones, images and threads."""
    for orders in (simulation._orders, simulation._several):
        quick, whole = ({replace(order, rounds=0) for order in orders(is_quick)} for is_quick in (True, False))
        assert quick < whole
    worst = [order for order in simulation._several(False) if order.size == "1e6"]
    assert simulation._several(True) == worst, "ratios to pfl-research are the worst of these"


def test_a_peer_that_cannot_be_had_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    skipped = simulation._peer(PFL, [ORDER], time.monotonic() + 60)[ORDER]
    assert isinstance(skipped, Unavailable)
    assert "run without --quick once" in skipped.reason
    folder = environment._folder(PFL)
    (folder / "bin").mkdir(parents=True)
    (folder / "complete").touch()
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    python.chmod(0o700)
    second = replace(ORDER, steps=5)
    broken = Unavailable("python ended with 3: broken")
    assert environment.measure(PFL, [ORDER, second], timeout_s=60) == {ORDER: broken, second: broken}
    figures = {"version": "0.6.0", "wall_ms": [2.0], "cpu_ms": [1.0]}
    python.write_text(f"#!/bin/sh\necho chatter\necho '{json.dumps(figures)}'\necho 7\necho broken >&2\nexit 3\n")
    measured = Figures("0.6.0", Timed((2.0,), (1.0,)))
    assert environment.measure(PFL, [ORDER, second], timeout_s=60) == {ORDER: measured, second: broken}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(figures)}'\nexec sleep 600\n")
    for limit_s in (2, 20, 200):  # on a busy machine the first figures may take their time
        found = environment.measure(PFL, [ORDER, second], timeout_s=limit_s)
        if found[ORDER] == measured:
            break
    assert found == {ORDER: measured, second: Unavailable(f"it did not end within {limit_s} s")}


def test_a_peer_finds_the_torch_of_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment outlives the checkout that made it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = environment._folder(PFL)
    lent = folder / "lib" / "python3.11" / "site-packages" / "zz-torch-of-mien.pth"
    lent.parent.mkdir(parents=True)
    lent.write_text(f"{tmp_path / 'gone'}\n")
    (folder / "complete").touch()
    environment.measure(PFL, [ORDER], timeout_s=60)
    (found,) = lent.read_text().splitlines()
    assert (Path(found) / "torch" / "__init__.py").is_file()


def test_peers_of_a_quick_run_share_what_time_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for peer in PEERS:
        folder = environment._folder(peer)
        (folder / "bin").mkdir(parents=True)
        (folder / "complete").touch()
        (folder / "bin" / "python").write_text("#!/bin/sh\nexec sleep 600\n")
        (folder / "bin" / "python").chmod(0o700)
    found = simulation._peers(ORDER, time.monotonic() + 1.5)
    first, second = (found[peer.name] for peer in PEERS)
    assert isinstance(first, Unavailable)
    assert "did not end within" in first.reason or "no time was left" in first.reason
    assert second == Unavailable("no time was left for it in a quick run; run without --quick")


def test_the_clock_leaves_out_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RoundClock(clients=4)
    clock._ticks = [(0.0, 0.0), (1.0, 0.5), (3.0, 1.5)]
    assert clock.timed() == Timed((250.0, 500.0), (125.0, 250.0))
    assert tree_cpu_s(1) >= 0
