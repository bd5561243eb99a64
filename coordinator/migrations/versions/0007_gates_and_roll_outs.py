"""Candidates and what gates say of them, evaluations, releases to a share of the devices, models given up."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add two tables and three columns; releases so far were to everybody."""
    op.add_column("models", sa.Column("removed_ms", sa.BigInteger(), nullable=True))
    op.add_column("releases", sa.Column("share", sa.Double(), nullable=False, server_default=sa.text("1")))
    op.add_column("releases", sa.Column("is_rollback", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "candidates",
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(400), nullable=False),
        sa.Column("arrays_sha256", sa.String(64), nullable=True),
        sa.Column("revealed_sha256", sa.String(64), nullable=True),
        sa.Column("offered_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("task_id", "round", name="pk_candidates"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_candidates_task_id_tasks"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_candidates_model_id_models"),
    )
    op.create_index("ix_candidates_model_id", "candidates", ["model_id"])
    op.create_table(
        "evaluations",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("record_json", sa.LargeBinary(), nullable=False),
        sa.Column("made_ms", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_evaluations"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_evaluations_model_id_models"),
    )
    op.create_index("ix_evaluations_model_id", "evaluations", ["model_id"])
