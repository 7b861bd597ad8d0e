"""What a source has that no micro-batch has taken, while a query on Spark reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Session, count
from krishiv_py.connectors import JsonValue, Planned
from krishiv_py.connectors.kafka.source import KafkaSource, _ClusterFacts
from krishiv_py.connectors.ranges import backlog_of
from krishiv_py.errors import SourceError
from krishiv_py.plan.running import waiting
from tests.spark.test_own_sources import Ticks


class Counted(Ticks):
    """Plans ten rows a batch, and knows what is left."""

    def plan(self, last: JsonValue) -> Planned | None:
        """Ten more rows."""
        if super().plan(last) is None:
            return None
        begin = last if isinstance(last, int) else 0
        end = min(begin + 10, int(self.known.read_text()))
        return Planned(end, [[begin, end]])

    def backlog(self, position: JsonValue) -> int | Mapping[str, int] | None:
        """Rows after a position."""
        return int(self.known.read_text()) - (position if isinstance(position, int) else 0)


class OfParts(Counted):
    """Knows it of two partitions."""

    def backlog(self, position: JsonValue) -> dict[str, int]:
        """Half of it each."""
        left = super().backlog(position)
        assert isinstance(left, int)
        return {"a": left // 2, "b": left - left // 2}


class Wrong(Counted):
    """Knows it not."""

    def backlog(self, position: JsonValue) -> int | Mapping[str, int] | None:
        """Fails."""
        raise ValueError("no")


def seen_backlogs(
    session: Session, source: Ticks | Path, checkpoint: Path, by_partition: list[dict[str, int]] | None = None
) -> list[dict[str, int]]:
    """Run a query over all there is; the backlog during each batch, and in the end."""
    seen: list[dict[str, int]] = []
    if isinstance(source, Path):
        stream = session.read_parquet(str(source), "at bigint", streaming=True, max_files_per_batch=1)
    else:
        stream = session.read_source(source)

    def look(rows: pa.Table, batch_id: int) -> None:
        running = [q for q in session.queries if q.name == checkpoint.name]
        seen.extend(q.progress.backlog for q in running)
        if by_partition is not None:
            by_partition.extend(q.progress.partition_backlog for q in running)

    windows = stream.watermark("at", 0).tumbling_window(1).agg(count())
    query = windows.start(look, checkpoint=str(checkpoint), batches=Batches.available_now(), name=checkpoint.name)
    query.await_termination()
    assert query.progress.sink_rows["results"] > 0
    return [*seen, query.progress.backlog]


def falls_to_zero(actual: Sequence[dict[str, int]]) -> bool:
    """Whether a backlog falls from batch to batch, and is 0 in the end."""
    numbers = [next(iter(one.values())) for one in actual]
    return numbers == sorted(numbers, reverse=True) and numbers[-1] == 0 and (len(set(numbers)) > 1 or len(numbers) < 3)


@pytest.mark.slow
def test_a_backlog_falls_as_batches_take_it(session: Session, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text("40")
    parts: list[dict[str, int]] = []
    seen = seen_backlogs(session, OfParts(known), tmp_path / "own", parts)
    assert falls_to_zero(seen) and parts[0] == {"a": 15, "b": 15}
    assert [{"OfParts": sum(one.values())} for one in parts] == seen[:-1]
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(4):
        pq.write_table(pa.table({"at": [n * 10]}), folder / f"{n}.parquet")
    assert falls_to_zero(seen_backlogs(session, folder, tmp_path / "files"))


def test_a_source_that_fails_over_it_stops_no_query(session: Session, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text("40")
    with pytest.warns(RuntimeWarning, match="backlog of the source Wrong is not known"):
        assert seen_backlogs(session, Wrong(known), tmp_path / "wrong")[-1] == {}


def test_sources_without_one_have_none(session: Session) -> None:
    stream, sender = session.memory_stream("at bigint")
    query = stream.watermark("at", 0).tumbling_window(1).agg(count()).start(MemorySink())
    sender.send([{"at": 1}])
    query.process_all_available()
    assert query.progress.backlog == {}
    query.stop()


@pytest.mark.parametrize("given", [-1, True, 1.5, "3", [3], {"a": -1}, {"a": None}, {1: 1}])
def test_what_is_no_number_is_refused(tmp_path: Path, given: object) -> None:
    source = Counted(tmp_path)
    source.backlog = lambda position: given  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(SourceError, match="gave no number of what is waiting"):
        backlog_of(source, "s", json.dumps(3))


def test_partitions_of_two_sources_have_two_names() -> None:
    one, other = {"t-0": 1, "t-1": 2}, {"t-0": 5, "u-0": 7}
    total, parts = waiting({"a": one, "b": other, "files": 3})
    assert total == {"a": 3, "b": 12, "files": 3}
    assert parts == {"a t-0": 1, "t-1": 2, "b t-0": 5, "u-0": 7}


def test_records_of_kafka_are_counted_from_what_was_seen_last() -> None:
    source = object.__new__(KafkaSource)
    looked = _ClusterFacts(latest={("t", 0): 100, ("t", 1): 50})
    object.__setattr__(source, "_looked", looked)
    assert source.backlog(None) is None
    assert source.backlog({"at": {"t": {"0": 90, "1": 50}}}) == {"t-0": 10, "t-1": 0}
    assert source.backlog({"at": {"t": {"0": 120}}}) == {"t-0": 0, "t-1": 50}, "a partition without an offset is new"
    looked.latest = None
    assert source.backlog({"at": {}}) is None
