"""Answers about times, printed: the zone of the machine must not show. ``python -m tests.engines.zones driver|spark|some``."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import krishiv_py as kv
from krishiv_py import Batches, MemorySink, Session, calendar_window, col, count, first
from krishiv_py.testing import Driver, stream_of

UTC: Final = dt.timezone.utc
DDL: Final = "k string, at timestamp, n timestamp_ntz, d date, ms bigint, txt string"
MOMENTS: Final = (
    *(dt.datetime(2024, 3, 10, hour, 30) for hour in (1, 2, 3, 6, 7)),  # clocks go forward in New York
    *(dt.datetime(2024, 11, 3, hour, 30) for hour in (0, 1, 5, 6)),  # and back
    dt.datetime(1883, 11, 18, 12),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
)
ROWS: Final = [
    {
        "k": "a",
        "at": moment if naive else moment.replace(tzinfo=UTC),
        "n": moment,
        "d": moment.date(),
        "ms": int(moment.replace(tzinfo=UTC).timestamp() * 1_000),
        "txt": moment.isoformat(" "),
    }
    for naive, moment in ((i % 2, moment) for i, moment in enumerate(MOMENTS))
]
EXPRESSIONS: Final = (
    "cast(n as string)",
    "cast(at as string)",
    "cast(d as string)",
    "cast(txt as timestamp)",
    "cast(txt as timestamp_ntz)",
    "cast(txt as date)",
    "cast(at as date)",
    "cast(d as timestamp)",
    "cast(n as timestamp)",
    "cast(at as timestamp_ntz)",
    "cast(at as bigint)",
    "cast(ms / 1000 as timestamp)",
    "hour(at)",
    "hour(n)",
    "day(at)",
    "year(at)",
    "date_trunc('day', at)",
    "date_trunc('week', n)",
    "date_trunc('hour', at)",
    "last_day(d)",
    "date_format(at, 'yyyy-MM-dd HH')",
    "to_date(txt)",
    "to_timestamp(txt)",
    "unix_timestamp(at)",
    "unix_millis(at)",
    "timestamp_millis(ms)",
    "date_add(d, 1)",
    "datediff(d, date'2024-01-01')",
    "from_unixtime(cast(ms / 1000 as bigint))",
    "timestamp'2024-03-10 02:30:00'",
    "timestamp_ntz'2024-03-10 02:30:00'",
    "at > timestamp'2024-03-10 02:30:00'",
    "d = date'2024-03-10'",
    "n > timestamp_ntz'2024-03-10 02:30:00'",
    "at = n",
    "at + interval 1 day",
    "d + interval 1 day",
    "at - interval 1 month",
    "make_timestamp(2024, 3, 10, 2, 30, 0)",
)
SQL: Final = """
SELECT window_start, window_end, COUNT(*) AS n, MAX(date_format(at, 'HH:mm')) AS h, MIN(CAST(n AS STRING)) AS s
FROM TABLE(TUMBLE(TABLE ev, DESCRIPTOR(at), INTERVAL '1' DAY)) WHERE at > TIMESTAMP '2000-01-01 00:00:00'
GROUP BY window_start, window_end
"""
SOME: Final = ("expressions", "days of America/New_York by at", "tumbling by n", "keys", "filters", "lookup")
VALID: Final = pa.table(
    {
        "k": ["a"],
        "since": pa.array([dt.datetime(2024, 3, 10, 3)], pa.timestamp("us")),
        "until": pa.array([None], pa.timestamp("us")),
        "v": [1],
    }
)


def computed(stream: Any) -> Any:
    """A result for each row, with all expressions."""
    for i, text in enumerate(EXPRESSIONS):
        stream = stream.with_column(f"x{i}", text)
    aggregates = [first(f"x{i}").alias(f"x{i}") for i in range(len(EXPRESSIONS))]
    return stream.watermark("ms", 0).key_by("txt").tumbling_window("1 day").agg(*aggregates)


def plans(make: Callable[[], Any]) -> dict[str, Any]:
    """Plans by name, over streams that `make` gives."""
    actual: dict[str, Any] = {"expressions": computed(make())}
    for time in ("at", "n"):
        for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
            days = calendar_window("day", zone)
            actual[f"days of {zone} by {time}"] = make().watermark(time, 0).window(days).agg(count())
        of_day = kv.min("n").alias("least"), kv.max("d").alias("day"), first("at"), kv.collect_list("n").alias("all")
        actual[f"tumbling by {time}"] = make().watermark(time, 0).tumbling_window("1 day").agg(count(), *of_day)
    actual["keys"] = make().watermark("ms", 0).key_by("n", "at", "d").tumbling_window("1 day").agg(count())
    moment, day = dt.datetime(2024, 3, 10, 3), dt.date(2024, 3, 10)
    later = make().filter(
        (col("at") >= moment) & (col("n") >= moment) & (col("d") >= day) & (col("at") >= moment.replace(tzinfo=UTC))
    )
    actual["filters"] = later.watermark("at", 0).tumbling_window("1 day").agg(count())
    looked = make().lookup_join(VALID, "k", at="n", validity=("since", "until")).watermark("n", 0)
    actual["lookup"] = looked.key_by("v").tumbling_window("1 day").agg(count())
    return actual


def report(name: str, answer: Any) -> None:
    """A line for each answer; results in an order of their own."""
    rows = sorted(map(repr, answer.to_pylist())) if isinstance(answer, pa.Table) else answer
    print(f"{name}: {rows}")


def on_driver() -> None:
    """All plans, and what people read."""
    for name, plan in plans(lambda: stream_of(DDL)).items():
        driver = Driver(plan)
        report(name, pa.concat_tables([driver.send(ROWS).results, driver.close().results]))
    aside = kv.SideOutputLateEventHandler(kv.ConsoleSink())
    plan = stream_of(DDL).filter(col("at") > dt.datetime(1990, 1, 1)).watermark("at", 0).with_late_event_handler(aside)
    days = plan.window(calendar_window("day", "Asia/Kolkata")).agg(count())
    driver, printed = Driver(days), io.StringIO()
    with contextlib.redirect_stdout(printed):
        driver.send(ROWS)
        driver.advance_watermark(dt.datetime(2025, 1, 1))
        late = driver.send(ROWS[:1]).late
    shown = days._repr_html_()
    report("shown", [driver.watermark, str(driver.progress), printed.getvalue(), days.explain(), shown, str(late)])


def some_on_spark() -> None:
    """A plan for each kind of answer, as a bounded run; ``spark`` gives all, in each way to run them."""
    with Session.embedded() as session:
        stream, sender = session.memory_stream(DDL)
        sender.send(ROWS)
        sender.close()
        for name, plan in plans(lambda: stream).items():
            if name in SOME:
                report(name, plan.collect())


def on_spark() -> None:
    """All plans as bounded runs and as queries, SQL, and a folder of JSON."""
    with Session.embedded() as session, tempfile.TemporaryDirectory() as folder:

        def sent() -> Any:
            stream, sender = session.memory_stream(DDL)
            sender.send(ROWS)
            sender.close()
            return stream

        streaming = ("expressions", "days of America/New_York by at", "tumbling by n", "lookup")
        for name, plan in plans(sent).items():
            report(name, plan.collect())
            if name in streaming:
                query = plan.start(MemorySink(), batches=Batches.available_now())
                query.await_termination()
                report(name, query.results())
        session.register("ev", sent().watermark("at", 0))
        by_text = session.sql(SQL)
        assert by_text is not None
        report("sql", by_text.collect())
        plans(sent)["tumbling by at"].start(kv.JsonSink(folder), batches=Batches.available_now()).await_termination()
        report("json", sorted(line for path in Path(folder).glob("*.json") for line in path.read_text().splitlines()))
        back = session.read_json(folder, schema="count bigint, least timestamp_ntz, day date, first_at timestamp")
        report("read", back.watermark("least", 0).lookback_window(0, with_row=True).agg(count().alias("_")).collect())
        days = back.watermark("first_at", 0).window(calendar_window("day", "America/New_York")).agg(kv.max("least"), count())
        texts = [f"cast({name} as string)" for name in ("window_start", "window_end", "max_least")]
        report("frame", sorted(map(str, days.to_dataframe().selectExpr(*texts).collect())))
        made = session.spark.sql("SELECT timestamp'2024-03-10 02:30:00' AS at, timestamp_ntz'2024-03-10 02:30:00' AS n")
        report("made", session.from_dataframe(made).watermark("at", 0).tumbling_window("1 day").agg(kv.max("n")).collect())


if __name__ == "__main__":
    {"driver": on_driver, "spark": on_spark, "some": some_on_spark}[sys.argv[1]]()
