"""A path is a text or an object with ``__fspath__`` wherever the public API takes one. No Spark needed."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import DeltaSink, JsonSink, MemorySink, ParquetSink, Session, SessionBuilder, SqliteSink, count, lineage
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.connectors import delta_source
from krishiv_py.connectors.kafka.client import connection
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.features import FeatureLog
from krishiv_py.testing import Capture, Driver, check, replay, stream_of
from tests.house.test_reference import entries

NAMES: Final = {"path", "folder", "checkpoint", "savepoint", "against", "into", "archive", "spool", "file", "files"}
"""Parameters that are called so are paths, but for those below."""
NO_PATHS: Final = {
    *("Malformed(file)", "JsonMethods.get_json_object(path)", "Sender(spool)", "SparkFileSink.write_files(folder)"),
    *("check(against)", "check_parity(archive)", "Parity(archive)"),
}
"""A path in JSON, a plan, streams, and what the library itself passes."""
PLAN: Final = stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield each callable of the reference, and the name and annotation of each of its parameters."""
    for entry in entries():
        module, _, name = entry.rpartition(".")
        thing = getattr(importlib.import_module(module), name)
        members = [thing]
        if inspect.isclass(thing):
            members += [member for each, member in inspect.getmembers(thing, inspect.isroutine) if each[0] != "_"]
        for member in members:
            try:
                signature = inspect.signature(member).parameters.values() if callable(member) else ()
            except ValueError:  # of a class of exceptions
                continue
            yield from ((member.__qualname__, p.name, str(p.annotation)) for p in signature)


def counts(session: Session) -> ResultStream:
    """Return the same pipeline over a stream of the session."""
    stream, _ = session.memory_stream("user string, at bigint")
    return stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())


def started(session: Session, checkpoint: Any, **begin: Any) -> object:
    """Return what a query says of the state it began with."""
    query = counts(session).start(MemorySink(), checkpoint=checkpoint, **begin)
    query.stop()
    return query.state().to_pylist()


def from_several(session: Session, checkpoint: Any, **begin: Any) -> object:
    """Return the same of a query with outputs."""
    query = session.start([counts(session).to(MemorySink(), name="one")], checkpoint=checkpoint, **begin)
    query.stop()
    return query.state().to_pylist()


def saved(session: Session, path: Any) -> object:
    """Return the savepoint of a query that runs."""
    stream, sender = session.memory_stream("user string, at bigint")
    query = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count()).start(MemorySink())
    sender.send([{"user": "ann", "at": 1}])
    query.process_all_available()
    try:
        return query.savepoint(path)
    finally:
        query.stop()


def handed_rows(session: Session, spool: Any) -> object:
    """Return how many rows a spool has taken."""
    _, sender = session.memory_stream("user string, at bigint", spool=spool)
    return sender.send([{"user": "ann", "at": 1}]), len(list(Path(spool).iterdir()))


def exported(session: Session, to: Any) -> object:
    """Return the file of events."""
    with lineage.export(session, to):
        started(session, None)
    return Path(to).exists()


def archived(kind: str) -> Callable[[Session, Path, Any], object]:
    """Return a call that reads files of a kind and moves those that were read."""

    def call(session: Session, home: Path, archive: Any) -> object:
        read = getattr(session, f"read_{kind}")
        return read(home / "rows", "user string, at bigint", streaming=True, after_read="archive", archive=archive)

    return call


