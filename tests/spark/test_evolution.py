"""Each change of a plan, of every operator at once: a query of either engine goes on over a savepoint as the driver does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import pytest

from krishiv_py import MemorySink, Session, count
from krishiv_py.testing import Driver
from scripts.docs.changes import CHANGES, OPERATORS, Origin, answer, made

slow = pytest.mark.slow
Rows = list[dict[str, Any]]
Batch = dict[str, Rows]
"""Rows by the name of their stream."""
SHORT: Final = "discarding to accumulating"
"""The change that the ordinary run tries on Spark, with two operators: it rewrites their state."""
ALL: Final = [
    change
    if change in ("aggregates in another order", "key `int` to `bigint`", "trigger added", "one source to several")
    else pytest.param(change, marks=slow)
    for change in CHANGES
]


def batches(first: int, last: int) -> list[Batch]:
    """Half a minute a batch, out of order within the lag."""
    made_up = []
    for batch in range(first, last):
        times = [batch * 30_000 + place * 1_200 - (place % 3) * 1_500 for place in range(25)]
        rows = [{"k": batch * place % 4, "at": time, "v": batch * 100 + place} for place, time in enumerate(times)]
        others = [{"k": row["k"], "seen": row["at"] + 700} for row in rows[::3]]
        made_up.append({"events": rows, "others": others, "b": [{**row, "v": -row["v"]} for row in rows[::2]]})
    return made_up


EARLY, LATER = batches(1, 4), batches(4, 9)


class Streams:
    """The memory streams of a plan, each made once; they are known by their names."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: dict[str, tuple[Any, Any]] = {}
        self._union: Any = None
        self.origin = Origin(self._stream, self._united)

    def _stream(self, columns: str, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._session.memory_stream(columns, name=name)
        return self._made[name][0]

    def _united(self, parts: dict[str, Any]) -> Any:
        self._union = self._union or self._session.union(parts)
        return self._union

    def send(self, batch: Batch) -> None:
        """Send what a batch has for each of them."""
        for name, (_, sender) in self._made.items():
            sender.send(batch[name])

    def close(self) -> None:
        """End the input."""
        for _, sender in self._made.values():
            sender.close()


def counted(rows: Rows) -> Counter[str]:
    """How often each row is there."""
    return Counter(repr(sorted(row.items())) for row in rows)


def by_driver(kind: str, change: str, folder: Path) -> Rows:
    """Return the rows that the driver gives after a change."""

    def sent(driver: Driver, batch: Batch, joins: bool, several: bool) -> Rows:
        if joins:
            given: Any = {"left": batch["events"], "right": batch["others"]}
        else:
            given = {"a": batch["events"], "b": batch["b"]} if several else batch["events"]
        rows: Rows = driver.send(given).results.to_pylist()
        return rows

    before, after = CHANGES[change]
    joins = kind == "interval join"
    old = Driver(made(kind, **before))
    for batch in EARLY:
        sent(old, batch, joins, "source" in before)
    new = Driver(made(kind, **after), savepoint=old.savepoint(str(folder / kind)))
    rows = [row for batch in LATER for row in sent(new, batch, joins, "source" in after)]
    rows += new.close().results.to_pylist()
    return rows


def by_query(session: Session, kinds: list[str], change: str, folder: Path) -> dict[str, Rows]:
    """Return the rows that one query of the operators gives after a change, by operator."""
    before, after = CHANGES[change]

    def begun(case: dict[str, Any], streams: Streams, **given: Any) -> Any:
        stages = {kind: made(kind, **case, origin=streams.origin).named(kind) for kind in kinds}
        return session.start([stage.to(MemorySink(), name=kind) for kind, stage in stages.items()], **given)

    first = Streams(session)
    with begun(before, first, checkpoint=str(folder / "first")) as query:
        for batch in EARLY:
            first.send(batch)
            query.process_all_available()
        query.savepoint(str(folder / "savepoint"))
    second = Streams(session)
    with begun(after, second, checkpoint=str(folder / "second"), savepoint=str(folder / "savepoint")) as query:
        for batch in LATER:
            second.send(batch)
            query.process_all_available()
        second.close()
        query.process_all_available()
        return {kind: query.results(kind).to_pylist() for kind in kinds}


def check(session: Session, change: str, folder: Path, operators: Collection[str] = OPERATORS) -> None:
    """Compare both, for each operator that takes the change."""
    kinds = [kind for kind in operators if answer(kind, change) in ("in place", "savepoint")]
    if not kinds:
        assert change in ("key `int` to `string`", "another size, gap or range")
        return
    given = by_query(session, kinds, change, folder)
    for kind in kinds:
        expected = by_driver(kind, change, folder)
        assert expected, "a change that gives no results is not tried"
        assert counted(given[kind]) == counted(expected), (change, kind)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("change", ALL)
def test_in_process(change: str, tmp_path: Path) -> None:
    with Session.in_process() as session:
        check(session, change, tmp_path)


@pytest.mark.slow
def test_two_operators_on_spark(session: Session, tmp_path: Path) -> None:
    check(session, SHORT, tmp_path, ("tumbling", "session"))


@slow
@pytest.mark.parametrize("change", CHANGES)
def test_on_spark(session: Session, change: str, tmp_path: Path) -> None:
    check(session, change, tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_lag_that_is_put_back_leaves_the_watermark(in_place: bool, session: Session, tmp_path: Path) -> None:
    """0, a minute with a batch, 0 again: the watermark is the newest event time, and rows in order are on time."""
    stream, sender = session.memory_stream("k string, at bigint", spool=str(tmp_path / "spool"))
    checkpoint, rows = str(tmp_path / "0"), list[tuple[Any, ...]]()
    for number, (lag, moment) in enumerate([(0, 128_000), (60_000, 150_000), (0, 151_000)]):
        plan = stream.watermark("at", lag).key_by("k").tumbling_window(10_000).agg(count()).named("windows")
        how: dict[str, Any] = {}
        if number and not in_place:
            how["savepoint"] = session.savepoint(checkpoint, str(tmp_path / f"savepoint {number}"))
            checkpoint = str(tmp_path / str(number))
        query = plan.start(MemorySink(), checkpoint=checkpoint, **how)
        if number < 2:
            sender.send([{"k": "a", "at": moment}])
        else:  # the watermark is 150 s now: one row is late, one in order is not
            sender.send([{"k": "a", "at": 149_000}, {"k": "a", "at": moment}])
            sender.close()
        query.process_all_available()
        rows += [(row["window_start"], row["count"]) for row in query.results().to_pylist()]
        late = dict(query.progress.late)["late"]
        query.stop()
    assert (sorted(rows), late) == ([(120_000, 1), (150_000, 2)], 1)
