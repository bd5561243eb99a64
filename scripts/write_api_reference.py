"""Write docs/api.md and docs/api-simulation.md from the docstrings and signatures of the two packages' public names.

So the pages cannot drift.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import device_sdk
import simulation

DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Page:
    """A reference: its file in docs, the package whose public names it has, which of them is first, how it begins."""

    file: str
    package: ModuleType
    first: str
    introduction: str

    @property
    def path(self) -> Path:
        """The page's place."""
        return DOCS / self.file


PAGES = (
    Page(
        "api.md",
        device_sdk,
        "Device",
        """# The device SDK: reference

Every public name of `device_sdk`, from its docstring. Start with the [guide](device.md). What each error means, and its
code, is in [errors.md](errors.md). Written by `python -m scripts.write_api_reference`.
""",
    ),
    Page(
        "api-simulation.md",
        simulation,
        "run_experiment",
        """# The simulation: reference

Every public name of `simulation`, from its docstring. Start with the [guide](simulation.md); a method of your own is in
[Adding a method](adding-a-method.md), the fields of a task in [tasks](operator/tasks.md#task-reference). What each
error means, and its code, is in [errors.md](errors.md). Written by `python -m scripts.write_api_reference`.
""",
    ),
)
_MARKED = re.compile(r"(?<![`\w])((?:[A-Z]\w+)?Error)\b(?!`)")


def written(page: Page) -> str:
    """Return a page's text."""
    names = sorted(page.package.__all__, key=lambda name: (name != page.first, name))
    contents = ", ".join(f"[`{name}`](#{name.lower()})" for name in names)
    return "\n".join([page.introduction, contents, *(part for name in names for part in _entry(page, name))]) + "\n"


def _entry(page: Page, name: str) -> Iterator[str]:
    found = getattr(page.package, name)
    yield f"\n## {name}\n"
    if inspect.ismodule(found):
        yield f"{_text(found.__doc__).partition(chr(10))[0]} [Each with its code](errors.md)."
        return
    if inspect.isfunction(found):
        yield f"```python\n{_signature(found)}\n```\n"
        yield _text(found.__doc__)
        return
    if not inspect.isclass(found):  # one of several records
        yield f"One of {', '.join(f'`{option.__name__}`' for option in typing.get_args(found))}."
        return
    yield _text(found.__doc__)
    if dataclasses.is_dataclass(found):
        yield from _fields(found)
    for member_name, member in vars(found).items():
        if not member_name.startswith("_"):
            yield from _member(found, member_name, member)


def _fields(record: type[Any]) -> Iterator[str]:
    own = [field for field in dataclasses.fields(record) if not field.name.startswith("_")]
    if not own:
        return
    yield "\n```python\n" + "\n".join(_field(field) for field in own) + "\n```"


def _field(field: dataclasses.Field[Any]) -> str:
    default = "" if field.default is dataclasses.MISSING else f" = {_as_formatted(field.default)}"
    if field.default_factory is not dataclasses.MISSING:
        default = " = ..."
    written_type = _plain(str(field.type)).replace("'", '"')
    return f"{field.name}: {written_type}{default}"


def _as_formatted(value: object) -> str:
    """Return a default as the formatter writes it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _member(owner: type[Any], name: str, member: object) -> Iterator[str]:
    if isinstance(member, property):
        yield f"\n### `{owner.__name__}.{name}`\n"
        yield _text(member.__doc__)
        return
    kind = "classmethod" if isinstance(member, classmethod) else ""
    function = inspect.unwrap(member.__func__ if isinstance(member, classmethod) else member)  # type: ignore[arg-type]
    if not inspect.isfunction(function):
        return
    yield f"\n### `{owner.__name__}.{name}`\n"
    decorator = f"@{kind}\n" if kind else "@contextmanager\n" if function is not member and not kind else ""
    yield f"```python\n{decorator}{_signature(function)}\n```\n"
    yield _text(function.__doc__)


def _signature(function: Any) -> str:
    """Return a function's signature as it is written, without `self`; a long one has a line for each parameter."""
    node = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    definition = next(each for each in ast.walk(node) if isinstance(each, ast.FunctionDef))
    arguments = definition.args
    arguments.args = [each for each in arguments.args if each.arg not in ("self", "cls")]
    returns = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    line = f"{definition.name}({ast.unparse(arguments)}){returns}"
    if len(line) <= 100:
        return line
    parts = _arguments(arguments)
    return f"{definition.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _arguments(arguments: ast.arguments) -> list[str]:
    positional = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [_argument(*each) for each in zip(positional, defaults, strict=True)]
    if arguments.kwonlyargs:
        parts.append("*")
        parts += [_argument(*each) for each in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return parts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _text(docstring: str | None) -> str:
    """Return a docstring as Markdown: names of errors are code, examples stay as they are."""
    text = inspect.cleandoc(docstring or "")
    return _MARKED.sub(r"`\1`", text)


def _plain(annotation: str) -> str:
    """Return an annotation without its limits, and without the modules that its names come from."""
    annotation = re.sub(r"^Annotated\[(.+?), \w+(\(.*\))?\]$", r"\1", annotation)
    return re.sub(r"\b[a-z_]\w*(?:\.\w+)*\.(?=\w)", "", annotation)


if __name__ == "__main__":
    for page in PAGES:
        page.path.write_text(written(page), encoding="utf-8")
