"""Delta Lake through delta-rs: a table as a sink, and its versions as a source.

``sink`` writes; ``making`` checks the arguments of a source, ``source`` plans versions, ``log`` lists the files of a version,
and ``files`` reads them in tasks. ``place`` opens tables.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