CALLS: Final[dict[str, tuple[str, Callable[[Session, Path, Any], object]]]] = {
    "check(keep)": ("new", lambda _s, _h, p: check(PLAN, cases=2, seed=1, keep=p).cases),
    "check(replay)": ("new", lambda _s, _h, p: check(PLAN, cases=2, seed=1, replay=p).cases),
    "Capture(path)": ("capture", lambda _s, _h, p: Capture(p, PLAN).why("ann", 1_000).rows.num_rows),
    "DeltaSink(path)": ("new", lambda _s, _h, p: DeltaSink(p).path),
    "Driver(savepoint)": ("savepoint", lambda _s, _h, p: Driver(PLAN, savepoint=p).close().results.to_pylist()),
    "Driver.from_capture(path)": ("capture", lambda _s, _h, p: Driver.from_capture(p, PLAN).batches_left),
    "Driver.savepoint(path)": ("new", lambda _s, _h, p: Driver(PLAN).savepoint(p)),
    "FeatureLog(path)": ("new", lambda _s, _h, p: FeatureLog(p, key="user", at="at").path),
    "JsonSink(path)": ("new", lambda _s, _h, p: JsonSink(p).path),
    "ParquetSink(path)": ("new", lambda _s, _h, p: ParquetSink(p).path),
    "SqliteSink(path)": ("new", lambda _s, _h, p: SqliteSink(p, "t").path),
    "Query.savepoint(path)": ("new", lambda s, _h, p: saved(s, p)),
    "RunMethods.explain(against)": ("checkpoint", lambda s, _h, p: counts(s).explain(against=p)),
    "RunMethods.start(checkpoint)": ("checkpoint", lambda s, _h, p: started(s, p)),
    "RunMethods.start(savepoint)": ("savepoint", lambda s, h, p: started(s, h / "new", savepoint=p)),
    "RunMethods.to_dataframe(checkpoint)": ("new", lambda s, _h, p: counts(s).to_dataframe(checkpoint=p)),
    "Session.adopt(checkpoint)": ("checkpoint", lambda s, _h, p: s.adopt(p, other=s)),
    "Session.adopt(into)": ("new", lambda s, h, p: s.adopt(h / "checkpoint", other=s, into=p)),
    "Session.capture(checkpoint)": ("checkpoint", lambda s, h, p: s.capture(p, counts(s), h / "new")),
    "Session.capture(path)": ("new", lambda s, h, p: s.capture(h / "checkpoint", counts(s), p)),
    "Session.capture(savepoint)": ("savepoint", lambda s, h, p: s.capture(h / "checkpoint", counts(s), h / "new", savepoint=p)),
    "Session.memory_stream(spool)": ("new", lambda s, _h, p: handed_rows(s, p)),
    "Session.move(checkpoint)": ("checkpoint", lambda s, _h, p: s.move(p, "in-process")),
    "Session.move(into)": ("new", lambda s, h, p: s.move(h / "checkpoint", "spark", p)),
    "FileSources.read_csv(path)": ("rows", lambda s, _h, p: s.read_csv(p, "user string, at bigint").explain()),
    "FileSources.read_json(path)": ("rows", lambda s, _h, p: s.read_json(p, "user string, at bigint").explain()),
    "FileSources.read_parquet(path)": ("rows", lambda s, _h, p: s.read_parquet(p).collect().to_pylist()),
    "RangedSources.read_delta(path)": ("new", lambda s, _h, p: s.read_delta(p)),
    "delta_source(path)": ("new", lambda _s, _h, p: delta_source(p)),
    "Session.read_state(checkpoint)": ("checkpoint", lambda s, _h, p: s.read_state(p, counts(s)).to_pylist()),
    "Session.rescale(checkpoint)": ("checkpoint", lambda s, _h, p: s.rescale(p, 2)),
    "Session.savepoint(checkpoint)": ("checkpoint", lambda s, h, p: s.savepoint(p, h / "new")),
    "Session.savepoint(path)": ("new", lambda s, h, p: s.savepoint(h / "checkpoint", p)),
    "Session.start(checkpoint)": ("checkpoint", lambda s, _h, p: from_several(s, p)),
    "Session.start(savepoint)": ("savepoint", lambda s, h, p: from_several(s, h / "new", savepoint=p)),
    "Session.why(checkpoint)": ("checkpoint", lambda s, _h, p: s.why(p, counts(s), "ann", 1_000).partition(" since ")[0]),
    "export(to)": ("new", lambda s, _h, p: exported(s, p)),
    "replay(files)": ("rows/one.parquet", lambda _s, _h, p: replay(PLAN, [p]).results.to_pylist()),
    **{f"FileSources.read_{kind}(archive)": ("new", archived(kind)) for kind in ("csv", "json", "parquet")},
}
"""What is done with each parameter that is a path: which folder of the test it names, and the call."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a query that has ended, a savepoint and a capture of it, and a folder of rows."""
    folder = tmp_path_factory.mktemp("paths")
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, at bigint", spool=folder / "spool")
        plan = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        query = plan.start(MemorySink(), checkpoint=folder / "checkpoint")
        sender.send([{"user": "ann", "at": 1_000}])
        query.process_all_available()
        query.savepoint(folder / "savepoint")
        query.stop()
        session.capture(folder / "checkpoint", plan, folder / "capture")
    (folder / "rows").mkdir()
    pq.write_table(pa.table({"user": ["ann"], "at": [1_000]}), folder / "rows" / "one.parquet")
    return folder


def outcome(first: Path, into: Path, call: str, kind: Callable[[str], Any]) -> str:
    """Return what a call returns or raises, in a copy of the folder."""
    shutil.copytree(first, into)
    place, made = CALLS[call]
    with Session.in_process() as session:
        try:
            actual = repr(made(session, into, kind(str(into / place))))
        except KrishivError as problem:
            actual = f"{type(problem).__name__}: {problem}"
    return re.sub(r"0x[0-9a-f]+|/\S*?krishiv[^/'\s]*", "", actual.replace(str(into), "HOME"))


def test_every_parameter_that_is_a_path_is_tried() -> None:
    """A new one gets the type ``PathLike``, goes through ``a_path``, and has its call here."""
    actual = {f"{where}({name})": annotation for where, name, annotation in parameters()}
    assert {each for each, annotation in actual.items() if "PathLike" in annotation} == set(CALLS)
    named = {each for each in actual if each.partition("(")[2][:-1] in NAMES}
    assert named - set(CALLS) == NO_PATHS


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_path_is_taken_as_its_text_is(first: Path, tmp_path: Path, call: str) -> None:
    text, path = (outcome(first, tmp_path / kind.__name__, call, kind) for kind in (str, Path))
    assert path == text
    assert "is not a path" not in path


@pytest.mark.parametrize("call", sorted(set(CALLS) - {"replay(files)"}))
def test_what_names_no_file_is_refused(first: Path, tmp_path: Path, call: str) -> None:
    name = call.partition("(")[2][:-1]
    with Session.in_process() as session:
        for wrong in (5, "", " ", b"folder", "a\0b"):
            with pytest.raises(PlanError, match=f"`{name}` is not a path"):
                CALLS[call][1](session, first, wrong)


def test_a_setting_may_be_a_path(tmp_path: Path) -> None:
    """Key files, certificates, warehouses."""
    key = tmp_path / "key.json"
    assert SessionBuilder().storage_options({"GOOGLE_SERVICE_ACCOUNT": key}) == SessionBuilder().storage_options(
        {"GOOGLE_SERVICE_ACCOUNT": str(key)}
    )
    assert SessionBuilder().config("spark.jars", key) == SessionBuilder().config("spark.jars", str(key))
    assert connection("h:1", {"ssl.ca.location": key}) == connection("h:1", {"ssl.ca.location": str(key)})
