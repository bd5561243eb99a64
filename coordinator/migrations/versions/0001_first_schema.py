"""First schema: models, releases, tasks, rounds, participants, uploads, devices, events, settings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _models()
    _rounds()
    _records()


def _models() -> None:
    op.create_table(
        "models",
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("spec_json", sa.LargeBinary(), nullable=False),
        sa.Column("layout_sha256", sa.String(64), nullable=False),
        sa.Column("theta_sha256", sa.String(64), nullable=False),
        sa.Column("theta_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shard_sha256", sa.String(64)),
        sa.Column("shard_bytes", sa.BigInteger()),
        sa.Column("changes_sha256", sa.String(64)),
        sa.Column("changes_bytes", sa.BigInteger()),
        sa.Column("parent_model_id", sa.String(64)),
        sa.Column("population", sa.String(64)),
        sa.Column("task_id", sa.String(32)),
        sa.Column("round", sa.Integer()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model_id", name="pk_models"),
        sa.ForeignKeyConstraint(["parent_model_id"], ["models.model_id"], name="fk_models_parent_model_id_models"),
    )
    for column in ("theta_sha256", "shard_sha256", "changes_sha256", "population"):
        op.create_index(f"ix_models_{column}", "models", [column])
    op.create_table(
        "releases",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("population", sa.String(64)),
        sa.Column("released_ms", sa.BigInteger(), nullable=False),
        sa.Column("released_by", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_releases"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_releases_model_id_models"),
    )


def _rounds() -> None:
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("task_json", sa.LargeBinary(), nullable=False),
        sa.Column("idempotency_token", sa.String(80), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(400), nullable=False),
        sa.Column("base_model_id", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("rounds_closed", sa.Integer(), nullable=False),
        sa.Column("aborted_in_a_row", sa.Integer(), nullable=False),
        sa.Column("arrays_sha256", sa.String(64)),
        sa.Column("revealed_sha256", sa.String(64)),
        sa.Column("submitted_by", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("task_id", name="pk_tasks"),
        sa.UniqueConstraint("idempotency_token", name="uq_tasks_idempotency_token"),
        sa.ForeignKeyConstraint(["base_model_id"], ["models.model_id"], name="fk_tasks_base_model_id_models"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_tasks_model_id_models"),
    )
    for column in ("population", "state"):
        op.create_index(f"ix_tasks_{column}", "tasks", [column])
    op.create_table(
        "rounds",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger()),
        sa.Column("reason", sa.String(400), nullable=False),
        sa.Column("base_model_id", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(64)),
        sa.Column("num_selected", sa.Integer(), nullable=False),
        sa.Column("num_trained", sa.Integer(), nullable=False),
        sa.Column("num_reports", sa.Integer(), nullable=False),
        sa.Column("upload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("metrics_json", sa.String(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rounds"),
        sa.UniqueConstraint("task_id", "round", "attempt", name="uq_rounds_task_id_round_attempt"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name="fk_rounds_task_id_tasks"),
        sa.ForeignKeyConstraint(["base_model_id"], ["models.model_id"], name="fk_rounds_base_model_id_models"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_rounds_model_id_models"),
    )
    op.create_index("ix_rounds_task_id_stage", "rounds", ["task_id", "stage"])
    op.create_table(
        "participants",
        sa.Column("round_id", _ROW_ID, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("step", sa.String(16), nullable=False),
        sa.Column("error_code", sa.String(40), nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("round_id", "device_id", name="pk_participants"),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name="fk_participants_round_id_rounds"),
    )
    op.create_table(
        "uploads",
        sa.Column("round_id", _ROW_ID, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("announced_ms", sa.BigInteger(), nullable=False),
        sa.Column("committed_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("round_id", "device_id", name="pk_uploads"),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name="fk_uploads_round_id_rounds"),
    )


def _records() -> None:
    op.create_table(
        "devices",
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("software", sa.String(80), nullable=False),
        sa.Column("first_seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", name="pk_devices"),
    )
    op.create_index("ix_devices_population", "devices", ["population"])
    op.create_table(
        "events",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("detail_json", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_subject", "events", ["subject"])
    op.create_table(
        "settings",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
