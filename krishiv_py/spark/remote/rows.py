"""Rows for whoever takes them in the client: files next to the checkpoint, which the server's process writes.

A file is there whole or not at all, and goes when the client has taken it. What nobody has taken yet, because the client has
ended before, is taken first by the next one that goes on from the checkpoint.

Define what ends a query of the server between its batches, as a source does that cannot plan: noted, for the client
to raise it.

Spark tells the client of what fails in a batch, and of nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py import errors
from krishiv_py.connectors.publish import blamed
from krishiv_py.connectors.sink import OnRepeat, OutputBatch, Sink, TableSink
from krishiv_py.connectors.sinks.known import ConsoleSink, MemorySink, SideOutputLateEventHandler, side_output
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, own_type
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.options.late import LateWanted, wanted_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.batch import deliver
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import decode, encode, sealed, unsealed
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.store import Store

_POLL_S: Final = 0.2
_POLL_STORE_S: Final = 2.0
_HEAD: Final = 4
Taker = Callable[[OutputBatch, pa.Table], None]


@attrs.frozen(eq=False)
class ClientRows(TableSink):
    """In the server's process: the rows of an output that the client takes.

    Attributes
    ----------
    folder : str
        Where its files are.
    key : str
        Which output it is.
    """

    folder: str
    key: str
    on_repeat: ClassVar[OnRepeat] = "replace"

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """See TableSink."""
        if not tables:
            return  # a repeated batch has the same rows, so there were none before
        head = attrs.asdict(batch, filter=lambda field, _: field.name != "schema")
        header = json.dumps(head).encode()
        data = len(header).to_bytes(_HEAD, "big") + header + encode(pa.concat_tables(tables))
        store, root = store_at(self.folder)
        store.write(f"{root}/{batch.batch_id:012d}-{self.key}", sealed(data))


@attrs.frozen(eq=False)
class ClientHandler(SideOutputLateEventHandler):
    """In the server's process: stands for a late handler that is in the client."""

    wanted: LateWanted = "rows"

    @property
    def wants(self) -> LateWanted:
        """Return what that one wants."""
        return self.wanted


def stays(sink: Sink | None) -> bool:
    """Return whether a sink is one of the client's process: in another one nobody would see its rows."""
    return isinstance(sink, (MemorySink, ConsoleSink))


def client_folder(checkpoint: str) -> str:
    """Return where the rows for the client are."""
    return f"{checkpoint}/krishiv/client"


def with_client(
    plan: PhysicalPlan, sinks: tuple[Sink, ...], checkpoint: str
) -> tuple[PhysicalPlan, tuple[Sink, ...], dict[str, Taker]]:
    """Plan and sinks as the server's process has them, and who takes what it writes for the client."""
    folder, takers, there = client_folder(checkpoint), dict[str, Taker](), list[Sink]()
    for number, sink in enumerate(sinks):
        if isinstance(sink, (MemorySink, ConsoleSink)):
            takers[f"results-{number}"] = _sinking(sink)
        there.append(ClientRows(folder, f"results-{number}") if stays(sink) else sink)
    stages = []
    for number, stage in enumerate(plan.stages):
        to, key = side_output(stage.late), f"late-{number}"
        if isinstance(to, (MemorySink, ConsoleSink)):
            takers[key] = _sinking(to)
        elif to is None:
            takers[key] = _handing(stage.late, stage.spec.name)
        away = ClientHandler(ClientRows(folder, key), wanted_of(stage.late))
        stages.append(attrs.evolve(stage, node=attrs.evolve(stage.node, late=away)) if key in takers else stage)
    return attrs.evolve(plan, stages=tuple(stages), parts=()), tuple(there), takers


def _sinking(sink: MemorySink | ConsoleSink) -> Taker:
    def take(batch: OutputBatch, rows: pa.Table) -> None:
        with blamed(sink, batch.batch_id):
            sink.write_tables(batch, [rows])

    return take


def _handing(handler: Any, operator: str) -> Taker:
    return lambda batch, rows: deliver(handler, [rows], operator, batch.batch_id)


@attrs.define(eq=False)
class Arrivals:
    """In the client: takes what the server's process has written.

    Attributes
    ----------
    folder : str
        Where the files are.
    takers : dict
        Who takes which output.
    fail : callable
        Called with the problem of a taker that fails.
    """

    folder: str
    takers: dict[str, Taker]
    fail: Callable[[KrishivError], None] = lambda problem: None
    _over: threading.Event = attrs.field(factory=threading.Event)
    _lock: Any = attrs.field(factory=threading.RLock)

    def take(self) -> None:
        """Take all there is; what a taker fails over stays, and is given to it again by the next run."""
        store, root = store_at(self.folder)
        with self._lock:
            for entry in sorted(store.entries(root), key=lambda f: f.path):
                _, _, key = entry.base_name.partition("-")
                data = store.read(entry.path) if key in self.takers else None
                if data is None:
                    continue
                data = unsealed(data, entry.path, NEW_CHECKPOINT)
                end = _HEAD + int.from_bytes(data[:_HEAD], "big")
                rows = decode(data[end:])
                self.takers[key](OutputBatch(**json.loads(data[_HEAD:end]), schema=rows.schema), rows)
                store.delete(entry.path)

    def start(self) -> None:
        """Go on taking until :meth:`stop`."""
        threading.Thread(target=self._run, name="krishiv-arrivals", daemon=True).start()

    def stop(self) -> None:
        """Take what is left, and no more."""
        self._over.set()
        self._try()

    def _run(self) -> None:
        wait = _POLL_S if is_local_path(self.folder) else _POLL_STORE_S
        while not self._over.wait(wait):
            if not self._try():
                return

    def _try(self) -> bool:
        try:
            self.take()
        except KrishivError as problem:
            self._over.set()
            self.fail(problem)
            return False
        except OSError:  # the store does not answer, or the folder has gone with its query
            pass
        return True


_NOTE: Final = "krishiv/server-failed"


def note_failure(checkpoint: str, problem: KrishivError) -> None:
    """In the server's process: note what ends the query; before it is stopped, so that whoever sees its end finds the note."""
    report = {"type": own_type(type(problem)).__name__, "text": redacted(str(problem))}
    store, path = _place(checkpoint)
    store.write_note(path, report)


def noted_failure(checkpoint: str) -> KrishivError | None:
    """In the client: what was noted."""
    store, path = _place(checkpoint)
    try:
        report = store.read_note(path, dict[str, str], "start() goes on from the checkpoint")
    except CheckpointError as problem:
        return problem
    if report is None:
        return None
    kind: type[KrishivError] = getattr(errors, report["type"], OperatorError)
    return kind(report["text"])


def forget_failure(checkpoint: str) -> None:
    """Before the query runs again."""
    store, path = _place(checkpoint)
    store.delete(path)


def _place(checkpoint: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/{_NOTE}")
