"""Hand-written ``transformWithStateInPandas`` keyed by user, as Spark's guide has it: a processor per job, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.jobs import JOBS
from benchmarks.peers.common import Task, run, unsupported
from benchmarks.peers.native_spark import read, session

NAME = "tws_pandas"
WINDOW = "user_id BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, count BIGINT, sum_amount BIGINT"
SESSION_MS, LOOKBACK_MS = JOBS["J3"].size_ms, JOBS["J4"].size_ms
TUMBLING_MS, LATENESS_MS = JOBS["J5"].size_ms, JOBS["J5"].allowed_lateness_ms


def micros(times: pd.Series[Any]) -> list[int]:
    """Microseconds since the epoch."""
    return [int(value) for value in times.astype("datetime64[us]").astype("int64")]


def stamps(values: Sequence[int]) -> pd.Series[Any]:
    """The way back, as Spark takes it."""
    return pd.Series(pd.to_datetime(list(values), unit="us"))


def events(rows: Iterator[pd.DataFrame]) -> list[tuple[int, int]]:
    """Times and amounts of the rows of a key, in time order."""
    return sorted(pair for frame in rows for pair in zip(micros(frame["event_time"]), frame["amount"].tolist(), strict=True))


class Sessions(StatefulProcessor):
    """J3: open sessions of a key as a list state, a timer per end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.open = handle.getListState("open", "s BIGINT, e BIGINT, n BIGINT, a BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Merge the rows into the open sessions."""
        held = [(row[0], row[1], row[2], row[3]) for row in self.open.get()]
        before = {item[1] for item in held}
        fresh = [(t, t + SESSION_MS * 1_000, 1, amount) for t, amount in events(rows)]
        merged: list[tuple[int, int, int, int]] = []
        for s, e, n, a in sorted(held + fresh):
            if merged and s < merged[-1][1]:
                s0, e0, n0, a0 = merged.pop()
                s, e, n, a = s0, max(e, e0), n + n0, a + a0
            merged.append((s, e, n, a))
        self.open.put(merged)
        after = {item[1] for item in merged}
        for end in before - after:
            self.handle.deleteTimer(-(-end // 1_000))
        for end in after - before:
            self.handle.registerTimer(-(-end // 1_000))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Emit what has ended."""
        now = expiredTimerInfo.getExpiryTimeInMs() * 1_000
        held = list(self.open.get())
        done = [item for item in held if item[1] <= now]
        left = [item for item in held if item[1] > now]
        if left:
            self.open.put([tuple(item) for item in left])
        else:
            self.open.clear()
        yield frame(key[0], done)


def frame(user_id: int, done: Sequence[Any]) -> pd.DataFrame:
    """Result rows of windows ``(s, e, n, a)``."""
    return pd.DataFrame(
        {
            "user_id": [user_id] * len(done),
            "window_start": stamps([item[0] for item in done]),
            "window_end": stamps([item[1] for item in done]),
            "count": [item[2] for item in done],
            "sum_amount": [item[3] for item in done],
        }
    )


class Lookback(StatefulProcessor):
    """J4: the rows of the last 30 s and those not emitted yet, as a list state; a timer at the first of these."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.rows = handle.getListState("rows", "t BIGINT, amount BIGINT")
        self.emitted = handle.getValueState("emitted", "t BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Keep the rows, ask to be called when the first of them is final."""
        fresh = events(rows)
        self.rows.appendList(fresh)
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(fresh[0][0] // 1_000 + 1)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Emit every row before the watermark over the 30 s that end with it."""
        now = timerValues.getCurrentWatermarkInMs() * 1_000
        last = (self.emitted.get() or (-(2**62),))[0]
        held = sorted((row[0], row[1]) for row in self.rows.get())
        out: list[tuple[int, int, int, int]] = []
        low = high = total = 0
        for t, _ in held:
            if t >= now:
                break
            while high < len(held) and held[high][0] <= t:
                total += held[high][1]
                high += 1
            while held[low][0] < t - LOOKBACK_MS * 1_000:
                total -= held[low][1]
                low += 1
            if t > last:
                out.append((t, t, high - low, total))
        left = [row for row in held if row[0] >= now - LOOKBACK_MS * 1_000]
        pending = [row for row in left if row[0] >= now]
        if left:
            self.rows.put(left)
        else:
            self.rows.clear()
        if pending:
            self.handle.registerTimer(pending[0][0] // 1_000 + 1)
        self.emitted.update((now - 1,))
        yield frame(key[0], out).rename(columns={"window_end": "event_time"})[["user_id", "event_time", "count", "sum_amount"]]


class Retractions(StatefulProcessor):
    """J5: windows of a key as a map state. Spark's watermark lies 60 s back, so that it lets mildly late rows pass."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.windows = handle.getMapState("windows", "s BIGINT", "n BIGINT, a BIGINT, fired BOOLEAN")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the rows; correct the windows that fired already."""
        size, watermark = TUMBLING_MS * 1_000, (timerValues.getCurrentWatermarkInMs() + LATENESS_MS) * 1_000
        sums: dict[int, tuple[int, int]] = {}
        for t, amount in events(rows):
            n, a = sums.get(t - t % size, (0, 0))
            sums[t - t % size] = (n + 1, a + amount)
        log: list[tuple[str, int, int, int]] = []
        for s, (n, a) in sums.items():
            n0, a0, fired = self.windows.getValue((s,)) or (0, 0, False)
            if n0 == 0:
                for delay_ms in (0, LATENESS_MS):
                    self.handle.registerTimer((s + size) // 1_000 - LATENESS_MS + delay_ms)
            if fired:
                log += [("-U", s, n0, a0), ("+U", s, n0 + n, a0 + a)]
            elif s + size <= watermark and timerValues.getCurrentWatermarkInMs() > 0:
                log.append(("+I", s, n0 + n, a0 + a))
                fired = True
            self.windows.updateValue((s,), (n0 + n, a0 + a, fired))
        if log:
            yield self.changes(key[0], log)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Fire the window that ended, drop the one that may change no more."""
        end_ms = expiredTimerInfo.getExpiryTimeInMs() + LATENESS_MS
        first, gone = (end_ms - TUMBLING_MS) * 1_000, (end_ms - LATENESS_MS - TUMBLING_MS) * 1_000
        n, a, fired = self.windows.getValue((first,)) or (0, 0, True)
        if not fired:
            self.windows.updateValue((first,), (n, a, True))
            yield self.changes(key[0], [("+I", first, n, a)])
        if self.windows.containsKey((gone,)):
            self.windows.removeKey((gone,))

    def changes(self, user_id: int, log: Sequence[tuple[str, int, int, int]]) -> pd.DataFrame:
        """Rows of the log."""
        rows = frame(user_id, [(s, s + TUMBLING_MS * 1_000, n, a) for _, s, n, a in log])
        rows.insert(0, "op", [item[0] for item in log])
        return rows


PROCESSORS: dict[str, tuple[type[StatefulProcessor], str]] = {
    "J3": (Sessions, WINDOW),
    "J4": (Lookback, "user_id BIGINT, event_time TIMESTAMP, count BIGINT, sum_amount BIGINT"),
    "J5": (Retractions, f"op STRING, {WINDOW}"),
}


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    job = task.job
    if job.name not in PROCESSORS:
        raise unsupported(NAME, job, "compared for J3, J4 and J5 alone")
    processor, schema = PROCESSORS[job.name]
    spark = session(task)
    stream = read(spark, task).withWatermark("event_time", f"{job.lag_ms + job.allowed_lateness_ms} milliseconds")
    result = stream.groupBy("user_id").transformWithStateInPandas(processor(), schema, "Append", "EventTime")
    writer = result.writeStream.format("parquet").outputMode("append").option("checkpointLocation", str(task.checkpoint))
    writer.trigger(availableNow=True).start(str(task.out)).awaitTermination()
    spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
