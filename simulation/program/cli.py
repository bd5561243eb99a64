"""mien-sim: the demo, experiments, reproductions of the papers, and data sets for models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.table import Table

from mien.errors import TABLE, ConfigError, TransparencyError
from mien.format import several
from mien.shell import cli
from mien.shell.doing import doing

# Never pretty exceptions: they may print what variables hold, and here these are faces.
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Emulate phones and measure what training does.",
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Prepare data sets.")
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_A_NAME: Final = "a name: shipped, lfw, or another folder in MIEN_DATA"
_START: Final = "Where paths of faces start, or a folder of people in place of shipped faces"
_INSTEAD: Final = "the name of faces in place of the file's: shipped, lfw, or another folder in MIEN_DATA"
_LOADING: Final = "Loading torch and the simulator"


def main() -> None:
    """Run the program."""
    cli.run(app)


@app.command()
def demo(
    faces: Annotated[
        Path | None, typer.Option(help=f"Your own faces: a folder of folders, name/*.jpg, or {_A_NAME}.")
    ] = None,
    phones: Annotated[int, typer.Option(min=4, max=32, help="How many phones take part.")] = 10,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a task that trains; default: the task's own.")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="Another task in TOML: simulation/papers/demo/fedface.toml trains.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the report, logs and state go.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Which people play which part, with --faces.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the folders of servers and phones in place, and say how to go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a registrar, a coordinator and phones on this machine; enrol, sum statistics, verify before and after.

    Example: mien-sim demo --faces ./lfw/images --phones 12
    """
    with doing(_LOADING):
        from simulation.demo.run import run_demo
        from simulation.demo.stage import DemoOptions
        from simulation.faces.named import folder_of

    run_demo(DemoOptions(out, folder_of(faces), phones, rounds, task, seed, keep), as_json=as_json)


