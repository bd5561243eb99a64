"""Runs the coordinator's migrations on the connection that `coordinator.store.database.migrate` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True, render_as_batch=True)
context.run_migrations()
