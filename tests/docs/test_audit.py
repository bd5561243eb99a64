"""The operator's guide names every action that the audit log can hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITERS = {"log", "_log", "_enter", "save_task"}
ACTION = re.compile(r"[a-z]+\.[a-z_]+")


def actions_in(path: Path) -> set[str]:
    """Return the actions that a module's calls of the log name literally."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in WRITERS or (name == "run" and any(getattr(a, "attr", "") in WRITERS for a in node.args)):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            found |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    return {action for action in found if ACTION.fullmatch(action)}


def test_every_action_is_documented() -> None:
    files = sorted((ROOT / "coordinator").rglob("*.py"))
    used = {action: path.name for path in files for action in actions_in(path)}
    assert len(used) > 10
    section = (
        (ROOT / "docs/operator/production.md")
        .read_text(encoding="utf-8")
        .partition("### Who did what")[2]
        .partition("\n## ")[0]
    )
    documented = set(re.findall(r"`([a-z]+\.[a-z_]+)`", section))
    assert set(used) <= documented, {action: used[action] for action in set(used) - documented}
