"""A micro-batch on the driver: what its tasks hand over, who takes its late rows, and what ends it.

A stage hands its results to those after it by their buckets, with a word to go on. Stages of a query are stateful operators in
a row, also where they are not a chain: rows carry the number of the stage they are for, and what is for another stage or for
the driver passes through an operator as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.arrays.grouping import buckets, normal_key
from krishiv_py.arrays.ranges import split as by_number
from krishiv_py.engine.loop import as_rows
from krishiv_py.engine.stage import Report, of_output
from krishiv_py.kernels.spec import FIRST_CLOCK, OperatorSpec, Times
from krishiv_py.plan.options.late import LateEventHandler, LateRows, hand_over
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan

NEXT: Final = "next"
"""Rows for the stage that follows."""
EARLY: Final = "early"
"""Rows for the stage that follows, which a snapshot alone is made of."""
RESULT: Final = "result"
"""Results for the driver."""
OF_RESULTS: Final = "results"
"""The name of the one output of results."""
OF_LATE_ROWS: Final = "late_rows"
"""The name of the count of late rows that leave."""
METRICS: Final = "metrics"
"""The report of a bucket."""
STAGE: Final = "@"
"""Comes before the number of a stage that is not the last one."""
TASK: Final = "#"
"""Comes before the number of the task that reports, where it is not that of a bucket."""
TO: Final = ">"
"""Comes before the number of the stage that a row is for; rows for the first one, and for the driver, have none."""


def kind_of(kind: str, stage: int, last: int) -> str:
    """Return what an output of a stage is called on its way to the driver; that of the last stage has its plain name."""
    return kind if stage == last else f"{kind}{STAGE}{stage}"


def addressed(kind: str, stage: int, seq: int = 0) -> str:
    """Return what a row for a stage is called on its way; `seq` is its place in the order of arrival."""
    return f"{kind}{TO}{stage}{TO}{seq}" if stage else kind


def address_of(kind: str) -> tuple[str, int, int]:
    """Return what a row on its way is, which stage it is for (0: the first one, or the driver), and its place."""
    plain, _, rest = kind.partition(TO)
    if not rest:
        return kind, 0, 0
    stage, _, seq = rest.partition(TO)
    return plain, int(stage), int(seq)


@attrs.frozen(eq=False)
class HandingOn:
    """Says how a stage gives its results to the next one.

    Attributes
    ----------
    spec : OperatorSpec
        The next stage's, with the steps of the side that takes them in front.
    bucket_ids : tuple of int
        Its buckets.
    number : int
        Its number.
    """

    spec: OperatorSpec
    bucket_ids: tuple[int, ...]
    number: int = 1

    def parts(self, results: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of the next stage after its stateless steps, by bucket."""
        if not results.num_rows:
            return
        rows = as_rows(self.spec, results)
        if not rows.num_rows:
            return
        if len(self.bucket_ids) == 1 or not self.spec.keys:
            yield self.bucket_ids[0], rows
            return
        keys: list[pa.Array | pa.ChunkedArray] = [normal_key(rows[k].combine_chunks()) for k in self.spec.keys]
        bucket_of_row = buckets(keys, rows.num_rows, len(self.bucket_ids))
        for number, part in by_number(rows, bucket_of_row):
            yield self.bucket_ids[number], part.combine_chunks()


@attrs.frozen(eq=False)
class OutgoingResults:
    """Results on their way out: what they are called, and the output they are for; None for results as they are."""

    kind: str = RESULT
    output: OutputPlan | None = None

    @property
    def name(self) -> str:
        """Return what the output is called."""
        return OF_RESULTS if self.output is None else self.output.name

    def of(self, results: pa.Table) -> pa.Table:
        """Return what leaves of the results of a stage."""
        return results if self.output is None else of_output(self.output, results)


