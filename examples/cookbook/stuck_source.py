"""One of two sources falls silent: see why nothing comes out, and let the query go on without it."""

import time
from typing import Any

from krishiv_py import MemorySink, MultiSourceWatermarkSpec, Query, Sender, Session, WatermarkSpec, count

LAG = WatermarkSpec.fixed_lag("1 second")
SOURCES = MultiSourceWatermarkSpec.new().source("north", LAG).source("south", LAG)


def started(session: Session, spec: MultiSourceWatermarkSpec) -> tuple[Query, Sender[Any]]:
    """Start a query over both sources. South sends one row and no more; north can go on."""
    north, north_sender = session.memory_stream("at bigint", name="north")
    south, south_sender = session.memory_stream("at bigint", name="south")
    both = session.union({"north": north, "south": south}).with_watermark(spec, "at", source_column="source")
    query = both.tumbling_window("10 seconds").agg(count()).start(MemorySink())
    south_sender.send([{"at": 1_000}])
    north_sender.send([{"at": 2_000}, {"at": 50_000}])
    query.process_all_available()
    return query, north_sender


with Session.in_process() as session:
    # The watermark is the smallest of all sources: so rows of a slow source are not late. A silent one stops all.
    stuck, _ = started(session, SOURCES)
    why = str(stuck.why_not_fired())
    print(why)
    assert "south" in why
    assert stuck.results().num_rows == 0

    # With an idle time-out a source that is silent for so long, by the clock, is left out until it sends again.
    # Its rows can then be late: give it as long as it may really be silent.
    patient, north = started(session, SOURCES.idle_timeout("500 ms"))
    until = time.monotonic() + 30
    while not patient.results().num_rows and time.monotonic() < until:
        time.sleep(0.2)
        north.send([{"at": 51_000}])  # time is looked at when a batch runs, and north brings one
        patient.process_all_available()
    rows = patient.results().to_pylist()

print(*rows, sep="\n")
assert [(row["window_end"], row["count"]) for row in rows] == [(10_000, 2)]
