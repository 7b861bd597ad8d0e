"""Small pipelines and helpers for the tests that need Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ResultStream, Sender, Session, Stream, count, sum

DDL = "user string, at bigint, amount bigint"


def row(user: str | None, at: int | None, amount: int | None = 1) -> dict[str, Any]:
    """One event."""
    return {"user": user, "at": at, "amount": amount}


def per_second(stream: Stream, lag: int = 100) -> ResultStream:
    """Tumbling windows of a second."""
    return stream.watermark("at", lag).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of a table, sorted."""
    return sorted((tuple(r.values()) for r in table.to_pylist()), key=repr)


def calm() -> dict[str, str]:
    """The environment for a process whose standard error is looked at: Java tells there of options it has read from it.

    It tells nothing of those that Spark's script adds to its command.
    """
    given = dict(os.environ)
    options = given.pop("JDK_JAVA_OPTIONS", "")
    return {**given, "SPARK_SUBMIT_OPTS": f"{given.get('SPARK_SUBMIT_OPTS', '')} {options}".strip()}


@pytest.fixture
def memory(session: Session) -> Iterator[Callable[[], tuple[Stream, Sender]]]:
    """Opens memory streams; stops what the test left running."""
    yield lambda: session.memory_stream(DDL)
    for query in session.queries:
        query.stop()
