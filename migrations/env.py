"""Runs the revisions: on the connection that `store.bootstrap.migrate` hands over, or as SQL."""

from __future__ import annotations

from alembic import context
from sqlalchemy.engine import Connection


def online(connection: Connection) -> None:
    """Each revision in a transaction of its own, as the owner of the schema."""
    # lock_timeout: better that a migration gives up than that every query queues behind it.
    connection.exec_driver_sql("set lock_timeout = '5s'")
    connection.exec_driver_sql("set statement_timeout = '10min'")
    connection.exec_driver_sql("set role overline_owner")
    connection.commit()
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


def offline() -> None:
    """Prints the SQL instead of running it (`alembic upgrade head --sql`)."""
    context.configure(dialect_name="postgresql", literal_binds=True, transaction_per_migration=True)
    with context.begin_transaction():
        context.execute("set lock_timeout = '5s'")
        context.execute("set statement_timeout = '10min'")
        context.execute("set role overline_owner")
        context.run_migrations()


if context.is_offline_mode():
    offline()
else:
    online(context.config.attributes["connection"])
