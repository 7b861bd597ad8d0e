"""Absence on all engines: restarts, workers, moves between engines, bounded runs, expected keys, the clock."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, Session, col
from krishiv_py.testing import Driver, stream_of
from tests.engines.restarts import Case
from tests.examples import scaled
from tests.kernels.absence.test_absence import Plain, Seen
from tests.kernels.process.reference import END, process

DDL = "k string, at bigint"
EXPECTED = [f"device {n}" for n in range(30)]
SENT = [[{"k": k, "at": at}] for k, at in (("device 3", 2), ("device 4", 9), ("x", 30), ("device 4", 60))]


def _drawn(seed: int) -> list[list[dict[str, Any]]]:
    draw, now, batches = random.Random(f"absence {seed}"), 0, list[list[dict[str, Any]]]()
    for _ in range(draw.randint(6, 9)):
        batch = []
        for _ in range(draw.randint(1, 8)):
            now += draw.choice([0, 1, 3, 9, 26])
            batch.append({"k": draw.choice(["a", "b", "c", "d", None]), "at": max(0, now - draw.choice([0, 0, 4]))})
        batches.append(batch)
    return batches


def _plan(stream: Any) -> Any:
    return stream.watermark("at", 5).key_by("k").absent(10, repeat=7, forget_after=45)


def _sorted(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("at", "k", "state", "since", "last_seen", "missing")
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)


def _wanted(batches: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    steps, _, _ = process(batches, Plain(10, 7, 45), Seen, lag=5, ttl=END, fire=False)
    return sorted(((at, key, *said.values()) for step in steps for at, key, said in step), key=repr)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(scaled(10)))
def test_in_process(seed: int, workers: int, tmp_path: Path) -> None:
    case = Case(DDL, _plan, _drawn(seed))
    with Session.in_process(workers=workers) as session:
        wanted = _wanted(_drawn(seed))
        assert wanted
        assert _sorted(case.restarted(session, tmp_path)) == wanted
        assert _sorted(case.bounded(session)) == wanted


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(max(1, scaled(2))))
def test_on_spark(seed: int, session: Session, tmp_path: Path) -> None:
    case, wanted = Case(DDL, _plan, _drawn(seed)), _wanted(_drawn(seed))
    assert _sorted(case.restarted(session, tmp_path)) == wanted
    assert _sorted(case.bounded(session)) == wanted


@pytest.mark.slow
@pytest.mark.spark
def test_a_checkpoint_moves_between_engines(session: Session, tmp_path: Path) -> None:
    assert _sorted(Case(DDL, _plan, _drawn(3)).moved(session, tmp_path)) == _wanted(_drawn(3))


def _expecting(stream: Any) -> Any:
    return stream.watermark("at", 5).key_by("k").absent(10, repeat=40, expected=EXPECTED, start=0)


def _of_driver(plan: Any, batches: Any) -> list[tuple[Any, ...]]:
    driver = Driver(plan(stream_of(DDL)))
    return _sorted(pa.concat_tables([*(driver.send(batch).results for batch in batches), driver.close().results]))


@pytest.mark.parametrize("workers", [1, 3])
def test_expected_keys_in_process(workers: int, tmp_path: Path) -> None:
    case, wanted = Case(DDL, _expecting, SENT), _of_driver(_expecting, SENT)
    assert len([row for row in wanted if row[2] == "absent" and row[0] == 10]) == 28
    with Session.in_process(workers=workers) as session:
        assert _sorted(case.restarted(session, tmp_path)) == wanted
        assert _sorted(case.bounded(session)) == wanted


@pytest.mark.slow
@pytest.mark.spark
def test_expected_keys_on_spark(session: Session, tmp_path: Path) -> None:
    case, wanted = Case(DDL, _expecting, SENT), _of_driver(_expecting, SENT)
    (tmp_path / "moved").mkdir()
    for given in (case.restarted(session, tmp_path), case.bounded(session), case.moved(session, tmp_path / "moved")):
        assert _sorted(given) == wanted


def _changing(beats: Any, devices: Any) -> Any:
    listed = devices.watermark("since", 5).from_changelog("log", key="device", op="does")
    return beats.watermark("at", 5).key_by("k").absent(10, repeat=40, expected=listed)


def _named(number: int) -> list[dict[str, Any]]:
    added = [{"device": f"device {n}", "since": 20 * number + n, "does": "+I"} for n in range(4 * number, 4 * number + 4)]
    return [*added, {"device": f"device {2 * number}", "since": 20 * number + 9, "does": "-D"}]


def _run_changing(session: Session, folder: Path) -> list[tuple[Any, ...]]:
    beats, to_beats = session.memory_stream(DDL)
    devices, to_devices = session.memory_stream("device string, since bigint, does string")
    plan, sink = _changing(beats, devices), MemorySink()
    for number in range(4):
        query = plan.start(sink, checkpoint=folder)
        to_devices.send(_named(number))
        to_beats.send([{"k": "device 1", "at": 20 * number + 3}, {"k": "z", "at": 20 * number + 19}])
        query.process_all_available()
        if number == 3:
            to_beats.close()
            to_devices.close()
            query.process_all_available()
        query.stop()
    table = sink.table()
    assert table is not None
    return _sorted(table)


@pytest.mark.parametrize("workers", [1, 3])
def test_expected_keys_change_in_process(workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        given = _run_changing(session, tmp_path)
    assert given == _changed()


@pytest.mark.slow
@pytest.mark.spark
def test_expected_keys_change_on_spark(session: Session, tmp_path: Path) -> None:
    assert _run_changing(session, tmp_path) == _changed()


def _changed() -> list[tuple[Any, ...]]:
    driver = Driver(_changing(stream_of(DDL), stream_of("device string, since bigint, does string")))
    given = []
    for number in range(4):
        beats = [{"k": "device 1", "at": 20 * number + 3}, {"k": "z", "at": 20 * number + 19}]
        given.append(driver.send({"expected": _named(number), "rows": beats}).results)
    return _sorted(pa.concat_tables([*given, driver.close().results]))


def _reloaded(session: Session, folder: Path) -> list[tuple[Any, ...]]:
    beats, sender = session.memory_stream(DDL)
    names, sink = ["device 0"], MemorySink()
    plan = (
        beats.watermark("at", 0).key_by("k").absent(10, expected=lambda: list(names), reload="1 ms", start=0, recovered=False)
    )
    for number in range(3):
        query = plan.start(sink, checkpoint=folder)
        sender.send([{"k": "z", "at": 30 * number + at} for at in (0, 9, 18, 27)])
        query.process_all_available()
        names[:] = [f"device {n}" for n in range(20 * number, 20 * number + 20)]
        query.stop()
    table = sink.table()
    assert table is not None
    return _sorted(table)


RELOADED = sorted(
    [(10, "device 0"), *((37, f"device {n}") for n in range(1, 20)), *((67, f"device {n}") for n in range(20, 40))], key=repr
)


@pytest.mark.parametrize("workers", [1, 3])
def test_expected_keys_are_loaded_again_in_process(workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        assert [row[:2] for row in _reloaded(session, tmp_path)] == RELOADED


@pytest.mark.slow
@pytest.mark.spark
def test_expected_keys_are_loaded_again_on_spark(session: Session, tmp_path: Path) -> None:
    assert [row[:2] for row in _reloaded(session, tmp_path)] == RELOADED


def _first_rows(session: Session, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the first results of a query that gets one row, and no other."""
    stream, sender = session.memory_stream(DDL)
    sink = MemorySink()
    query = stream.watermark("at", 0).key_by("k").absent("300 ms", **options).start(sink, checkpoint=folder)
    sender.send([{"k": "a", "at": 5}])
    query.process_all_available()
    while sink.table() is None:  # batches without rows come by themselves
        time.sleep(0.05)
    query.stop()
    rows: list[dict[str, Any]] = sink.table().to_pylist()  # type: ignore[union-attr]
    return rows


