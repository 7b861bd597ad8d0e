"""Correct plans, at least one of every operator, of the options that change when results come, and of both clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

import krishiv_py as kv
from krishiv_py import (
    Context,
    Events,
    MultiSourceWatermarkSpec,
    RoundContext,
    Row,
    SlidingWindows,
    StateColumns,
    StateTtlConfig,
    TimeIntervalWindowOptions,
    Trigger,
    WatermarkSpec,
    count,
    windows,
)
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import stream_of, union_of

SCHEMA: Final = "user string, at bigint, v bigint"
RIGHT: Final = "user string, rat bigint, w double"
LOG: Final = f"{SCHEMA}, op string"
FIELDS: Final = "struct<user: string, at: bigint, v: bigint>"
DEBEZIUM: Final = f"op string, before {FIELDS}, after {FIELDS}"
LAG: Final = 20_000
Build = Callable[[RowsClock], Any]


def left(clock: RowsClock, rows: Any = None) -> Any:
    return (stream_of(SCHEMA) if rows is None else rows).watermark("at", LAG, clock=clock)


def right(clock: RowsClock) -> Any:
    return stream_of(RIGHT).watermark("rat", LAG, clock=clock)


def keyed(clock: RowsClock) -> Any:
    return left(clock).key_by("user")


def united() -> Any:
    return union_of({"web": stream_of(SCHEMA), "app": stream_of(SCHEMA)})


def some(windowed: Any) -> Any:
    return windowed.agg(count(), kv.sum("v"), kv.collect_list("v"), kv.first("v"), kv.count_distinct("v"))


def by_window(clock: RowsClock) -> Any:
    return left(clock).late_rule("window").allowed_lateness(15_000)


def chain(clock: RowsClock) -> Any:
    per_minute = keyed(clock).tumbling_window(60_000).agg(kv.sum("v").alias("v"))
    return per_minute.key_by("user").tumbling_window(300_000).agg(kv.sum("v").alias("v"), count())


def by_source(clock: RowsClock) -> Any:
    spec = MultiSourceWatermarkSpec.new(clock=clock)
    for name, lag in (("web", LAG), ("app", 2 * LAG)):
        spec = spec.source(name, WatermarkSpec.fixed_lag(lag))
    return some(united().with_watermark(spec, "at", source_column="source").key_by("user").tumbling_window(60_000))


def joined_results(clock: RowsClock) -> Any:
    ours = keyed(clock).tumbling_window(60_000).agg(kv.sum("v").alias("v"))
    theirs = right(clock).key_by("user").tumbling_window(60_000).agg(kv.sum("w").alias("w"))
    return ours.window_join(theirs, "user", window=windows.tumbling(300_000))


def window_of_join(clock: RowsClock) -> Any:
    met = left(clock).interval_join(right(clock), "user", lower=-20_000, upper=10_000)
    return met.key_by("user").tumbling_window(60_000).agg(count())


@attrs.define
class Seen:
    rows: int = 0


class Idle:
    """Counts the rows of a key until none has come for a while."""

    def on_row(self, row: Row, state: Seen, ctx: Context) -> None:
        state.rows += 1
        ctx.timer("idle", after=30_000)

    def on_timer(self, name: str, state: Seen, ctx: Context) -> list[dict[str, int]]:
        rows = state.rows
        ctx.forget()
        return [{"rows": rows}]


class IdleAndLate(Idle):
    """The same, which gives late rows, too."""

    def on_late(self, row: Row, state: Seen, ctx: Context) -> list[dict[str, int]]:
        return [{"rows": -1}]


class IdleByColumns:
    """The same, many keys at a time."""

    def on_events(self, events: Events, state: StateColumns, ctx: RoundContext) -> None:
        state.rows[events.is_row] += 1
        ctx.timer("idle", after=30_000, where=events.is_row)
        ctx.emit(rows=state.rows, where=~events.is_row)
        ctx.forget(where=~events.is_row)


def connected(clock: RowsClock) -> Any:
    sides = kv.connect(one=keyed(clock), two=right(clock).key_by("user"))
    return sides.process(Sides(), returns="n bigint", state=Seen)


class Sides:
    """Numbers the rows of two streams as one sequence."""

    def on_one(self, row: Row, state: Seen, ctx: Context) -> list[dict[str, int]]:
        state.rows += 1
        return [{"n": state.rows}]

    def on_two(self, row: Row, state: Seen, ctx: Context) -> list[dict[str, int]]:
        state.rows += 1
        return [{"n": -state.rows}]


PLANS: Final[dict[str, Build]] = {
    "tumbling": lambda c: some(keyed(c).tumbling_window(60_000)),
    "tumbling, offset": lambda c: some(keyed(c).tumbling_window(60_000, offset=7_000)),
    "tumbling, rule window": lambda c: some(left(c).late_rule("window").key_by("user").tumbling_window(60_000)),
    "tumbling, lateness": lambda c: some(left(c).allowed_lateness(15_000).key_by("user").tumbling_window(60_000)),
    "tumbling, retractions": lambda c: some(
        left(c).allowed_lateness(15_000).emit("retractions").key_by("user").tumbling_window(60_000)
    ),
    "tumbling, final": lambda c: some(left(c).allowed_lateness(15_000).emit("final").key_by("user").tumbling_window(60_000)),
    "tumbling, every row": lambda c: some(left(c).trigger(Trigger.on_every_element()).key_by("user").tumbling_window(60_000)),
    "tumbling, every third row": lambda c: some(left(c).trigger(Trigger.on_count(3)).key_by("user").tumbling_window(60_000)),
    "tumbling, discarding": lambda c: some(
        left(c).trigger(Trigger.on_count(2)).accumulation("discarding").key_by("user").tumbling_window(60_000)
    ),
    "tumbling, ttl": lambda c: some(left(c).with_state_ttl(StateTtlConfig("5 minutes")).key_by("user").tumbling_window(60_000)),
    "tumbling, null keys aside": lambda c: some(left(c).null_keys("side_output").key_by("user").tumbling_window(60_000)),
    "tumbling, many aggregates": lambda c: (
        keyed(c)
        .tumbling_window(60_000)
        .agg(kv.avg("v"), kv.stddev("v"), kv.last("v"), kv.collect_set("v"), kv.percentile("v", 0.5), kv.max_by("at", "v"))
    ),
    "no key": lambda c: some(left(c).tumbling_window(60_000)),
    "two keys": lambda c: some(left(c).key_by("user", "v").tumbling_window(60_000)),
    "hopping": lambda c: some(keyed(c).hopping_window(90_000, 30_000)),
    "hopping with gaps": lambda c: some(keyed(c).hopping_window(20_000, 50_000, allow_gaps=True)),
    "cumulate": lambda c: some(keyed(c).cumulate_window(30_000, 90_000)),
    "calendar": lambda c: some(
        stream_of("user string, at timestamp, v bigint")
        .watermark("at", "6 hours", clock=c)
        .key_by("user")
        .windowed_by(kv.calendar_window("day", time_zone="Europe/Berlin"))
    ),
    "session": lambda c: some(keyed(c).session_window(25_000)),
    "session, rule window": lambda c: some(left(c).late_rule("window").key_by("user").session_window(25_000)),
    "session, touching": lambda c: some(keyed(c).session_window(25_000, touch="merge")),
    "session, retractions": lambda c: some(
        left(c).allowed_lateness(15_000).emit("retractions").key_by("user").session_window(25_000)
    ),
    "session, rule window, each row": lambda c: some(
        by_window(c).emit("retractions").trigger(Trigger.on_every_element()).key_by("user").session_window(25_000)
    ),
    "capped session": lambda c: some(keyed(c).session_window(25_000, max_duration=90_000)),
    "capped session, rule window": lambda c: some(
        left(c).late_rule("window").key_by("user").session_window(25_000, max_duration=90_000)
    ),
    "capped session, rule window, retractions": lambda c: some(
        by_window(c).emit("retractions").key_by("user").session_window(25_000, max_duration=90_000)
    ),
    "capped session, rule window, second rows": lambda c: some(
        by_window(c).emit("retractions").trigger(Trigger.on_count(2)).key_by("user").session_window(25_000, max_duration=90_000)
    ),
    "capped session, touching": lambda c: some(keyed(c).session_window(25_000, touch="merge", max_duration=90_000)),
    "look-back": lambda c: some(keyed(c).lookback_window(60_000)),
    "look-back, two sided": lambda c: keyed(c).lookback_window(60_000, two_sided=True).agg(count(), kv.sum("v")),
    "look-back on arrival": lambda c: some(keyed(c).lookback_window(60_000, emit="arrival", with_row=True)),
    "count": lambda c: some(keyed(c).count_window(3, 2)),
    "distinct sets": lambda c: some(keyed(c).windowed_by(SlidingWindows.of("30 s").grace("5 s"))),
    "distinct sets, rule window": lambda c: some(
        left(c).late_rule("window").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))
    ),
    "distinct sets, rule window, retractions": lambda c: some(
        left(c).late_rule("window").emit("retractions").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))
    ),
    "kip450": lambda c: some(left(c).preset("kip450").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))),
    "panes": lambda c: some(keyed(c).time_interval_window(TimeIntervalWindowOptions("60 s", creation_period="20 s"))),
    "deduplication": lambda c: left(c).drop_duplicates("user", within="1 minute"),
    "chain": chain,
    "filter before": lambda c: some(
        stream_of(SCHEMA).filter("v > 1").watermark("at", LAG, clock=c).key_by("user").tumbling_window(60_000)
    ),
    "filter after": lambda c: some(left(c).filter("v % 3 != 0").key_by("user").tumbling_window(60_000)),
    "computed time": lambda c: some(
        stream_of(SCHEMA).with_column("at", "at + 500").watermark("at", LAG, clock=c).key_by("user").tumbling_window(60_000)
    ),
    "selected results": lambda c: keyed(c).tumbling_window(60_000).agg(count().alias("n")).select("user", m="n * 2"),
    "rows": lambda c: stream_of(SCHEMA).filter("v > 0").select("user", "at", x="v * 2"),
    "doubles": lambda c: (
        stream_of("k double, at timestamp, x double, d date, l array<bigint>")
        .watermark("at", "5 s", clock=c)
        .key_by("k")
        .tumbling_window("10 s")
        .agg(count(), kv.sum("x"), kv.min("x"), kv.max("d"), kv.collect_list("l"))
    ),
    "union": lambda c: some(left(c, united()).key_by("user").tumbling_window(60_000)),
    "union by source": by_source,
    "process": lambda c: keyed(c).process(Idle(), returns="rows bigint", state=Seen),
    "process by rounds": lambda c: keyed(c).process(IdleByColumns(), returns="rows bigint", state=Seen),
    "process on arrival": lambda c: keyed(c).process(Idle(), returns="rows bigint", state=Seen, order="arrival"),
    "process by rounds on arrival": lambda c: keyed(c).process(
        IdleByColumns(), returns="rows bigint", state=Seen, order="arrival"
    ),
    "process of late rows": lambda c: keyed(c).process(IdleAndLate(), returns="rows bigint", state=Seen, late="pass"),
    "absence": lambda c: keyed(c).absent(after=30_000, repeat=20_000),
    "pattern": lambda c: keyed(c).match(
        kv.step("low", "v < 3").followed_by(kv.step("high", "v >= 3").one_or_more()),
        within=60_000,
        measures=[count("high").alias("n")],
    ),
    "rows with those before": lambda c: keyed(c).with_previous(before=kv.prev("v"), rise=kv.col("v") - kv.prev("v")),
    "connected": connected,
    "absence, expected": lambda c: keyed(c).absent(after=30_000, expected=["a", "b"], start=0),
    "first rows of a window": lambda c: keyed(c).tumbling_window(60_000).top_rows(2, by="v"),
    "interval join": lambda c: left(c).interval_join(right(c), "user", how="full", lower=-20_000, upper=10_000),
    "interval join, inner": lambda c: left(c).interval_join(right(c), "user", lower=-20_000, upper=10_000),
    "interval join, semi": lambda c: left(c).interval_join(right(c), "user", how="semi", lower=-20_000, upper=10_000),
    "interval join, anti": lambda c: left(c).interval_join(right(c), "user", how="anti", lower=-20_000, upper=10_000),
    "window join": lambda c: left(c).window_join(right(c), "user", how="full", window=windows.tumbling(60_000)),
    "as-of join": lambda c: left(c).asof_join(right(c), "user", tolerance=60_000),
    "versioned join": lambda c: left(c).versioned_join(right(c).from_changelog("upsert", key="user"), "user"),
    "as-of join, forward": lambda c: left(c).asof_join(right(c), "user", tolerance=30_000, direction="forward"),
    "as-of join, nearest": lambda c: left(c).asof_join(right(c), "user", tolerance=30_000, direction="nearest"),
    "join of results": joined_results,
    "windows of a join": window_of_join,
}

TABLES: Final[dict[str, Callable[[], Any]]] = {
    "totals": lambda: some(stream_of(SCHEMA).key_by("user")),
    "totals of all": lambda: some(stream_of(SCHEMA)),
    "totals, many aggregates": lambda: (
        stream_of(SCHEMA)
        .key_by("user")
        .agg(kv.avg("v"), kv.stddev("v"), kv.max("v"), kv.collect_set("v"), kv.percentile("v", 0.5), kv.max_by("at", "v"))
    ),
    "totals of totals": lambda: (
        stream_of(SCHEMA).key_by("user").agg(count().alias("n"), kv.max("v").alias("v")).key_by("n").agg(count(), kv.sum("v"))
    ),
    "filter of totals": lambda: stream_of(SCHEMA).key_by("user").agg(kv.sum("v").alias("v")).filter("v > 3"),
    "latest": lambda: stream_of(SCHEMA).latest("user", by="at"),
    "first rows": lambda: stream_of(SCHEMA).key_by("user").top_rows(2, by="v"),
    "first rows of all": lambda: stream_of(SCHEMA).top_rows(3, by="v"),
    "join of tables": lambda: stream_of(SCHEMA).join(stream_of(RIGHT), "user"),
    "join of tables, full": lambda: stream_of(SCHEMA).join(stream_of(RIGHT), "user", how="full"),
    "join of totals": lambda: (
        stream_of(SCHEMA)
        .key_by("user")
        .agg(kv.sum("v").alias("v"))
        .join(stream_of(RIGHT).key_by("user").agg(kv.sum("w").alias("w")), "user", how="left")
    ),
    "changelog": lambda: stream_of(LOG).from_changelog("log", "user"),
    "changelog with a sequence": lambda: stream_of(LOG).from_changelog("log", "user", sequence="at"),
    "changelog of upserts": lambda: stream_of(SCHEMA).from_changelog("upsert", "user", sequence="at"),
    "changelog of Debezium": lambda: stream_of(DEBEZIUM).from_changelog("debezium", "user", sequence="after.at"),
    "totals of a changelog": lambda: some(stream_of(LOG).from_changelog("log", "user").key_by("v")),
    "first rows of a changelog": lambda: stream_of(LOG).from_changelog("log", "user").top_rows(2, by="v"),
    "join of changelogs": lambda: (
        stream_of(LOG)
        .from_changelog("log", "user", sequence="at")
        .join(stream_of(f"{RIGHT}, op string").from_changelog("log", "user", sequence="rat"), "user", how="full")
    ),
}
"""Results that are tables: no row of them is late, so they have no clock."""
