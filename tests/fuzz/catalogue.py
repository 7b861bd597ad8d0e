"""Every public callable with arguments that fit, by parameter."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pyarrow as pa

import krishiv_py as kv
from krishiv_py import col, compat, count, windows
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.aggregates.calls import DEFINITIONS
from krishiv_py.plan.expressions.expr import Func, Lambda, Lit
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.planner.history import names_of
from krishiv_py.runtime.capture import OpenCapture
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Capture, Driver, ManualClock, stream_of
from tests.fuzz.running import ROWS, SCHEMA


class Grown(kv.WindowTrigger):
    """Fires windows of which half of the rows are new."""

    def fires(self, windows: kv.OpenWindows) -> Any:
        return 2 * windows.new_rows >= windows.rows


@attrs.frozen(eq=False)
class Call:
    """A callable, and how its parameters are filled when they are not the one under trial."""

    name: str
    make: Callable[[], Callable[..., Any]]
    good: dict[str, Any]

    def with_one(self, parameter: str, value: Any) -> Any:
        """Call it with one parameter replaced; starred ones take it as their only item."""
        function = self.make()
        given = {**self.good, parameter: value}
        args: list[Any] = []
        named: dict[str, Any] = {}
        for name, p in inspect.signature(function).parameters.items():
            if p.kind is p.VAR_POSITIONAL:
                args += [given[name]] if name in given else []
            elif p.kind is p.VAR_KEYWORD:
                named |= {"amount": given[name]} if name in given else {}
            elif name in given and p.kind is p.KEYWORD_ONLY:
                named[name] = given[name]
            elif name in given:
                args.append(given[name])
            elif p.default is not p.empty:
                args += [p.default] if p.kind is not p.KEYWORD_ONLY else []
        return function(*args, **named)

    @property
    def parameters(self) -> list[str]:
        """The parameters to try."""
        return list(inspect.signature(self.make()).parameters)


def stream() -> Stream:
    """Rows without event time."""
    return stream_of(SCHEMA)


def timed() -> TimedStream:
    """Rows with event time."""
    return stream().watermark("at", 0)


def windowed() -> WindowedStream:
    """Rows in windows."""
    return timed().key_by("user").tumbling_window(10_000)


def aggregated() -> kv.ResultStream:
    """A whole pipeline."""
    return windowed().agg(count())


def driver() -> Driver:
    """A driver that has seen rows."""
    actual = Driver(aggregated())
    actual.send(ROWS)
    return actual


def sql() -> SqlContext:
    """SQL over one table."""
    context = SqlContext()
    context.register("events", stream(), event_time="at", lag=0)
    context.register_sink("a", kv.MemorySink())
    return context


class Total:
    """A user's aggregate."""

    def create(self) -> int:
        """Nothing yet."""
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        """One more."""
        return accumulator + 1

    def merge(self, left: int, right: int) -> int:
        """Both."""
        return left + right

    def finish(self, accumulator: int) -> int:
        """As it is."""
        return accumulator


@attrs.define
class Counted:
    """The state of a process function."""

    n: int = 0


def doubled(row: Any, state: Any, ctx: Any) -> list[dict[str, Any]]:
    """Give a row."""
    return [{"twice": row.n}]


def later(row: Any, state: Any, ctx: Any) -> list[dict[str, Any]]:
    """Give a row with a time of its own."""
    return [{"twice": row.n, "due": ctx.time}]


def with_rows_before(order_by: Any = "n", before: Any = kv.prev("n")) -> Any:  # noqa: B008  # a frozen value
    """Add a column of the row before."""
    return timed().key_by("user").with_previous(order_by=order_by, before=before)


