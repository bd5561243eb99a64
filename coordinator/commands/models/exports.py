"""mien-coordinator model export and sign: a model leaves as a folder, which the release key signs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.common import Home, Json, ask, now, typed, usual_home
from coordinator.commands.models.common import Model, tell
from coordinator.commands.models.folder import said_of_less, write_extras, write_model
from mien.errors import AlreadyExistsError
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.files import storage_errors

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import models_pb2


def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    home: Home,
    as_json: Json = False,
) -> None:
    """Write a model to a folder: model.json, theta.f32 and, where there is one, public_shard.safetensors.

    The graphs and variants of its newest signature come along, so that the next one covers them. Beside them
    fallbacks.txt: the signed releases in force now, to which phones may go back from this one, each by its manifest's
    SHA-256.

    Example: mien-coordinator model export released ./model
    """
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name a new folder")
    with storage_errors(str(out)):
        out.mkdir(parents=True)

    async def question(coordinator: Coordinator) -> tuple[models_pb2.ModelManifest, str]:
        exported = await write_model(coordinator, model, out)
        await write_extras(coordinator, exported, out)
        return exported, await said_of_less(coordinator, [path.name for path in out.iterdir()], out)

    exported, less = ask(home, question)
    tell(exported, as_json, f"exported to {out}")
    if less and not as_json:
        say(less)


def sign(
    folder: Annotated[Path, typer.Argument(help="A folder that model export wrote.")],
    key: Annotated[Path, typer.Option(help="The release key's file, from release-key init.")],
    sequence: Annotated[
        int | None, typer.Option(help="Higher than that of every earlier release; default: the time, in seconds.")
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            help="The SHA-256 of a signed manifest.json that phones may go back to; default: those of the releases in "
            "force when the folder was exported."
        ),
    ] = None,
    min_sdk: Annotated[str, typer.Option(help="The oldest version of mien whose devices may use it.")] = "0.1.0",
    as_json: Json = False,
) -> None:
    """Sign an exported model with the release key. Needs neither network nor coordinator: run it where the key is.

    Graphs in the folder (`python -m device_sdk.export`) are signed with it: devices without torch run those.

    Example: mien-coordinator model sign ./model --key release.key
    """
    from coordinator.release.signing import read_key, sign_folder
    from mien.models.bundles import hash_of

    signed = sign_folder(
        folder,
        read_key(key),
        sequence=sequence or int(now().timestamp()),
        fallbacks=fallback,
        min_sdk=min_sdk,
    )
    result = {
        "model_id": signed.model_id,
        "sequence": signed.sequence,
        "manifest_sha256": hash_of(signed.to_json()),
        "fallbacks": list(signed.fallbacks),
        "files": [file.name for file in signed.files],
    }

    def human() -> None:
        say(f"Model {signed.model_id} is signed as release {signed.sequence}, manifest {result['manifest_sha256']}.")
        home = "" if usual_home().is_dir() else " --home COORDINATOR_FOLDER"
        say(f"Next: mien-coordinator model release {signed.model_id[:12]} --bundle {typed(folder)}{home}")

    shell.emit(result, as_json=as_json, human=human)
