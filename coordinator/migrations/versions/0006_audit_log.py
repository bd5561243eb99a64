"""The audit log: events become entries of a hash chain."""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the two tables, chain the events that there are, and drop theirs."""
    entries = op.create_table(
        "audit_entries",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("detail_json", sa.Text(), nullable=False),
        sa.Column("previous_sha256", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_audit_entries"),
    )
    op.create_index("ix_audit_entries_subject", "audit_entries", ["subject"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )
    connection = op.get_bind()
    position, previous = 0, "0" * 64
    for row in connection.execute(
        sa.text("SELECT at_ms, actor, action, subject, detail_json FROM events ORDER BY id")
    ).all():
        position += 1
        values = {"position": position, **row._mapping, "previous_sha256": previous}
        previous = _link_sha256(values)
        connection.execute(sa.insert(entries).values(**values, sha256=previous))
    connection.execute(sa.insert(head).values(id=1, position=position, sha256=previous))
    op.drop_table("events")


def _link_sha256(values: dict[str, object]) -> str:
    """Return an entry's hash as `mien.log.audit` had it when this migration was written."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(b"mien/audit-entry/1\n" + canonical).hexdigest()