def _functions() -> Iterator[Call]:
    one = {"arg": "n"}
    for name, definition in DEFINITIONS.items():
        parameters = list(inspect.signature(definition.function).parameters)
        if parameters[0] == "arg" and definition.arity < 2 and name != "approx_percentile":
            yield Call(name, lambda name=name: getattr(kv, name), one)  # type: ignore[misc]
    for name in ("max_by", "min_by"):
        yield Call(name, lambda name=name: getattr(kv, name), {"arg": "user", "by": "n"})  # type: ignore[misc]
    yield Call("approx_percentile", lambda: kv.approx_percentile, {"arg": "n", "percentage": 0.5, "relative_error": 0.1})
    yield Call("histogram", lambda: kv.histogram, {"arg": "n", "bounds": [1, 2]})
    ranks: dict[str, Any] = {"k": 2, "by": "n", "columns": "user", "then": [("at", "smallest")]}
    for name in ("top_k", "bottom_k"):
        yield Call(name, lambda name=name: getattr(kv, name), ranks)  # type: ignore[misc]
    for name in ("count_if", "bool_and", "bool_or"):
        yield Call(name, lambda name=name: getattr(kv, name), {"condition": "flag"})  # type: ignore[misc]
    yield Call("udaf", lambda: kv.udaf, {"aggregator": Total(), "arg": "n", "result_type": pa.int64()})
    yield Call("col", lambda: kv.col, {"name": "at"})
    yield Call("lit", lambda: kv.lit, {"value": 5})
    yield Call("func", lambda: kv.func, {"name": "abs", "args": col("n")})
    yield Call("func round", lambda: kv.func, {"name": "round", "args": col("amount")})
    yield Call("func coalesce", lambda: lambda a, b: kv.func("coalesce", a, b), {"a": col("n"), "b": col("at")})
    yield Call("func if_else", lambda: lambda a, b, c: kv.func("if_else", a, b, c), {"a": col("flag"), "b": 1, "c": 2})
    for name in ("starts_with", "contains", "round", "lower", "named_struct", "length"):
        yield Call(
            f"func {name}, 2",
            lambda name=name: lambda a, b: kv.func(name, a, b),  # type: ignore[misc]
            {"a": col("user"), "b": col("user")},
        )
    for name in (
        "__add__",
        "__sub__",
        "__mul__",
        "__truediv__",
        "__mod__",
        "__eq__",
        "__lt__",
        "__ge__",
        "__and__",
        "__or__",
        "__radd__",
        "isin",
        "cast",
        "try_cast",
        "same_as",
        "field",
        "alias",
    ):
        yield Call(f"Expr.{name}", lambda name=name: getattr(col("n"), name), {})  # type: ignore[misc]
        yield Call(f"Expr.{name}, text", lambda name=name: getattr(col("user"), name), {})  # type: ignore[misc]
    yield from _expressions()
    yield Call("changes", lambda: compat.changes, {"results": pa.table({"n": [1]})})
    yield Call("fold", lambda: compat.fold, {"log": [compat.Emit({"n": 1})]})
    yield Call("stream_of", lambda: stream_of, {"schema": SCHEMA})


_COLUMNS: dict[type, Any] = {str: col("user"), int: col("n"), float: col("amount"), bool: col("flag")}


def _methods() -> Iterator[Call]:
    """Functions as methods, with the arguments that their examples have, of a column where the example has a constant."""
    for known in FUNCTIONS.values():
        if known.method is None:
            continue
        (call,) = (e for e in walk(parse_expr(known.example[0])) if isinstance(e, Func) and e.name == known.name)
        subject, others = call.args[known.subject], [a for i, a in enumerate(call.args) if i != known.subject]
        subject = _COLUMNS.get(type(subject.value), subject) if isinstance(subject, Lit) else subject
        names = inspect.signature(getattr(subject, known.method)).parameters
        if not names:
            continue
        good = dict(zip(names, map(_plain, others), strict=False))
        yield Call(f"Expr.{known.method}", functools.partial(getattr, subject, known.method), good)


def _plain(arg: Any) -> Any:
    """An argument as a user writes it: constants and functions as Python's."""
    if isinstance(arg, Lambda):
        return eval(f"lambda {', '.join(arg.params)}: body", {"body": arg.body})
    return arg.value if isinstance(arg, Lit) else arg


def _expressions() -> Iterator[Call]:
    """Functions as methods, and those of several values."""
    yield from _methods()
    yield Call("Expr.between", lambda: col("n").between, {"low": 0, "high": 5})
    yield Call("when", lambda: kv.when, {"condition": col("flag"), "value": 1})
    yield Call("when.when", lambda: kv.when(col("flag"), 1).when, {"condition": col("flag"), "value": 1})
    yield Call("when.otherwise", lambda: kv.when(col("flag"), 1).otherwise, {"value": 2})
    for name in ("coalesce", "greatest", "least", "concat"):
        both = {"a": col("user"), "b": "b"}
        yield Call(name, lambda name=name: lambda a, b: getattr(kv, name)(a, b), both)  # type: ignore[misc]


