"""Staged roll-outs: which share has a model, and what phones say of it beside the one before."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "roll_outs",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("reference_model_id", sa.String(64), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("spec_json", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(32), nullable=True),
        sa.Column("reason", sa.String(400), nullable=False),
        sa.Column("figures_json", sa.String(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_by", sa.String(64), nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_roll_outs"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_roll_outs_model_id_models"),
        sa.ForeignKeyConstraint(
            ["reference_model_id"], ["models.model_id"], name="fk_roll_outs_reference_model_id_models"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_roll_outs_task_id_tasks"),
    )
    op.create_index("ix_roll_outs_population", "roll_outs", ["population"])
    op.create_index("ix_roll_outs_state", "roll_outs", ["state"])
