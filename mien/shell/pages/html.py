"""Pages out of their sections: a report as one HTML file that needs nothing else, and the templates of a live page.

Everything is escaped by the templates. A report runs no script, asks nobody for anything, and its content security
policy says so.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from mien.shell.pages.sections import MARKS, Report


def asset(name: str) -> str:
    """Return a file of the kit: `kit.css`, its style sheet, or a template."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def environment(load: Callable[[str], str | None] = lambda _name: None) -> jinja2.Environment:
    """Return an environment of the kit's templates and of those that `load` knows, which come first."""
    found = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: load(name) or asset(name)),
    )
    found.globals.update(marks=MARKS, percent=lambda share: f"{min(max(share, 0.0), 1.0) * 100:.2f}%")
    return found


def render(report: Report) -> str:
    """Return the report as one self-contained HTML page; the same report gives the same text. Write it as UTF-8."""
    css = asset("kit.css") + asset("report.css")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return _report().render(report=report, css=Markup(css), policy=policy)  # noqa: S704 - our own files


@cache
def _report() -> jinja2.Template:
    return environment().get_template("report.html.j2")