def _values() -> Iterator[Call]:
    spec = kv.WatermarkSpec.fixed_lag(5)
    yield Call("WatermarkSpec", lambda: kv.WatermarkSpec, {"lag_us": 5_000})
    yield Call("WatermarkSpec.fixed_lag", lambda: kv.WatermarkSpec.fixed_lag, {"lag": 5})
    yield Call("WatermarkSpec.fixed_lag_ms", lambda: kv.WatermarkSpec.fixed_lag_ms, {"lag_ms": 5})
    yield Call("compat.fixed_lag_ms", lambda: compat.fixed_lag_ms, {"lag_ms": 5})
    yield Call("compat.sliding_window", lambda: compat.sliding_window, {"stream": timed(), "size": 10_000, "slide": 5_000})
    yield Call("compat.try_add", lambda: compat.try_add, {"driver": bounded_sessions(), "row": dict(ROWS[0])})
    yield Call("MultiSourceWatermarkSpec", lambda: kv.MultiSourceWatermarkSpec, {"sources": (("a", spec),)})
    yield Call("MultiSourceWatermarkSpec.new", lambda: kv.MultiSourceWatermarkSpec.new, {})
    yield Call("MultiSourceWatermarkSpec.source", lambda: kv.MultiSourceWatermarkSpec.new().source, {"name": "a", "spec": spec})
    several = kv.MultiSourceWatermarkSpec.new().source("a", spec)
    yield Call("MultiSourceWatermarkSpec.idle_timeout", lambda: several.idle_timeout, {"timeout": 5})
    yield Call("MultiSourceWatermarkSpec.unknown", lambda: several.unknown, {"action": "register", "spec": spec})
    yield Call("SlidingWindows", lambda: kv.SlidingWindows, {"size_us": 5_000})
    yield Call("SlidingWindows.of", lambda: kv.SlidingWindows.of, {"size": 5})
    yield Call("SlidingWindows.grace", lambda: kv.SlidingWindows.of(5).grace, {"after_window_end": 5})
    yield Call("SlidingWindows.windows_for", lambda: kv.SlidingWindows.of(5).windows_for, {"timestamp": 5})
    yield Call("TimeIntervalWindowOptions", lambda: kv.TimeIntervalWindowOptions, {"interval_duration": 10.0})
    yield Call("Trigger", lambda: kv.Trigger, {})
    yield Call("Trigger.on_count", lambda: kv.Trigger.on_count, {"n": 2})
    yield Call("Trigger.on_interval", lambda: kv.Trigger.on_interval, {"interval": 5})
    yield Call("Trigger.when", lambda: kv.Trigger.when, {"trigger": Grown()})
    yield Call("Interval", lambda: kv.Interval, {"period_us": 5})
    yield Call("Interval.of", lambda: kv.Interval.of, {"period": 5})
    yield Call("StateTtlConfig", lambda: kv.StateTtlConfig, {"ttl": 5, "on_expiry": "keep"})
    yield Call("StateTtlConfig, ms", lambda: kv.StateTtlConfig, {"ttl_ms": 5})
    yield Call("Batches", lambda: kv.Batches, {})
    yield Call("Batches.every", lambda: kv.Batches.every, {"interval": 5})
    yield Call("Batches.available_now", lambda: kv.Batches.available_now, {})
    yield Call("Batches.target", lambda: kv.Batches.target, {"duration": 5, "max_rows": 5, "max_bytes": 5})
    yield Call("ParquetSink", lambda: kv.ParquetSink, {"path": "out"})
    yield Call("JsonSink", lambda: kv.JsonSink, {"path": "out"})
    yield Call("KafkaSink", lambda: kv.KafkaSink, {"topic": "out", "bootstrap_servers": "localhost:1"})
    yield Call("PostgresSink", lambda: kv.PostgresSink, {"conninfo": "host=h", "table": "t"})
    yield Call("SqliteSink", lambda: kv.SqliteSink, {"path": "out.db", "table": "t"})
    yield Call("DeltaSink", lambda: kv.DeltaSink, {"path": "out"})
    yield Call("IcebergSink", lambda: kv.IcebergSink, {"table": "ns.t", "catalog": {"type": "in-memory"}})
    yield Call("ConsoleSink", lambda: kv.ConsoleSink, {})
    yield Call("MemorySink", lambda: kv.MemorySink, {})
    yield Call("MemorySink.put", lambda: kv.MemorySink().put, {"batch_id": 0, "tables": [pa.table({"n": [1]})]})
    yield Call("ForeachBatchSink", lambda: kv.ForeachBatchSink, {"function": print})
    yield Call("SideOutputLateEventHandler", lambda: kv.SideOutputLateEventHandler, {"sink": kv.MemorySink()})
    yield Call("CountingLateEventHandler", lambda: kv.CountingLateEventHandler, {})
    yield Call("CountByKeyLateEventHandler", lambda: kv.CountByKeyLateEventHandler, {})
    yield Call("AggCall.alias", lambda: count().alias, {"name": "n"})
    yield Call("AggCall.filter", lambda: count().filter, {"condition": "at > 3"})
    yield Call("AggCall.over", lambda: lambda size: timed().lookback_window("1 h").agg(count().over(size)), {"size": 5})
    yield Call("MultiSourceWatermarkSpec.idle_advance", lambda: several.idle_advance, {"after": 5})
    yield Call("MultiSourceWatermarkSpec.max_drift", lambda: lambda drift: several.max_drift(drift)._describe(), {"drift": 5})
    yield Call("classify", lambda: compat.classify, {"row_time": 5, "watermark": 10})
    yield Call(
        "lateness_profile", lambda: kv.lateness_profile, {"rows": [{"at": 1, "came": 2}], "time": "at", "arrival": "came"}
    )
    yield Call(
        "lateness_profile, by", lambda: kv.lateness_profile, {"rows": [{"at": 1}], "time": "at", "order": "at", "by": "at"}
    )
    profile = kv.lateness_profile([{"at": 1}], "at")
    yield Call("LatenessProfile.smallest_lag", lambda: profile.smallest_lag, {"loses_at_most": 0.5})
    yield Call("table_view", lambda: kv.table_view, {"results": pa.table({"window_end": [1], "n": [1]})})
    yield Call("record_late_drop", lambda: kv.CountingLateEventHandler().record_late_drop, {})
    yield Call("SourceTracker", lambda: compat.SourceTracker, {"sources": "a"})
    yield Call("SourceTracker.advance", lambda: compat.SourceTracker("a").advance, {"source": "a", "to": 5})
    yield Call("triggerable_windows", lambda: compat.SourceTracker("a").triggerable_windows, {"windows": [(0, 5)]})


