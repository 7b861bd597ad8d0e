"""Several outputs of one query into one table: with one key or none they are distinguished, with different keys refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from krishiv_py import DeltaSink, IcebergSink, PostgresSink, SideOutputLateEventHandler, SqliteSink, count
from krishiv_py.connectors import OutputBatch, TransactionalSink
from krishiv_py.errors import PlanError
from krishiv_py.plan.nodes import source_of
from krishiv_py.planner.places import check_places
from krishiv_py.testing import Driver, stream_of
from tests.tables.server import Server


def counted(width: int, handler: Any = None) -> Any:
    stream = stream_of("user string, at bigint").watermark("at", 0)
    stream = stream if handler is None else stream.with_late_event_handler(handler)
    return stream.key_by("user").tumbling_window(width).agg(count())


KEYS: list[list[str]] = [[], ["user"], ["user", "window_start"], ["window_start", "user"]]


@pytest.mark.parametrize("first", KEYS, ids=str)
@pytest.mark.parametrize("second", KEYS, ids=str)
def test_different_keys_are_refused_for_one_table(first: list[str], second: list[str], tmp_path: Path) -> None:
    place, catalog = "host=127.0.0.1 port=1 dbname=x", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    pairs: list[tuple[Any, Any]] = [
        (PostgresSink(place, "t", key=first), PostgresSink(place, "public.t", key=second)),
        (SqliteSink(tmp_path / "d.db", "t", key=first), SqliteSink(f"{tmp_path}/d.db", "T", key=second)),
        (DeltaSink(f"{tmp_path}/t", key=first), DeltaSink(f"{tmp_path}/t/", key=second)),
        (IcebergSink("n.t", catalog=catalog, key=first), IcebergSink("n.t", catalog=catalog, key=second)),
    ]
    for one, other in pairs:
        stream = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
        a, b = (stream.tumbling_window(width).agg(count()) for width in (10, 20))
        if sorted(first) == sorted(second):
            check_places(one, None, source_of(a._draft.input), None, (), [other])
            continue
        with pytest.raises(PlanError, match="results and results go to one table with different keys"):
            Driver([a.to(one, name="a"), b.to(other, name="b")])
        with pytest.raises(PlanError, match=r"results and late rows go to one table with different keys .*a table of its own"):
            Driver(counted(10, SideOutputLateEventHandler(other)), sink=one)


@attrs.define(eq=False)
class Noted(TransactionalSink):
    """Notes of batches as a database has them, and the rows of each."""

    rows: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict)
    held: int = 0

    def last_committed(self, batch: OutputBatch) -> int | None:
        return max(self.rows.get((batch.query_id, batch.output), {}), default=None)

    def begin(self, batch: OutputBatch) -> None:
        self.held = 0

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        self.held += table.num_rows

    def commit(self, batch: OutputBatch) -> None:
        assert batch.batch_id not in self.rows.setdefault((batch.query_id, batch.output), {})
        self.rows[batch.query_id, batch.output][batch.batch_id] = self.held

    def abort(self, batch: OutputBatch) -> None:
        self.held = 0


def test_late_rows_of_two_stages_are_noted_under_two_names() -> None:
    noted = Noted()
    aside = SideOutputLateEventHandler(noted)
    right = stream_of("user string, seen bigint").watermark("seen", 0)
    driver = Driver(counted(10, aside).interval_join(right, "user", lower=0, upper=9).with_late_event_handler(aside))
    for _ in range(3):
        driver.send({"left": [{"user": "a", "at": None}], "right": [{"user": "a", "seen": None}]})
    assert [list(batches.values()) for batches in noted.rows.values()] == [[1, 1, 1], [1, 1, 1]]


def test_two_outputs_with_one_key_in_a_table_of_postgres(server: Server, table: Callable[[], str]) -> None:
    name, key = table(), ["user", "window_start", "window_end"]
    to = [PostgresSink(server.address(), name, key=key) for _ in range(2)]
    stream = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    driver = Driver(
        [
            stream.tumbling_window(width).agg(count()).to(sink, name=f"of {width}")
            for width, sink in zip((10, 20), to, strict=True)
        ]
    )
    for moment in (1, 11, 25, 61):
        driver.send([{"user": "a", "at": moment}])
    actual = server.rows(f"SELECT window_start, window_end, count FROM {name} ORDER BY 1, 2")
    assert actual == [(0, 10, 1), (0, 20, 2), (10, 20, 1), (20, 30, 1), (20, 40, 1)]
