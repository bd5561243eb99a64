"""mien-device: join a fleet, enrol people, verify and identify them, take part in training."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from device_sdk.program import participating
from device_sdk.program.words import typed
from device_sdk.storage.home import Home as HomeFolder
from device_sdk.storage.home import default_root
from mien.errors import (
    TABLE,
    ConfigError,
    FileAccessError,
    LowQualityError,
    MultipleFacesError,
    NoFaceError,
)
from mien.format import moment, several
from mien.protocol.names import isolated
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.doing import Step, doing, unseen
from mien.shell.memory import return_freed_memory
from mien.shell.passwords import can_ask, confirmed, read_password

# The device, its detector and gRPC are imported by the commands that need them: --help answers at once.
if TYPE_CHECKING:
    from device_sdk.device import Device
    from device_sdk.people.enroll import RefusedImage
    from device_sdk.people.enrolled import Person
    from device_sdk.people.verify import Outcome
    from device_sdk.rounds.events import Event, Listener, Transfer

EXIT_UNKNOWN: Final = 1
"""Exit code of `verify` and `identify` for a good face that is not the person's, or nobody's."""

MAP_BYTES: Final = 2**20
"""Largest piece of freed memory that commands keep which look at one face."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Enrol people, verify and identify them; join a fleet and take part in training. No face leaves this device.",
)
gallery_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after the encrypted gallery.")
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the settings.")
bundle_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check signed bundles.")
app.add_typer(gallery_app, name="gallery")
app.add_typer(config_app, name="config")
app.add_typer(bundle_app, name="bundle")

