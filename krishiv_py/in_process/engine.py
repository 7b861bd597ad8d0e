"""The loop of a query in this process: plan a batch, read it, run the stages, publish, commit.

A batch is written down before it runs (:class:`~krishiv_py.in_process.checkpoint.BatchLog`) and its last act is the commit of
the state it changed (:class:`~krishiv_py.in_process.checkpoint.StateLog`). Outputs are published in between, by the number of
the batch. So a batch that was broken off is run again with the same rows under the same watermark, and replaces its own output.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.api.subscription import Subscribers
from krishiv_py.connectors.lookup_table import tables_are
from krishiv_py.engine.stage import Report
from krishiv_py.errors import CheckpointError, SessionClosedError
from krishiv_py.failures.retrying import Backoff
from krishiv_py.failures.transient import verdict
from krishiv_py.in_process.checkpoint import (
    PAGE,
    TABLE,
    WAY_OUT,
    BatchLog,
    ChangedPages,
    ChangedStore,
    Key,
    PlannedBatch,
    StateLog,
    of_bucket,
)
from krishiv_py.in_process.core import BatchOutput, Core, StreamRows
from krishiv_py.in_process.outputs import LastResults, Outputs
from krishiv_py.in_process.sources import ClockControl, GatheredSends, SingleSends, StreamReader
from krishiv_py.in_process.stage import ProcessStage, StageBucket, Workers
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.forms import check_forms
from krishiv_py.kernels.state.store import stored
from krishiv_py.kernels.watermark import Clocks
from krishiv_py.logs import BatchLines, batch_part
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.running import under_new_names
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.batch import STAGE
from krishiv_py.runtime.checkpoint.lease import writable_checkpoint
from krishiv_py.runtime.checkpoint.sparklog import PROCESS_STATE
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.runtime.closings import CLOSED, Closings, noted_keys, request
from krishiv_py.runtime.controls import ControlFiles
from krishiv_py.runtime.query import BucketMetrics
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.limits import Limit
from krishiv_py.runtime.ranges.planning import RangePlanner
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.session import QueryRun
from krishiv_py.runtime.tables import LookupTables
from krishiv_py.storage.checksums import missing
from krishiv_py.storage.files import store_at
from krishiv_py.storage.notes import reading
from krishiv_py.storage.sends.log import HandedSends, handed_sends

_LONGEST_WAIT_S: Final = 5.0
_LET_IN_S: Final = 0.05
_SHORT_S: Final = 0.01
_LONGEST_REST_S: Final = 0.004
_ATTEMPTS: Final = 10
"""The number of times that a state is read that a running query replaces meanwhile."""


class _LeftError(Exception):
    """The query was stopped while a source was asked what there is."""


@attrs.define(eq=False)
class _Request:
    """A wait for batches.

    Attributes
    ----------
    upto : dict or None
        The number of sends that have to be taken, by the place of the source; None: all there is.
    reads_state : bool
        Whether who waits reads the state then, before the next batch begins.
    is_taken : bool
        Whether the sends were taken before the batch that runs.
    done : threading.Event
        Set when it is over.
    """

    upto: dict[int, int] | None
    reads_state: bool
    is_taken: bool = False
    done: threading.Event = attrs.field(factory=threading.Event)


@attrs.frozen(eq=False)
class QueryEnds:
    """Holds what a query reads and writes; another one is made for each attempt at a batch that was broken off.

    Attributes
    ----------
    readers : list of StreamReader
        Its streams, in the order of ``plan.reads``.
    outputs : Outputs
        Where results and late rows go.
    tables : LookupTables
        The tables of its lookup joins.
    """

    readers: list[StreamReader]
    outputs: Outputs
    tables: LookupTables


class Engine:
    """Runs the micro-batches of one query, in the thread that calls :meth:`run`.

    What is away in a batch may come back: then the query goes back to its last commit, and runs the batch again, as a restart
    would. Only what it reads, writes and holds is made again; whoever waits for the query or looks into it notices a pause.

    Parameters
    ----------
    run : QueryRun
        What runs, and from which checkpoint.
    ends : callable
        Makes what it reads and writes.
    ledger : Ledger
        What others see of the query.
    workers : Workers
        What runs the buckets of its stages.
    lookup_results : int
        How many results of each output stay in memory, about.
    """

    def __init__(
        self, run: QueryRun, ends: Callable[[], QueryEnds], ledger: BucketMetrics, workers: Workers, lookup_results: int
    ) -> None:
        plan, title, batches, now = run.plan, run.title, run.batches, run.now
        self._plan, self._title, self._ends, self._batches = plan, title, ends, batches
        self._lease, self._now, self._workers = run.opened.lease, now, workers
        self._checkpoint, self._durable = run.checkpoint, run.durable
        self._limit = Limit(
            batches.max_rows, batches.max_bytes, batches.interval_us / 1e6 if batches.kind == "target" else None
        )
        self._make()
        self.query_id = str(uuid.uuid4())
        self.batch = threading.RLock()
        """Held while a batch is planned and runs."""
        self._looking = 0
        self._let = threading.Event()
        """Set while nobody waits for the end of a batch, or looks."""
        self._counting = threading.Lock()
        self.woken = threading.Event()
        self.stopping = threading.Event()
        self._asking = self._left = False
        self._pid = os.getpid()
        self.last = {o.name: LastResults(self.core.stages[o.stage], o.schema, lookup_results) for o in plan.outputs}
        """The newest results, by output."""
        self.subscribers = Subscribers()
        self._lines, self._ledger = BatchLines(title, ledger.counted), ledger
        self._control_files = ControlFiles.of(plan, batches)
        self._closing = threading.Event()
        self._last_us = self._looked_us = now()
        self._took_s = 0.0
        self._backoff = Backoff(run.retry_s)
        self.repeats = False
        """True while it runs the batch that an earlier process had begun: what fails there has failed before."""
        self._requests: list[_Request] = []
        self._over = False
        self._looked_for = 0
        self._hurry = threading.Event()
        """Set while somebody waits for sends to be taken."""
        self._cpu_s = self._spent_s = 0.0
        """The CPU time of the last batch, with what was done since the one before; and of all of them."""

    def _make(self) -> None:
        """Make what a run begins with: all that the checkpoint is to fill."""
        plan, ends = self._plan, self._ends()
        self._readers, self._outputs, self._tables = ends.readers, ends.outputs, ends.tables
        self.core = changing(Core(plan, self._title, self._now(), self._workers))
        kept = self._batches._kept
        self._log = BatchLog(self._checkpoint, len(self._readers), self._durable, kept)
        self._state = StateLog(f"{self._checkpoint}/krishiv/{PROCESS_STATE}", self._durable, kept)
        self._closings: Closings | None = None
        self._taken: dict[int, int] = {}
        self._begun: PlannedBatch | None = None
        self._more = self._broken = False
        self._held: list[RangePlanner] = []
        """Planners that were not asked for the next batch, since another source is slower."""
        self._gone = set[Key]()
        """Values of buckets that were spread out; the next commit takes them out."""
        self._moved = False
        """True when the watermark has moved since the last step, as another engine may have left it."""
        gathering = GatheredSends.of(plan, self._limit, lambda: self.core.in_force.at(plan.stages[0].times).watermark_us)
        together = None if self._batches.kind == "available_now" else gathering or SingleSends()  # there each send is a batch
        for reader in self._readers:
            reader.bounded_by(self._limit, together)

    @contextlib.contextmanager
    def between_batches(self, *, sent: bool = False) -> Iterator[None]:
        """Wait until no batch runs, and hold the next one; under load, too, the one in hand is all that is waited for.

        With `sent` it waits until what was sent to memory streams before the call is in state.

        Raises
        ------
        SessionClosedError
            In a process that was forked: the query is in the other one.
        """
        if os.getpid() != self._pid:
            got, hint = (
                f"process {os.getpid()}, a fork of it",
                "ask it there, or read_state() of its checkpoint with a new session",
            )
            raise SessionClosedError(f"the query runs in process {self._pid}", got=got, hint=hint)
        waiting, held = self._looking_for(self._sent() if sent and not self._over else {}), False
        try:
            while not waiting.done.wait(_LET_IN_S):
                if self._over or self._left:
                    self._answer(waiting)
            while not held and not self._left:
                held = self.batch.acquire(timeout=_LET_IN_S)
            yield
        finally:
            self._answer(waiting)
            if held:
                self.batch.release()
            with self._counting:
                self._looking -= 1
                if not self._looking:
                    self._let.set()

    def _looking_for(self, upto: dict[int, int]) -> _Request:
        """Ask for a look when so many sends are taken; it is granted at once where they are, or there are none."""
        waiting = _Request(upto, reads_state=True)
        try:
            taken = self._has_taken(upto)
        except (CheckpointError, OSError):  # the query went on meanwhile, and its log let go of what was read
            taken = False
        if taken:
            self._answer(waiting)
            return waiting
        with self._counting:
            self._requests.append(waiting)
            self._looked_for += 1
            self._hurry.set()
        self.woken.set()
        return waiting

    def _sent(self) -> dict[int, int]:
        """Return how many sends each memory stream has, by its place."""
        sources = ((n, reader.planner.node.source) for n, reader in enumerate(self._readers))
        return {n: source.following() for n, source in sources if isinstance(source, SentSource)}

    def _has_taken(self, upto: Mapping[int, int]) -> bool:
        """Return whether batches have taken so many sends of each memory stream."""
        for n, sends in upto.items():
            planner = self._readers[n].planner
            source, entry = planner.node.source, self._taken.get(n)
            position = None if entry is None else planner.log.position_of(entry)
            if position is None and entry is not None:  # the input has ended
                continue
            assert isinstance(source, SentSource)
            if source.sends_upto(None if position is None else json.loads(position)) < sends:
                return False
        return True

    def _answer(self, one: _Request) -> None:
        """End the wait of a request; who waited for sends looks now."""
        with self._counting:
            if one.done.is_set():
                return
            if one in self._requests:
                self._requests.remove(one)
                self._looked_for -= one.reads_state
            if one.reads_state:
                self._looking += 1
                self._let.clear()
                if not self._looked_for:
                    self._hurry.clear()
            one.done.set()

    def _next_unless_left(self) -> dict[int, int]:
        """Plan what sources have; whoever stops the query need not wait for their answer, since nothing is noted before."""
        self._asking = True
        try:
            taken = self._next()
        finally:
            with self._counting:
                self._asking = False
        if self._left:
            raise _LeftError
        return taken

    def leave(self) -> bool:
        """Go on without the thread of the query if it waits for a source; it does nothing more when that answers."""
        with self._counting:
            self._left = self._asking
        return self._left

    def _let_in(self) -> None:
        """Let those in who wait for the end of a batch: a lock that is taken again at once would not be theirs."""
        self._let.wait(_LET_IN_S)

    def _rest(self) -> None:
        """Leave the interpreter to those who send, after a batch of a few sends, for half as long as it computed.

        Each time they release its lock they would wait for the batch; and the next batch takes more sends, at less cost each.
        """
        if self._took_s < _SHORT_S and all(isinstance(r.planner.node.source, SentSource) for r in self._readers):
            self._hurry.wait(min(self._cpu_s / 2, _LONGEST_REST_S))

    def begin(self) -> None:
        """Go on from what the checkpoint holds, and plan what the query begins with.

        Raises
        ------
        CheckpointError
            When a part of the checkpoint is damaged or missing.
        SourceError
            When a source cannot plan.
        """
        self._log.begin()
        values, note = self._state.load()
        if self._durable:
            store, root = store_at(self._checkpoint)
            store.sync(root, f"{root}/krishiv", f"{root}/krishiv/ranges", f"{root}/krishiv/{PROCESS_STATE}")
        if note is not None:
            self._restore(values, note)
        begun = self._log.last_planned()
        self._check(-1 if begun is None else begun.number)
        if begun is not None and begun.number > self._state.last:
            self._begun = begun
        elif begun is not None:
            self._moved |= self.core.follow_lags(begun.now_us)
        last = -1 if begun is None else begun.number
        self._closings = Closings(self._checkpoint, self._durable, last, self._closing, self._batches._kept)
        for reader in self._readers:
            # of files, names are taken over from the log when it is long: see RangePlanner
            files = isinstance(reader.planner.node.source, FolderSource)
            reader.planner.log.in_plans = self._batches.kind != "available_now" and not files
            reader.planner.begin(everything=self._batches.kind == "available_now")

    def _check(self, planned: int) -> None:
        """See that the state is that of the batch before the one that was `planned` last, or of that one.

        Raises
        ------
        CheckpointError
            When files of the state or of the log of batches are missing.
        """
        done = self._state.last
        if planned > done + 1 or (planned == done + 1 and self._log.is_committed(planned)):
            raise missing(f"{self._state.folder}/{max(done + 1, planned - 1):012d}.state", WAY_OUT)
        if planned < done:
            raise missing(f"{self._checkpoint}/offsets/{done}", NEW_CHECKPOINT)

    def run(self) -> None:
        """Run batches until the query is stopped, or what there was to read is read."""
        self.repeats = self._begun is not None
        runs = True
        while runs:
            try:
                self._woken_by_sends()
                runs = False
            except _LeftError:
                return
            except Exception as problem:  # noqa: BLE001  # of sources, sinks and stores; raised again unless it may pass
                if not self._went_back(problem):
                    return
        if self._state.last >= 0:
            with contextlib.suppress(CheckpointError, OSError):  # where it was may be gone by now
                self._lease.check()
                self._log.commit(self._state.last)

    def _woken_by_sends(self) -> None:
        with contextlib.ExitStack() as waking:
            for reader in self._readers:
                source = reader.planner.node.source
                if isinstance(source, SentSource) and source.together is not None:
                    source.handed = HandedSends(self.woken)
                    waking.enter_context(handed_sends(source.spool, source.handed))
            self._go_on()

    def _went_back(self, problem: Exception) -> bool:
        """Wait after a failure, and go back to the last commit; False when the query was stopped meanwhile.

        Nobody looks at the state of a batch that was broken off.

        Raises
        ------
        Exception
            The failure, if it does not pass in time.
        """
        is_first, self._ledger.busy_since = not self._ledger.trouble, None
        with contextlib.ExitStack() as held:
            if self._broken:
                held.enter_context(self.batch)
            while True:
                pause_s = self._backoff.pause_s(time.monotonic()) if verdict(problem) == "transient" else None
                if pause_s is None:
                    raise problem
                self._ledger.trouble = str(problem)
                if is_first:
                    text = f"query {self._title!r} tries again for {self._backoff.limit_s:g} s: {problem}"
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                    is_first = False
                if self.stopping.wait(pause_s):
                    return False
                held.enter_context(self.batch)
                try:
                    self._go_back()
                except Exception as next_problem:  # noqa: BLE001  # as above
                    problem = next_problem
                else:
                    return True

    def _go_back(self) -> None:
        """Begin again from the checkpoint."""
        self._lease.check()
        for reader in self._readers:
            reader.planner.stop()
        self.repeats = False
        self._make()
        self._broken = True  # until it is as the checkpoint has it
        self.begin()
        self._broken = False

    def _well(self) -> None:
        """Note that nothing is away."""
        self._backoff.over()
        self.repeats, self._ledger.trouble = False, ""

    def _go_on(self) -> None:
        if self._begun is not None:
            self._ledger.busy_since = time.monotonic()
            with self.batch:
                self._run(self._begun, is_replay=True)
            self._well()
        busy = 0  # batches without a pause while somebody waits for one
        while not self.stopping.is_set():
            self.woken.clear()
            requests = [*self._requests]
            self._ledger.busy_since = time.monotonic()
            with self.batch:
                wait_s = self._turn(in_time=not requests)
            self._ledger.busy_since = None
            if self._ledger.trouble:
                self._well()
            busy = 0 if wait_s or not requests else busy + 1
            if wait_s is not None and (requests if wait_s > 0 else self._looked_for or busy > 1):
                self._answer_those(requests if wait_s > 0 else [])
            if self._looking:
                self._let_in()
            if wait_s is None:
                return
            if not wait_s and not requests:
                self._rest()
            if wait_s > 0:
                self.woken.wait(wait_s)

    def _answer_those(self, idle: list[_Request]) -> None:
        """Answer requests that wait for no other batch: of those who look, all whose sends are taken.

        Who waits until the query has nothing to do, while more is sent, waits for what was sent by the second batch.

        With nothing due, `idle` are those that came before this was seen. What another source holds back is not waited for by
        those who look.
        """
        planners = (reader.planner for reader in self._readers)
        unsure = (p for p in planners if isinstance(p.node.source, SentSource) or p in self._held)  # others had nothing
        more = bool(idle) and any(planner.has_more() for planner in unsure)
        for one in [*self._requests]:
            if one.reads_state:
                if one in idle or (one.upto is not None and self._has_taken(one.upto)):
                    self._answer(one)
            elif (one in idle and not more) or one.is_taken:
                self._requests.remove(one)
                one.done.set()
            elif not idle:
                self._bound(one)

    def _bound(self, one: _Request) -> None:
        """Let a request end after the batch that follows what was sent by now."""
        if one.upto is not None:
            one.is_taken = self._has_taken(one.upto)
        elif all(isinstance(reader.planner.node.source, SentSource) for reader in self._readers):
            one.upto = self._sent()

    def _turn(self, *, in_time: bool) -> float | None:
        """Run the next batch if one is due; gives how long to wait for the one after it, None when there is none.

        Without `in_time` the interval between batches is not waited for.
        """
        now_us = self._now()
        wait_s = self._interval_s(now_us) if in_time else 0.0
        if wait_s > 0:
            return wait_s
        taken = self._next_unless_left()
        if self._moved or taken != self._taken or (self._batches.kind != "available_now" and self._due(now_us)):
            self._moved = False
            self._run(PlannedBatch(self.core.batch_id, now_us, taken))
            if self._batches.kind == "every":  # of a memory stream a batch is one send, and those that wait follow at once
                sends = (r.planner for r in self._readers if isinstance(r.planner.node.source, SentSource))
                self._more = any(planner.has_more() for planner in sends)
            return 0.0
        if self._batches.kind == "available_now":
            self._last()
            return None
        return self._poll_s(now_us)

    def process_available(self) -> threading.Event:
        """Return an event that is set when the query has read everything that is there now.

        Of memory streams that is what was sent before; of other sources only the query knows, when it finds no more.
        """
        waiting = _Request(None, reads_state=False)
        self._requests.append(waiting)
        self.woken.set()
        return waiting.done

    def close_keys(self, keys: Mapping[int, pa.Table]) -> None:
        """Note keys that the next batch forgets, by the number of the stage.

        Raises
        ------
        CheckpointError
            When they cannot be noted; then they stay open.
        """
        request(self._checkpoint, keys, durable=self._durable)
        self._closing.set()

    def end(self, *, whole: bool) -> None:
        """Let go of sources, and of whoever waits; `whole`: all that was begun is finished."""
        if whole:
            with contextlib.suppress(OSError):  # an empty folder is left
                self._outputs.end()
        for reader in self._readers:
            reader.planner.stop()
        self._over, self._ledger.busy_since = True, None
        for waiting in list(self._requests):
            self._answer(waiting)
        self.core.workers.close()

    def _interval_s(self, now_us: int) -> float:
        """Return how long to wait for the next batch of an interval."""
        if self._batches.kind != "every" or self.core.batch_id == 0 or self._more:
            return 0.0
        every = self._batches.interval_us
        due = (self._last_us // every + 1) * every
        return max(min((due - now_us) / 1e6, _LONGEST_WAIT_S), 0.0)

    def _next(self) -> dict[int, int]:
        """Plan what sources have; gives the last entry that each source has given with the next batch.

        Sends go on meanwhile. A memory stream that had none is looked at again when another one had: what was sent first is
        taken no later, and of a stream that is read twice both take the same.
        """
        taken, self._held = dict(self._taken), []
        looking: Sequence[int] = range(len(self._readers))
        while looking:
            idle: list[int] = []
            for number in looking:
                planner, before = self._readers[number].planner, self._taken.get(number, -1)
                if planner.log.last <= before:
                    if planner.may_go_on():
                        planner.plan_next()
                    else:
                        self._held.append(planner)
                if planner.log.last > before:
                    taken[number] = before + 1
                elif isinstance(planner.node.source, SentSource):
                    idle.append(number)
            looking = idle if idle and len(idle) < len(looking) else ()
        return taken

    def _due(self, now_us: int) -> bool:
        """Return whether the clock alone makes a batch due."""
        deadline = self.core.clock_due_us
        if deadline is not None and deadline <= now_us:
            return True
        period = self._control_files.period_us
        if period is None or now_us - self._looked_us < period:
            return False
        return not self._control_files.while_open or self._ledger.open > 0

    def _poll_s(self, now_us: int) -> float:
        polls = (r.planner.node.source.poll_seconds for r in self._readers if not r.planner.log.ended)
        wait = min(polls, default=_LONGEST_WAIT_S)
        if self._control_files.period_us is not None:
            wait = min(wait, max((self._looked_us + self._control_files.period_us - now_us) / 1e6, 0.001))
        deadline = self.core.clock_due_us
        if deadline is not None:
            wait = min(wait, max((deadline - now_us) / 1e6, 0.001))
        return wait if wait < _LONGEST_WAIT_S else _LONGEST_WAIT_S

    def _last(self) -> None:
        """Run the batch that follows when everything there was is read."""
        if self._batches._goes_on and not self._plan.stateless:
            flush, snapshot = self._batches.flush, self._batches.snapshot
            self._run(PlannedBatch(self.core.batch_id, self._now(), dict(self._taken), flush, snapshot))

    def _run(self, planned: PlannedBatch, *, is_replay: bool = False) -> None:
        self._ledger.began = time.monotonic()
        with self._lines.batch():
            self._lease.check()
            self._broken = True
            closes = self._closings is not None and self._closings.begin(planned.number)  # noted before the batch is
            if not is_replay:
                with batch_part("plan"), writable_checkpoint(self._checkpoint, running=True):
                    self._log.plan(attrs.evolve(planned, ranges=self._ranges(planned.taken)))
            sent, controls = dict[int, StreamRows](), list[ClockControl]()
            for index, reader in enumerate(self._readers):
                if index in planned.taken:
                    reader.planner.taken(planned.number, planned.taken[index])
                if planned.taken.get(index, -1) > self._taken.get(index, -1):
                    with batch_part("read"):
                        if self.core.clocks.by_row:
                            self.core.clocks.expect(reader.clocks, reader.partitions(), planned.now_us)
                        reader.read(planned.taken[index], sent, controls)
            self._advance(planned, controls)
            if closes and planned.number:
                stepped = self.core.stepped(planned.now_us)
                for number, keys in noted_keys(self._checkpoint, planned.number).items():
                    self.core.stages[number].forget(keys, stepped)

            given = dict[str, pa.Table]()

            def publish(number: int, output: BatchOutput) -> None:
                self._lease.check()
                results = list(output.results.values())
                self._outputs.publish(number, results, output.late, planned.now_us, is_replay=is_replay)
                given.update(output.results)

            snapshot = planned.snapshot or any(control.snapshot for control, _ in controls)
            self._ledger.tables = self._tables.begin(planned.number)
            with tables_are(self._tables):
                self.core.run(sent, planned.now_us, begun_us=planned.now_us, snapshot=snapshot, publish=publish)
            self._taken = dict(planned.taken)
            if closes and self._closings is not None:
                self._closings.published(planned.number, {CLOSED})  # a repeated batch closes them by its own note
            with batch_part("commit"), writable_checkpoint(self._checkpoint, running=True):
                self._commit(planned)
            self._broken = False
            for name, results in given.items():
                self.last[name].put(results)
                self.subscribers.put(name, results)
            for reader in self._readers:
                reader.planner.published()
        self._took_s = time.monotonic() - self._ledger.began
        cpu_s = time.thread_time()
        self._cpu_s, self._spent_s = cpu_s - self._spent_s, cpu_s
        self._limit.ran(self._took_s)

    def _ranges(self, taken: Mapping[int, int]) -> dict[int, tuple[int, str, Sequence[str]]]:
        """Return the last entries that sources have given, as far as plans hold them."""
        entries = {n: (entry, self._readers[n].planner.log.held.get(entry)) for n, entry in taken.items()}
        return {n: (entry, held.position, held.ranges) for n, (entry, held) in entries.items() if held is not None}

    def _advance(self, planned: PlannedBatch, controls: list[ClockControl]) -> None:
        """Let the clocks know what controls say, and that the input has ended."""
        for control, inputs in controls:
            self.core.clocks.take(control, inputs, planned.now_us)
        if planned.ended:
            self.core.clocks.advance(None, END_OF_TIME, None, planned.now_us)

    def _commit(self, planned: PlannedBatch) -> None:
        changed: dict[Key, bytes | None] = dict.fromkeys(self._gone)
        stages = []
        for number, stage in enumerate(self.core.stages):
            metas = []
            for place, bucket in enumerate(stage.buckets):
                store, pages = bucket.store, bucket.pages
                assert isinstance(store, ChangedStore) and isinstance(pages, ChangedPages)
                metas.append(stored(bucket.meta))  # writes the pages that have changed
                for name in store.changed:
                    table = store.tables.get(name)
                    value = None if table is None else self._state.value_of(table, planned.number)
                    changed[number, of_bucket(TABLE, place), name] = value
                for name in pages.changed:
                    changed[number, of_bucket(PAGE, place), name] = pages.notes.get(name)
            stages.append(
                {
                    "meta": metas[0],
                    "others": metas[1:],
                    "counters": stage.counters,
                    "open": [stage.open_windows, stage.open_rows],
                    "left": stage.left,
                    "handed": attrs.astuple(stage.handed),
                }
            )
        core = self.core
        note: dict[str, Any] = {
            "query": self.query_id,
            "taken": {str(index): number for index, number in self._taken.items()},
            "clocks": core.clocks.saved(),
            "before": core.before,
            "advances": core.advances,
            "moved": core.moved_us,
            "stages": stages,
        }
        self._lease.check()
        self._state.commit(planned.number, changed, note)
        self._gone.clear()
        for stage in core.stages:
            for bucket in stage.buckets:
                assert isinstance(bucket.store, ChangedStore) and isinstance(bucket.pages, ChangedPages)
                bucket.store.changed.clear()
                bucket.pages.changed.clear()
        self._last_us, self._looked_us = planned.now_us, self._now()
        self._account(planned.number)

    def _restore(self, values: dict[Key, bytes], note: dict[str, Any]) -> None:
        self._moved = note.get("behind", False)
        self.query_id = note["query"]
        self._taken = {int(index): number for index, number in note["taken"].items()}
        restore(self.core, self._state, values, note)
        for number, stage in enumerate(self.core.stages):
            if len(stage.buckets) != stage.most_buckets:
                self._spread(number, stage)
        self._account(self._state.last)

    def _spread(self, number: int, stage: ProcessStage) -> None:
        """Spread the state of a stage over as many buckets as there are workers now; the next commit writes all of it."""
        held, opened = stage.content(), [stage.open_windows, stage.open_rows]
        for place, bucket in enumerate(stage.buckets):
            assert isinstance(bucket.pages, ChangedPages)
            self._gone |= {(number, of_bucket(TABLE, place), name) for name in bucket.store.tables}
            self._gone |= {(number, of_bucket(PAGE, place), name) for name in bucket.pages.notes}
        stage.buckets = changing_buckets(stage.made(stage.most_buckets))
        stage.take_over(held, opened)

    def _account(self, batch_id: int) -> None:
        """Say where the query is."""
        core, ledger = self.core, self._ledger
        ledger.idle, ledger.doubts = core.idle, core.ahead.doubts
        ledger.partition_times_us = core.ahead.partition_times_us
        reports = {}
        for number, stage in enumerate(core.stages):
            sizes = stage.open_windows, stage.open_rows, stage.nbytes
            name = "0" if number == self._plan.last else f"0{STAGE}{number}"
            timers, held_rows = stage.pending()
            reports[name] = Report(dict(stage.counters), *sizes, given=dict(stage.left), timers=timers, held_rows=held_rows)
        sources = core.clocks.reached if self._plan.keeps_ledger else {}
        ledger.take(batch_id, reports, core.in_force, sources, whole=True)
        ledger.advances, ledger.moved_us = core.advances, dict(core.moved_us)


def changing(core: Core) -> Core:
    """Let the stages of a core note what changes between two commits."""
    for stage in core.stages:
        changing_buckets(stage.buckets)
        stage.begin()
    return core


def changing_buckets(buckets: list[StageBucket]) -> list[StageBucket]:
    """Let empty buckets note what changes between two commits."""
    for bucket in buckets:
        bucket.store, bucket.pages = ChangedStore(), ChangedPages()
    return buckets


def restore(core: Core, state: StateLog, values: Mapping[Key, bytes], note: Mapping[str, Any]) -> None:
    """Put a core where the last commit of a state log left it, by what was loaded of the log."""
    with reading(state.path, WAY_OUT):
        _restore(core, state, values, note)


def _restore(core: Core, state: StateLog, values: Mapping[Key, bytes], note: Mapping[str, Any]) -> None:
    core.batch_id = state.last + 1
    core.put_back(Clocks.restored(core.plan.clocks, note["clocks"]), note.get("moved", {}))
    core.before, core.advances = tuple(note["before"]), note["advances"]
    for stage in core.stages[len(note["stages"]) :]:  # of a plan that has more stages now
        stage.handed = Moment(core.before[0], others=core.before[1:]).at(stage.plan.times)
    for stage, kept in zip(core.stages, note["stages"], strict=False):
        stage.buckets = changing_buckets(stage.made(1 + len(kept.get("others", ()))))
        for bucket, meta in zip(stage.buckets, [kept["meta"], *kept.get("others", ())], strict=True):
            check_forms(meta)
            bucket.meta = meta
        stage.buckets[0].open_windows, stage.buckets[0].open_rows = kept["open"]  # of all buckets, until their next step
        stage.counters, stage.left = under_new_names(kept["counters"]), kept["left"]
        watermark_us, now_us, calls_triggers, others, begun_us, before, *newest = kept["handed"]
        early = None if before is None else tuple(before)
        stage.handed = Moment(watermark_us, now_us, calls_triggers, tuple(others), begun_us, early, *newest)
    for (number, named, name), value in values.items():
        kind, _, place = named.partition(".")
        bucket = core.stages[number].buckets[int(place or 0)]
        assert isinstance(bucket.store, ChangedStore) and isinstance(bucket.pages, ChangedPages)
        if kind == TABLE:
            bucket.store.put(name, state.table_of(value))
        else:
            bucket.pages.notes[name] = value
        bucket.store.changed.clear()


def kept_core(plan: PhysicalPlan, checkpoint: str, stage: str | None, now_us: int) -> tuple[Core, ProcessStage]:
    """Return the clocks and a stage with its state after the last committed batch of a checkpoint, only read.

    Raises
    ------
    CheckpointError
        When a part of it is damaged or missing.
    PlanError
        For a name that no stage has.
    """
    number = plan.stage_called(stage)
    for attempt in range(_ATTEMPTS):
        core, state = changing(Core(plan, plan.title, now_us)), StateLog(f"{checkpoint}/krishiv/{PROCESS_STATE}")
        try:
            values, note = state.load(only_read=True)
            if note is not None:
                restore(core, state, {key: value for key, value in values.items() if key[0] == number}, note)
            return core, core.stages[number]
        except CheckpointError:  # a query that runs removes files it has copied
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