def _stages() -> Iterator[Call]:
    spec = kv.WatermarkSpec.fixed_lag(5)
    many = kv.MultiSourceWatermarkSpec.new().source("a", spec)
    yield Call("Stream.expect", lambda: stream().expect, {"condition": "at > 3", "on_fail": "drop", "name": "n"})
    yield Call("TimedStream.expect", lambda: timed().expect, {"condition": "at > 3", "on_fail": "side_output"})
    yield Call("ResultStream.expect", lambda: aggregated().expect, {"condition": "count > 0"})
    yield Call("udf", lambda: kv.udf, {"result_type": "double", "over": "numpy"})
    yield Call("ColumnFunction", lambda: kv.udf("double")(print), {"columns": "at"})
    yield Call("Stream.select", lambda: stream().select, {"columns": "at"})
    yield Call("Stream.filter", lambda: stream().filter, {"condition": "at > 3"})
    yield Call("Stream.with_column", lambda: stream().with_column, {"name": "x", "value": "at + 1"})
    yield Call("Stream.split", lambda: stream().split, {"conditions": "at > 3"})
    yield Call("Stream.to", lambda: stream().to, {"sink": kv.MemorySink(), "name": "x"})
    yield Call("Output", lambda: kv.Output, {"stream": aggregated(), "sink": kv.MemorySink(), "name": "x"})
    yield Call("ResultStream.to", lambda: aggregated().to, {"sink": kv.MemorySink(), "name": "x"})
    yield Call("Driver, several outputs", lambda: lambda outputs: Driver(outputs), {"outputs": [stream().to(kv.MemorySink())]})
    yield Call("Driver.state", lambda: Driver(aggregated()).state, {"stage": None})
    yield Call("Session.start", lambda: kv.Session(None).start, {"outputs": []})  # type: ignore[arg-type]
    yield Call("Stream.rename", lambda: stream().rename, {"names": "x"})
    yield Call("Stream.drop", lambda: stream().drop, {"columns": "user"})
    yield Call("Stream.map_batches", lambda: lambda schema: stream().map_batches(_declared(schema), schema), {"schema": None})
    yield Call("Stream.watermark", lambda: stream().watermark, {"column": "at", "lag": 5})
    yield Call("Stream.processing_time", lambda: stream().processing_time, {"name": "arrived"})
    yield Call("KeyedUntimedStream.processing_time", lambda: stream().key_by("user").processing_time, {"name": "arrived"})
    yield Call("Stream.with_watermark", lambda: stream().with_watermark, {"spec": spec, "column": "at"})
    yield Call(
        "Stream.with_watermark, several",
        lambda: stream().with_watermark,
        {"spec": many, "column": "at", "source_column": "user"},
    )
    yield Call("Stream.key_by", lambda: stream().key_by, {"keys": "user"})
    yield Call("KeyedUntimedStream.watermark", lambda: stream().key_by("user").watermark, {"column": "at", "lag": 5})
    yield Call(
        "KeyedUntimedStream.with_watermark", lambda: stream().key_by("user").with_watermark, {"spec": spec, "column": "at"}
    )
    yield Call("TimedStream.key_by", lambda: timed().key_by, {"keys": "user"})
    yield Call("Stream.key_by, computed", lambda: stream().key_by, {"keys": col("user").lower(), "shop": "upper(user)"})
    yield Call("TimedStream.key_by, computed", lambda: timed().key_by, {"keys": col("user").lower(), "shop": "upper(user)"})
    yield from _windows()
    for stage in (timed, windowed, aggregated):
        yield from _options(stage)
    other: dict[str, Any] = {
        "right": timed(),
        "on": "user",
        "lower": -5,
        "upper": 5,
        "max_rows_per_key": 3,
        "how": "inner",
        "suffixes": ("", "_right"),
    }
    yield Call("interval_join", lambda: timed().interval_join, other)
    near = {"right": timed(), "on": "user", "direction": "nearest", "tolerance": 5, "how": "left", "suffixes": ("", "_right")}
    yield Call("asof_join", lambda: timed().asof_join, near)
    versions = {"table": timed().latest("user", "n"), "on": "user", "how": "left", "table_clock": "left", "idle_timeout": 5}
    yield Call("versioned_join", lambda: timed().versioned_join, {**versions, "suffixes": ("", "_right")})
    rules = {"rules": timed().latest("n", "at"), "condition": "user", "how": "left", "columns": ["user"]}
    yield Call("with_rules", lambda: timed().with_rules, rules)
    same = {"right": timed(), "on": "user", "window": windows.tumbling(5), "how": "full", "suffixes": ("", "_right")}
    yield Call("window_join", lambda: timed().window_join, same)
    table = {"right": stream(), "on": "user", "how": "full", "suffixes": ("", "_right")}
    yield Call("Stream.join", lambda: stream().select("user", "n").join, table)
    yield Call("join, results", lambda: aggregated().join, {"right": stream(), "on": "user"})
    log = {"format": "log", "key": "n", "sequence": "at", "tombstones": 5, "op": "user", "ops": {"ins": "+I"}}
    yield Call("from_changelog", lambda: stream().from_changelog, {**log, "stale": "side_output", "changes": "each"})
    yield Call("to_changelog", lambda: stream().agg(count()).to_changelog, {"op": "kind"})
    yield Call("union, tables", lambda: stream().agg(count()).union, {"other": stream().agg(count())})
    yield Call("ResultStream.distinct", lambda: stream().agg(count()).distinct, {})
    history = {"valid_from": "since", "valid_to": "until"}
    yield Call("history", lambda: timed().latest("user", "n").history, history)
    yield Call("latest", lambda: stream().latest, {"key": "user", "by": "at"})
    yield Call("Stream.agg", lambda: stream().agg, {"aggs": count(), "changes": "each"})
    yield Call("KeyedStream.agg", lambda: timed().key_by("user").agg, {"aggs": count(), "changes": "each"})
    yield Call("KeyedUntimedStream.agg", lambda: stream().key_by("user").agg, {"aggs": count(), "changes": "each"})
    first = {"n": 2, "by": "n", "smallest": True, "rank": "place"}
    yield Call("KeyedUntimedStream.top_rows", lambda: stream().key_by("user").top_rows, first)
    yield Call("KeyedStream.top_rows", lambda: timed().key_by("user").top_rows, first)
    yield Call("Stream.top_rows", lambda: stream().top_rows, first)
    yield Call("lookup_join", lambda: stream().lookup_join, {"table": pa.table({"user": ["a"], "city": ["b"]}), "on": "user"})
    yield Call("ResultStream.explain", lambda: timed().interval_join(**other).explain, {})
    yield Call("WindowedStream.agg", lambda: windowed().agg, {"aggs": count()})
    yield Call("WindowedStream.collect_with_aggs", lambda: windowed().collect_with_aggs, {"aggs": [count()]})
    yield Call("LookBackStream.pairs", lambda: timed().lookback_window(5).pairs, {})
    panes = timed().time_interval_window(kv.TimeIntervalWindowOptions(10.0))
    yield Call("PaneStream.on_events", lambda: lambda h: panes.on_events(h), {"h": compat.PaneHandler()})
    given = {"aggs": (), "submits": None}
    yield Call("on_events, more", lambda: lambda aggs, submits: panes.on_events(Kept(), aggs=aggs, submits=submits), given)
    yield Call("drop_duplicates", lambda: timed().drop_duplicates, {"columns": "user", "within": 5})
    logic = {"function": doubled, "returns": "twice bigint", "state": Counted, "order": "time", "order_by": "n", "version": "1"}
    yield Call("process", lambda: timed().key_by("user").process, {**logic, "ttl": 5, "at_end": "seen", "on_error": "fail"})
    timed_results = {"function": later, "returns": "twice bigint, due bigint", "event_time": "due"}
    yield Call("process, event_time", lambda: timed().key_by("user").process, timed_results)
    one, two = kv.step("one", "n > 1"), kv.step("two", kv.col("n") > kv.last("one.n"))
    found = {"pattern": one.then(two), "measures": kv.count("one").alias("ones"), "within": 5, "skip": "next_row"}
    yield Call("match", lambda: timed().key_by("user").match, {**found, "rows": "all", "order_by": "n", "at_end": "seen"})
    limits = {"pattern": one, "within": 5, "timeouts": "side_output", "max_rows_per_key": 5}
    yield Call("match, limits", lambda: timed().key_by("user").match, limits)
    rows_before = {"order_by": "n", "before": kv.prev("n")}
    yield Call("with_previous", lambda: with_rows_before, rows_before)
    yield Call("step", lambda: kv.step, {"name": "one", "condition": "n > 1"})
    yield Call("absent, pattern", lambda: kv.absent, {"condition": "n > 1", "within": 5})
    before = {"arg": "n", "rows": 2}
    yield Call("next", lambda: lambda arg, rows: with_rows_before(before=kv.next(arg, rows)), {"arg": "n", "rows": 2})
    yield Call("prev", lambda: lambda arg, rows: timed().key_by("user").match(kv.step("s", kv.prev(arg, rows) > 1)), before)
    at_two = {"name": "two"}
    yield Call("to_first", lambda: lambda name: timed().key_by("user").match(one.then(two), skip=kv.to_first(name)), at_two)
    yield Call("to_last", lambda: lambda name: timed().key_by("user").match(one.then(two), skip=kv.to_last(name)), at_two)
    yield Call("Pattern.then", lambda: one.then, {"other": two})
    yield Call("Pattern.followed_by", lambda: one.followed_by, {"other": two})
    yield Call("Pattern.without", lambda: one.without, {"condition": "n > 1", "within": 5})
    yield Call("Pattern.times", lambda: one.times, {"least": 2, "most": 3})
    yield Call("Pattern.at_least", lambda: one.at_least, {"least": 2})
    yield Call("Pattern.one_or_more", lambda: one.one_or_more, {})
    yield Call("Pattern.zero_or_more", lambda: one.zero_or_more, {})
    yield Call("Pattern.optional", lambda: one.optional, {})
    yield Call("Pattern.reluctant", lambda: one.optional().reluctant, {})
    absent = {"after": 5, "repeat": 5, "recovered": True, "forget_after": 50, "at_end": "seen"}
    absent |= {"expected": ["a", "b"], "start": 5, "clock": "both"}
    yield Call("absent", lambda: timed().key_by("user").absent, absent)
    both = kv.connect(a=timed().key_by("user"), b=timed().key_by("user"))
    logic_of_both = {"function": doubled, "returns": "twice bigint"}
    yield Call(
        "ConnectedStream.process", lambda: lambda function, returns: both.process(function, returns=returns), logic_of_both
    )
    yield Call("connect", lambda: lambda a, b: kv.connect(a=a, b=b), {"a": timed().key_by("user"), "b": timed().key_by("user")})
    yield Call("Context", lambda: kv.Context, {"key": "a", "time": 5})
    yield Call("Context.timer", lambda: kv.Context("a", 5).timer, {"name": "idle", "after": 5})
    yield Call("Context.timer, at", lambda: kv.Context("a", 5).timer, {"name": "idle", "at": 5})
    yield Call("Context.cancel", lambda: kv.Context("a", 5).cancel, {"name": "idle", "clock": "event"})
    yield Call("Context.refuse", lambda: kv.Context("a", 5).refuse, {"row": {"n": 1}, "reason": "odd"})
    yield Call("RoundContext.timer", lambda: kv.RoundContext().timer, {"name": "idle", "after": 5})
    yield Call("RoundContext.timer, at", lambda: kv.RoundContext().timer, {"name": "idle", "at": 5})
    yield Call("RoundContext.cancel", lambda: kv.RoundContext().cancel, {"name": "idle"})
    yield Call("RoundContext.forget", lambda: kv.RoundContext().forget, {"where": None})
    yield Call("RoundContext.refuse", lambda: kv.RoundContext().refuse, {"reason": "odd"})
    yield Call("drop_duplicates, results", lambda: aggregated().drop_duplicates, {"columns": "user", "within": 5})
    yield Call("WindowedStream.reduce", lambda: windowed().reduce, {"column": "n", "function": larger})
    yield from _results()
    yield Call("Driver.close_key", lambda: bounded_sessions().close_key, {"key": "a", "stage": None})
    yield Call("Driver.close_windows_up_to", lambda: driver().close_windows_up_to, {"to": 5})
    yield Call("Driver.try_add", lambda: bounded_sessions().try_add, {"row": dict(ROWS[0])})
    yield Call("ResultStream.run", lambda: aggregated().run, {})
    yield Call("ResultStream.collect", lambda: aggregated().collect, {})
    yield Call("ResultStream.collect_with_aggs", lambda: aggregated().collect_with_aggs, {"aggs": [count()]})
    yield Call("ResultStream.start", lambda: aggregated().start, {"sink": kv.MemorySink()})
    handed = {"checkpoint": "x", "watermark": 0, "clean": False, "batches": kv.Batches.available_now(), "name": "x"}
    yield Call("ResultStream.to_dataframe", lambda: aggregated().to_dataframe, handed)