@app.command("run")
def run_command(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    out: Annotated[Path | None, typer.Option(help="Where records go; default: out/runs/NAME.")] = None,
    faces: Annotated[
        Path | None,
        typer.Option(help=f"{_START} (default: MIEN_DATA, else here), or {_INSTEAD}."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run that the folder holds.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say who would hold what; absent data are made up.")] = False,
    seed: Annotated[int | None, typer.Option(help="Another seed of partition, training and a new model.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Another number of rounds.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="How clients are run: auto, sequential, stacked, fused or cluster.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="Where to train; default: MIEN_SIM_DEVICE, else cpu.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="In what a GPU multiplies: float32 or bfloat16.")] = None,
    address: Annotated[
        str | None, typer.Option(help="With --engine cluster: a running cluster of Ray's; default: this machine.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard's files into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment: one record a round, resumable after a kill, a report at the end.

    Example: mien-sim run simulation/papers/fedface/phones.toml --out out/phones
    """
    from simulation.faces.sources import faces_named, faces_root
    from simulation.runs.spec import from_data, load_data, with_changes

    data, swept = load_data(experiment, faces_named(faces))  # a wrong name is told of before torch is loaded
    with doing(_LOADING):
        from simulation.pages.run_page import write_run
        from simulation.program.progress import said_when_interrupted, watching
        from simulation.runs.experiment import harm
        from simulation.runs.export import TensorBoard
        from simulation.runs.run import dry_run as dry_run_of
        from simulation.runs.run import run_experiment

    spec = with_changes(from_data(data), seed=seed, rounds=rounds, engine=engine, precision=precision)
    root = faces_root(faces)
    if dry_run:
        summary = dry_run_of(spec, root, on=device)
        cli.emit(summary, as_json=as_json, human=lambda: _print_plan(summary))
        return
    folder = out or Path("out/runs") / spec.name
    stopped = said_when_interrupted(lambda: _stopped(folder))
    with stopped, watching(spec.name) as watcher, TensorBoard.watching(tensorboard) as write:
        if swept:
            watcher.tell(f"{experiment.name} has a table [sweep], which run leaves out: mien-sim sweep runs all of it")

        def after_round(record: Mapping[str, Any], total: int) -> None:
            watcher.show(int(record["round"]), total)
            write(record)

        result = run_experiment(
            spec, folder, root, resume=resume, tell=watcher.tell, after_round=after_round, address=address, on=device
        )
    page = write_run(folder)
    answer = {
        "folder": str(folder),
        "report": str(page),
        "eer_before": result["before"]["eer"],
        "eer_after": result["after"]["eer"],
        "worse": harm(result["before"], result["after"]),
        "test_people": result["test_people"],
        "cpu_s": round(sum(result["run"]["cpu_s"].values()), 1),
    }
    text = f"EER {answer['eer_before']:.2%} before, {answer['eer_after']:.2%} after training\n{page}"
    if answer["worse"]:
        text = f"{text}\nwarning: {answer['worse']}"
    cli.emit(answer, as_json=as_json, human=lambda: cli.say(text))


def _stopped(folder: Path) -> str:
    """Return the message about a run that was interrupted."""
    from simulation.runs.records import num_rounds

    done = num_rounds(folder / "records.jsonl")
    if not done:
        return "stopped before the first round was done; the same command begins again"
    return f"stopped after round {done}; go on with --resume"


def _print_plan(summary: Mapping[str, Any]) -> None:
    partition = summary["partition"]
    lines = [
        f"{summary['experiment']}: {summary['method']}, {several(summary['rounds'], 'round')}",
        f"data: {summary['found']['identities']} identities, {summary['found']['images']} images",
        *(f"{name.replace('_', ' ')}: {number}" for name, number in partition.items()),
    ]
    if summary["generated"]:
        lines.append(f"not on this machine, and made up: {', '.join(summary['generated'])}")
    lines += [f"warning: {warning}" for warning in summary["warnings"]]
    cli.say("\n".join(lines))


@app.command()
def sweep(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file; its table [sweep] is swept.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A field and its values: FIELD=VALUE,VALUE. May be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of every setting; default: the file's seeds.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where runs go; default: out/sweeps/NAME.")] = None,
    faces: Annotated[
        Path | None,
        typer.Option(help=f"{_START} (default: MIEN_DATA, else here), or {_INSTEAD}."),
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard's files, a folder a run.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment under several settings and seeds; the same command goes on where it stopped.

    Example: mien-sim sweep simulation/papers/fedface/phones.toml --set task.local.lr=0.1,0.3 --seeds 3 --jobs 2
    """
    with doing(_LOADING):
        from simulation.faces.named import is_name
        from simulation.faces.sources import faces_named, faces_root
        from simulation.pages.sweep_page import write_sweep
        from simulation.program.progress import said_when_interrupted, watching
        from simulation.runs.experiment import markdown
        from simulation.runs.grid import command_of, load_sweep, num_rounds_of, rounds_done, run_sweep
        from simulation.runs.records import REPORT, TABLES

    root = faces_root(faces)
    swept = load_sweep(experiment, settings or (), seeds, faces_named(faces))
    folder, total = out or Path("out/sweeps") / swept.name, num_rounds_of(swept)

    def stopped() -> str:
        return f"stopped after {rounds_done(swept, folder)} of {several(total, 'round')}; the same command goes on"

    with said_when_interrupted(stopped), watching(swept.name) as watcher:
        results = run_sweep(
            swept,
            folder,
            root,
            jobs=jobs,
            command=command_of(experiment, settings or (), seeds, str(faces) if is_name(faces) else ""),
            events=tensorboard,
            tell=watcher.tell,
            tick=lambda: watcher.show(rounds_done(swept, folder), total),
        )
    write_sweep(folder)
    answer = {
        "folder": str(folder),
        "report": str(folder / REPORT),
        "table": str(folder / TABLES),
        "runs": len(results.records),
        "settings": [{"name": row.name, "changes": dict(row.settings["changes"])} for row in swept.rows],
        "failures": [{"row": f.row, "seed": f.seed, "reason": f.reason} for f in results.failures],
        "worse": results.harmed(),
    }
    cli.emit(answer, as_json=as_json, human=lambda: cli.say(f"{markdown(results)}\n{folder / REPORT}"))
    if results.failures:
        raise typer.Exit(1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    second: Annotated[Path, typer.Argument(help="The folder of another, on the same faces and test people.")],
    as_json: Json = False,
) -> None:
    """Put two finished runs side by side: error rates before and after, and the settings in which they differ.

    Example: mien-sim compare out/runs/average out/runs/adam
    """
    from simulation.runs.compared import compare as compared

    found = compared(first, second)
    answer = {
        "figures": {
            name: dict(zip(("before", "first", "second"), each, strict=True)) for name, each in found.figures.items()
        },
        "may_be_chance": found.may_be_chance,
        "settings": {name: list(values) for name, values in found.settings.items()},
    }
    cli.emit(answer, as_json=as_json, human=lambda: cli.say(found.text))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A folder of mien-sim run, sweep or reproduce.")],
    csv: Annotated[Path | None, typer.Option(help="Write this file, one line a figure: run, seed, round, ...")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Write TensorBoard's files into this folder.")] = None,
    mlflow: Annotated[
        str | None, typer.Option(help="Write runs into this MLflow store: sqlite:///mlflow.db, or a server's address.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(help="Write runs into this project of Weights & Biases; WANDB_MODE=offline for files.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the records in a folder for other programs: CSV, TensorBoard's event files, MLflow, Weights & Biases.

    Example: mien-sim export out/sweeps/fedface-phones --csv phones.csv
    """
    from simulation.runs.collected import collect
    from simulation.runs.export import write_csv, write_events

    if not any((csv, tensorboard, mlflow, wandb)):
        raise ConfigError(
            "nothing to write: name a file with --csv, a folder with --tensorboard, a store with --mlflow, or a "
            "project with --wandb"
        )
    runs = collect(folder)
    written: list[Any] = []
    if csv is not None:
        write_csv(runs, csv)
        written.append(str(csv))
    if tensorboard is not None:
        written += [str(place) for place in write_events(runs, tensorboard)]
    if mlflow or wandb:
        from simulation.runs.trackers import log_mlflow, log_wandb

        written += log_mlflow(runs, mlflow, folder.resolve().name) if mlflow else []
        written += log_wandb(runs, wandb) if wandb else []
    cli.emit({"runs": len(runs), "written": written}, as_json=as_json, human=lambda: cli.say("\n".join(written)))


@app.command()
def bench(
    clients: Annotated[int | None, typer.Option(min=2, help="Phones a round; default: 100, or 20 if quick.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch; default: all cores.")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to train.")] = "cpu",
    quick: Annotated[bool, typer.Option(help="Less of everything: within a minute on two cores.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what an emulated phone costs on this machine, in each engine and beside bare torch.

    Example: mien-sim bench --clients 200
    """
    with doing(_LOADING):
        from simulation.program.bench import bench as run_bench

    run_bench(clients=clients, threads=threads, device=device, quick=quick, as_json=as_json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of mien-sim run, sweep or reproduce, or a page of tables.")],
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write all tables of sweeps and reproductions to this file; other studies' stay there."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the HTML report anew from the records in a folder; a run that is not finished is shown as far as it is.

    A page of tables begins with what the papers claim, each claim at its fairest test; of a page alone that is written
    anew.

    Example: mien-sim report out/reproduce --markdown docs/results.md
    """
    with doing(_LOADING):
        from simulation.program.reports import report as write_report

    write_report(folder, markdown, as_json=as_json)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list names them.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say which experiments there are.")] = False,
    quick: Annotated[bool, typer.Option(help="A toy scale that shows only that everything runs.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every row; three or more give intervals.")] = 3,
    faces: Annotated[
        Path | None, typer.Option(help=f"Faces, a folder name/*.jpg, or {_A_NAME}; default: synthetic112.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Measure this row alone, named as in the study's tables; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where records, tables and reports go.")] = Path("out/reproduce"),
    as_json: Json = False,
) -> None:
    """Measure a paper's tables at a laptop's scale; what is measured already is not repeated.

    Example: mien-sim reproduce fedface --faces ./synthetic112 --jobs 8
    """
    with doing(_LOADING):
        from simulation.program import reproduce as reproductions

    if list_them or name is None:
        reproductions.show_list(as_json=as_json)
        return
    reproductions.run(name, quick=quick, jobs=jobs, seeds=seeds, faces=faces, out=out, only=row or (), as_json=as_json)


@app.command()
def fleet(
    tasks: Annotated[list[Path] | None, typer.Argument(help="Tasks in TOML; several are compared.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="One more policy: the task with field=value, several with commas between them."),
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="What phones are like, a TOML file; see --show-profile.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A folder that `mien-coordinator model export` wrote, for its sizes.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="When phones are there: FedScale's trace as JSON or CSV.")] = None,
    capacity: Annotated[Path | None, typer.Option(help="How fast phones are: FedScale's file as JSON or CSV.")] = None,
    phones: Annotated[
        int | None, typer.Option(min=1, help="Registered phones; default: 10000, or as the trace has.")
    ] = None,
    days: Annotated[float, typer.Option(help="How long, by the virtual clock.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Which phones are drawn, and how their rounds go.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where records go; default: out/fleet/NAME.")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Train, too: this experiment's clients are the phones, on its model and faces.")
    ] = None,
    faces: Annotated[
        Path | None, typer.Option(help=f"{_START} (default: MIEN_DATA, else here), or {_INSTEAD}.")
    ] = None,
    show_profile: Annotated[bool, typer.Option("--show-profile", help="Print the default profile.")] = False,
    as_json: Json = False,
) -> None:
    """Try a task's policy on emulated phones and a virtual clock, under the coordinator's own round code.

    Example: mien-sim fleet docs/examples/fleet.toml --phones 2000 --days 0.25 --set cohort.over_selection=1.1
    """
    from simulation.program import fleet

    if show_profile:
        fleet.show_profile()
        return
    options = fleet.Options(
        tuple(tasks or ()),
        tuple(change or ()),
        profile,
        model,
        trace,
        capacity,
        phones,
        days,
        seed,
        out,
        experiment,
        faces,
    )
    fleet.fleet(options, as_json=as_json)


@app.command()
def enrolment(
    folder: Annotated[Path, typer.Argument(help="Faces, a folder of folders, name/*.jpg.")],
    model: Annotated[
        Path | None, typer.Option(help="A folder that `mien-coordinator model export` wrote; default: SFace.")
    ] = None,
    counts: Annotated[str, typer.Option(help="Numbers of enrolled pictures, with commas.")] = "1,2,3,5,8",
    fmr: Annotated[
        float, typer.Option(help="The false match rate at which misses are counted; 0.001 is 0.1 %.")
    ] = 1e-3,
    aligned: Annotated[bool, typer.Option(help="The images are aligned 112x112 crops already.")] = False,
    seed: Annotated[int, typer.Option(help="Which pictures enrol.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure how many pictures an enrolment needs: misses over the number of pictures in a template.

    Example: mien-sim enrolment ./lfw --counts 1,3,5,9
    """
    from simulation.faces.folder_protocol import enrolment as measure

    try:
        numbers = [int(number) for number in counts.split(",")]
    except ValueError:
        raise ConfigError(f"--counts is {counts!r}; give whole numbers with commas, such as 1,3,5") from None
    found = measure(folder, model, numbers, aligned=aligned, target_fmr=fmr, seed=seed)

    def human() -> None:
        table = Table("pictures", f"missed at FMR {fmr * 100:g} %", "EER", "of comparisons")
        for point in found["points"]:
            at = point["at_fmr"]
            counted = f"{at['num_mated']:,} / {at['num_non_mated']:,}"
            table.add_row(str(point["num_images"]), f"{point['fnmr']:.2%}", f"{point['eer']:.2%}", counted)
        cli.OUT.print(table)

    cli.emit(found, as_json=as_json, human=human)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A folder that `mien-coordinator model export` wrote, or: sface.")],
    data: Annotated[Path, typer.Option(help="Folder with the protocol's data, laid out as above.")],
    protocol: Annotated[
        str, typer.Option(help="lfw, bin, ijbb, ijbc, megaface, rfw, sllfw or folder.", show_default=True)
    ] = "folder",
    aligned: Annotated[
        bool, typer.Option(help="folder, rfw, megaface: the images are aligned 112x112 crops already.")
    ] = False,
    refined: Annotated[bool, typer.Option(help="megaface: leave out what the noise lists name.")] = False,
    distractors: Annotated[int | None, typer.Option(min=1, help="megaface: take the list of so many.")] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="folder: a fixed sample of so many mated and non-mated pairs each.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="folder: which pairs are in the sample; default: 0.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a model by a published test protocol on your copy of its data.

    \b
    What --data holds, by protocol:
      lfw       images/NAME/NAME_0001.jpg, protocol/pairs.txt
      sllfw     images/NAME/NAME_0001.jpg, protocol/pair_SLLFW.txt
      rfw       data/GROUP/ID/ID_0001.jpg, txts/GROUP/GROUP_pairs.txt, and for a search GROUP_people.txt
      bin       one .bin file as insightface publishes them (or the file itself)
      ijbb      loose_crop/, meta/ijbb_face_tid_mid.txt, ijbb_template_pair_label.txt, ijbb_name_5pts_score.txt,
                and for searches ijbb_1N_gallery_S1.csv, ijbb_1N_gallery_S2.csv, ijbb_1N_probe_mixed.csv
      ijbc      the same with ijbc_, galleries G1 and G2
      megaface  facescrub_images/, megaface_images/, facescrub_features_list.json, megaface_features_list.json_N_1,
                and with --refined facescrub_noises.txt, megaface_noises.txt
      folder    NAME/*.jpg

    Example: mien-sim evaluate sface --protocol lfw --data ~/data/lfw --json
    """
    with doing(_LOADING):
        from simulation.program import evaluate as evaluation

    options = evaluation.Options(data, aligned, refined, distractors, pairs, seed)
    evaluation.evaluate(model, protocol, options, as_json=as_json)


@app.command()
def phones(
    count: Annotated[int, typer.Option(min=1, help="How many phones.")] = 40,
    processes: Annotated[int, typer.Option(min=1, help="Over how many processes they are spread.")] = 1,
    local: Annotated[
        bool, typer.Option("--local", help="Start a registrar and a coordinator on this machine.")
    ] = False,
    invites: Annotated[Path | None, typer.Option(help="A file of invites, one a line, of another coordinator.")] = None,
    operator: Annotated[Path | None, typer.Option(help="An operator's folder, which can make the invites.")] = None,
    population: Annotated[str, typer.Option(help="With --operator: the population of the invites.")] = "default",
    rounds: Annotated[int, typer.Option(min=0, help="Stop when so many rounds closed; 0: when nothing happens.")] = 3,
    task: Annotated[Path | None, typer.Option(help="With --local: the task in TOML; default: the last layer.")] = None,
    model: Annotated[Path | None, typer.Option(help="With --local: a folder of model export.")] = None,
    faces: Annotated[
        Path | None, typer.Option(help=f"Crops, a folder of data import, or {_A_NAME}; default: shipped.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="Crops a phone.")] = 4,
    replay_updates: Annotated[
        bool, typer.Option("--replay-updates", help="Train nothing, send random numbers of the right shape: pure load.")
    ] = False,
    drop_out: Annotated[float, typer.Option(help="How likely a phone vanishes in a round, at a random stage.")] = 0.0,
    away: Annotated[float, typer.Option(help="Seconds until a phone that vanished is back.")] = 2.0,
    reconnect: Annotated[float, typer.Option(help="How likely a phone loses its connection in a round.")] = 0.0,
    slow: Annotated[float, typer.Option(help="Seconds that a phone takes before each answer, on average.")] = 0.0,
    idle: Annotated[float, typer.Option(help="Stop after so many seconds without a word of any round.")] = 60.0,
    seed: Annotated[int, typer.Option(help="What goes wrong.")] = 0,
    out: Annotated[Path, typer.Option(help="A new folder for records, figures and logs.")] = Path("out/load"),
    as_json: Json = False,
) -> None:
    """Run hundreds of phones that speak the real protocol against a coordinator: as load, and as proof.

    Ends with 1 if fewer rounds closed than were asked for.

    Example: mien-sim phones --local --count 200 --rounds 5 --drop-out 0.1
    """
    from simulation.faces.named import folder_of
    from simulation.phones.client import Faults
    from simulation.phones.fleet import FleetOptions
    from simulation.phones.run import PhonesOptions, run_phones

    fleet = FleetOptions(rounds, idle, replay_updates, seed, Faults(drop_out, reconnect, slow, away))
    options = PhonesOptions(
        out, count, processes, fleet, local, invites, operator, population, task, model, folder_of(faces), images
    )
    if not run_phones(options, as_json=as_json):
        raise typer.Exit(1)


@app.command("log-monitor")
def log_monitor(
    source: Annotated[str, typer.Argument(help="Where `mien-coordinator log export` lies: a URL, or a folder.")],
    witness: Annotated[
        str, typer.Option(help="The registrar's key, as `mien-device log --json` shows it: its cosignature is checked.")
    ] = "",
    evidence: Annotated[
        list[Path] | None, typer.Option(help="A phone's log-evidence.json, to judge against the log; repeatable.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="A file that remembers the newest checkpoint from call to call.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a coordinator's log of rounds from outside: forks, missing entries, unlogged rounds, and rounds over a
    model that no round made. Exit code 47 for any.

    Example: mien-sim log-monitor https://log.example/mien --state mien-log.json
    """
    from simulation.program.monitoring import look

    found = look(source, witness=witness, evidence=tuple(evidence or ()), state=state)
    counted = ", ".join(f"{count} of {kind}" for kind, count in sorted(found.counts.items())) or "none"
    answer = {
        "origin": found.checkpoint.origin,
        "entries": found.checkpoint.size,
        "root": found.checkpoint.root.hex(),
        "counts": dict(found.counts),
        "cosigned_unix_s": found.cosigned_unix_s,
        "faults": list(found.faults),
        "remarks": list(found.remarks),
    }

    def human() -> None:
        cli.say(f"{found.checkpoint.origin}: {found.checkpoint.size} entries ({counted}).")
        if not witness:
            cli.say("Nobody's cosignature was checked: give --witness, the witness_key of `mien-device log --json`.")
        for remark in found.remarks:
            cli.say(f"Note: {remark}")
        for fault in found.faults:
            cli.say(f"FAULT: {fault}")

    cli.emit(answer, as_json=as_json, human=human)
    if found.faults:
        raise typer.Exit(TABLE[TransparencyError].exit_code)


@app.command("phones-worker", hidden=True)
def phones_worker(plan: Path, as_json: Json = False) -> None:
    """Run one process of phones; mien-sim phones starts it.

    Example: mien-sim phones-worker plan.json --json
    """
    from simulation.phones.worker import run_worker

    run_worker(plan)


@data_app.command("import")
def data_import(
    source: Annotated[Path, typer.Argument(help="People as folders name/*.jpg, LFW (images, protocol), or a .rec.")],
    to: Annotated[Path, typer.Option(help="A new folder for the data set.")],
    licence: Annotated[str, typer.Option(help="The faces' terms, which travel with them.")],
    origin: Annotated[str, typer.Option(help="Where they come from; default: the source's name.")] = "",
    aligned: Annotated[bool, typer.Option(help="The images are aligned 112x112 crops already.")] = False,
    synthetic: Annotated[bool, typer.Option(help="They are nobody's faces, and may lie in a git work tree.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Processes that detect and align; 0: one a core.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a data set of aligned crops in one memory-mapped file, with hashes. After a kill the same command goes on.

    Example: mien-sim data import ~/data/lfw --to ~/data/lfw.crops --licence "research only"
    """
    from simulation.faces.importing import ImportSource, import_faces
    from simulation.faces.store import CropStore
    from simulation.faces.writer import StoreTerms
    from simulation.program.data import show

    terms = StoreTerms(licence, origin or source.resolve().name, synthetic)
    num_jobs = jobs or len(os.sched_getaffinity(0))
    import_faces(ImportSource.of(source, aligned=aligned), to, terms, jobs=num_jobs, tell=cli.tell)
    show(CropStore(to), as_json=as_json)


@data_app.command("info")
def data_info(
    folder: Annotated[Path, typer.Argument(help="A folder of data import.")],
    as_json: Json = False,
) -> None:
    """Say what a data set holds, under which terms, and which images gave no face.

    Example: mien-sim data info ~/data/lfw.crops
    """
    from simulation.faces.store import CropStore
    from simulation.program.data import show

    show(CropStore(folder), as_json=as_json)


@data_app.command("verify")
def data_verify(
    folder: Annotated[Path, typer.Argument(help="A folder of data import.")],
    as_json: Json = False,
) -> None:
    """Check every byte of a data set against its hashes.

    Example: mien-sim data verify ~/data/lfw.crops
    """
    from simulation.faces.store import CropStore

    store = CropStore(folder)
    store.verify()
    content = store.manifest.content_sha256
    found = {"folder": str(folder), "content_sha256": content, "verified": True}
    cli.emit(found, as_json=as_json, human=lambda: cli.tell(f"{folder} is whole: {content}"))


@data_app.command("pack")
def pack(
    folder: Annotated[Path, typer.Argument(help="A folder of folders, name/*.jpg, of people who may be public.")],
    out: Annotated[Path, typer.Option(help="The shard to write (safetensors).")],
    licence: Annotated[str, typer.Option(help="Their licence, which travels with them.")],
    source: Annotated[str, typer.Option(help="Where they come from.")],
    aligned: Annotated[bool, typer.Option(help="The images are aligned 112x112 crops already.")] = False,
    as_json: Json = False,
) -> None:
    """Pack public faces into the shard that goes with a model: mien-coordinator model import --public.

    Example: mien-sim data pack ./public --out public.safetensors --licence CC0 --source "our renders"
    """
    from simulation.faces.shards import pack_shard

    packed = pack_shard(folder, out, licence=licence, source=source, aligned=aligned)
    cli.emit(
        packed,
        as_json=as_json,
        human=lambda: cli.say(
            f"{out}: {packed['images']} crops of {packed['identities']} people, {packed['fte']} refused"
        ),
    )


if __name__ == "__main__":
    main()
