"""The only room that imports pyspark: sessions, scans, the streaming and bounded adapters, outputs, queries."""

from krishiv_py.errors import EnvironmentSetupError

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as missing:
    raise EnvironmentSetupError(
        "PySpark is not installed in this Python",
        got=missing,
        then="only the driver for tests can run",
        hint='run pip install "pyspark>=4.1"; on a platform that brings Spark run the program in the Python of the platform',
    ) from missing
