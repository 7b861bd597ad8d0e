"""SQL on a session: streaming and bounded, columns in the order of the SELECT list."""

from __future__ import annotations

import pytest

from krishiv_py import MemorySink, Session
from tests.spark.conftest import DDL, row, sorted_rows

QUERY = """
    SELECT tumble_end(at, INTERVAL '1' SECOND) AS upto, SUM(amount) AS total, lower(user) AS who
    FROM events WHERE amount > 0 GROUP BY lower(user), tumble_end(at, INTERVAL '1' SECOND)
"""


def test_a_query_runs_as_a_stream_and_as_a_batch(session: Session) -> None:
    stream, sender = session.memory_stream(DDL)
    session.register("events", stream, event_time="at")
    assert session.sql("SET watermark.lag = INTERVAL '100' MILLISECONDS") is None
    planned = session.sql(QUERY)
    assert planned is not None
    query = planned.start(MemorySink())
    sender.send([row("A", 10, 1), row("a", 1_500, 2), row("b", 20, 3), row("b", 30, -3)])
    query.process_all_available()
    assert sorted_rows(query.results()) == [(1000, 1, "a"), (1000, 3, "b")]
    sender.close()
    query.process_all_available()
    expected = [(1000, 1, "a"), (1000, 3, "b"), (2000, 2, "a")]
    assert sorted_rows(query.results()) == expected
    query.stop()
    bounded = planned.collect()
    assert bounded.schema.names == ["upto", "total", "who"]
    assert sorted_rows(bounded) == expected
    frame = planned.to_dataframe()
    assert frame.columns == ["upto", "total", "who"]


STAGES = """
    WITH per_second AS (
        SELECT user, window_start, window_end, SUM(amount) AS total
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' SECOND)) GROUP BY user, window_start, window_end
    )
    SELECT window.end AS upto, MAX(total) + 1 AS top FROM per_second WHERE total > 0
    GROUP BY window(window_time, '2 seconds') HAVING COUNT(*) > 1
"""


def test_stages_with_having_run_as_a_stream_and_as_a_batch(session: Session) -> None:
    stream, sender = session.memory_stream(DDL)
    session.register("events", stream, event_time="at", lag=100)
    planned = session.sql(STAGES)
    assert planned is not None
    query = planned.start(MemorySink())
    sender.send([row("a", 10, 1), row("a", 20, 4), row("b", 1_500, 2), row("b", 2_000, 9), row("a", 2_100, -9)])
    query.process_all_available()
    assert sorted_rows(query.results()) == [(2000, 6)]
    sender.send([row("a", 3_000, 1)])
    sender.close()
    query.process_all_available()
    assert sorted_rows(query.results()) == sorted_rows(planned.collect()) == [(2000, 6), (4000, 10)]
    query.stop()


RANKED = """
    SELECT user, total, place FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY total DESC) AS place FROM (
            SELECT user, window_start, window_end, SUM(amount) AS total
            FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' SECOND)) GROUP BY user, window_start, window_end
        )
    ) WHERE place <= 2
"""
JOINED = """
    SELECT l.user, l.amount, r.amount AS other FROM events l LEFT JOIN others r
    ON l.user = r.user AND r.at BETWEEN l.at - INTERVAL '1' SECOND AND l.at + INTERVAL '1' SECOND AND r.amount > 0
"""


@pytest.mark.slow
def test_ranks_and_joins_run_as_a_stream_and_as_a_batch(session: Session) -> None:
    stream, sender = session.memory_stream(DDL)
    other, other_sender = session.memory_stream(DDL)
    session.register("events", stream, event_time="at", lag=100)
    session.register("others", other, event_time="at", lag=100)
    sender.send([row("a", 10, 1), row("a", 20, 4), row("b", 30, 7), row("c", 40, 2), row("c", 1_500, 3), row("a", 1_600, 2)])
    other_sender.send([row("a", 900, 8), row("b", 5_000, 9), row("c", 2_000, -1), row("a", 1_700, 5)])
    sender.close()
    other_sender.close()
    ranked = [("a", 2, 2), ("a", 5, 2), ("b", 7, 1), ("c", 3, 1)]
    joined = [("a", 1, 8), ("a", 2, 5), ("a", 2, 8), ("a", 4, 8), ("b", 7, None), ("c", 2, None), ("c", 3, None)]
    for text, expected in ((RANKED, ranked), (JOINED, joined)):
        planned = session.sql(text)
        assert planned is not None
        with planned.start(MemorySink()) as query:
            query.process_all_available()
            assert sorted_rows(query.results()) == sorted_rows(planned.collect()) == expected


def test_rows_that_where_leaves_out_move_the_watermark(session: Session) -> None:
    """Where the table was registered with one (SEMANTICS §2.7); in a restart-free stream, and in a bounded run."""
    stream, sender = session.memory_stream(DDL)
    session.register("clicks", stream.watermark("at", 0))
    planned = session.sql("SELECT user, COUNT(*) AS n FROM clicks WHERE amount > 0 GROUP BY user, window(at, '1 second')")
    assert planned is not None
    query = planned.start(MemorySink())
    sender.send([row("a", 10, 1), row("b", 5_000, 0)])
    query.process_all_available()
    assert query.progress.watermark_us == 5_000_000
    assert sorted_rows(query.results()) == [("a", 1)], "the row that is left out has closed the window"
    sender.send([row("a", 20, 1), row("b", 30, 0)])
    query.process_all_available()
    assert (query.progress.rows, query.progress.late["late"]) == (2, 1), "only the row that goes on is late"
    query.stop()
    assert sorted_rows(planned.collect()) == [("a", 1)]