class Kept(compat.PaneHandler):
    """Keeps what it is given."""


def larger(one: Any, other: Any) -> Any:
    """The larger of two values."""
    return one if one > other else other


def bounded_sessions() -> Driver:
    """A driver of sessions, which are kept by key."""
    return Driver(timed().key_by("user").session_window(5, max_duration=100).agg(count()))


def _results() -> Iterator[Call]:
    """Steps and a stage after results."""
    yield Call("ResultStream.select", lambda: aggregated().select, {"columns": "user"})
    yield Call("ResultStream.filter", lambda: aggregated().filter, {"condition": "count > 1"})
    yield Call("ResultStream.with_column", lambda: aggregated().with_column, {"name": "x", "value": "count + 1"})
    yield Call("ResultStream.rename", lambda: lambda n: aggregated().rename(user=n), {"n": "who"})
    yield Call("ResultStream.drop", lambda: aggregated().drop, {"columns": "user"})
    yield Call("ResultStream.map_batches", lambda: _emptied, {"schema": None})
    yield Call("ResultStream.key_by", lambda: aggregated().key_by, {"keys": "user"})
    yield Call("ResultStream.watermark", lambda: aggregated().watermark, {"column": "window_time", "lag": 5})
    listed = windowed().agg(kv.top_k(2, "n").alias("top")).results()
    yield Call("ResultStream.unnest", lambda: listed.unnest, {"column": "top", "rank": "place", "outer": True})
    yield Call("WindowedStream.top_rows", lambda: windowed().top_rows, {"k": 2, "by": "n", "columns": "amount"})
    yield Call("ResultStream.named", lambda: aggregated().named, {"name": "per_minute"})
    yield Call("ResultStream.tumbling_window", lambda: aggregated().tumbling_window, {"size": 20_000})
    yield Call("ResultStream.session_window", lambda: aggregated().session_window, {"gap": 20_000})