Home = Annotated[
    Path, typer.Option("--home", envvar="MIEN_DEVICE_HOME", help="This device's folder.", default_factory=default_root)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Keystore = Annotated[
    str | None,
    typer.Option(
        help="Where keys are kept: auto, platform (Secret Service, Keychain ...) or file. Decided once, at first use."
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(help="What embeds and trains: auto, torch, or with exported graphs onnxruntime or executorch."),
]
Threshold = Annotated[float | None, typer.Option(help="Decide at this cosine instead of the model's threshold.")]
MaxFmr = Annotated[float | None, typer.Option(help="Use the model's threshold for at most this false match rate.")]
MaxFpir = Annotated[
    float | None,
    typer.Option(help="Name a stranger in at most this share of looks, however many people are enrolled."),
]
ShowScore = Annotated[bool, typer.Option(help="Also print the score: a cosine, not a percentage.")]
PasswordFile = Annotated[Path | None, typer.Option(help="Read the password from this file's (or pipe's) first line.")]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Compare nothing: the pictures are this person's, and they are nobody else."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Name = Annotated[str, typer.Argument(help="The person's name, as this device shows it.")]


def main() -> None:
    """Run the program."""
    shell.run(app, wording=typed)


# --- joining ---


@app.command()
def join(
    invite: Annotated[str, typer.Argument(help="The invite's URL (mien://join?...), or - to read it from stdin.")],
    home: Home,
    keystore: Keystore = None,
    as_json: Json = False,
) -> None:
    """Join a fleet with an invite from its operator. May be repeated after an interruption.

    Example: mien-device join 'mien://join?r=registrar.example:7440&...'
    """
    from mien.protocol.invite import Invite

    with _device(home, as_json, {"keystore": keystore}, begins=True) as device:
        url = _url(invite)
        code = Invite.from_url(url).code()
        if not as_json:
            say(f"Code of this fleet: {code}")
            say(
                "Whoever invited you sees it beside the invite (mien-registrar invite): have it read out, by another "
                "way than the invite came. If a digit differs, enrol nobody here: delete this home, and ask for "
                "another invite."
            )
        identity, people = device.join(url), device.people()
    result = {
        "device_id": identity.device_id,
        "population": identity.population,
        "coordinator": identity.coordinator_address,
        "certificate_ends": identity.certificate.not_valid_after_utc.isoformat(),
        "code": code,
    }

    def human() -> None:
        say(f"Joined population {identity.population!r} as device {identity.device_id}.")
        say(f"Next: {_next_of(people, home)}")

    shell.emit(result, as_json=as_json, human=human)


@app.command()
def relocate(
    invite: Annotated[str, typer.Argument(help="An invite from where the fleet is now, or - to read it from stdin.")],
    home: Home,
    as_json: Json = False,
) -> None:
    """Follow the fleet to its servers' new addresses. Device id, certificate's key, people and settings stay.

    The invite says where the registrar is, and has to be of the same fleet; it is not used up.

    Example: mien-device relocate 'mien://join?r=registrar.example:7440&...'
    """
    with _device(home, as_json) as device:
        identity = device.relocate(_url(invite))
    result = {
        "device_id": identity.device_id,
        "registrar": identity.registrar_address,
        "coordinator": identity.coordinator_address,
    }
    text = f"The fleet is at {identity.coordinator_address} now; this is still device {identity.device_id}."
    shell.emit(result, as_json=as_json, human=lambda: say(text))


@app.command()
def renew(home: Home, as_json: Json = False) -> None:
    """Renew this device's certificate now. It does so by itself when less than a third of its life is left.

    The registrar also says, to a device that knows none yet, which key signs releases.

    Example: mien-device renew
    """
    with _device(home, as_json) as device:
        identity = device.renew_certificate()
    ends = identity.certificate.not_valid_after_utc
    result = {"certificate_ends": ends.isoformat(), "release_key": identity.release_key}

    def human() -> None:
        say(f"The certificate is valid until {ends:%Y-%m-%d}.")
        if not identity.release_key:
            say("Releases are not signed: whoever has the coordinator chooses the model that recognises people.")

    shell.emit(result, as_json=as_json, human=human)


def _url(invite: str) -> str:
    if invite != "-":
        return invite
    with unseen():
        return "" if sys.stdin is None else sys.stdin.readline()


# --- people ---


@app.command()
def enroll(
    name: Name,
    images: Annotated[list[Path], typer.Argument(help="Pictures of this person: files or folders.")],
    home: Home,
    consent: Annotated[
        bool | None,
        typer.Option("--consent/--no-consent", help="The person agrees that their pictures train the shared model."),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add a template to a person who is enrolled already.")] = False,
    anyway: Anyway = False,
    min_images: Annotated[int | None, typer.Option(help="How many usable pictures are needed.")] = None,
    keystore: Keystore = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Enrol a person from at least three good pictures, all at once or not at all.

    Crops are kept, encrypted, to make templates again for a new model; they train only with consent.

    Example: mien-device enroll Ada photos/ada --consent
    """
    agreed = _ask_consent(name) if consent is None else consent
    refused: list[RefusedImage] = []

    def on_refused(image: RefusedImage) -> None:
        refused.append(image)
        if not as_json:
            shell.warn(typed(image.message))

    options = {"keystore": keystore, "runtime": runtime, "enrollment.min_images": min_images}
    with _device(home, as_json, options, begins=True) as device:
        try:
            enrollment = device.enroll(name, images, consent=agreed, add=add, anyway=anyway, on_refused=on_refused)
        except LowQualityError as error:
            if not as_json:
                raise
            _fail_with_refused(error, refused)
    person = enrollment.person
    result = {
        "name": person.name,
        "images_used": enrollment.num_used,
        "templates": person.num_templates,
        "trains": person.trains,
        "refused": [dataclasses.asdict(image) for image in enrollment.refused],
    }

    def human() -> None:
        say(
            f"{isolated(person.name)} is enrolled with {several(enrollment.num_used, 'picture')} "
            f"({len(refused)} refused)."
        )
        say(_said_of_training(person, home))

    shell.emit(result, as_json=as_json, human=human)


def _home_flag(home: Path) -> str:
    """Return what a command that is told to type next needs to find this device's folder; empty where nothing."""
    return "" if home == default_root() else f" --home {shlex.quote(os.fspath(home))}"


def _said_of_training(person: Person, home: Path) -> str:
    if person.trains:
        return "Their pictures train the model."
    return f"Their pictures do not train the model; if they agree to that later: {_agree(person, home)}"


def _agree(person: Person, home: Path) -> str:
    """Return the command with which a person's consent is noted."""
    name = shlex.quote(person.name)
    options = f"--give{_home_flag(home)}"
    return f"mien-device gallery consent {f'{options} -- {name}' if name.startswith('-') else f'{name} {options}'}"


def _next_of(people: Sequence[Person], home: Path) -> str:
    """Return the next command on a device that joined, with the people who are enrolled on it."""
    participate = f"mien-device participate{_home_flag(home)}"
    if not people:
        return f"mien-device enroll NAME FOLDER{_home_flag(home)}"
    if any(person.trains for person in people):
        return participate
    return f"where somebody agrees that their pictures train the model, {_agree(people[0], home)}; then {participate}"


@app.command()
def verify(
    name: Name,
    image: Annotated[Path, typer.Argument(help="A picture of one person.")],
    home: Home,
    show_score: ShowScore = False,
    threshold: Threshold = None,
    max_fmr: MaxFmr = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Say whether the face in a picture is an enrolled person's. Exit code 0: yes, 1: no, 11-13: no usable face.

    Example: mien-device verify Ada door.jpg
    """
    _hold_little()
    with _device(home, as_json, _verification(threshold, max_fmr, runtime)) as device:
        _conclude(device.verify(name, image), show_score=show_score, as_json=as_json, claimed=name)


@app.command("verify-pair")
def verify_pair(
    reference: Annotated[Path, typer.Argument(help="A picture of one person.")],
    probe: Annotated[Path, typer.Argument(help="Another one.")],
    home: Home,
    show_score: ShowScore = False,
    threshold: Threshold = None,
    max_fmr: MaxFmr = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Say whether two pictures show one person; nothing is stored, and no fleet is needed. Exit codes as `verify`.

    Example: mien-device verify-pair a.jpg b.jpg
    """
    _hold_little()
    with _device(home, as_json, _verification(threshold, max_fmr, runtime)) as device:
        _conclude(device.verify_pair(reference, probe), show_score=show_score, as_json=as_json, is_pair=True)


@app.command()
def identify(
    image: Annotated[Path, typer.Argument(help="A picture of one person.")],
    home: Home,
    show_score: ShowScore = False,
    threshold: Threshold = None,
    max_fmr: MaxFmr = None,
    max_fpir: MaxFpir = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Say who of all enrolled people is in a picture, or nobody. Exit codes as `verify`.

    Example: mien-device identify door.jpg
    """
    _hold_little()
    options = _verification(threshold, max_fmr, runtime) | {"verification.max_fpir": max_fpir}
    with _device(home, as_json, options) as device:
        _conclude(device.identify(image), show_score=show_score, as_json=as_json)


@app.command()
def watch(
    home: Home,
    camera: Annotated[int, typer.Option(min=0, help="The number of the camera.")] = 0,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Look at this picture, folder of pictures or film in its place.")
    ] = None,
    every_s: Annotated[float, typer.Option(min=0, help="The least time between two looks at a moving picture.")] = 0.3,
    show_score: ShowScore = False,
    threshold: Threshold = None,
    max_fmr: MaxFmr = None,
    max_fpir: MaxFpir = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Tell who is in front of the camera whenever that changes, until it is stopped or the film ends.

    Nothing of what it sees is stored. There is no liveness check: a photograph of a face passes for it.

    Example: mien-device watch

    Example: mien-device watch --input visitors/
    """
    from device_sdk.program.live import open_camera, open_input
    from device_sdk.program.live import watch as look

    options = _verification(threshold, max_fmr, runtime) | {"verification.max_fpir": max_fpir}
    with _device(home, as_json, options) as device:
        source = open_camera(camera, device.clock) if input_ is None else open_input(input_)
        looks = 0
        with suppress(KeyboardInterrupt):
            for sighting in look(source, device.identify, device.clock, every_s=every_s):
                looks += 1
                result, sentence, _ = _described(sighting.outcome, show_score=show_score, claimed=None)
                if as_json:
                    shell.emit_event({"event": "seen", "at": sighting.frame, **result})
                else:
                    say(f"{sighting.frame}: {sentence}")
    shell.emit({"event": "done", "sightings": looks}, as_json=as_json, human=lambda: None)


@app.command()
def personalise(
    home: Home,
    backbone: Annotated[
        str | None,
        typer.Option(help="released: a branch on the released backbone. local: what FedFR trained on this phone."),
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Go back to the released model.")] = False,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Fit a personal model to the people here who agreed to training. It never leaves this device.

    It is used only where it is better on pictures and public people that it did not learn from, with a threshold for
    each person, and is fitted again after each release. Needs three pictures of each person.

    Example: mien-device personalise
    """
    options = {"personal_backbone": backbone, "runtime": runtime}
    with _device(home, as_json, options) as device:
        if drop:
            dropped = device.forget_personal()
            text = "The released model serves alone." if dropped else "There was no personal model."
            shell.emit({"dropped": dropped}, as_json=as_json, human=lambda: say(text))
            return
        made = device.personalise()
    thresholds = {name: dataclasses.asdict(at) for name, at in made.thresholds.items()}
    result = {"used": made.is_used, "form": made.form, "gain": made.gain, "gain_error": made.gain_error}

    def human() -> None:
        for name, at in made.thresholds.items():
            say(f"{isolated(name)}: threshold {at}; {at.num_missed_released} below the released model's.")
        if made.gain is not None:
            say(f"Left-out pictures gain {made.gain:+.2f} +- {made.gain_error:.2f} standard deviations.")
        say("It is in use." if made.is_used else "It is no better than the released model, which serves alone.")

    shell.emit({**result, "people": thresholds}, as_json=as_json, human=human)


@gallery_app.command("list")
def gallery_list(home: Home, as_json: Json = False) -> None:
    """List who is enrolled.

    Example: mien-device gallery list
    """
    with _device(home, as_json) as device:
        people = device.people()
    rows = [
        {
            "name": person.name,
            "images": person.num_images,
            "templates": person.num_templates,
            "enrolled_unix_s": person.enrolled_unix_s,
            "consent_unix_s": person.consent_unix_s,
        }
        for person in people
    ]

    def human() -> None:
        table = Table("name", "pictures", "templates", "trains the model")
        for person in people:
            agreed = "yes" if person.trains else "no"
            table.add_row(Text(isolated(person.name)), str(person.num_images), str(person.num_templates), agreed)
        shell.OUT.print(table)

    shell.emit({"people": rows}, as_json=as_json, human=human)


@gallery_app.command("consent")
def gallery_consent(
    name: Name,
    home: Home,
    agreed: Annotated[bool, typer.Option("--give/--withdraw", help="The person agrees, or no longer does.")],
    as_json: Json = False,
) -> None:
    """Give or withdraw a person's consent that their pictures train the shared model.

    Withdrawal removes what training has kept of the person here, and an update that has not been sent. What was sent or
    summed up already cannot be taken back. They are verified and identified all the same.

    Example: mien-device gallery consent Ada --withdraw
    """
    with _device(home, as_json) as device:
        person = device.set_consent(name, agreed=agreed)
        told, is_out, is_in_fleet = device.tell_participation(), device.gallery.wants_out, device.is_in_fleet
    result = {
        "name": person.name,
        "trains": person.trains,
        "consent_unix_s": person.consent_unix_s,
        "coordinator_told": told,
    }

    def human() -> None:
        name = isolated(person.name)
        if person.trains:
            when = "from now on" if is_in_fleet else "once this device has joined a fleet"
            say(f"{name}'s pictures train the shared model {when}.")
            return
        say(
            f"{name}'s pictures no longer train the shared model, and what training kept of them on this device is "
            f"removed. {name} is recognised as before."
        )
        if is_in_fleet:
            say(
                "What was sent before stays in sums over many devices and in the models made of them: it cannot be "
                "taken back."
            )
            _say_told(told=told, is_out=is_out)

    shell.emit(result, as_json=as_json, human=human)


@gallery_app.command("remove")
def gallery_remove(
    name: Name,
    home: Home,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove a person: templates, crops and private training state.

    What earlier rounds summed up stays in the shared model.

    Example: mien-device gallery remove Ada
    """
    _confirm(f"Remove {name} and everything made of their pictures?", yes=yes)
    with _device(home, as_json) as device:
        person = device.remove(name)
        told, is_out, is_in_fleet = device.tell_participation(), device.gallery.wants_out, device.is_in_fleet
    result = {"removed": person.name, "images": person.num_images, "coordinator_told": told}

    def human() -> None:
        say(f"{isolated(person.name)} was removed.")
        if is_in_fleet:
            _say_told(told=told, is_out=is_out)

    shell.emit(result, as_json=as_json, human=human)


@gallery_app.command("export")
def gallery_export(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    home: Home,
    password_file: PasswordFile = None,
    agreed: Annotated[
        bool, typer.Option("--agreed", help="Everybody enrolled agreed to this copy of their pictures; do not ask.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the gallery to one file under a password, to keep or to move it. Everybody in it has to agree to that.

    Example: mien-device gallery export backup.mien
    """
    if not agreed and not can_ask():
        raise ConfigError("everybody in the file has to agree to a copy of their pictures; give --agreed when they do")
    if not agreed and not confirmed("Has everybody enrolled here agreed to a copy of their pictures?"):
        raise typer.Abort
    password = read_password(password_file, confirm=True)
    with _device(home, as_json) as device:
        count = device.export(path, password)
    result = {"file": str(path), "people": count}
    shell.emit(result, as_json=as_json, human=lambda: say(f"{_people(count)} written to {path}."))


@gallery_app.command("import")
def gallery_import(
    path: Annotated[Path, typer.Argument(help="A file that `gallery export` wrote.")],
    home: Home,
    password_file: PasswordFile = None,
    anyway: Anyway = False,
    keystore: Keystore = None,
    as_json: Json = False,
) -> None:
    """Add everybody in an exported gallery, all or none; their templates are made again with the model in use.

    Example: mien-device gallery import backup.mien
    """
    password = read_password(password_file, confirm=False)
    with _device(home, as_json, {"keystore": keystore}, begins=True) as device:
        count = device.restore(path, password, anyway=anyway)
    shell.emit({"people": count}, as_json=as_json, human=lambda: say(f"{_people(count)} added."))


def _people(number: int) -> str:
    return "1 person was" if number == 1 else f"{number} people were"


@gallery_app.command("rotate-keys")
def gallery_rotate_keys(home: Home, as_json: Json = False) -> None:
    """Seal everything anew under new keys and destroy the old ones: earlier copies of the files can never be read.

    Stopped at any instant, the gallery opens under the old keys or the new ones.

    Example: mien-device gallery rotate-keys
    """
    with _device(home, as_json) as device:
        device.rotate_keys()
    text = "Everything is sealed under new keys; copies of the files from before can never be read again."
    shell.emit({"rotated": True}, as_json=as_json, human=lambda: say(text))


@gallery_app.command("renew")
def gallery_renew(name: Name, home: Home, as_json: Json = False) -> None:
    """Give a person's stored templates new secret rotations, for instance after a copy was stolen with its keys.

    The person is recognised as before; the stolen templates match neither the new ones nor anybody's elsewhere.

    Example: mien-device gallery renew Ada
    """
    with _device(home, as_json) as device:
        count = device.renew(name)
    result = {"name": name, "templates": count}
    shell.emit(result, as_json=as_json, human=lambda: say(f"Templates of {name} that were renewed: {count}."))


@gallery_app.command("wipe")
def gallery_wipe(home: Home, yes: Yes = False, as_json: Json = False) -> None:
    """Destroy the gallery's key, then the gallery: copies of it can never be read again. The device stays joined.

    Example: mien-device gallery wipe
    """
    _confirm("Destroy everybody's templates and pictures on this device for good?", yes=yes)
    with _device(home, as_json) as device:
        device.wipe()
    shell.emit({"wiped": True}, as_json=as_json, human=lambda: say("The gallery is gone."))


# --- training ---


@app.command()
def participate(
    home: Home,
    rounds: participating.Rounds = None,
    until_idle: participating.UntilIdle = False,
    idle_s: participating.IdleS = 30.0,
    person: participating.Person = None,
    source: participating.Source = None,
    source_aligned: participating.SourceAligned = False,
    validate: participating.Validate = False,
    min_cohort: participating.MinCohort = None,
    allow_reveal: participating.AllowReveal = None,
    allow_profile: participating.AllowProfile = None,
    allow_plain_sums: participating.AllowPlainSums = None,
    evaluation: participating.Evaluation = None,
    max_epsilon: participating.MaxEpsilon = None,
    charging: participating.Charging = True,
    idle: participating.Idle = True,
    unmetered: participating.Unmetered = True,
    conditions: participating.Conditions = None,
    max_training_s: participating.MaxTrainingS = None,
    max_memory_mb: participating.MaxMemoryMb = None,
    nice: participating.Nice = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Take part in training. Says what leaves this device before anything does.

    Ends after --rounds, with --until-idle, or when stopped; stopped at any instant, it goes on where it was. Exit code
    1 when --rounds was not reached.

    Everybody enrolled here who agreed trains, or one of them with --person. With --source an operator's labelled faces
    do, which are read anew at each start and never stored. With --validate these faces train nothing: they judge the
    candidates of tasks with federated validation. Keep them apart from faces that train, in a home of their own.

    Training pauses while the phone is in use, not charging or on a metered network, and goes on in the same round.

    Example: mien-device participate --until-idle

    Example: mien-device participate --conditions system --max-training-s 600 --max-memory-mb 300

    Example: mien-device participate --source faces/source --until-idle

    Example: mien-device participate --validate --source faces/held-out --until-idle
    """
    from device_sdk.rounds.budget import lower_priority
    from device_sdk.rounds.conditions import StatedConditions, conditions_from
    from device_sdk.rounds.participate import Counted

    if source_aligned and source is None:
        raise ConfigError("--source-aligned says how the pictures of --source are; name the source, or leave it out")
    options = {
        "runtime": runtime,
        "participation.person": person,
        "participation.min_cohort": min_cohort,
        "participation.allow_reveal": tuple(allow_reveal) if allow_reveal else None,
        "participation.allow_profiles": tuple(allow_profile) if allow_profile else None,
        "participation.allow_plain_sums": allow_plain_sums,
        "participation.allow_evaluation": evaluation,
        "participation.max_epsilon": max_epsilon,
        "participation.conditions": conditions,
        "participation.max_training_s": max_training_s,
        "participation.max_memory_mb": max_memory_mb,
        "participation.nice": nice,
    }
    with _device(home, as_json, options, says_it_waits=True) as device:
        settings, stated = device.config.participation, StatedConditions(idle, charging, unmetered)
        lower_priority(settings.nice)
        outcomes = device.participate(
            rounds=rounds,
            idle_s=idle_s if until_idle else None,
            conditions=conditions_from(settings.conditions, stated),
            source=source,
            source_aligned=source_aligned,
            validate=validate,
        )
        counts = [isinstance(outcome, Counted) for outcome in outcomes]
    ended, counted = len(counts), sum(counts)
    result = {"event": "done", "rounds": ended, "counted": counted}
    number = several(ended, "round")
    shell.emit(result, as_json=as_json, human=lambda: say(f"Took part in {number}; {counted} counted."))
    if rounds is not None and counted < rounds:
        raise typer.Exit(1)


@app.command()
def update(home: Home, runtime: Runtime = None, as_json: Json = False) -> None:
    """Fetch the released model and make all templates again with it.

    Example: mien-device update
    """
    with _device(home, as_json, {"runtime": runtime}) as device:
        done, lacks = device.update(), typed(device.lacks_threshold())
        which = "released" if device.is_in_fleet else "packaged"
    result = {
        "model_id": done.model_id,
        "changed": done.changed,
        "templates": done.num_templates,
        "lacks_threshold": lacks,
    }

    def human() -> None:
        if lacks:
            name = f"Model {done.model_id[:12]}" if done.changed else f"The {which} model"
            say(f"{name} is in use, and nobody is recognised with it: {lacks}.")
        elif not done.changed:  # a change was told as it was made
            say(f"The {which} model is in use.")

    shell.emit(result, as_json=as_json, human=human)


@app.command()
def bench(
    home: Home,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the fastest engine and the chosen form in device.toml, and change over."),
    ] = False,
    tier: Annotated[
        str | None, typer.Option(help="With --save: this form of the model (float32, int8 ...), whatever it costs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what each engine and each form of the model cost on this device: time, memory, accuracy.

    The model is used in float32 unless that takes more than inference.max_ms or inference.max_mb here and a variant
    does not.

    Example: mien-device bench --save

    Example: mien-device bench --save --tier int8
    """
    from device_sdk.program.benching import kept, looked_at

    if tier is not None and not save:
        raise ConfigError("--tier chooses a form for good; add --save")
    with _device(home, as_json) as device:
        found = looked_at(device)
        if not save:
            found.forget_others(device)
    chosen = kept(found, home, tier) if save else found.chosen.tier
    now_used = None
    if save:
        with _device(home, as_json) as device:
            now_used = found.change_over(device)
    shell.emit(
        {**found.to_plain(), "tier": chosen, "saved": save, "in_use": now_used},
        as_json=as_json,
        human=lambda: found.show(chosen, now_used, device.home.config, saved=save),
    )


# --- looking ---


@app.command()
def status(home: Home, as_json: Json = False) -> None:
    """Show where this device stands and what to do next, without asking the network. --json has every detail.

    Example: mien-device status
    """
    from device_sdk.program.owner_status import sentences

    with _device(home, as_json) as device:
        found, now_unix_s = device.status(), device.clock.now()
    found = dataclasses.replace(found, home=str(home), lacks_threshold=typed(found.lacks_threshold))

    def human() -> None:
        table = Table(show_header=False, box=None)
        for name, sentence in sentences(found, now_unix_s):
            table.add_row(name, Text(sentence))
        shell.OUT.print(table)

    shell.emit(dataclasses.asdict(found), as_json=as_json, human=human)


@app.command()
def log(
    home: Home,
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew", help="Forget the checkpoint, and put evidence aside: only if the operator told you why."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what this device last saw of the log of rounds, and where the evidence lies if the coordinator lied.

    Example: mien-device log
    """
    with _device(home, as_json) as device:
        files, witness, further = device.log_files, device.identity.witness_key, device.identity.quorum
        aside = files.begin_anew() if begin_anew else None
        last, evidence = files.last(), files.evidence()
    answer = {
        "witness_key": witness,
        "further_witnesses": [str(key) for key in further.keys],
        "witnesses_needed": further.needed,
        "entries": last and last.checkpoint.size,
        "root": last and last.checkpoint.root.hex(),
        "cosigned_unix_s": last and last.cosigned_unix_s,
        "evidence": str(files.evidence_path) if evidence else None,
        "lies": [each["why"] for each in evidence],
        "aside": aside and str(aside),
    }

    def human() -> None:
        if not witness:
            shell.say("No witness's key is known here yet; rounds are not looked up in the log until the next renewal.")
        elif last is None:
            shell.say("No round was looked up in the log yet.")
        else:
            when = moment(last.cosigned_unix_s * 1000)
            shell.say(
                f"The log had {several(last.checkpoint.size, 'entry', 'entries')}; the registrar cosigned it "
                f"last on {when}."
            )
        if further.keys:
            shell.say(f"It also needs the cosignatures of {further.needed} of {len(further.keys)} further witnesses.")
        for each in evidence:
            shell.say(f"The coordinator lied: {each['why']}.")
        if evidence:
            shell.say(f"The evidence, to hand on: {files.evidence_path}")
        if aside is not None:
            shell.say(f"The evidence was put aside: {aside}")

    shell.emit(answer, as_json=as_json, human=human)


@app.command()
def doctor(home: Home, as_json: Json = False) -> None:
    """Look for what could keep this device from working. Exit code 1 when something is wrong.

    Example: mien-device doctor
    """
    from device_sdk.program.doctor import examine

    with _device(home, as_json) as device:
        findings = examine(device, home)
    rows = [{"what": item.name, "ok": item.ok, "detail": item.detail} for item in findings]

    def human() -> None:
        table = Table("", "what", "finding", box=None)
        for item in findings:
            table.add_row("[green]ok[/]" if item.ok else "[red]no[/]", item.name, Text(item.detail))
        shell.OUT.print(table)

    shell.emit({"findings": rows}, as_json=as_json, human=human)
    if not all(item.ok for item in findings):
        raise typer.Exit(1)


@config_app.command("show")
def config_show(home: Home, as_json: Json = False) -> None:
    """Show every setting, its value and where that is from (default or device.toml in the home folder).

    Example: mien-device config show
    """
    from device_sdk.config import load_config

    with _system_errors():
        resolved = load_config(HomeFolder.at(home).config)
    rows = {name: {"value": value, "from": resolved.origins[name]} for name, value in resolved.values().items()}

    def human() -> None:
        table = Table("setting", "value", "from")
        for name, row in rows.items():
            table.add_row(name, Text("-" if row["value"] is None else str(row["value"])), Text(row["from"]))
        shell.OUT.print(table)

    shell.emit(rows, as_json=as_json, human=human)


# --- inside ---


@contextmanager
def _device(
    home: Path,
    as_json: bool,
    options: dict[str, Any] | None = None,
    *,
    begins: bool = False,
    says_it_waits: bool = False,
) -> Iterator[Device]:
    """The device of a home, which tells what it does on stderr, or with --json as lines on stdout.

    Only a command that `begins` a device makes a home where there is none; all others see an empty one in passing.
    With `says_it_waits` it also tells, once a minute, that there is nothing to tell.
    """
    from device_sdk.device import Device
    from device_sdk.program.pulse import Pulse

    with (
        _system_errors(),
        _narrator(as_json) as plain,
        Pulse(plain) if says_it_waits else nullcontext(plain) as tell,
        TemporaryDirectory(prefix="mien-none-")
        if not begins and not _is_there(home, as_json)
        else nullcontext() as passing,
        Device.open(
            home if passing is None else passing,
            options=options if passing is None else {**(options or {}), "keystore": "file"},
            warn=shell.warn,
            tell=tell,
        ) as device,
    ):
        yield device


def _is_there(home: Path, as_json: bool) -> bool:
    """Whether a home exists; people are told of one that they named. Raises ConfigError where a file is in the way."""
    HomeFolder.at(home)
    there = home.exists()
    was_named = home != default_root({**os.environ, "MIEN_DEVICE_HOME": ""})
    if not there and was_named and not as_json:
        shell.warn(
            f"there is no device at {home} yet: the first enrolment there makes it, or mien-device join; "
            "or name another --home"
        )
    return there


@contextmanager
def _system_errors() -> Iterator[None]:
    """Turn what the operating system refuses, wherever that is, into a sentence that names the file."""
    try:
        yield
    except PermissionError as error:
        raise FileAccessError(f"may not use {error.filename or 'a file'}; check its owner and permissions") from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise ConfigError(f"cannot use {error.filename or 'a file'} ({error.strerror}); check the path") from error


@contextmanager
def _narrator(as_json: bool) -> Iterator[Listener]:
    """A listener for events: a line each, transfers and training as a bar for people.

    Machines get lines of JSON, without transfers; people who look at no terminal get no bars.
    """
    if as_json:
        yield _print_json
        return
    if not shell.ERR.is_terminal:
        yield _print_line
        return
    from device_sdk.rounds.events import Transfer

    running: dict[str, Step] = {}

    def begun(what: str, total: int) -> Step:
        if what not in running:
            running[what] = doing(what, total=total)
        return running[what]

    def tell(event: Event | Transfer) -> None:
        if isinstance(event, Transfer):
            step = begun(event.what, event.total_bytes)
            step.show_bytes(event.done_bytes)
        elif steps := _steps(event):
            step = begun("training", steps[1])
            step.show(done=steps[0], amount=f"{steps[0]} of {steps[1]} steps")
        else:
            if "training" in running and event.kind != "alive":  # it ended, or pauses
                running.pop("training").end()
            shell.ERR.print(typed(event.text), markup=False, highlight=False)
            return
        if step.done == step.total:
            step.end()
            running.pop(step.text)

    try:
        yield tell
    finally:
        for step in running.values():
            step.end()


def _steps(event: Event) -> tuple[int, int] | None:
    """Return the steps done and of all that an event tells of, None for any other event."""
    if event.kind != "progress":
        return None
    done, total = event.facts["steps_done"], event.facts["steps"]
    return (done, total) if isinstance(done, int) and isinstance(total, int) else None


def _print_line(event: Event | Transfer) -> None:
    from device_sdk.rounds.events import Event

    if isinstance(event, Event) and event.kind != "progress":
        shell.ERR.print(typed(event.text), markup=False, highlight=False, soft_wrap=True)


def _print_json(event: Event | Transfer) -> None:
    from device_sdk.rounds.events import Event

    if isinstance(event, Event):
        shell.emit_event({"event": event.kind, "text": typed(event.text), **event.facts})


@bundle_app.command("verify")
def bundle_verify(
    path: Annotated[Path, typer.Argument(help="A folder with manifest.json, manifest.sig and the files they list.")],
    home: Home,
    key: Annotated[
        str, typer.Option(help="The operator's release key (64 hex digits); default: the one this device pinned.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Check that a bundle is whole and signed by the operator's release key. Exit code 20: it is not.

    Example: mien-device bundle verify ./model
    """
    from device_sdk.models.releases import verify_folder

    if not key:
        with _device(home, as_json) as device:
            if not device.is_in_fleet:
                raise ConfigError(
                    "this device is in no fleet, so it pinned no release key; give the operator's by --key"
                )
            key = device.identity.release_key
    if not key:
        raise ConfigError(
            "this device knows no release key; give --key, or ask whether there is one: mien-device renew"
        )
    signed = verify_folder(path, key)
    result = {
        "model_id": signed.model_id,
        "sequence": signed.sequence,
        "fallbacks": list(signed.fallbacks),
        "min_sdk": signed.min_sdk,
        "thresholds": len(signed.thresholds),
        "files": {file.name: file.sha256 for file in signed.files},
    }

    def human() -> None:
        say(
            f"Release {signed.sequence}, model {signed.model_id}, is signed and whole: "
            f"{several(len(signed.files), 'file')}."
        )

    shell.emit(result, as_json=as_json, human=human)


def _conclude(
    outcome: Outcome, *, show_score: bool, as_json: bool, claimed: str | None = None, is_pair: bool = False
) -> None:
    """Print an outcome and end with its exit code."""
    from device_sdk.people.verify import Match, Unknown

    result, sentence, exit_code = _described(outcome, show_score=show_score, claimed=claimed, is_pair=is_pair)
    shell.emit(result, as_json=as_json, human=lambda: say(sentence))
    if isinstance(outcome, Match | Unknown) and outcome.operating.too_many:
        shell.warn(typed(outcome.operating.too_many))
    if exit_code:
        raise typer.Exit(exit_code)


def _described(
    outcome: Outcome, *, show_score: bool, claimed: str | None, is_pair: bool = False
) -> tuple[dict[str, object], str, int]:
    """Return an outcome for machines, as a sentence, and its exit code."""
    from device_sdk.people.verify import LowQuality, Match, MultipleFaces, NoFace, PresentationAttack

    if isinstance(outcome, PresentationAttack):  # only where a program gave `Device` a check
        return {"decision": "presentation_attack", "message": outcome.message}, outcome.message, EXIT_UNKNOWN
    if isinstance(outcome, NoFace | MultipleFaces | LowQuality):
        kinds = {
            NoFace: ("no_face", NoFaceError),
            MultipleFaces: ("multiple_faces", MultipleFacesError),
            LowQuality: ("low_quality", LowQualityError),
        }
        decision, error = kinds[type(outcome)]
        reasons = {"reasons": list(outcome.reasons)} if isinstance(outcome, LowQuality) else {}
        return {"decision": decision, "message": outcome.message, **reasons}, outcome.message, TABLE[error].exit_code
    result: dict[str, object] = {"threshold": outcome.operating.value}
    if isinstance(outcome, Match):
        result |= {"decision": "match"} if is_pair else {"decision": "match", "name": outcome.name}
        sentence, exit_code = ("Match: one person." if is_pair else f"Match: {isolated(outcome.name)}."), 0
        if outcome.also:
            result["also"] = list(outcome.also)
            sentence += f" {' and '.join(map(isolated, outcome.also))} could be meant as well."
    else:
        result["decision"], exit_code = "unknown", EXIT_UNKNOWN
        sentence = f"Unknown: this is not {isolated(claimed)}." if claimed else "Unknown: nobody who is enrolled."
        sentence = "Unknown: these are two people." if is_pair else sentence
    if outcome.operating.fpir is not None:
        result["fpir"] = outcome.operating.fpir
    if show_score:
        result["score"] = outcome.score
        sentence += f" {outcome.explain()}"
    return result, sentence, exit_code


def _hold_little() -> None:
    """Let maps of a network's first layers go as they are freed: a program that looks at one face makes them once."""
    return_freed_memory(largest_bytes=MAP_BYTES)


def _verification(threshold: float | None, max_fmr: float | None, runtime: str | None) -> dict[str, Any]:
    return {"runtime": runtime, "verification.threshold": threshold, "verification.max_fmr": max_fmr}


def _say_told(*, told: bool, is_out: bool) -> None:
    """Print what the coordinator knows of a device on which nobody agrees any more."""
    if not is_out:
        return
    if told:
        say("Nobody here agrees to training any more: the coordinator leaves this device out of rounds from now on.")
    else:
        say("Nobody here agrees to training any more. The coordinator did not answer; it is asked at the next contact.")


def _ask_consent(name: str) -> bool:
    """Ask whether the person agrees; where nobody can answer, they have not."""
    if not can_ask():
        return False
    return confirmed(
        f"Does {name} agree that their pictures train the shared model on this device, and measure new ones? "
        "(No picture leaves it; the model's update does, and how often which score came out, both only in sums.)"
    )


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not can_ask():
        raise ConfigError("nobody can answer here; give --yes if you mean it")
    if not confirmed(question):
        raise typer.Abort


def _fail_with_refused(error: LowQualityError, refused: list[RefusedImage]) -> None:
    """End with the error and, for machines, why each picture was refused."""
    body = {
        "error": error.code,
        "message": typed(error.message),
        "refused": [dataclasses.asdict(image) for image in refused],
    }
    print(json.dumps(body, sort_keys=True), file=sys.stderr)
    raise typer.Exit(TABLE[type(error)].exit_code)
