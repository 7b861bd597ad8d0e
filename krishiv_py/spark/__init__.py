"""The only room that imports pyspark: sessions, scans, the streaming and bounded adapters, outputs, queries."""

from krishiv_py.errors import missing_extra

_SO = "there are sessions in process, Session.in_process(), and none on Spark"
_ELSE = "; on a platform that brings Spark run the program in the Python of the platform"
try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as missing:
    raise missing_extra("pyspark", "spark", _SO, _ELSE) from missing