@pytest.mark.parametrize(("clock", "said"), [("processing", ("a", "absent")), ("both", (None, "no_input"))])
def test_the_clock_is_heard_while_no_row_comes(clock: str, said: tuple[str | None, str], tmp_path: Path) -> None:
    with Session.in_process(workers=2) as session:
        row = _first_rows(session, tmp_path, clock=clock)[0]
    assert (row["k"], row["state"]) == said and row["missing"] == 300 and row["at"] == row["since"]


@pytest.mark.one_in(2)
@pytest.mark.spark
@pytest.mark.parametrize(("clock", "said"), [("processing", ("a", "absent")), ("both", (None, "no_input"))])
def test_the_clock_is_heard_on_spark(clock: str, said: tuple[str | None, str], session: Session, tmp_path: Path) -> None:
    row = _first_rows(session, tmp_path, clock=clock)[0]
    assert (row["k"], row["state"]) == said and row["missing"] == 300


def test_a_stream_of_keys_is_one_of_a_union(tmp_path: Path) -> None:
    with Session.in_process() as session:
        beats, send_beats = session.memory_stream(DDL)
        devices, send_devices = session.memory_stream(DDL)
        both = session.union({"beats": beats, "devices": devices})
        silent = both.watermark("at", 0).key_by("k").absent(10, expected=col("source") == "devices")
        send_devices.send([{"k": "a", "at": 0}, {"k": "b", "at": 3}])
        send_beats.send([{"k": "a", "at": 5}, {"k": "c", "at": 20}])
        assert [row[:3] for row in _sorted(silent.collect())] == [(13, "b", "absent"), (15, "a", "absent")]
