"""Cumulating windows against a plain reference, with restarts; what is refused; three engines (SEMANTICS §11.1)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import CheckpointError, DurationError, MemorySink, PlanError, Session, count, sum, windows
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

STREAM = stream_of("user string, at bigint, amount bigint").watermark("at", 50).key_by("user")
LENGTHS = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(-100, 100))


def plainly(rows: list[dict[str, Any]], step: int, size: int, offset: int) -> Counter[tuple[Any, ...]]:
    """Rows by key and window, each window by itself."""
    actual: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        start = (row["at"] - offset) // size * size + offset
        for k in range(1, size // step + 1):
            if row["at"] < start + k * step:
                actual[row["user"], start, start + k * step] += 1
    return actual


@settings(max_examples=scaled(80), deadline=None)
@given(LENGTHS, st.lists(st.tuples(st.sampled_from("ab"), st.integers(-400, 400)), max_size=40), st.integers(1, 12))
def test_every_row_is_in_the_windows_that_end_after_it(
    lengths: tuple[int, int, int], arrived: list[tuple[str, int]], batch: int
) -> None:
    step, times, offset = lengths
    rows = [{"user": u, "at": t, "amount": 1} for u, t in sorted(arrived, key=lambda r: r[1])]
    driver = Driver(STREAM.cumulate_window(step, step * times, offset).agg(count(), sum("amount")))
    out = []
    for i in range(0, len(rows), batch):
        out += driver.send(rows[i : i + batch]).results.to_pylist()
        driver = driver.restarted()
    out += driver.close().results.to_pylist()
    got = Counter({(r["user"], r["window_start"], r["window_end"]): r["count"] for r in out})
    assert got == plainly(rows, step, step * times, offset) and len(got) == len(out)
    assert all(r["count"] == r["sum_amount"] for r in out)


def test_windows_grow_as_the_watermark_moves() -> None:
    driver = Driver(STREAM.window(windows.cumulate(10, 30)).agg(count()))
    rows = [{"user": "a", "at": t, "amount": 1} for t in (1, 12, 25, 95)]
    ends = [(r["window_start"], r["window_end"], r["count"]) for r in driver.send(rows).results.to_pylist()]
    assert ends == [(0, 10, 1), (0, 20, 2), (0, 30, 3)]
    assert "cumulating every 10 ms" in STREAM.cumulate_window(10, 30).agg(count()).explain()


def test_what_is_refused() -> None:
    with pytest.raises(PlanError, match="not a multiple of `step`"):
        STREAM.cumulate_window(7, 30)
    with pytest.raises(PlanError, match="more than 10"):
        STREAM.cumulate_window(1, 30, max_overlap=10)
    for wrong in (0, -1, 1.5, True, "never"):
        with pytest.raises(DurationError):
            STREAM.cumulate_window(wrong, 30)  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_engines_agree_and_a_checkpoint_notes_the_lengths(session: Session, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [{"user": "ab"[n % 2], "at": n * 7, "amount": n} for n in range(40)]
    driver = Driver(STREAM.cumulate_window(10, 60).agg(count(), sum("amount")))
    wanted = [r for d in (driver.send(rows), driver.close()) for r in d.results.to_pylist()]
    stream, sender = session.memory_stream("user string, at bigint, amount bigint")
    sender.send(rows)
    keyed, checkpoint = stream.watermark("at", 50).key_by("user"), str(tmp_path_factory.mktemp("cumulate"))
    plan = keyed.cumulate_window(10, 60).agg(count(), sum("amount"))
    query = plan.start(MemorySink(), checkpoint=checkpoint)
    sender.close()
    query.process_all_available()
    for actual in (plan.collect(), query.results()):
        assert sorted(map(str, actual.to_pylist())) == sorted(map(str, wanted))
    query.stop()
    with pytest.raises(CheckpointError, match="parameter step was 10000 and is 20000"):
        keyed.cumulate_window(20, 60).agg(count(), sum("amount")).start(MemorySink(), checkpoint=checkpoint)
