"""The options of `mien-device participate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Rounds = Annotated[int | None, typer.Option(min=1, help="Stop after this many rounds that counted.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop when there is nothing to do for --idle-s.")]
IdleS = Annotated[
    float,
    typer.Option(min=0, help="With --until-idle: after how many seconds without work; it asks a few times meanwhile."),
]
Person = Annotated[str | None, typer.Option(help="Train on this person's pictures alone.")]
Source = Annotated[
    Path | None,
    typer.Option(
        help="Train on the labelled faces in this folder (one folder a person in it), not on people enrolled here."
    ),
]
SourceAligned = Annotated[
    bool, typer.Option("--source-aligned", help="The source's pictures are aligned crops of 112x112 already.")
]
Validate = Annotated[
    bool,
    typer.Option("--validate", help="Train nothing: judge candidate models on these faces, where a task asks for it."),
]
MinCohort = Annotated[int | None, typer.Option(help="Agree to sums over at least this many devices.")]
AllowReveal = Annotated[
    list[str] | None, typer.Option(help="Agree to show the coordinator this in clear, e.g. class_embeddings.")
]
AllowProfile = Annotated[
    list[str] | None, typer.Option(help="Agree to a weaker form of secure aggregation, e.g. honest_but_curious.")
]
AllowPlainSums = Annotated[
    bool | None,
    typer.Option("--allow-plain-sums", help="Agree to tasks whose coordinator sees this phone's own update."),
]
Evaluation = Annotated[
    bool | None,
    typer.Option("--evaluation/--no-evaluation", help="Also measure models here, and add to sums of scores."),
]
MaxEpsilon = Annotated[
    float | None, typer.Option(help="Stay out of sums that would tell more than this epsilon, over all of them.")
]
Charging = Annotated[bool, typer.Option("--charging/--not-charging", help="Simulates the battery.")]
Idle = Annotated[bool, typer.Option("--idle/--in-use", help="Simulates whether the phone is in use.")]
Unmetered = Annotated[bool, typer.Option("--unmetered/--metered", help="Simulates the network.")]
Conditions = Annotated[
    str | None,
    typer.Option(
        help="stated: as these options say. system: this machine is asked (battery, load, network) where it tells."
    ),
]
MaxTrainingS = Annotated[float | None, typer.Option(help="Leave rounds whose training would take longer than this.")]
MaxMemoryMb = Annotated[
    float | None, typer.Option(help="Train in smaller pieces, or not, where it is likely to take more memory.")
]
Nice = Annotated[
    int | None, typer.Option(help="This process's priority: 0, as it was started, to 19, after everything else.")
]
