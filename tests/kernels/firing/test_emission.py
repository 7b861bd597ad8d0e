"""What is written when: final results, updates and retraction logs (SEMANTICS §5.4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.errors import OperatorError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.fixed.fixed_runs import Query, driven, expected, folded, queries, rows, sets, steps

plain = queries.map(lambda q: replace(q, trigger=kv.Trigger(), accumulation="accumulating", pane=False))
logs = queries.map(lambda q: replace(q, emit="retractions", accumulation="accumulating"))


@given(plain, steps)
def test_the_default_trigger_writes_what_the_reference_writes(query: Query, given_steps: list[ref.Step]) -> None:
    assert sets(driven(query, given_steps)[0]) == sets(expected(query, given_steps))


@given(plain, steps)
def test_pane_columns_change_nothing_else(query: Query, given_steps: list[ref.Step]) -> None:
    with_pane = [[(op, None, *rest) for op, _, *rest in lines] for lines in driven(replace(query, pane=True), given_steps)[0]]
    assert [Counter(map(repr, lines)) for lines in with_pane] == [
        Counter(map(repr, lines)) for lines in driven(query, given_steps)[0]
    ]


@given(logs, steps)
def test_folding_a_log_gives_what_was_accepted(query: Query, given_steps: list[ref.Step]) -> None:
    query = replace(query, trigger=kv.Trigger(early=query.trigger.early, late=query.trigger.late or "batch"))
    if isinstance(query.trigger.late, int):
        query = replace(query, trigger=kv.Trigger(early=query.trigger.early, late="each"))
    closed = ref.Reference(query.reference()).run(given_steps).closed
    standing = folded(driven(query, given_steps)[0])
    assert standing == {(r.key, r.start, r.end): r.listed for r in closed}


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 19), st.floats(-1e9, 1e9)), max_size=4), max_size=30),
    st.sampled_from([None, "each", 2]),
)
def test_floats_are_withdrawn_to_the_last_bit(batches: list[list[tuple[str, int, float]]], early: None) -> None:
    """Many small batches, so that chunks are merged in between; late rows change windows that had fired."""
    keyed = stream_of("k string, at bigint, x double").watermark("at", 0).key_by("k").allowed_lateness(100)
    keyed = keyed.emit("retractions").trigger(kv.Trigger(early=early))
    driver = Driver(keyed.hopping_window(8, 4).agg(kv.sum("x"), kv.avg("x"), kv.stddev("x"), kv.count()))
    driver.advance_watermark(12)
    sent = [driver.send([{"k": k, "at": moment, "x": x} for k, moment, x in batch]).results for batch in batches]
    log = [change for results in sent for change in compat.changes(results)]
    standing = compat.fold(log + compat.changes(driver.close().results))
    assert len({(r["k"], r["window_start"]) for r in standing}) == len(standing)


@given(queries, st.lists(rows, max_size=30))
def test_windows_fire_in_ascending_end_order(query: Query, given_rows: list[ref.Row]) -> None:
    log, _ = driven(replace(query, lag=1000, trigger=kv.Trigger()), [ref.Batch(given_rows), ref.Close()])
    ends = [line[4] for line in log[1]]
    assert ends == sorted(ends)


#   late row 3 after [0, 10) had fired with 1 and 5, lateness 60
#   |1   5    |12
def test_the_pane_columns_of_a_correction() -> None:
    stream = stream_of("at bigint, x bigint").watermark("at", 0).allowed_lateness(60).emit("retractions").with_pane()
    driver = Driver(stream.tumbling_window(10).agg(kv.sum("x").alias("s")))
    names = ["window_start", "s", "op", "pane_timing", "pane_index"]
    out = [driver.send([{"at": t, "x": t} for t in batch]).results.select(names).to_pylist() for batch in ([1, 5, 12], [3])]
    assert [tuple(r.values()) for table in out for r in table] == [
        (0, 6, "+I", "on_time", 0),
        (0, 6, "-U", "late", 1),
        (0, 9, "+U", "late", 1),
    ]


def test_changes_are_ripples_view_and_fold() -> None:
    stream = stream_of("at bigint, x bigint").watermark("at", 0).allowed_lateness(60).emit("retractions")
    driver = Driver(stream.tumbling_window(10).agg(kv.sum("x").alias("s")))
    driver.send([{"at": 1, "x": 1}, {"at": 12, "x": 2}])
    assert compat.changes(driver.send([{"at": 3, "x": 3}]).results) == [
        compat.Retract({"window_start": 0, "window_end": 10, "s": 1}),
        compat.Emit({"window_start": 0, "window_end": 10, "s": 4}),
    ]
    with pytest.raises(OperatorError, match="retraction without a matching result"):
        compat.fold([compat.Retract({"s": 1})])


def test_discarding_gives_only_what_is_new() -> None:
    query = Query(size=100, lag=1000, trigger=kv.Trigger(early=2), accumulation="discarding")
    log, _ = driven(query, [ref.Batch([ref.Row("k", t, t) for t in (1, 2, 3)]), ref.Batch([ref.Row("k", 4, 4)]), ref.Close()])
    assert [line[5] for lines in log for line in lines] == [(1, 2), (3, 4)]  # nothing new on time


def test_a_trigger_or_lateness_makes_updates_the_default() -> None:
    timed = stream_of("at bigint").watermark("at", 0)
    assert timed._options.emit_mode == "final"
    assert timed.allowed_lateness(1)._options.emit_mode == "updates"
    assert timed.trigger(kv.Trigger.on_count(2))._options.emit_mode == "updates"
    assert timed.trigger(kv.Trigger.on_count(2)).emit("final")._options.emit_mode == "final"
