"""The fluent builder: each stage is one type; sources, joins and the running query next to them."""
