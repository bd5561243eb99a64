"""The simulation benchmark: pinned peers, ratios by hand, and a table that goes on without a peer."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import simulation
from benchmarks._peers import environment
from benchmarks._peers.environment import FLOWER, PEERS, PFL, Guest, Peer
from benchmarks._peers.order import Order, Rounds, tree_cpu_s
from benchmarks.simulation import Beside
from simulation.bench.measure import Row
from simulation.bench.turns import Cost

ORDER = Order("1e4", 10, 2, 5, 1, 1)
QUICK = argparse.Namespace(quick=True, no_peers=False)


def row(engine: str, *turns: Cost) -> Row:
    wall_s, cpu_s = (min(each) for each in zip(*turns, strict=True))
    return Row("1e4", 10_432, 10, 5, 1, engine, 100 * wall_s, 100 * cpu_s, 50 / wall_s, turns)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_version_is_pinned_with_hashes_and_no_address(peer: environment.Peer) -> None:
    text = (Path(environment.__file__).parent / peer.lock).read_text()
    pins = re.findall(r"^\S+==\S+ \\$", text, re.MULTILINE)
    assert len(pins) > 10
    assert all(re.search(rf"^{re.escape(pin)}\n    --hash=sha256:", text, re.MULTILINE) for pin in pins)
    assert "://" not in text
    assert not re.search(r"^(torch|nvidia\S*)==", text, re.MULTILINE)


def test_ratios_by_hand() -> None:
    rows = [
        row("torch, bare loop", (0.5, 0.5), (1.0, 0.5)),
        row("torch, large batch", (0.1, 0.1), (0.3, 0.1)),
        row("stacked", (0.8, 0.4), (1.6, 0.8)),
    ]
    assert simulation._over_loops({"1e4": rows}) == {"over_bare_loop_1e4": 1.6, "fused_over_large_batch_1e4": None}
    fused = [*rows, row("fused", (0.4, 0.2), (0.8, 0.3))]
    assert simulation._over_loops({"1e4": fused}) == {"over_bare_loop_1e4": 0.8, "fused_over_large_batch_1e4": 0.312}


def test_ratios_to_peers_by_hand() -> None:
    """Turn by turn: a machine that is half as fast in the second turn is so for both."""
    ours = row("fused", (0.8, 0.4), (1.6, 0.4))
    pfl = Beside(PFL, [ours, row(PFL.name, (1.6, 1.0), (3.2, 1.0))], "0.6.0", "")
    missing = Beside(FLOWER, [ours], "", "no network")
    assert simulation._over_peers({ORDER: [pfl, missing]}) == {
        "pfl_research_over_mien_1e4_1_steps": 2.0,
        "pfl_research_over_mien_1e4_1_steps_cpu": 2.5,
    }
    records = [simulation._peer_record(ORDER, beside) for beside in (pfl, missing)]
    assert (records[0]["wall_ms"], records[0]["cpu_ms"], records[0]["version"]) == (160.0, 100.0, "0.6.0")
    assert records[1]["unavailable"] == "no network"

    larger = replace(ORDER, size="1e6", images=8)
    worse = replace(pfl, rows=[ours, row(PFL.name, (1.0, 4.0), (2.0, 4.0))])
    found = {larger: pfl, replace(larger, images=32): missing, replace(larger, images=5): worse, ORDER: worse}
    assert simulation._pfl_ratios(found) == {"pfl_ratio_1_step": 0.8, "pfl_ratio_1_step_cpu": 0.4}
    record = simulation._several_record(larger, pfl)
    assert (record["pfl_ratio"], record["fused_ms"], record["pfl_cpu_ms"]) == (0.5, 80.0, 100.0)
    assert simulation._several_record(larger, missing)["unavailable"] == "no network"


def test_a_quick_run_measures_what_a_whole_one_does() -> None:
    """Fewer rounds, sizes and numbers of steps, and each of them with as many phones, images and threads."""
    for orders in (simulation._orders, simulation._several):
        quick, whole = ({replace(order, turns=0) for order in orders(is_quick)} for is_quick in (True, False))
        assert quick < whole
    worst = {replace(order, turns=0) for order in simulation._several(False) if order.size == "1e6"}
    assert {replace(order, turns=0) for order in simulation._several(True)} == worst, "their worst is the ratio"


def test_a_peer_takes_a_round_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(ORDER, steps=5)
    lines = [json.dumps(asdict(ORDER)), "", "", json.dumps(asdict(second)), ""]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    monkeypatch.setattr(sys, "stdout", said := io.StringIO())
    rounds, taken = Rounds("0.6.0"), list[tuple[Order, int]]()
    for order in rounds.orders():
        number = 1
        while not rounds.ended():
            number += 1
        taken.append((order, number))
    assert taken == [(ORDER, 3), (second, 2)]
    told = [json.loads(line) for line in said.getvalue().splitlines()]
    assert len(told) == 5
    assert all(found["version"] == "0.6.0" and found["wall_s"] >= 0 <= found["cpu_s"] for found in told)
    assert tree_cpu_s(1) >= 0


@contextmanager
def taken_for(peer: Peer, script: str, folder: Path, timeout_s: float = 60.0) -> Iterator[Guest]:
    """Have a shell script stand where a peer's interpreter is."""
    bin_ = environment._folder(peer) / "bin"
    assert bin_.is_relative_to(folder)
    bin_.mkdir(parents=True, exist_ok=True)
    (bin_.parent / "complete").touch()
    (bin_ / "python").write_text(f"#!/bin/sh\n{script}")
    (bin_ / "python").chmod(0o700)
    with environment.guest(peer, threads=1, timeout_s=timeout_s) as found:
        yield found