def leaving(plan: PhysicalPlan, number: int) -> tuple[OutgoingResults, ...]:
    """Return the outputs of a plan that the results of a stage go to."""
    given = zip(result_kinds(plan), plan.outputs, strict=True)
    return tuple(OutgoingResults(kind, output) for kind, output in given if output.stage == number)


def result_kinds(plan: PhysicalPlan) -> tuple[str, ...]:
    """Return what the results of each output are called on their way to the driver."""
    if not plan.named:
        return (RESULT,)
    return tuple(f"{RESULT}{STAGE}output {number}" for number in range(len(plan.named)))


@attrs.frozen(eq=False)
class StagePlace:
    """Says where a stage is among the stages of a query.

    Attributes
    ----------
    number, last : int
        Its number, from 0, and that of the stage whose rows for the driver carry no number.
    times : tuple of (int, int)
        The clocks its watermark follows.
    following : tuple of HandingOn
        How it gives results to those that read them.
    reads, follows : bool
        Whether it reads a source, and whether it takes results of other stages.
    leaving : tuple of Leaving
        The outputs that its results go to.
    next_operator : int or None
        The number of the operator after it, which has something to do whenever this one has.
    bucket_ids : tuple of int
        The buckets of every stage.
    """

    number: int = 0
    last: int = 0
    times: Times = FIRST_CLOCK
    following: tuple[HandingOn, ...] = ()
    reads: bool = True
    follows: bool = False
    leaving: tuple[OutgoingResults, ...] = (OutgoingResults(),)
    next_operator: int | None = None
    bucket_ids: tuple[int, ...] = (0,)


def place_of(plan: PhysicalPlan, number: int, next_operator: int | None, ids: tuple[int, ...]) -> StagePlace:
    """Return the place of a stage: `wakes` is the operator after it, `ids` are the buckets."""
    stage = plan.stages[number]
    following = tuple(
        HandingOn(branch.spec, ids, n)
        for n in plan.followers(number)
        for branch in plan.stages[n].inputs
        if branch.after == number
    )
    reads, follows = bool(stage.read), bool(stage.after)
    return StagePlace(number, plan.last, stage.times, following, reads, follows, leaving(plan, number), next_operator, ids)


def deliver(handler: LateEventHandler, tables: list[pa.Table], operator: str, batch_id: int) -> None:
    """Hand the late rows of a batch to the handler."""
    if tables:
        hand_over(handler, LateRows(pa.concat_tables(tables), operator, batch_id))


@attrs.define(eq=False)
class StopReason:
    """The reason why no other batch runs: somebody stops the query, or something on the driver failed."""

    stopping: threading.Event = attrs.field(factory=threading.Event)
    problem: BaseException | None = None
    repeats: bool = False
    """True where that failed in a batch that an earlier process had begun: it has failed there before."""
    thread: int | None = None
    """The thread a micro-batch runs in on the driver, while it does."""


class BatchStoppedError(Exception):
    """Holds what Spark hears of a batch that ``stop()`` broke off.

    It looks in the text for an interruption, by a regular expression that overflows the JVM's stack on texts as long as those
    of Spark's own errors: the query would die with pages of noise instead of stopping.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException")


@attrs.frozen
class TaskRow:
    """Holds what a task hands to the driver at the end of a micro-batch."""

    kind: str
    bucket: int
    blob: bytes


def reports_of(rows: list[TaskRow]) -> dict[str, Report]:
    """Reports by bucket, and stage where there are several before; of several of one bucket the last counts."""
    reports = {}
    for row in rows:
        kind, _, where = row.kind.partition(STAGE)
        if kind == METRICS:
            stage, _, task = where.partition(TASK)
            who = task or str(row.bucket)
            reports[f"{who}{STAGE}{stage}" if stage else who] = Report.from_bytes(row.blob)
    return reports


def stage_of(bucket: str, last: int) -> int:
    """Return the number of the stage whose report :func:`reports_of` keeps under this name; `last` is that of the last
    stage.
    """
    _, _, stage = bucket.partition(STAGE)
    return int(stage) if stage else last
