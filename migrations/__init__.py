"""The schema's history: Alembic revisions over plain SQL files."""
