"""SQL over registered streams: the same logical plan as the builder's, parsed with sqlglot."""

from krishiv_py.sql.context import SqlContext

__all__ = ["SqlContext"]


def __dir__() -> list[str]:
    return __all__
