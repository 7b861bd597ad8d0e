"""All versions of a table, against a plain reference after every batch (SEMANTICS §16.8)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import ColumnError, MemorySink, PlanError, Session, StateTtlConfig, count
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Row, Rows, counted, folded, text_of
from tests.kernels.changes.test_content import changes

DDL = "op string, pk bigint, k string, v double, w bigint, seq bigint, at bigint"
BOUNDS = {"by time": "at", "by time and sequence": "at", "by sequence": "seq"}


def table_of(stream: Any, by: str) -> Any:
    """Return the versions of a log."""
    rows = stream if by == "by sequence" else stream.watermark("at", 0)
    return rows.from_changelog("log", "pk", sequence=None if by == "by time" else "seq").history("since", "until")


def versions(log: Iterable[Row], by: str) -> Rows:
    """Return the versions that a log makes, change by change."""
    begins = BOUNDS[by]
    of_keys: dict[int, dict[int, tuple[int, Row]]] = {}
    for row in log:
        known, rank = of_keys.setdefault(row["pk"], {}), 0 if by == "by time" else row["seq"]
        if row[begins] not in known or rank >= known[row[begins]][0]:
            known[row[begins]] = (rank, row)
    given: Rows = []
    for known in of_keys.values():
        standing: Row | None = None
        for begin in sorted(known):
            row = known[begin][1]
            values = {name: value for name, value in row.items() if name not in ("op", begins)}
            if row["op"][0] == "+" and standing is not None and text_of(standing["values"]) == text_of(values):
                continue
            if standing is not None:
                given.append(standing["values"] | {"since": standing["since"], "until": begin})
            standing = {"values": values, "since": begin} if row["op"][0] == "+" else None
        if standing is not None:
            given.append(standing["values"] | {"since": standing["since"], "until": None})
    return given


def batches_of(draw: random.Random) -> list[Rows]:
    """Return batches of changes, of which many come after their time."""
    batches = [changes(draw, draw.randrange(9), 20 * number) for number in range(draw.randrange(1, 8))]
    for batch in batches:
        for row in batch:
            row["at"] = draw.randrange(6)
            row["v"], row["w"] = draw.choice((row["v"], 1.0)), draw.choice((None, 1))
    return batches


@pytest.mark.parametrize("by", BOUNDS)
@pytest.mark.parametrize("seed", range(scaled(12)))
def test_versions_are_those_of_all_changes(by: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{by} {seed}")
    driver = Driver(table_of(stream_of(DDL), by))
    log: Rows = []
    given: Rows = []
    for number, batch in enumerate(batches_of(draw)):
        given += driver.send(batch).results.to_pylist()
        log += batch
        assert folded(given) == counted(versions(log, by)), f"batch {number}"
        shown = driver.state().to_pylist()
        assert counted({n: v for n, v in row.items() if n != "last_update"} for row in shown) == folded(given)
        if draw.random() < 0.2:
            driver = Driver(table_of(stream_of(DDL), by), savepoint=driver.savepoint(str(tmp_path / str(number))))
    assert driver.counters.get("late", 0) == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("by", BOUNDS)
def test_versions_in_process(by: str, workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        _on_an_engine(by, session, tmp_path)


@pytest.mark.spark
def test_versions_on_spark(session: Session, tmp_path: Path) -> None:
    _on_an_engine("by time and sequence", session, tmp_path, most=3)


def _on_an_engine(by: str, session: Session, folder: Path, most: int = 9) -> None:
    batches = [batch for seed in range(3) for batch in batches_of(random.Random(seed)) if batch][:most]
    wanted = counted(versions([row for batch in batches for row in batch], by))
    stream, sender = session.memory_stream(DDL)
    sink, plan = MemorySink(), table_of(stream, by)
    for batch in batches:
        query = plan.start(sink, checkpoint=folder / "checkpoint")
        sender.send(batch)
        query.process_all_available()
        query.stop()
    rows = sink.table()
    assert rows is not None and folded(rows.to_pylist()) == wanted
    sender.close()
    assert counted(plan.collect().to_pylist()) == wanted


def test_an_interval_is_cut_by_a_change_that_comes_late() -> None:
    driver = Driver(stream_of("id bigint, city string, at bigint").watermark("at", 0).from_changelog("upsert", "id").history())
    driver.send([{"id": 7, "city": "Ulm", "at": 10}, {"id": 7, "city": "Rom", "at": 20}])
    sent: Rows = [{"id": 7, "city": "Bonn", "at": 15}, {"id": 7, "at": 18}, {"id": 7, "city": "Rom", "at": 18}]
    given = [[tuple(row.values())[1:] for row in driver.send([row]).results.to_pylist()] for row in sent]
    assert given == [
        [("Ulm", 10, 20, "-U"), ("Ulm", 10, 15, "+U"), ("Bonn", 15, 20, "+I")],
        [("Bonn", 15, 20, "-U"), ("Bonn", 15, 18, "+U")],
        [("Rom", 20, None, "-D"), ("Rom", 18, None, "+I")],
    ]


def test_what_follows_versions_and_their_time_to_live() -> None:
    clock = ManualClock()
    log = stream_of("id bigint, city string, lsn bigint").from_changelog("upsert", "id", sequence="lsn")
    versions_of_ids = log.history().with_state_ttl(StateTtlConfig("10 s", clock="processing"))
    driver = Driver(versions_of_ids.key_by("city").agg(n=count()), clock=clock)
    driver.send([{"id": 1, "city": "Ulm", "lsn": 1}, {"id": 2, "city": "Ulm", "lsn": 2}, {"id": 1, "city": "Rom", "lsn": 3}])
    clock.advance("20 s")
    gone = driver.send([{"id": 9, "city": "Bonn", "lsn": 4}]).results.to_pylist()
    assert {(row["op"], row["city"], row["n"]) for row in gone} == {("+I", "Bonn", 1), ("-D", "Ulm", 2), ("-D", "Rom", 1)}


def test_changes_that_cannot_be_read_go_aside() -> None:
    driver = Driver(stream_of(DDL).from_changelog("log", "pk", sequence="seq").history())
    late = driver.send([{"op": "?", "pk": 1, "seq": 1}, {"op": "+I", "pk": 2}]).late.to_pylist()
    assert [(row["pk"], row["reason"]) for row in late] == [(1, "bad_op"), (2, "bad_sequence")]


ORDERED = stream_of("id bigint, lsn bigint").from_changelog("upsert", "id", sequence="lsn")
TABLE = stream_of("id bigint, city string, at bigint").from_changelog("upsert", "id")


@pytest.mark.parametrize(
    ("call", "kind", "problem"),
    [
        (lambda: TABLE.history(), PlanError, "nothing says"),
        (lambda: TABLE.filter("id > 1").history(), PlanError, "of a table of changes"),
        (lambda: TABLE.key_by("city").agg(count()).history(), PlanError, "of a table of changes"),
        (lambda: ORDERED.history("id"), ColumnError, "another column"),
        (lambda: ORDERED.history("x", "X"), ColumnError, "another column"),
    ],
)
def test_wrong_calls(call: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        call()
