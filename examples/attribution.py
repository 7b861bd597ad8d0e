"""Clicks and impressions: a join, deduplication, two windows and two sinks in one query, over a restart.

``python examples/attribution.py``; docs/attribution.md goes through it step by step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from krishiv_py import MemorySink, Output, ParquetSink, Session, SideOutputLateEventHandler, Stream, count, sum
from krishiv_py.testing import Driver, stream_of

IMPRESSIONS = "impression string, user string, campaign string, shown bigint"
CLICKS = "click string, clicker string, clicked bigint, price bigint"
SENDS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    (
        [
            {"impression": f"i{n}", "user": f"u{n % 7}", "campaign": "tea ink"[4 * (n % 2) :][:3], "shown": 1_000 * n}
            for n in range(90)
        ],
        [{"click": f"c{n // 2}", "clicker": f"u{n % 7}", "clicked": 1_700 * n, "price": n % 5} for n in range(60)],
    ),
    (
        [{"impression": "late", "user": "u1", "campaign": "tea", "shown": 900_000}],
        [{"click": "c99", "clicker": "u1", "clicked": 950_000, "price": 9}],
    ),
    ([{"impression": "i100", "user": "u2", "campaign": "ink", "shown": 30_000}], []),
]


def outputs(impressions: Stream, clicks: Stream, folder: Path) -> list[Output]:
    """The pipeline: spending a minute by campaign, and bursts of clicks by user."""
    late, repeated = (SideOutputLateEventHandler(ParquetSink(str(folder / name))) for name in ("late", "repeated"))
    pairs = (
        impressions.watermark("shown", "30 seconds")
        .interval_join(clicks.watermark("clicked", "2 minutes"), {"user": "clicker"}, lower=0, upper="1 minute")
        .allowed_lateness("1 minute")
        .with_late_event_handler(late)
    )
    once = pairs.drop_duplicates("click", within="1 hour", duplicates="side_output").with_late_event_handler(repeated)
    spent = once.key_by("campaign").tumbling_window("1 minute").agg(count(), sum("price").alias("spent"))
    bursts = once.key_by("user").session_window("10 seconds").agg(count().alias("clicks"))
    return [spent.to(ParquetSink(str(folder / "campaigns")), name="campaigns"), bursts.to(MemorySink(), name="users")]


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in an order of their own."""
    return sorted(map(repr, rows))


def main() -> None:
    """Run, stop, go on; then compare with the driver."""
    with tempfile.TemporaryDirectory() as home, Session.embedded() as session:
        driver = Driver(outputs(stream_of(IMPRESSIONS), stream_of(CLICKS), Path(home, "driver")))
        steps = [driver.send({"left": left, "right": right}) for left, right in SENDS] + [driver.close()]
        impressions, shows = session.memory_stream(IMPRESSIONS)
        clicks, hits = session.memory_stream(CLICKS)
        whole = outputs(impressions, clicks, Path(home, "spark"))
        for last, sends in ((False, SENDS[:1]), (True, SENDS[1:])):
            query = session.start(whole, checkpoint=f"{home}/checkpoint", name="attribution")
            for left, right in sends:
                for sender, rows in ((shows, left), (hits, right)):
                    if rows:
                        sender.send(rows)
                query.process_all_available()
            if last:
                shows.close()
                hits.close()
                query.process_all_available()
            users = query.results("users").to_pylist()
            query.stop()
        wanted = {
            name: shown([r for step in steps for r in step.by_output[name].to_pylist()]) for name in ("campaigns", "users")
        }
        assert shown(users) == wanted["users"]
        assert shown(pq.read_table(f"{home}/spark/campaigns").to_pylist()) == wanted["campaigns"]
        late = pq.read_table(f"{home}/spark/late")["impression"].to_pylist()
        assert late == ["i100"]
        repeated = pq.read_table(f"{home}/spark/repeated").num_rows
        print(f"{len(wanted['campaigns'])} minutes of campaigns, {len(users)} bursts, {repeated} repeated, {len(late)} late")
        print("both outputs are those of the driver, over a restart")


if __name__ == "__main__":
    main()
