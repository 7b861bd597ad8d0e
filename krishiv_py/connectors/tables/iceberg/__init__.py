"""Apache Iceberg through pyiceberg: a table as a sink, and its snapshots as a source.

``sink`` writes batches, ``merge`` applies changes to a table with a key, ``upkeep`` keeps the table small. ``making`` checks
the arguments of a source, ``source`` plans snapshots and reads their files. ``place`` opens catalogs and tables.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
