"""Delta Lake through delta-rs: a table as a sink, and its versions as a source.

``sink`` writes; ``making`` checks what a source was told, ``source`` plans versions, ``log`` says which files they brought, and
``files`` reads those in tasks. ``place`` opens tables.
"""
