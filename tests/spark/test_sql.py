"""SQL on a session: streaming and bounded, columns in the order of the SELECT list."""

from __future__ import annotations

from krishiv_py import MemorySink, Session
from tests.spark.conftest import DDL, found, row

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
    assert found(query.results()) == [(1000, 1, "a"), (1000, 3, "b")]
    sender.close()
    query.process_all_available()
    expected = [(1000, 1, "a"), (1000, 3, "b"), (2000, 2, "a")]
    assert found(query.results()) == expected
    query.stop()
    bounded = planned.collect()
    assert bounded.schema.names == ["upto", "total", "who"]
    assert found(bounded) == expected
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
    assert found(query.results()) == [(2000, 6)]
    sender.send([row("a", 3_000, 1)])
    sender.close()
    query.process_all_available()
    assert found(query.results()) == found(planned.collect()) == [(2000, 6), (4000, 10)]
    query.stop()
