"""SQL over registered streams: the same logical plan as the builder's, parsed with sqlglot."""

from krishiv_py import calls
from krishiv_py.sql.context import SqlContext

__all__ = ["SqlContext"]

calls.checked_face(globals())
