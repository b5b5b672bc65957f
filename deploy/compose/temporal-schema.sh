#!/bin/sh
# Makes or updates Temporal's two databases on the stack's Postgres. Safe to repeat.
set -eu
for database in temporal temporal_visibility; do
    case "$database" in
        temporal) versions=temporal ;;
        *) versions=visibility ;;
    esac
    tool="temporal-sql-tool --plugin postgres12 --ep postgres -p 5432 -u postgres --db $database"
    $tool create || echo "database $database is there already"
    $tool setup-schema -v 0.0 || echo "schema of $database is there already"
    $tool update-schema -d "/etc/temporal/schema/postgresql/v12/$versions/versioned"
done