class Days(kv.WindowAssigner):
    """A user's windows."""

    longest = "1 day"

    def assign(self, times: Any) -> Any:
        """UTC days."""
        starts = times - times % 86_400_000_000
        return starts, starts + 86_400_000_000


def _windows() -> Iterator[Call]:
    yield Call("window", lambda: timed().window, {"spec": Days()})
    yield Call("window, value", lambda: timed().window, {"spec": kv.SlidingWindows.of(5)})
    zoned = {"unit": "week", "time_zone": "Europe/Berlin", "every": 2, "week_start": "sunday", "offset": "6 hours"}
    yield Call("calendar_window", lambda: kv.calendar_window, zoned)
    yield Call("tumbling_window", lambda: timed().tumbling_window, {"size": 10_000})
    yield Call("hopping_window", lambda: timed().hopping_window, {"size": 10_000, "slide": 5_000})
    yield Call("sliding_window", lambda: timed().sliding_window, {"size": 10_000, "slide": 5_000})
    yield Call("lookback_window", lambda: timed().lookback_window, {"size": 10_000})
    yield Call("cumulate_window", lambda: timed().cumulate_window, {"step": 5_000, "size": 10_000})
    yield Call("session_window", lambda: timed().session_window, {"gap": 10_000})
    yield Call("count_window", lambda: timed().count_window, {"size": 2})
    yield Call("windowed_by", lambda: timed().windowed_by, {"windows": kv.SlidingWindows.of(5)})
    yield Call("time_interval_window", lambda: timed().time_interval_window, {"options": kv.TimeIntervalWindowOptions(10.0)})


