"""The stateful operator without a JVM: what it keeps between batches is bytes in a dictionary, and all of them are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa
import pytest

from krishiv_py.engine.stage import Report, StageInput, StageOutput
from krishiv_py.in_process.stage import ProcessStage
from krishiv_py.kernels.spec import Moment
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.batch import METRICS, RESULT
from krishiv_py.runtime.chunk_files import ChunkFolder
from krishiv_py.spark.tasks.processor import BucketProcessor
from krishiv_py.storage.checksums import decode
from krishiv_py.testing import Driver


@attrs.define
class FakeState:
    """Spark's map state of one bucket, with what was read and written."""

    held: dict[str, bytes] = attrs.field(factory=dict)
    calls: int = 0
    read: int = 0
    written: int = 0

    def getValue(self, name: tuple[str]) -> tuple[bytes] | None:
        self.calls += 1
        actual = self.held.get(name[0])
        if actual is None:
            return None
        self.read += len(actual)
        return (actual,)

    def updateValue(self, name: tuple[str], value: tuple[bytes]) -> None:
        self.calls += 1
        self.written += len(value[0])
        self.held[name[0]] = bytes(value[0])

    def removeKey(self, name: tuple[str]) -> None:
        self.calls += 1
        del self.held[name[0]]

    def reset(self) -> None:
        """Begin to count again."""
        self.calls = self.read = self.written = 0


class FakeHandle:
    """Spark's handle of an operator: its timers."""

    def __init__(self) -> None:
        self.timers: set[int] = set()

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.timers))

    def registerTimer(self, moment: int) -> None:
        self.timers.add(moment)

    def deleteTimer(self, moment: int) -> None:
        self.timers.discard(moment)


class Operated:
    """A plan of one stage whose operator runs as in a task of Spark, over a state of bytes."""

    def __init__(self, plan: PhysicalPlan, state: FakeState | None = None, blobs: ChunkFolder | None = None) -> None:
        self.state = FakeState() if state is None else state
        self.processor = BucketProcessor(plan.stage.spec, blobs=blobs)
        self.processor.open(FakeHandle(), self.state)  # type: ignore[arg-type]
        self.processor._mark.spark_ms = 1 << 62
        self.report = Report({}, 0, 0, 0)
        self._batch = 0

    def step(self, packed: StageInput, moment: Moment) -> pa.Table:
        """A micro-batch; gives its results."""
        tables = [self.processor._stage.layout.result_schema.empty_table()]
        for row in self.processor._step(0, self._batch, moment, packed):
            if row.kind == RESULT:
                tables.append(decode(row.blob))
            elif row.kind == METRICS:
                self.report = Report.from_bytes(row.blob)
        self._batch += 1
        return pa.concat_tables(tables)


def with_fake_state(driver: Driver, monkeypatch: pytest.MonkeyPatch, *, blobs: ChunkFolder | None = None) -> Operated:
    """Let all that a driver of one stage does be done by the operator too; both must give the same."""
    operated = Operated(driver._plan, blobs=blobs)
    plain = ProcessStage.step

    def both(self: ProcessStage, read: Sequence[StageInput], moment: Moment, batch_id: int) -> list[StageOutput]:
        (done,) = plain(self, read, moment, batch_id)
        if self is not driver._stages[0]:
            return [done]
        moment = moment.at(self.plan.times)
        given = operated.step(read[0], moment)
        assert given.to_pylist() == done.results.to_pylist()
        report = operated.report
        assert (report.open_windows, report.open_rows) == (done.step.open_windows, done.step.open_rows)
        assert report.wakeup_now_us == done.step.wakeup_now_us
        return [done]

    monkeypatch.setattr(ProcessStage, "step", both)
    return operated
