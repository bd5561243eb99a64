"""Write docs/performance.md and the tables of docs/capacity.md from what the benchmarks measured, not by hand.

    python -m benchmarks --run --out out/benchmarks        # on a machine that does nothing else
    python -m scripts.write_performance_pages --results out/benchmarks

The results that the pages show are kept in benchmarks/measured, one line of JSON a benchmark. Without `--results` the
pages are written again from these.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import names
from mien.rounds.pacing import LONGEST_S
from scripts.write_settings_tables import with_tables

ROOT: Final = Path(__file__).resolve().parents[1]
MEASURED: Final = ROOT / "benchmarks" / "measured"
DOCS: Final = ROOT / "docs"

FIGURES: Final[Mapping[str, Mapping[str, str]]] = {
    "capacity": {
        "join_cpu_ms": "the registrar's processor time for a phone that joins, ms",
        "renewal_cpu_ms": "... that renews its certificate, ms",
        "look_in_cpu_ms": "the coordinator's for a phone that connects, is told to wait, and goes, ms",
        "registrar_bytes_per_phone": "bytes in the registrar's database for a phone that joined",
        "revocation_check_us": "a call's look at the list of revoked certificates, µs",
    },
    "chaos": {
        "kills": "kills",
        "rounds_closed": "rounds closed meanwhile",
        "lost": "acknowledged contributions lost",
        "wrong": "wrong sums",
        "stuck": "rounds stuck",
    },
    "cli": {
        "rows.0.cpu_s": "`mien-coordinator --help`, s of processor time",
        "rows.4.cpu_s": "`mien-coordinator task list`",
        "rows.5.cpu_s": "`mien-coordinator device invite`",
        "rows.7.cpu_s": "`mien-device status`",
        "rows.8.cpu_s": "`mien-device verify-pair`",
    },
    "coordinator": {
        "ingest_ratio": "contributions of 4 MB taken in, of a bare gRPC server's speed",
        "same_work_ratio": "... of it, a server that only hashes, encrypts and keeps them",
        "selection_s": "selection of 1,000 phones among a million on record, s",
    },
    "device": {
        "tail_over_torch.onnxruntime": "a step of the default part on ONNX Runtime, over torch's processor time",
        "tail_over_torch.executorch": "... on ExecuTorch",
        "step_over_torch.onnxruntime": "a step of all of the network on ONNX Runtime, over torch's",
        "step_over_torch.executorch": "... on ExecuTorch",
        "peak_mb.torch": "memory of such a step on torch, MB",
        "peak_mb.onnxruntime": "... on ONNX Runtime",
        "peak_mb.executorch": "... on ExecuTorch",
    },
    "dp": {"gaussian_draws_per_s": "discrete Gaussian draws a second", "poisson_draws_per_s": "Poisson draws a second"},
    "group_statistics": {
        "draws.0.released.threshold_as_it_was.group.fmr.rate": "false match rate of the group, as released",
        "draws.0.adapter.threshold_set_anew.group.fmr.rate": "... with an adapter of the sum, its threshold set anew",
        "draws.0.gate.threshold_set_anew.group.fmr.rate": "... with one behind a gate, so too",
        "draws.0.released.threshold_as_it_was.group.fnmr.rate": "false non-match rate of the group, as released",
        "draws.0.adapter.threshold_set_anew.group.fnmr.rate": "... with an adapter of the sum, its threshold set anew",
        "draws.0.gate.threshold_set_anew.group.fnmr.rate": "... with one behind a gate, so too",
    },
    "hostile": {
        "attacks_tried": "attacks tried",
        "others_p99_ratio": "how much longer others waited (99 % quantile), worst attack",
        "others_refused": "others refused",
    },
    "identify": {"fpir_1000": "false positive identifications among 1,000 people", "tpir_1000": "true ones"},
    "lfw": {"accuracy": "accuracy on LFW", "ratio_to_reference": "... over the published one"},
    "personal": {
        "people": "people who are enrolled",
        "rows.0.used_on.mean": "share of phones of one person on which the personal model is used",
        "rows.0.accepted.released.mean": "accepted there by the released model",
        "rows.0.accepted.as_used.mean": "... as phones use them",
        "rows.0.false_matches.released.mean": "false matches by the released model",
        "rows.0.false_matches.as_used.mean": "... as phones use them",
    },
    "phone": {
        "verify_cpu_s": "`mien-device verify`, s of processor time",
        "verify_peak_mb": "... memory, MB",
        "enroll_peak_mb": "`enroll`, memory, MB",
        "participate_cpu_s": "a round of summed statistics, s of processor time",
        "participate_peak_mb": "... memory, MB",
        "participate_adapter_cpu_s": "a round in which it trains the adapter, s of processor time",
        "participate_adapter_peak_mb": "... memory, MB",
        "participate_block_cpu_s": "a round in which it trains a block of the network, s of processor time",
        "participate_block_peak_mb": "... memory, MB",
        "home_mb": "the phone's folder afterwards, MB",
    },
    "phone_round": {
        "server_cpu_ms_per_phone": "the coordinator's processor time a phone and round at 66 KB, ms",
        "phones": "phones in the round",
        "bytes_per_phone": "bytes a phone, both ways",
        "messages_per_phone": "messages a phone, both ways",
        "p99_control_ms": "another phone's call meanwhile, 99 % quantile, ms",
        "peak_mb": "the coordinator's memory, MB",
    },
    "replicas": {
        "one_cpu_ms_per_phone": "one replica's processor time a phone and round at 66 KB, ms",
        "dealt_out_cpu_ms_per_phone": "the busier of two behind a balancer, ms",
        "told_cpu_ms_per_phone": "... whose phones are told where to go, ms",
        "returning_cpu_ms_per_phone": "... whose phones were told before, ms",
        "dealt_out_carries": "phones that two carry behind a balancer, over those of one",
        "told_carries": "... told where to go",
        "returning_carries": "... told before",
        "phones": "phones in the rounds",
    },
    "round_log": {
        "logs.0.entries": "entries in the smaller log",
        "logs.0.answer_bytes": "bytes of an answer",
        "logs.0.check_ms": "a phone's check, ms",
        "logs.1.entries": "entries in the larger log",
        "logs.1.answer_bytes": "bytes of an answer",
        "logs.1.check_ms": "a phone's check, ms",
    },
    "search": {
        "search_ms": "a search among 100,000 templates, ms",
        "search_over_numpy": "... over exact numpy's time",
    },
    "secagg": {
        "server_unmask_s": "unmasking 10⁶ numbers of 100 phones, 10 lost, s of processor time",
        "server_over_prg_bound": "... over AES alone",
        "device_mask_over_prg": "masking on a phone, over AES alone",
        "bytes_per_parameter": "bytes a number",
        "flower_over_ours_server": "Flower's unmasking, over Mien's",
        "flower_over_ours_device": "... masking on a phone",
    },
    "simulation": {
        "ms_per_client_1e4": "a client of 10⁴ numbers, one step, ms",
        "ms_per_client_1e6": "... of 10⁶ numbers",
        "over_bare_loop_1e4": "a client of 10⁴ numbers, of a bare loop of torch's time",
        "over_bare_loop_1e6": "... of 10⁶ numbers",
        "pfl_research_over_mien_1e4_1_steps": "pfl-research's time for a client of 10⁴ numbers, over Mien's",
        "flower_over_mien_1e4_1_steps": "Flower's",
        "pfl_ratio_1_step": "a client of 10⁶ numbers, one step, of pfl-research's time",
        "pfl_ratio_5_steps": "... five steps with momentum",
        "pfl_ratio_20_steps": "... twenty steps with momentum",
        "fused_over_torch": "large batches of MobileFaceNet, of plain torch's speed",
        "stacked_small_over_torch": "stacks of the studies' small network, of a bare loop of torch's speed",
        "select_1e6_s": "drawing 100 of 1,000,000 phones, s",
    },
    "soak": {
        "rounds": "rounds in a row",
        "rss_growth_mb_per_1000": "growth of memory in 1,000 rounds, MB",
        "fd_growth_per_1000": "... of open files",
    },
    "statistics": {
        "phones": "virtual phones",
        "phone_sent_bytes": "bytes that a phone sends, all stages",
        "server_step_ms": "the server's step for a cohort, ms",
    },
    "stores": {
        "images": "crops in a mapped data set",
        "open_s": "... until it is open, s",
        "identities": "identities in an index",
        "index_open_s": "... until it is open, s",
        "read_ratio": "random crops from it, over PNG files' speed by the product's decoder",
        "imread_ratio": "... by OpenCV alone",
    },
}
"""What the page shows of each benchmark: keys of its result (`value_at`), in words. Aims are shown by themselves."""

FLEETS: Final = (10**4, 10**6, 10**8)
DAY_S: Final = 86400.0
WEEK_S: Final = 7 * DAY_S
# What docs/capacity.md says that it assumes.
CERTIFICATE_DAYS: Final = 7.0
LONGER_DAYS: Final = 30.0
RENEWED_AT: Final = 2 / 3
REMEMBERED_DAYS: Final = 31.0
LISTED_DAYS: Final = 91.0
ENDED_LISTED_DAYS: Final = 7.0
LOST_A_YEAR: Final = 0.02
LOOK_EVERY_S: Final = 600.0
LOOKS_PER_S: Final = 50.0
MODEL_BYTES: Final = 38.6e6
ADAPTER_BYTES: Final = 66_048.0

Results = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Write both pages, from newly measured results where a folder of them is named."""
    parser = argparse.ArgumentParser(prog="python -m scripts.write_performance_pages", description=__doc__)
    parser.add_argument("--results", type=Path, help="folder of NAME.json, as `python -m benchmarks --run` makes it")
    args = parser.parse_args()
    if args.results is not None:
        MEASURED.mkdir(exist_ok=True)
        for path in sorted(args.results.glob("*.json")):
            shutil.copy(path, MEASURED / path.name)
    results, page = measured(), DOCS / "capacity.md"
    (DOCS / "performance.md").write_text(performance(results), encoding="utf-8")
    page.write_text(capacity(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def measured() -> dict[str, Mapping[str, Any]]:
    """Return the kept results by benchmark."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(MEASURED.glob("*.json"))}


def performance(results: Results) -> str:
    """Return the page of all benchmarks."""
    parts = [
        """# Performance

What the benchmarks measured, written by `python -m scripts.write_performance_pages` from their results in
`benchmarks/measured`. A command gives its table again. Speed is a ratio to a reference in the same run; a figure
without one is of that machine alone. What a fleet of some size costs is in [capacity](capacity.md).
""",
        *(_section(name, results[name]) for name in names() if name in results),
    ]
    if missing := [name for name in names() if name not in results]:
        parts.append(f"Not in this page: {', '.join(f'`{name}`' for name in missing)}.\n")
    return "\n".join(parts)


def _section(name: str, result: Mapping[str, Any]) -> str:
    words, aims = FIGURES[name], result.get("aims", {})
    shown = {**words, **{key: f"`{key}`" for key in aims if key not in words}}
    rows = [
        f"| {word} | {number(value)} | {number(aims[key]) if key in aims else ''} |"
        for key, word in shown.items()
        if (value := value_at(result, key)) is not None
    ]
    lines = [
        f"## {name}",
        "",
        summary(name),
        "",
        f"`{result['command']}`, {result['machine']}, {said_of_commit(result['commit'])}.",
    ]
    lines += [f"{key.capitalize()}: {result[key]}." for key in ("protocol", "reference", "growth") if key in result]
    if rows:
        lines += ["", "| | measured | aim |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def said_of_commit(commit: str) -> str:
    """Return a commit in short, with the word that files differed from it where they did."""
    hexadecimal, _, changed = commit.partition("-")
    return f"{hexadecimal[:12]}{', changed' if changed else ''}"


def value_at(result: Mapping[str, Any], key: str) -> Any:
    """Return the figure of a key, in which points lead to keys and places within: `rows.0.cpu_s`; None of none."""
    value: Any = result
    for step in key.split("."):
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            return None
    return value


def summary(name: str) -> str:
    """Return the first paragraph of a benchmark's docstring, without loading what it measures."""
    source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    return re.split(r'\n\n|"""', source.removeprefix('"""'))[0].replace("\n", " ")


def number(value: object) -> str:
    """Return a figure as people read it: three digits that count, thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def capacity(page: str, results: Results) -> str:
    """Return the page with its tables as the results make them; raises SystemExit for a page that lacks one."""
    return with_tables(page, {"## A phone": _phone(results), "## A fleet": _fleets(results)}, "capacity.md")


def _phone(results: Results) -> str:
    known, masked = results["capacity"], results["phone_round"]
    entry = known["renewal_entry_bytes"]
    rows = {
        "joining, the registrar's processor time": f"{number(known['join_cpu_ms'])} ms",
        "renewing its certificate": f"{number(known['renewal_cpu_ms'])} ms",
        "connecting, asking for work and being told to wait": f"{number(known['look_in_cpu_ms'])} ms",
        f"a masked round of {number(masked['phones'])} phones at 66 KB, from connecting to the sum": (
            f"{number(masked['server_cpu_ms_per_phone'])} ms, {size(masked['bytes_per_phone'])}"
        ),
        "... the coordinator's memory at most, for all of them": f"{number(masked['peak_mb'])} MB",
        "on the registrar's disk, having joined": f"{number(known['registrar_bytes_per_phone'])} bytes",
        "... for each certificate more": f"{number(known['registrar_bytes_per_renewal'] - entry)} bytes",
        "... and its entry in the audit log, for ever": f"{number(entry)} bytes",
        "on the coordinator's disk": f"{number(known['coordinator_bytes_per_phone'])} bytes",
        "... for each round that it was in, for ever": f"{number(masked['kept_bytes_per_phone'])} bytes",
        "a certificate on the revocation list": f"{number(known['list_bytes_per_revoked'])} bytes",
    }
    return "".join(["| | |\n|---|---|\n", *(f"| {word} | {value} |\n" for word, value in rows.items())])


def _fleets(results: Results) -> str:
    known, masked = results["capacity"], results["phone_round"]
    entry = known["renewal_entry_bytes"]
    certificate = known["registrar_bytes_per_renewal"] - entry
    kept = (CERTIFICATE_DAYS + REMEMBERED_DAYS) / (CERTIFICATE_DAYS * RENEWED_AT)
    device = known["registrar_bytes_per_phone"] - certificate - entry + kept * certificate
    listed = LOST_A_YEAR * LISTED_DAYS / 365 * (CERTIFICATE_DAYS + ENDED_LISTED_DAYS) / (CERTIFICATE_DAYS * RENEWED_AT)
    once = known["coordinator_bytes_per_phone"] + masked["kept_bytes_per_phone"]

    rows: dict[str, Callable[[int], str]] = {
        "joining within a month, cores": lambda n: digits(n / (30 * DAY_S) * known["join_cpu_ms"] / 1000),
        "renewing certificates, cores": lambda n: digits(
            n * renewals(CERTIFICATE_DAYS) * known["renewal_cpu_ms"] / 1000
        ),
        "looking in for work, cores": lambda n: digits(looks(n) * known["look_in_cpu_ms"] / 1000),
        "... a phone looks in every": lambda n: f"{digits(n / looks(n) / 60)} min",
        "everybody's statistics within a week, cores": (
            lambda n: digits(n / WEEK_S * masked["server_cpu_ms_per_phone"] / 1000)
        ),
        "... traffic": lambda n: traffic(n * masked["bytes_per_phone"]),
        "the first model to everybody within a week": lambda n: traffic(n * MODEL_BYTES),
        "a later one, an adapter, within a week": lambda n: traffic(n * ADAPTER_BYTES),
        "registrar's devices and certificates": lambda n: size(n * device),
        "... its audit log, a year": lambda n: size(n * renewals(CERTIFICATE_DAYS) * 365 * DAY_S * entry),
        "... with certificates of 30 days": lambda n: size(n * renewals(LONGER_DAYS) * 365 * DAY_S * entry),
        "coordinator's database, each phone in one sum": lambda n: size(n * once),
        "certificates on the revocation list": lambda n: digits(n * listed),
        "... which a phone of a round downloads": lambda n: size(n * listed * known["list_bytes_per_revoked"]),
    }
    head = f"| | {' | '.join(f'{fleet:,} phones' for fleet in FLEETS)} |\n{'|---' * (len(FLEETS) + 1)}|\n"
    return head + "".join(f"| {word} | {' | '.join(map(told, FLEETS))} |\n" for word, told in rows.items())


def looks(fleet: int) -> float:
    """Return how many of a fleet's phones look in a second: as many as are wanted, and each in the longest pause."""
    return max(min(fleet / LOOK_EVERY_S, LOOKS_PER_S), fleet / LONGEST_S)


def renewals(certificate_days: float) -> float:
    """Return how many renewals a second one phone makes."""
    return 1 / (certificate_days * RENEWED_AT * DAY_S)


def digits(value: float) -> str:
    """Return a figure with two digits that count."""
    if 0 < value < 0.001:
        return "under 0.001"
    return number(float(f"{value:.2g}"))


def size(number_of_bytes: float) -> str:
    """Return so many bytes in words."""
    unit, one = next((word, each) for word, each in _UNITS.items() if number_of_bytes >= each or word == "KB")
    return f"{digits(number_of_bytes / one)} {unit}"


def traffic(number_of_bytes: float) -> str:
    """Return what goes over the network in a week, and how fast that is on average."""
    return f"{size(number_of_bytes)}, {digits(number_of_bytes * 8 / WEEK_S / 1e6)} Mbit/s"


_UNITS: Final = {"PB": 1e15, "TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}


if __name__ == "__main__":
    main()
