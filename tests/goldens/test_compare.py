"""The comparison finds what is wrong and lets pass what the format lets pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.goldens.__main__ import main
from tests.goldens.cases import OWN_CASES, WORKED_CASES, Case, LateRow, Result, Written, load
from tests.goldens.compare import differences
from tests.goldens.engines import EngineMissingError, Observed, engine_named
from tests.goldens.engines.reference import ReferenceEngine

CASES = {case.id: case for case in load(OWN_CASES)}
WITH_OUTPUT = [case for case in CASES.values() if ReferenceEngine().run(case).written and "final" in case.compare]


def seen_of(case: Case) -> Observed:
    return ReferenceEngine().run(case)


def as_written(seen: Observed, change: Callable[[Written], Written]) -> Observed:
    return replace(seen, written=[change(w) for w in seen.written])


def with_row(change: Callable[[Result], Result]) -> Callable[[Written], Written]:
    return lambda w: replace(w, row=change(w.row))


@pytest.mark.parametrize("case", WITH_OUTPUT, ids=lambda case: case.id)
@pytest.mark.parametrize("field", ["start_ms", "end_ms", "count", "sum", "min", "max"])
def test_a_wrong_number_in_the_last_row_is_found(case: Case, field: str) -> None:
    seen = seen_of(case)
    row = seen.written[-1].row
    spoilt = replace(seen.written[-1], row=replace(row, **{field: getattr(row, field) + 1}))
    assert differences(case, replace(seen, written=[*seen.written[:-1], spoilt]))


@pytest.mark.parametrize("case", WITH_OUTPUT, ids=lambda case: case.id)
def test_a_missing_last_row_is_found(case: Case) -> None:
    seen = seen_of(case)
    last = seen.written[-1]
    without = [w for w in seen.written if w.row != last.row]
    assert differences(case, replace(seen, written=without))


@pytest.mark.parametrize("case", WITH_OUTPUT, ids=lambda case: case.id)
def test_a_late_row_too_many_is_found(case: Case) -> None:
    seen = seen_of(case)
    assert isinstance(seen.late, list)
    assert differences(case, replace(seen, late=[*seen.late, LateRow(0, "k", 0, 0)]))
    assert differences(case, replace(seen, late=len(seen.late) + 1))
    assert differences(case, replace(seen, late=len(seen.late))) == []


@pytest.mark.parametrize("case", list(CASES.values()), ids=lambda case: case.id)
def test_an_engine_may_know_neither_steps_nor_panes_nor_values(case: Case) -> None:
    seen = as_written(seen_of(case), lambda w: replace(w, step=None, pane=None, row=replace(w.row, values=None)))
    if case.expected.still_open:  # end of input closes those (§2.5)
        seen.written += [Written(None, "+", None, row) for row in case.expected.still_open]
    late = [replace(row, step=None) for row in seen.late] if isinstance(seen.late, list) else seen.late
    assert differences(case, replace(seen, late=late, watermark_after_ms=None)) == []


def test_keys_may_be_strings_but_null_stays_null() -> None:
    case = CASES["al-spark-ms-slide"]  # a null key
    seen = seen_of(case)
    text = as_written(seen, with_row(lambda r: replace(r, key=None if r.key is None else str(r.key))))
    assert differences(case, text) == []
    assert differences(case, as_written(seen, with_row(lambda r: replace(r, key=str(r.key)))))


def test_one_step_later_only_for_an_engine_that_may_lag() -> None:
    case = CASES["ks-small"]
    later = as_written(seen_of(case), lambda w: replace(w, step=(w.step or 0) + 1))
    assert differences(case, later)
    assert differences(case, replace(later, may_lag=True)) == []
    two_later = as_written(later, lambda w: replace(w, step=(w.step or 0) + 1))
    assert differences(case, replace(two_later, may_lag=True))


def test_a_repeated_on_time_row_may_be_written_but_no_other() -> None:
    case = CASES["tr-own-count-exact"]
    seen = seen_of(case)
    assert seen.written[-1].pane == "on_time"
    assert differences(case, replace(seen, written=[*seen.written, seen.written[-1]])) == []
    assert differences(case, replace(seen, written=[*seen.written, replace(seen.written[-1], pane="late")]))


def test_a_wrong_pane_is_found() -> None:
    case = CASES["la-own-late-opens-window"]
    assert differences(case, as_written(seen_of(case), lambda w: replace(w, pane="on_time")))


def test_a_stale_session_row_is_ignored_only_inside_the_one_that_stayed() -> None:
    case = CASES["se-own-chain-of-five"]
    seen = seen_of(case)
    stale = Written(0, "+I", "early", Result("k", 500, 510, 1, 0, 0, 0, (0,)))
    assert any(w.row.end_ms != 90 for w in seen.written)
    assert differences(case, seen) == []
    assert differences(case, replace(seen, written=[*seen.written, stale]))


def test_another_row_carried_by_a_look_back_result_is_found() -> None:
    for case in load(WORKED_CASES):
        seen = seen_of(case)
        assert differences(case, seen) == []
        assert differences(case, as_written(seen, with_row(lambda r: replace(r, row=(r.start_ms, None)))))


def test_withdrawing_what_does_not_stand_is_found() -> None:
    case = CASES["la-own-retract-early"]
    seen = seen_of(case)
    assert {w.op for w in seen.written} == {"+I", "-U", "+U"}
    assert differences(case, replace(seen, written=[w for w in seen.written if w.op != "-U"]))
    assert differences(case, replace(seen, written=seen.written[::-1]))


def test_null_times_are_counted_apart_from_late_rows() -> None:
    case = CASES["al-spark-null-ts"]
    seen = seen_of(case)
    null_rows = [LateRow(0, "k", None, value, "null_time") for value in (3, 4)]
    assert differences(case, replace(seen, late=null_rows, null_ts_dropped=None)) == []
    assert differences(case, replace(seen, late=null_rows[:1], null_ts_dropped=None))


def test_only_what_the_semantics_leave_undefined_may_be_skipped() -> None:
    assert CASES["so-own-policy-max-drops"].reason_to_skip({"policy_max"})
    assert CASES["so-own-policy-max-drops"].reason_to_skip(()) is None
    assert CASES["se-own-cap-basic"].reason_to_skip({"max_duration"}) is None


def test_the_runner_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engine", "reference", "--only", "al-kafka-tumble"]) == 0
    assert capsys.readouterr().out == "ok  al-kafka-tumble-12\n1 passed, 0 failed\n"


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(EngineMissingError, match="'flying'"):
        engine_named("flying")
    assert main(["--engine", "flying"]) == 2
