"""Tumbling, hopping, calendar and assigned windows, and panes."""
