"""Tables that change: changelogs, aggregates without a window, joins of tables, first rows."""
