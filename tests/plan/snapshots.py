"""Plans of every kind of window as ``explain()`` prints them: ``python -m tests.plan.snapshots`` writes them again.

What changed is to be read in the diff before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

import krishiv_py as kv
from krishiv_py.testing import stream_of

FOLDER: Final = Path(__file__).with_name("explained")
ROWS: Final = stream_of("user string, at timestamp, amount bigint, url string")
KEYED: Final = ROWS.watermark("at", "5 s").key_by("user")
AGGS: Final = (kv.count(), kv.sum("amount"))


@attrs.frozen
class Half(kv.WindowTrigger):
    """Fires windows of which that part of the rows is new."""

    part: float = 0.5

    def fires(self, windows: kv.OpenWindows) -> Any:
        return windows.new_rows >= self.part * windows.rows


def seen(row: kv.Row, state: None, ctx: kv.Context) -> list[dict[str, int]]:
    """Give a row."""
    return [{"n": row.amount}]


PLANS: Final[dict[str, Callable[[], kv.ResultStream | kv.Stream]]] = {
    "tumbling": lambda: KEYED.tumbling_window("1 min").agg(*AGGS),
    "tumbling_retractions_ttl": lambda: (
        KEYED.allowed_lateness("1 min")
        .emit("retractions")
        .with_state_ttl(kv.StateTtlConfig("1 h", "event"))
        .tumbling_window("1 min")
        .agg(*AGGS)
    ),
    "hopping_interval": lambda: KEYED.trigger(kv.Trigger.on_interval("10 s")).hopping_window("1 min", "15 s").agg(*AGGS),
    "session_asked": lambda: KEYED.trigger(kv.Trigger.when(Half(0.25))).session_window("30 s").agg(*AGGS),
    "panes": lambda: KEYED.time_interval_window(kv.TimeIntervalWindowOptions("1 min")).agg(*AGGS),
    "calendar_retractions_ttl": lambda: (
        KEYED.window(kv.calendar_window("month", "Europe/Berlin"))
        .emit("retractions")
        .allowed_lateness("1 day")
        .with_state_ttl(kv.StateTtlConfig("90 days"))
        .agg(*AGGS)
    ),
    "session": lambda: KEYED.session_window("30 s").agg(*AGGS),
    "session_each_element": lambda: KEYED.trigger(kv.Trigger.on_every_element()).session_window("30 s").agg(*AGGS),
    "session_longest": lambda: KEYED.late_rule("window").session_window("30 s", max_duration="5 min").agg(*AGGS),
    "session_longest_each_element": lambda: (
        KEYED.trigger(kv.Trigger.on_every_element()).session_window("30 s", max_duration="5 min").agg(*AGGS)
    ),
    "count": lambda: KEYED.count_window(100).agg(*AGGS),
    "count_each_element": lambda: KEYED.trigger(kv.Trigger.on_every_element()).count_window(100).agg(*AGGS),
    "lookback": lambda: KEYED.lookback_window("1 h", with_row=True).agg(*AGGS),
    "process": lambda: KEYED.process(seen, returns="n bigint", ttl="1 day", order="arrival"),
    "absence": lambda: KEYED.absent("5 min", repeat="1 h", forget_after="7 d"),
    "deduplication": lambda: (
        KEYED.allowed_lateness("1 min")
        .with_state_ttl(kv.StateTtlConfig("5 min"))
        .drop_duplicates("url", within="10 min", duplicates="side_output")
    ),
    "rows": lambda: ROWS.filter("amount > 0").select("user", cents="amount * 100"),
    "distinct": lambda: KEYED.windowed_by(kv.SlidingWindows.of("10 s")).agg(*AGGS),
    "table": lambda: (
        stream_of("op string, id bigint, city string")
        .from_changelog("log", key="id")
        .filter(kv.col("city").isin({"Ulm", "Rom", "Bonn"}))
        .key_by("city")
        .agg(n=kv.count())
        .top_rows(2, by="n", rank="place")
    ),
    "changes_as_rows": lambda: KEYED.agg(*AGGS).to_changelog(op="kind").filter("kind <> '-U'"),
    "history": lambda: ROWS.watermark("at", "5 s").from_changelog("upsert", key="user").history(),
    "versions": lambda: KEYED.versioned_join(
        stream_of("op string, name string, since timestamp, city string, lsn bigint")
        .watermark("since", "1 s")
        .from_changelog("log", key="name", sequence="lsn"),
        on={"user": "name"},
        table_clock="left",
    ),
    "two_stages": lambda: (
        KEYED.tumbling_window("1 s")
        .agg(*AGGS)
        .filter("count > 1")
        .watermark("window_time", "1 s")
        .key_by("user")
        .session_window("30 s")
        .agg(kv.max("count"))
    ),
    "several_sources": lambda: (
        stream_of("source string, at bigint")
        .with_watermark(
            kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag("5 s")).idle_timeout("1 min"),
            "at",
            source_column="source",
        )
        .tumbling_window("1 min")
        .agg(kv.count())
    ),
}


def write() -> None:
    """All of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, plan in PLANS.items():
        (FOLDER / f"{name}.txt").write_text(plan().explain() + "\n")


if __name__ == "__main__":
    write()