def test_a_peer_that_cannot_be_had_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with simulation._guest(PFL, QUICK) as lacking:
        assert "run without --quick once" in lacking.reason
        beside = simulation._beside(PFL, lacking, ORDER, only=("stacked",))
    assert ([each.engine for each in beside.rows], beside.unavailable) == (["stacked"], lacking.reason)
    with taken_for(PFL, "echo broken >&2\nexit 3\n", tmp_path) as found:
        assert found.rounds_of(ORDER)() is None
        assert found.reason == "it ended with 3: broken"
    answer = json.dumps({"version": "0.6.0", "wall_s": 2.0, "cpu_s": 1.0})
    script = f"read order\necho chatter\necho 7\necho '{answer}'\nread again\necho broken >&2\nexit 3\n"
    with taken_for(PFL, script, tmp_path) as found:
        way = found.rounds_of(ORDER)
        assert [way(), way(), way()] == [(2.0, 1.0), None, None]
        assert (found.version, found.reason) == ("0.6.0", "it ended with 3: broken")
    for limit_s in (2.0, 20.0, 200.0):  # on a busy machine the first answer may take its time
        with taken_for(PFL, f"echo '{answer}'\nexec sleep 600\n", tmp_path, timeout_s=limit_s) as found:
            way = found.rounds_of(ORDER)
            answers = [way(), way()]
        if answers[0] is not None:
            break
    assert answers == [(2.0, 1.0), None]
    assert found.reason == f"it did not end within {limit_s:.0f} s"


def test_engines_and_a_peer_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answer = json.dumps({"version": "0.6.0", "wall_s": 2.0, "cpu_s": 1.0})
    with taken_for(PFL, f"while read line; do echo '{answer}'; done\n", tmp_path) as found:
        beside = simulation._beside(PFL, found, ORDER, only=("stacked",))
    assert beside.theirs is not None
    assert beside.theirs.wall_ms == 200.0
    assert [len(each.turns) for each in beside.rows] == [ORDER.turns] * 2
    ratio = beside.ours_over_theirs()
    assert ratio is not None
    assert ratio[0] == sum(wall_s / 2.0 for wall_s, _ in beside.rows[0].turns) / 2


def test_a_peer_finds_the_torch_of_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment outlives the checkout that made it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = environment._folder(PFL)
    lent = folder / "lib" / "python3.11" / "site-packages" / "zz-torch-of-mien.pth"
    lent.parent.mkdir(parents=True)
    lent.write_text(f"{tmp_path / 'gone'}\n")
    (folder / "complete").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to("/bin/true")
    with environment.guest(PFL, threads=1, timeout_s=60):
        pass
    (found,) = lent.read_text().splitlines()
    assert (Path(found) / "torch" / "__init__.py").is_file()


def test_a_quick_run_has_only_so_much_time_for_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with taken_for(FLOWER, "exec sleep 600\n", tmp_path, timeout_s=0.0):
        pass
    monkeypatch.setattr(simulation, "STARTS_WITHIN_S", 1.0)
    with simulation._guest(FLOWER, QUICK, time.monotonic() + 1.5) as late:
        assert late.rounds_of(ORDER)() is None
        assert "did not end within" in late.reason
    with simulation._guest(FLOWER, QUICK, time.monotonic()) as later:
        assert later.reason == "no time was left for it in a quick run; run without --quick"