def _options(stage: Callable[[], Any]) -> Iterator[Call]:
    good: dict[str, dict[str, Any]] = {
        "preset": {"name": "flink"},
        "allowed_lateness": {"lateness": 5},
        "late_rule": {"rule": "window"},
        "null_keys": {"where": "group"},
        "emit": {"mode": "updates"},
        "trigger": {"trigger": kv.Trigger.on_count(2)},
        "accumulation": {"mode": "discarding"},
        "future_tolerance": {"tolerance": 5},
        "with_state_ttl": {"config": kv.StateTtlConfig(3_600_000)},
        "with_late_event_handler": {"handler": kv.CountingLateEventHandler()},
        "max_listed": {"values": 1_000},
    }
    for name, given in good.items():
        yield Call(f"{stage.__name__}.{name}", lambda name=name: getattr(stage(), name), given)  # type: ignore[misc]


def _declared(schema: object) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function whose batches have the columns of a schema: more are refused when it runs."""
    return (lambda batch: batch.select(schema.names)) if isinstance(schema, pa.Schema) else _same


def _emptied(schema: object) -> Any:
    """Return results whose columns are those of a schema, all null."""

    def nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not isinstance(schema, pa.Schema):
            return batch
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, f.type) for f in schema], schema=schema)

    return aggregated().map_batches(nulls, schema)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _inside(path: Any) -> Any:
    """Return a text as a new folder that is not the one the tests run in."""
    return f"{tempfile.mkdtemp()}/savepoint{path.encode('utf-8', 'replace').hex()[:40]}" if isinstance(path, str) else path


@functools.cache
def captured() -> str:
    """Make a capture without batches of the aggregated stream."""
    plan, folder = aggregated(), tempfile.mkdtemp() + "/capture"
    made = plan._plan()
    sources = [names_of(read) for read in made.reads]
    OpenCapture(folder, made.fingerprint, sources, [], {}, True, "checkpoint").close()
    return folder


def _running() -> Iterator[Call]:
    yield Call("Capture", lambda: Capture, {"path": captured(), "stream": aggregated()})
    yield Call("Capture.compare", lambda: Capture(captured(), aggregated()).compare, {"old": aggregated(), "new": aggregated()})
    yield Call("Capture.what_if", lambda: Capture(captured(), aggregated()).what_if, {"lag": ["5 s"]})
    yield Call("Capture.why", lambda: Capture(captured(), aggregated()).why, {"key": "a", "time": 5_000})
    yield Call("Driver.from_capture", lambda: Driver.from_capture, {"path": captured(), "stream": aggregated()})
    yield Call("Driver", lambda: Driver, {"stream": aggregated()})
    yield Call("Driver.send", lambda: driver().send, {"rows": ROWS})
    yield Call("Driver.advance_watermark", lambda: driver().advance_watermark, {"to": 5_000})
    yield Call("Driver.lateness", lambda: driver().lateness, {"stage": "window-aggregate"})
    yield Call("Driver.expect_lateness", lambda: driver().expect_lateness, {"profile": kv.lateness_profile([{"at": 1}], "at")})
    yield Call("Driver.savepoint", lambda: lambda path: driver().savepoint(_inside(path)), {"path": "savepoint"})
    yield Call("Driver.why", lambda: driver().why, {"time": 5_000})
    yield Call("Driver.why_not_fired", lambda: driver().why_not_fired, {"window_end": 5_000})
    yield Call("ManualClock", lambda: ManualClock, {})
    yield Call("ManualClock.advance", lambda: ManualClock().advance, {"by": 5})
    yield Call("ManualClock.set", lambda: ManualClock().set, {"to": 5})
    yield Call(
        "SqlContext.register",
        lambda: SqlContext().register,
        {"name": "events", "stream": stream(), "event_time": "at", "lag": 0},
    )
    yield Call("SqlContext.sql_outputs", lambda: sql().sql_outputs, {"text": "INSERT INTO a SELECT * FROM events"})
    yield Call("SqlContext.register_sink", lambda: sql().register_sink, {"name": "a", "sink": kv.MemorySink()})
    yield Call("SqlContext.sql", lambda: sql().sql, {"text": "SET watermark.lag = INTERVAL '5' SECOND"})


CALLS = {call.name: call for call in (*_functions(), *_values(), *_stages(), *_running())}
