"""The privacy ledger: opened sums, who was in them, and adaptive clips."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "privacy_events",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("event_json", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_privacy_events"),
        sa.UniqueConstraint("population", "position", name="uq_privacy_events_population_position"),
        sa.UniqueConstraint("task_id", "round", "attempt", name="uq_privacy_events_task_id_round_attempt"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_privacy_events_task_id_tasks"),
    )
    op.create_table(
        "privacy_participations",
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "device_id", "round", "attempt", name="pk_privacy_participations"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_privacy_participations_task_id_tasks"),
    )
    op.create_table(
        "privacy_clips",
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("l2_clip", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "round", name="pk_privacy_clips"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_privacy_clips_task_id_tasks"),
    )
