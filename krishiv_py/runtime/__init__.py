"""A query, whoever runs it: batches and their ranges, clocks, checkpoint, lease, chunk files, outputs, progress.

No engine is imported here: ``spark`` runs a query on Spark, and more engines use the same room.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
