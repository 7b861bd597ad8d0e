"""Ranges that a source plans, on disk before they are read, and a thread that plans the next ones during a batch.

What came during a batch is then in the next one, and no result waits for a batch that could have had its rows. A source that
takes long to plan does so while the batch runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import attrs

from krishiv_py.connectors.ranges import Backlog, NotedRanges, RangeSource, backlog_of, next_ranges, tell_finished
from krishiv_py.connectors.source import Source
from krishiv_py.errors import RAISED, KrishivError, SourceError, failure_text
from krishiv_py.failures.retrying import RunningRetries
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.plan.running import Control
from krishiv_py.runtime.checkpoint.sparklog import batches_of, last_finished, offsets_of
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.runtime.ranges.folders import FolderSource, PlannedNames, as_folder, check_as_planned, check_place, files_in
from krishiv_py.runtime.ranges.limits import Alignment
from krishiv_py.runtime.ranges.log import RangeLog, names_of
from krishiv_py.runtime.ranges.sent import SentSource, as_ranges
from krishiv_py.runtime.ranges.spark_files import FileListing
from krishiv_py.runtime.reading import arrow_scanned, file_reader, planned_here
from krishiv_py.storage.checksums import missing
from krishiv_py.storage.files import store_at
from krishiv_py.storage.sends.log import ReplayLog

_MOST_BATCHES: Final = 100_000
_MOST_S: Final = 5.0
_LEAD_S: Final = 0.1
"""The least time between the plan of a batch and the moment Spark looks for it."""
_SLOW_S: Final = 0.1
"""A source that takes so long to plan does it while the batch before runs."""
_TRIED_S: Final = 1.0
"""For how long a batch waits at its end until the next one is planned."""
_TOGETHER: Final = 16
"""Names of so many batches at least are written together."""


@attrs.define(eq=False)
class RangePlanner:
    """Plans for one source of a query; `number` is its place among the sources, in Spark's log too."""

    node: RangeSource
    number: int
    checkpoint: str
    log: RangeLog
    now: Callable[[], int]
    aligned: tuple[Alignment, str] | None = None
    """The object that says whether it may go on, and its name there."""
    interval_us: int | None = None
    """The pause that Spark makes between two batches, where it makes one."""
    _planned_s: float = 0.0
    """The time that the source took for its last plan."""
    _names: PlannedNames | None = None
    _listed: FileListing | None = None
    """The list by which Spark finds the files that it reads itself."""
    _checked: int = -1
    _busy: bool = False
    _begun_us: int = 0
    _at_once: bool = True
    _everything: bool = False
    """True if everything is planned before the query begins."""
    _done: int = -1
    _planning: threading.RLock = attrs.field(factory=threading.RLock)
    _taken: int = -1
    _dropped: int = -1
    """The last batch that was taken when files of the log were removed last."""
    _newest: NotedRanges | None = None
    """The ranges that were planned last, in this run."""
    _known_position: tuple[int, str | None] | None = None
    """The position of the source after a batch, by its number."""
    _finished_at: int = -1
    _woken: threading.Event = attrs.field(factory=threading.Event)
    _tried: threading.Event = attrs.field(factory=threading.Event)
    """Not set while the thread has to look for more at the end of a batch."""
    _stopped: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def plan_next(self) -> bool:
        """Note the next batch, or the end of a finite source; False if there is nothing to note."""
        with self._planning:
            return self._plan_next()

    def _plan_next(self) -> bool:
        if self.log.ended:
            return False
        began = time.monotonic()
        planned = next_ranges(self.node.source, self.node.name, self.log.position)
        if planned is not None:
            self._planned_s = time.monotonic() - began
            self.log.note(planned)
            self._newest = planned
            self._list(planned)
        elif self.node.bounded:
            self.log.end(Control(END_OF_TIME, None, self.now()))
        self._tell(planned is not None)
        return planned is not None or self.node.bounded

    def ranges_of(self, number: int) -> Sequence[str] | None:
        """Return the ranges of an entry of the log if it is the one that was planned last; None: they are in the log."""
        return self._newest.ranges if self._newest is not None and number == self.log.last and not self.log.ended else None

    def _list(self, planned: NotedRanges) -> None:
        if self._listed is not None:
            self._listed.add(self.log.last, files_in(planned))
            if not self._everything:
                self._listed.write()

    def _tell(self, planned: bool) -> None:
        if self.aligned is not None:
            alignment, name = self.aligned
            limits = alignment.over if self.log.ended else alignment.planned if planned else alignment.nothing
            limits(name)

    def held(self) -> AbstractContextManager[Any]:
        """Return the lock under which it plans."""
        return self._planning

    def may_go_on(self) -> bool:
        """Return whether the source need not wait for a slower one."""
        return self.aligned is None or not self.aligned[0].holds(self.aligned[1])

    def begin(self, *, everything: bool) -> None:
        """Plan what the query begins with: `everything` there is now, or one batch.

        Raises
        ------
        CheckpointError
            When the newest part of the log is missing: the source would plan again what was read.
        SourceError
            When the source cannot plan.
        """
        batches = batches_of(self.checkpoint)
        if batches:
            self._look(batches[-1])
        if self.log.last < self._taken:
            raise missing(f"{self.log.folder}/{self._taken:020d}.parquet", NEW_CHECKPOINT)
        if isinstance(self.node.source, FolderSource):
            self._open_folder(self.node.source)
        if self.log.ended:
            self._tell(False)
        if everything:
            self._plan_all()
        elif self.log.last <= self._taken:
            self.plan_next()

    def _open_folder(self, source: FolderSource) -> None:
        self.log.forget_after(self._taken)  # it is planned again, and files that came meanwhile are with it
        self._names = names = names_of(self.log)
        check_place(source.files, names)
        source.plans(names)
        self._checked = self._committed()
        if source.reader is None:
            self._listed = FileListing(self.log.folder, self.checkpoint, self.number)
            self._listed.begin()
        self._put_away(self._checked)

    def _committed(self) -> int:
        """Return the last file of the log whose batch is committed."""
        store, root = store_at(self.checkpoint)
        finished = last_finished(store, root)
        return offsets_of(store, f"{root}/offsets/{finished}").get(self.number, -1) if finished >= 0 else -1

    def _put_away(self, upto: int) -> None:
        """Move or remove the files of committed batches, if the source says so."""
        source = self.node.source
        if isinstance(source, FolderSource) and source.files.after_read != "keep" and self._names is not None:
            again: set[str] = set()  # names of files that came later: those of earlier batches are gone
            for number in reversed([n for n in self.log.numbers() if self._done < n] if upto > self._done else []):
                files = files_in(self.log.ranges_of(number))
                if number <= upto:
                    source.done([file for file in files if file[3] not in again])
                again |= {file[3] for file in files}
            self._done = max(self._done, upto)

    def _drop_read(self) -> None:
        names = self._names
        if names is None:
            plans = not isinstance(self.node.source, FolderSource)  # a run that plans nothing keeps no names
            if plans and self._taken >= self._dropped + _TOGETHER:
                self._dropped = self._taken
                self.log.drop_read(self._taken)
            return
        over = self.log.read_long_ago(self._taken)
        if len(over) >= _TOGETHER:
            files = [file for n in over if n > names.upto for file in files_in(self.log.ranges_of(n))]
            if over[-1] > names.upto:
                still = (file for file in files if os.path.basename(file[3]) in names.known(os.path.dirname(file[3])))
                names.keep([(file[3], file[2] or 0) for file in still], over[-1])
            self.log.drop_read(self._taken)

    def _plan_all(self) -> None:
        if not self.node.bounded:
            self.node = attrs.evolve(self.node, source=self.node.source.until_now())
        planned, self._everything = 0, True
        while planned < _MOST_BATCHES or self._names is not None or isinstance(self.node.source, SentSource):
            if not self.plan_next():
                if self._listed is not None:
                    self._listed.write()
                return
            planned += 1
        raise SourceError(
            f"the source {self.node.name} has no end that can be planned",
            got=f"{_MOST_BATCHES} batches, and more to come",
            then="available_now() would never begin",
            hint=f"implement {type(self.node.source).__name__}.until_now, or plan larger batches",
        )

    def start(self, running: Callable[[], bool], fail: Callable[[KrishivError], None], retries: RunningRetries) -> None:
        """Go on planning while the query is `running`; let it `fail` when the source cannot plan, also if it is tried again."""
        self._tried.set()
        self._thread = threading.Thread(
            target=self._run, args=(running, fail, retries), name=f"krishiv-plan-{self.node.name}", daemon=True
        )
        self._thread.start()

    def taken(self, batch_id: int, entry: int | None = None) -> None:
        """A batch begins: files of finished ones go, and a slow source may plan the next one.

        Its `entry` of the log is what the batch reads last; without it Spark's log says so.
        """
        before, self._begun_us = self._taken, time.time_ns() // 1_000
        self._busy = self._names is not None or self._planned_s < _SLOW_S  # before the thread sees that it was taken
        if entry is None:
            self._look(batch_id)
        else:
            self._taken = entry
        self._put_away(min(before, self._taken - 1))
        self._woken.set()
        self._drop_read()
        self.check_files()
        if self._listed is not None:
            with self._planning:
                self._listed.taken(self._taken)

    def check_files(self, *, read: bool = False) -> None:
        """See that the files that Spark reads in this batch are as they were planned; before, and once they are `read`.

        Raises
        ------
        SourceError
            When one is not; names it.
        """
        if self._listed is not None:
            for number in range(self._checked + 1, self._taken + 1):
                for path, size, mtime_ns, _ in files_in(self.log.ranges_of(number)):
                    check_as_planned(path, size, mtime_ns)
            self._checked = self._taken if read else self._checked

    def computed(self) -> None:
        """The tasks of the batch in hand are done: the next one may be planned, while results are published."""
        if self._busy:  # what came during the batch is in the next one
            self._at_once = self._turn() != self._turn(self._begun_us)
            if self._thread is not None and self._thread.is_alive() and (self._at_once or not self.interval_us):
                self._tried.clear()
            self._busy = False
            self._woken.set()

    def published(self) -> None:
        """The batch that was taken last is done. If another one can be planned, it is planned when this returns.

        Raises
        ------
        SourceError
            When the source fails over it.
        """
        source = self.node.source
        if self._thread is not None:
            self._tried.wait(_TRIED_S)
        if type(source).finished is Source.finished or self._taken == self._finished_at or self._taken < 0:
            return
        position, self._finished_at = self.log.position_of(self._taken), self._taken
        if position is not None:
            tell_finished(source, self.node.name, position)

    def behind(self) -> bool:
        """Return whether there is more that no batch has taken, and that Spark does not know of yet."""
        if self._thread is None:
            return False
        if isinstance(self.node.source, (FolderSource, SentSource)):
            return self.has_more()
        if not self.interval_us or self.log.ended or not self.may_go_on():
            return False  # at the end of each batch the next one is planned
        with self._planning:
            return self.log.last > self._taken or self._any_new()

    def has_more(self) -> bool:
        """Return whether there is more that no batch has taken; the source is looked at again."""
        source = self.node.source
        with self._planning:
            if self.log.last > self._taken or self.log.ended:
                return self.log.last > self._taken
            return source.any_new() if isinstance(source, FolderSource) else self._any_new()

    def _any_new(self) -> bool:
        return next_ranges(self.node.source, self.node.name, self.log.position) is not None

    def backlog(self) -> Backlog | None:
        """Return how much of the source no batch has taken; None where the source does not know. It stops no query."""
        source, taken = self.node.source, self._taken
        if type(source).backlog is Source.backlog:
            return None
        try:
            position = self._known_position
            if position is None or position[0] != taken:
                self._known_position = position = taken, None if taken < 0 else self.log.position_of(taken)
            return backlog_of(source, self.node.name, position[1])
        except (KrishivError, OSError) as problem:
            if self._taken != taken:  # the query went on meanwhile, and its log let go of what was read
                return self.backlog()
            warnings.warn(f"the backlog of the source {self.node.name} is not known: {problem}", RuntimeWarning, stacklevel=2)
            return None

    def stop(self) -> None:
        """Plan no more."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        source = self.node.source
        if not isinstance(source, FolderSource) or source.files.after_read == "keep":
            return  # and the checkpoint is not looked at: where it is may be gone by now
        try:
            with self._planning:
                self._put_away(self._committed())
        except (KrishivError, OSError) as problem:  # the next start does it, or says so
            warnings.warn(f"files that were read are not put away: {problem}", RuntimeWarning, stacklevel=2)

    def _look(self, batch_id: int) -> None:
        store, root = store_at(self.checkpoint)
        self._taken = offsets_of(store, f"{root}/offsets/{batch_id}").get(self.number, self._taken)

    def _run(self, running: Callable[[], bool], fail: Callable[[KrishivError], None], retries: RunningRetries) -> None:
        try:
            self._go_on(running, fail, retries)
        finally:
            self._tried.set()

    def _go_on(self, running: Callable[[], bool], fail: Callable[[KrishivError], None], retries: RunningRetries) -> None:
        while not self._stopped.is_set() and not self.log.ended and running():
            self._woken.clear()
            busy = self._busy
            try:
                noted = self.log.last <= self._taken and self._wait_s() <= 0 and self.may_go_on()
                noted = noted and retries.call(self.plan_next)
            except KrishivError as problem:
                return fail(problem)
            except RAISED as problem:
                what = f"what the source {self.node.name} planned cannot be noted"
                return fail(
                    SourceError(what, got=self.log.folder, then=failure_text(problem), hint="see to the checkpoint's folder")
                )
            if not busy:
                self._tried.set()
            if not noted:
                wait_s = self._wait_s()
                self._woken.wait(min(wait_s, _MOST_S) if wait_s > 0 else self.node.source.poll_seconds)

    def _turn(self, now_us: int | None = None) -> int:
        """In which of Spark's intervals a time is."""
        return 0 if not self.interval_us else (time.time_ns() // 1_000 if now_us is None else now_us) // self.interval_us

    def _wait_s(self) -> float:
        """For how long nothing need be planned: a batch runs, or Spark looks for one only at the end of an interval."""
        if self._busy:
            return _MOST_S
        if not self.interval_us or self._at_once:
            self._at_once = not self.interval_us
            return 0.0
        left_us = self.interval_us - time.time_ns() // 1_000 % self.interval_us
        return left_us / 1e6 - max(_LEAD_S, 2 * self._planned_s)


@contextlib.contextmanager
def held(every: Sequence[RangePlanner]) -> Iterator[None]:
    """Let sources plan nothing meanwhile, so that no batch of them begins."""
    with contextlib.ExitStack() as locks:
        for planner in every:
            locks.enter_context(planner.held())
        yield


def backlogs(every: Sequence[RangePlanner]) -> dict[str, Backlog]:
    """Return what no batch has taken, by the name of the source; a name that several sources have gets their number too."""
    names = [planner.node.name for planner in every]
    backlog_of: dict[str, Backlog] = {}
    for planner in every:
        waiting = planner.backlog()
        if waiting is not None:
            name = planner.node.name
            backlog_of[name if names.count(name) == 1 else f"{name} {planner.number + 1}"] = waiting
    return backlog_of


def logged(
    source: SourceNode, checkpoint: str, number: int, *, waits: bool, by_spark: bool = True, in_lanes: bool = False
) -> SourceNode:
    """Return a source as a streaming query reads it: one that plans ranges, as all do that may have to wait, has its log there.

    Without Spark (`by_spark`) the library reads all formats itself, and so it does where rows are read `in_lanes`.
    """
    if isinstance(source, MemorySource) and (
        waits
        or in_lanes
        or ReplayLog(source.spool).in_segments
        or RangeLog(f"{checkpoint}/krishiv/ranges/{number}", durable=False).numbers()
    ):
        source = as_ranges(source)  # else Spark reads the sends, unless the query began where ranges were planned
    if isinstance(source, FileSource) and planned_here(source):
        here = arrow_scanned(source) or in_lanes or not by_spark
        reader = file_reader(source, source.schema) if here else None
        source = as_folder(source, reader, os.cpu_count() or 1)
    if not isinstance(source, RangeSource):
        return source
    return attrs.evolve(source, log=f"{checkpoint}/krishiv/ranges/{number}", in_lanes=in_lanes)


def planners(
    sources: list[SourceNode],
    checkpoint: str,
    now: Callable[[], int],
    aligned: Mapping[int, tuple[Alignment, str]],
    *,
    durable: bool,
    interval_us: int | None = None,
    kept: int = 0,
    in_lanes: Collection[int] = (),
) -> tuple[RangePlanner, ...]:
    """Return what plans for the sources of a query; some of them wait for one another. What `kept` batches read is kept."""
    numbered = [
        (number, logged(source, checkpoint, number, waits=number in aligned, in_lanes=number in in_lanes))
        for number, source in enumerate(sources)
    ]
    return tuple(
        RangePlanner(
            source,
            number,
            checkpoint,
            RangeLog.open(source.log or "", durable=durable, kept=kept),
            now,
            aligned.get(number),
            interval_us,
        )
        for number, source in numbered
        if isinstance(source, RangeSource)
    )
