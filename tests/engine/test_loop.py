"""The micro-batch loop: when a batch without rows follows, what is counted, how stages run one after the other."""

from __future__ import annotations

import pyarrow as pa
import pytest

from krishiv_py import count, sum
from krishiv_py.engine.loop import micro_batch
from krishiv_py.engine.stage import AtStep, Notes, Report, StageInput, StageOperator, StageOutput
from krishiv_py.errors import AggregateOverflowError
from krishiv_py.kernels.prepare import RowPreparer
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.running import Control
from krishiv_py.testing import stream_of

UNSAID = Moment(UNSET, 0)


def a_stage(size_ms: int = 10) -> StageOperator:
    stream = stream_of("at bigint, n bigint").watermark("at", 0).tumbling_window(size_ms).agg(count(), sum("n"))
    return StageOperator(stream._plan("driver").spec)


def batch(*rows: tuple[int | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"at": pa.array([r[0] for r in rows], pa.int64()), "n": [r[1] for r in rows]})


def ran(stage: StageOperator, packed: StageInput, moment: Moment, then: Moment, *, waits: bool) -> list[StageOutput]:
    return list(micro_batch(stage, Bucket(MemoryStore()), packed, moment, lambda: then, waits=waits))


@pytest.mark.parametrize(
    ("then_us", "waits", "steps"), [(20_000, True, 2), (20_000, False, 1), (UNSET, True, 1), (END_OF_TIME, True, 2)]
)
def test_a_batch_without_rows_follows_only_if_the_watermark_moved_and_the_query_waits(
    then_us: int, waits: bool, steps: int
) -> None:
    stage = a_stage()
    packing = stage.pack(UNSAID)
    packing.take(batch((1, 5), (2, 6)))
    done = ran(stage, packing.packed(), UNSAID, Moment(then_us, 0), waits=waits)
    assert len(done) == steps
    assert [d.results.num_rows for d in done] == [0, 1][:steps]
    assert done[0].counters["rows"] == 2
    assert "rows" not in done[-1].counters or steps == 1


def test_what_follows_is_called_after_the_batch_ran() -> None:
    stage, requested = a_stage(), []
    bucket = Bucket(MemoryStore())

    def then() -> Moment:
        requested.append(len(bucket.meta))
        return UNSAID

    packing = stage.pack(UNSAID)
    packing.take(batch((1, 5)))
    assert len(list(micro_batch(stage, bucket, packing.packed(), UNSAID, then, waits=True))) == 1
    assert requested and requested[0] > 0


def test_rows_of_several_batches_are_classified_counted_and_combined_together() -> None:
    stage = a_stage()
    packing = stage.pack(Moment(10_000, 0))
    assert packing.chunks() == []
    assert packing.take(batch((11, 1), (3, 2))) == {"": 11_000}
    assert packing.take(batch((12, 1), (None, 2))) == {"": 12_000}
    assert packing.full(2) and not packing.full(3)
    packed = packing.packed()
    assert (len(packed.chunks), sum_rows(packed.late)) == (1, 2)
    notes = packed.notes[0]
    assert (notes.counters["rows"], notes.counters["late"], notes.counters["null_time"]) == (4, 1, 1)
    assert notes.maxima == {"": 12_000}
    assert packing.chunks() == []


def sum_rows(tables: object) -> int:
    assert isinstance(tables, list)
    return int(pa.concat_tables(tables).num_rows)


def test_the_results_of_a_stage_are_rows_of_the_next_in_the_same_batch() -> None:
    first = a_stage()
    stream = stream_of(first.layout.result_schema).watermark("window_start", 0).tumbling_window(100).agg(sum("count"))
    second = StageOperator(stream._plan("driver").spec)
    packing = first.pack(UNSAID)
    packing.take(batch((1, 5), (2, 6), (11, 1)))
    done = ran(first, packing.packed(), UNSAID, Moment(END_OF_TIME, 0), waits=True)
    onward = second.pack(UNSAID)
    for step in done:
        for rows in step.results.to_batches():
            onward.take(rows)
    last = ran(second, onward.packed(), UNSAID, Moment(END_OF_TIME, 0), waits=True)
    assert pa.concat_tables([d.results for d in last]).to_pylist() == [{"window_start": 0, "window_end": 100, "sum_count": 3}]


def test_notes_and_reports_travel_whole() -> None:
    notes = Notes()
    notes.take(RowPreparer(a_stage().spec)(batch((1, 5)), UNSET))
    notes.refuse(2)
    notes.advances.append(Control(5, "a", 7))
    notes.advances.append(Control(UNSET, None, 9))
    back = Notes.from_bytes(notes.to_bytes())
    assert back == notes
    assert (back.latest_us(), back.counters["rows"], back.counters["malformed"]) == (9, 3, 2)
    report = Report({"rows": 3}, 1, 2, 3, (Notes({}, notes.maxima, notes.advances),), 11)
    assert Report.from_bytes(report.to_bytes()) == report


def test_a_failure_names_operator_step_and_batch_and_keeps_its_kind() -> None:
    named = r"^operator per-minute, window step, batch 3: broken$"
    with pytest.raises(AggregateOverflowError, match=named), AtStep("per-minute", "window step", 3):
        raise AggregateOverflowError("broken")
    with pytest.raises(KeyError), AtStep("per-minute", "window step", 3):
        raise KeyError("not ours")
