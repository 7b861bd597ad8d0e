"""The cost of a start, in calls: it grows with columns plus aggregates, not with columns times aggregates."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import krishiv_py as k
from krishiv_py import MemorySink, Session


def calls(session: Session, folder: Path, aggregates: int, columns: int, *, restart: bool = False) -> int:
    """How many calls a query is built and started with, of functions in Python and in C."""
    fields = [("user", pa.string()), ("at", pa.int64()), *((f"c{i}", pa.int64()) for i in range(columns))]
    sums: dict[str, Any] = {f"s{i}": k.sum(f"c{i}") for i in range(aggregates)}
    stream, _ = session.memory_stream(pa.schema(fields))
    for _ in range(1 + restart):
        profile = cProfile.Profile()
        profile.enable()
        windows = stream.watermark("at", 0).key_by("user").tumbling_window(10)
        query = windows.agg(**sums).start(MemorySink(), checkpoint=str(folder / f"{aggregates}-{columns}"))
        profile.disable()
        query.stop()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("restart", [False, True], ids=["start", "restart"])
def test_a_start_is_linear_in_columns_and_in_aggregates(tmp_path: Path, restart: bool) -> None:
    with Session.in_process() as session:
        calls(session, tmp_path, 1, 2, restart=restart)  # what is loaded at its first use
        plain = calls(session, tmp_path, 50, 100, restart=restart)
        assert calls(session, tmp_path, 100, 200, restart=restart) < 2.1 * plain
        assert calls(session, tmp_path, 200, 400, restart=restart) < 4.2 * plain
        assert calls(session, tmp_path, 50, 400, restart=restart) < 1.2 * plain, "columns that nobody reads"
