"""Quiet SQL parsing: what the parser would log about a text is told by the error for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import sqlglot
from sqlglot.errors import ParseError

_OURS: Final[ContextVar[bool]] = ContextVar("krishiv_sql_text", default=False)


def _of_others(record: Any) -> bool:
    """Whether a record is of somebody else's use of sqlglot."""
    return not _OURS.get()


sqlglot.logger.addFilter(_of_others)


@contextmanager
def quiet_parser() -> Iterator[None]:
    """Let sqlglot log nothing in the body: without a configured logger its warnings land on standard error."""
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


@contextmanager
def one_kind_of_error() -> Iterator[None]:
    """Let every error of the parser be one of its own: for some texts it has a bare ``ValueError``.

    Raises
    ------
    sqlglot.errors.ParseError
        Instead of whatever else the body raises, but for nesting that is too deep.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError) as problem:
        raise ParseError(f"the parser stumbles: {problem}") from problem
