"""Input that cannot be read, from whichever source: where it was, whole, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from krishiv_py.errors import SourceError

Content: TypeAlias = "str | int | bytes | None"


@attrs.frozen
class Malformed:
    """Input that is not a row: a line, what is left of a file (without line and text), or a record of a topic.

    Attributes
    ----------
    file, line, text : str, int and str, or None
        Where a line is, from 1, and the whole of it.
    problem : str
        Why it is not a row.
    topic, partition, offset, key, value : str, int, int, bytes and bytes, or None
        Where a record of a topic is, and the whole of it.

    Examples
    --------
    >>> from krishiv_py.connectors import Malformed
    >>> broken = Malformed(file="clicks.json", line=7, text='{"user": ', problem="the line ends within an object")
    >>> broken.where
    'clicks.json, line 7'
    >>> print(broken.error())
    clicks.json, line 7: the line ends within an object (got: 9 characters). Hint: ...
    """

    file: str | None = None
    line: int | None = None
    text: str | None = None
    problem: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    value: bytes | None = None

    @property
    def where(self) -> str:
        """Return its place, for people."""
        if self.topic is not None:
            return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"
        return f"{self.file}" if self.line is None else f"{self.file}, line {self.line}"

    def error(self) -> SourceError:
        """Return what a query that may lose nothing fails with, in one line and without what the input holds."""
        out = "fix or remove it, and begin with a new checkpoint if it had one"
        if self.topic is not None:
            out = "begin after it with a new checkpoint"
        hint = f'read with on_malformed="side_output", which gives it whole, or {out}'
        whole = self.text if self.topic is None else self.value
        unit = "characters" if isinstance(whole, str) else "bytes"
        shown = ("no line" if self.topic is None else "no value") if whole is None else f"{len(whole)} {unit}"
        return SourceError(f"{self.where}: {' '.join(self.problem.split())}", got=shown, hint=hint)


def in_columns(malformed: Sequence[Malformed]) -> dict[str, list[Content]]:
    """Return all that is known of each, as columns."""
    return {name: [getattr(m, name) for m in malformed] for name in attrs.fields_dict(Malformed)}
