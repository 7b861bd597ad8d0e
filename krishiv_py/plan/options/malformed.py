"""Define what is done with input that is not a row, and what late rows tell of it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import pyarrow as pa

OnMalformed: TypeAlias = Literal["fail", "side_output"]
AfterRead: TypeAlias = Literal["keep", "archive", "delete"]
"""What is done with a file when the batch that read it is committed."""
MissingColumns: TypeAlias = Literal["fail", "null"]
Nanoseconds: TypeAlias = Literal["fail", "cut"]
Fields: TypeAlias = tuple[tuple[str, pa.DataType], ...]

OF_FILES: Final[Fields] = (("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("problem", pa.string()))
"""What late rows tell of a malformed line or file."""
OF_RECORDS: Final[Fields] = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("problem", pa.string()),
)
"""What late rows tell of a malformed record of a topic."""
