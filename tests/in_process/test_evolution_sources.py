"""Sources are added and removed over a savepoint, one becomes several and several one (SEMANTICS §12.4).

The reference goes through the rows one by one: the watermark waits for an added source, no longer for a
removed one, and never moves back.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import MemorySink, MultiSourceWatermarkSpec, Session, WatermarkSpec, count
from krishiv_py.testing import Driver, stream_of, union_of
from tests.in_process.test_evolution import Rows, plainly

DDL = "user string, at bigint, amount bigint"
LAGS = {"a": 5_000, "b": 20_000, "c": 0, "": 10_000}
UNSET = float("-inf")
UNSET_US = -(2**63)
CHANGES = [
    *[("", "ab"), ("", "a"), ("ab", ""), ("a", ""), ("a", "ab"), ("ab", "a"), ("ab", "b")],
    *[("ab", "bc"), ("ab", "c"), ("abc", "b"), ("ab", "ba")],
]
"""The sources before and after; one without a name is a stream by itself."""


def timed(rows: Any, names: str, *, starts: bool = False) -> Any:
    """Rows of some sources, each by its own lag, which begin where a savepoint is, or unset."""
    specs = {name: WatermarkSpec.fixed_lag(LAGS[name], initial="savepoint" if starts else None) for name in names or [""]}
    if not names:
        return rows.with_watermark(specs[""], "at")
    several = MultiSourceWatermarkSpec.new()
    for name, spec in specs.items():
        several = several.source(name, spec)
    return rows.with_watermark(several, "at", source_column="source")


def minutes(rows: Any, names: str, *, starts: bool = False) -> Any:
    """How much came in each minute."""
    stream = timed(rows, names, starts=starts).key_by("user").tumbling_window(60_000)
    return stream.agg(count(), kv.sum("amount").alias("total")).named("minutes")


def rows_of(names: str) -> Any:
    """Rows of some sources for a driver."""
    return union_of({name: stream_of(DDL) for name in names}) if names else stream_of(DDL)


def sent(seed: int, names: str, n: int) -> list[dict[str, Rows]]:
    """Batches of some sources, some of which are silent now and then, and at different times."""
    chance, batches = random.Random(f"{seed} {names}"), list[dict[str, Rows]]()
    offsets = {name: chance.randrange(0, 60_000) for name in names or [""]}
    for batch in range(n):
        rows: dict[str, Rows] = {}
        for name in names or [""]:
            if chance.random() < 0.7:
                times = [batch * 25_000 + offsets[name] + chance.randrange(-20_000, 20_000) for _ in range(6)]
                rows[name] = [{"user": chance.choice("xyz"), "at": t, "amount": t % 1_000} for t in times]
        batches.append(rows)
    return batches


def shaped(batch: dict[str, Rows], names: str) -> Any:
    """A batch as a driver takes it."""
    return batch if names else batch.get("", [])


class Reference:
    """Judges rows one by one, and says what tumbling windows of a minute hold when they end."""

    def __init__(self, names: str) -> None:
        self.reached: dict[str, float] = {name: UNSET for name in names or [""]}
        self.watermark = UNSET
        self.open: dict[tuple[str, int], list[int]] = {}
        self.given: list[tuple[Any, ...]] = []
        self.late: list[tuple[Any, ...]] = []

    def change(self, names: str, *, starts: bool) -> None:
        """Other sources from now on."""
        self.reached = {name: self.reached.get(name, self.watermark if starts else UNSET) for name in names or [""]}
        self.settle()

    def settle(self) -> None:
        self.watermark = max(self.watermark, min(self.reached.values()))

    def send(self, batch: dict[str, Rows], *, end: bool = False) -> None:
        for row in (row for rows in batch.values() for row in rows):
            if row["at"] < self.watermark:
                self.late.append((row["user"], row["at"]))
            else:
                self.open.setdefault((row["user"], row["at"] // 60_000 * 60_000), []).append(row["amount"])
        self.fire(float("inf") if end else self.watermark)
        for name, rows in batch.items():
            self.reached[name] = max(self.reached[name], *(row["at"] - LAGS[name] for row in rows))
        self.settle()

    def fire(self, watermark: float) -> None:
        for (user, start), amounts in sorted(self.open.items()):
            if start + 60_000 <= watermark:
                self.given.append((user, start, len(amounts), sum(amounts)))
                del self.open[user, start]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(("was", "now"), CHANGES, ids=[f"{a or 'one'} to {b or 'one'}" for a, b in CHANGES])
def test_sources_become_others(was: str, now: str, starts: bool, tmp_path: Path) -> None:
    """Watermark, results and late rows are those of the reference, batch by batch, over a restart too."""
    for seed in range(3):
        first, reference = Driver(minutes(rows_of(was), was)), Reference(was)
        results, late = list[dict[str, Any]](), list[dict[str, Any]]()
        for batch in sent(seed, was, 4):
            out = first.send(shaped(batch, was))
            results, late = results + out.results.to_pylist(), late + out.late.to_pylist()
            reference.send(batch)
        plan = minutes(rows_of(now), now, starts=starts)
        driver = Driver(plan, savepoint=first.savepoint(str(tmp_path / f"{seed}"))).restarted()
        reference.change(now, starts=starts)
        for batch in sent(seed + 100, now, 5):
            out = driver.send(shaped(batch, now))
            results, late = results + out.results.to_pylist(), late + out.late.to_pylist()
            reference.send(batch)
            assert driver.watermark_us == (reference.watermark * 1_000 if reference.watermark != UNSET else driver.watermark_us)
        results += driver.close().results.to_pylist()
        reference.fire(float("inf"))
        assert plainly(results, "user", "window_start", "count", "total") == sorted(reference.given, key=repr)
        assert plainly(late, "user", "at") == sorted(reference.late, key=repr)


def read(session: Session, spools: Path, names: str) -> tuple[Any, dict[str, Any]]:
    """Rows of some memory streams, each of which lies in a folder of its own, and their senders."""
    made = {name: session.memory_stream(DDL, spool=str(spools / (name or "a"))) for name in names or [""]}
    streams = {name: stream for name, (stream, _) in made.items()}
    rows = session.union(streams) if names else streams[""]
    return rows, {name: sender for name, (_, sender) in made.items()}


@pytest.mark.parametrize(("was", "now"), [("", "ab"), ("ab", ""), ("a", "ab"), ("ab", "b"), ("ab", "bc"), ("abc", "ba")])
def test_each_source_goes_on_where_it_was(was: str, now: str, tmp_path: Path) -> None:
    """The stream without a name lies where ``a`` does: no row of it comes twice, and none is lost."""
    amounts: dict[str, int] = {}

    def fed(session: Session, names: str, number: int, **start: Any) -> list[dict[str, Any]]:
        rows, senders = read(session, tmp_path, names)
        stream = minutes(rows, names, starts=True)
        with stream.start(MemorySink(), checkpoint=str(tmp_path / f"c{number}"), **start) as query:
            for time in (1_000, 2_000):
                for name, sender in senders.items():
                    amounts[f"{name or 'a'}{number}{time}"] = amount = 1 << len(amounts)
                    sender.send([{"user": "x", "at": time, "amount": amount}])
                query.process_all_available()
            if number:
                for sender in senders.values():
                    sender.close()
                query.process_all_available()
            else:
                query.savepoint(str(tmp_path / "s"))
            return query.results().to_pylist()  # type: ignore[no-any-return]

    with Session.in_process() as session:
        assert fed(session, was, 0) == []
        rows, _ = read(session, tmp_path, now)
        listed = minutes(rows, now).explain(against=str(tmp_path / "s")).splitlines()
        before, after = set(was or "a"), set(now or "a")
        expected = [f"source {n}: added" for n in now if n not in before]
        expected += [f"source {n}: removed" for n in was if n not in after]
        assert [line.partition(" (")[0] for line in listed] == ["minutes: kept", *expected]
        (result,) = fed(session, now, 1, savepoint=str(tmp_path / "s"))
    assert result["total"] == sum(amounts.values())
    assert result["count"] == len(amounts)


@pytest.mark.parametrize("starts", [False, True])
def test_an_output_with_a_source_of_its_own_is_added(starts: bool, tmp_path: Path) -> None:
    """The stages that were there go on by their clock; the join waits for the new source, unless that begins where they are."""
    orders, rates = minutes(stream_of(DDL), ""), stream_of("user string, seen bigint")
    spec = WatermarkSpec.fixed_lag(0, initial="savepoint" if starts else None)
    seen = rates.with_watermark(spec, "seen").key_by("user")
    joined = orders.key_by("user").interval_join(seen, lower="-1 minute", upper="1 minute", how="left")
    outputs = [orders.to(MemorySink(), name="minutes"), joined.to(MemorySink(), name="joined")]
    first = Driver(outputs[:1])
    for time in (1_000, 50_000, 80_000, 100_000):
        first.send([{"user": "a", "at": time, "amount": 1}])
    path = first.savepoint(str(tmp_path / "s"))
    reached = first.watermark_us
    alone, both = Driver(outputs[:1], savepoint=path), Driver(outputs, savepoint=path).restarted()
    assert both.source_watermarks_us == {"left": reached, "right": reached if starts else UNSET_US}
    if starts:
        both.advance_watermark(400_000, source="right")
    came = 0
    for time in (110_000, 140_000, 200_000, 300_000):
        rows = [{"user": "a", "at": time, "amount": 1}]
        out, expected = both.send({"left": rows}), alone.send(rows)
        assert out.by_output["minutes"].to_pylist() == expected.results.to_pylist()
        came += out.by_output["joined"].num_rows
    assert came == (2 if starts else 0)
    assert both.close().by_output["joined"].num_rows == 4 - came
