"""Folders of a query: outputs never share one with each other, the input or the checkpoint, however they are spelt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import JsonSink, MemorySink, ParquetSink, Sender, Session, SideOutputLateEventHandler, Stream
from krishiv_py.connectors.publish import Publisher
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.plan.nodes import FileSource, MemorySource, UnionSource
from krishiv_py.planner.places import check_places, place_of
from krishiv_py.runtime.outputs import claim_folder
from krishiv_py.spark.setup.agreement import check_cluster
from krishiv_py.storage.checksums import sealed
from tests.spark.conftest import DDL, per_second, row

SCHEMA = pa.schema([("n", pa.int64())])
MEMORY = MemorySource("memory", SCHEMA, "/nowhere/spool")


def files(path: str) -> FileSource:
    """A source of files."""
    return FileSource(path, "parquet", SCHEMA, bounded=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``out``, a link to it, and the process in it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPELLINGS: list[Callable[[Path], str]] = [
    lambda h: f"{h}/out",
    lambda h: f"{h}/out/",
    lambda h: f"{h}//out",
    lambda h: "out",
    lambda h: "./out/",
    lambda h: f"file:{h}/out",
    lambda h: f"file://{h}/out",
    lambda h: f"file:///{str(h)[1:]}/out/",
    lambda h: f"{h}/link",
    lambda h: f"{h}/x/../out",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", [ParquetSink, JsonSink])
def test_one_folder_for_two_outputs_is_refused(home: Path, kind: Any, spelling: Callable[[Path], str]) -> None:
    late = kind(spelling(home))
    with pytest.raises(PlanError, match="results and late rows have one folder"):
        check_places(ParquetSink(f"{home}/out"), late, MEMORY, None)
    with pytest.raises(PlanError, match="results and the source have one folder"):
        check_places(late, None, files(f"{home}/out"), None)
    with pytest.raises(PlanError, match="late rows and the checkpoint have one folder"):
        check_places(MemorySink(), late, MEMORY, f"{home}/out")
    with pytest.raises(PlanError, match="late rows and the memory stream 'memory' have one folder"):
        check_places(None, late, MemorySource("memory", SCHEMA, f"{home}/out"), None)


@pytest.mark.parametrize("inner", ["late", "a/b", "./late/"])
def test_folders_in_folders_are_refused(home: Path, inner: str) -> None:
    for results, late in ((f"{home}/out", f"{home}/out/{inner}"), (f"{home}/out/{inner}", f"{home}/link")):
        with pytest.raises(PlanError, match="one lies in the other"):
            check_places(ParquetSink(results), ParquetSink(late), MEMORY, None)
    union = UnionSource((("a", files(f"{home}/out/{inner}")),), "source", SCHEMA, False)
    with pytest.raises(PlanError, match="results and the source have folders of which one lies in the other"):
        check_places(ParquetSink(f"{home}/out"), None, union, None)


def test_what_readers_skip_may_lie_inside(home: Path) -> None:
    check_places(ParquetSink("/a/out"), ParquetSink("/a/out/_late"), files("/a/in"), "/a/out/.checkpoint")
    check_places(ParquetSink("/a/out"), ParquetSink("/a/output"), files("/a/ou"), "/a/outer")
    check_places(ParquetSink("s3a://b/out"), ParquetSink("s3://c/out"), files("/b/out"), "hdfs://b/out")


@pytest.mark.parametrize(
    "pattern", ["/data/*", "/data/part-?", "/data/{part-1,x}", "/da[t]a/part-*/*.parquet", "/data/{a,part}-{1,2}"]
)
def test_patterns_of_sources_are_looked_through(pattern: str) -> None:
    with pytest.raises(PlanError, match="results and the source"):
        check_places(ParquetSink("/data/part-1"), None, files(pattern), None)
    check_places(ParquetSink("/data2/part-1"), None, files(pattern), None)


def test_patterns_that_do_not_meet_an_output_are_none_of_its_business() -> None:
    check_places(ParquetSink("/data/out"), ParquetSink("/data/late"), files("/data/source-*"), "/data/checkpoint")


def test_one_sink_in_memory_cannot_take_both() -> None:
    sink = MemorySink()
    with pytest.raises(PlanError, match="results and late rows go to one sink"):
        check_places(sink, sink, MEMORY, None)
    check_places(sink, MemorySink(), MEMORY, None)


def test_buckets_of_one_name_are_one_however_they_are_reached() -> None:
    assert place_of("s3a://b/x/../out/") == place_of("s3://b/out")


def publish(folder: Path, mark: str, batch: int, rows: list[int]) -> None:
    """One micro-batch, as the first after a start."""
    staging = folder / "_krishiv_staging" / f"{mark}-{batch:012d}"
    staging.mkdir(parents=True)
    pq.write_table(pa.table({"n": rows}), staging / "0.parquet")
    Publisher(str(folder), mark).publish(batch, ["0.parquet"])


def test_two_queries_leave_each_others_files_alone(tmp_path: Path) -> None:
    for batch in (0, 1, 2):
        publish(tmp_path, "aaaaaaaa", batch, [batch])
        publish(tmp_path, "aaaaaaab", batch, [10 + batch])
    publish(tmp_path, "aaaaaaaa", 1, [100])  # from a copy of the checkpoint after batch 0: 1 and 2 run again
    assert sorted(pq.read_table(tmp_path)["n"].to_pylist()) == [0, 10, 11, 12, 100]


def test_a_folder_holds_results_or_late_rows(tmp_path: Path) -> None:
    out = ParquetSink(str(tmp_path / "out"))
    claim_folder(out, "results", "aaaaaaaa", str(tmp_path / "one"))
    claim_folder(out, "results", "bbbbbbbb", str(tmp_path / "two"))
    with pytest.raises(PlanError, match="holds the results of another query"):
        claim_folder(out, "late rows", "cccccccc", str(tmp_path / "three"))
    with pytest.raises(PlanError, match="holds the results of another query"):
        claim_folder(out, "late rows", "bounded", None)


def test_a_copied_checkpoint_may_not_replace_what_the_first_wrote(tmp_path: Path) -> None:
    out = JsonSink(str(tmp_path / "out"))
    for name in ("one", "copy"):
        (tmp_path / name / "krishiv").mkdir(parents=True)
        (tmp_path / name / "krishiv" / "plan.json").write_bytes(
            sealed(b'{"format": 1, "plan": {}, "buckets": 1, "outputs": "a"}')
        )
    claim_folder(out, "results", "aaaaaaaa", str(tmp_path / "one"))
    claim_folder(out, "results", "aaaaaaaa", f"{tmp_path}/x/../one/")
    with pytest.raises(CheckpointError, match="copy of another"):
        claim_folder(out, "results", "aaaaaaaa", str(tmp_path / "copy"))
    os.rename(tmp_path / "one", tmp_path / "moved")
    claim_folder(out, "results", "aaaaaaaa", str(tmp_path / "moved"))


class _Cluster:
    """As much of a session as is asked."""

    def __init__(self, master: str, shared: str = "false") -> None:
        self.sparkContext = self
        self.master = master
        self.conf = {"spark.krishiv.sharedFolders": shared}


@pytest.mark.parametrize(
    ("checkpoint", "out"), [("/c", "s3a://b/o"), (None, "s3a://b/o"), ("hdfs://h/c", "file:/o"), ("c", "hdfs://h/o")]
)
def test_local_folders_on_a_cluster_are_refused(checkpoint: str | None, out: str) -> None:
    cluster: Any = _Cluster("spark://host:7077")
    with pytest.raises(PlanError, match=r"tasks run on other machines.*spark\.krishiv\.sharedFolders"):
        check_cluster(cluster, checkpoint, [out], files("hdfs://h/in"))
    here: list[Any] = [_Cluster("local[*]"), _Cluster("local-cluster[2,1,1024]"), _Cluster("yarn", "true")]
    for session in here:
        check_cluster(session, checkpoint, [out], files("hdfs://h/in"))


def test_a_query_with_one_folder_for_both_does_not_begin(
    session: Session, memory: Callable[[], tuple[Stream, Sender]], home: Path
) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("a", 5_000)])
    for late in ("out", f"file:{home}/out/", f"{home}/link"):
        plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(late)))
        with pytest.raises(PlanError, match="results and late rows have one folder"):
            plan.start(ParquetSink(f"{home}/out"), checkpoint=f"{home}/checkpoint")
    inside = session.memory_stream(DDL, spool=f"{home}/spool")[0]
    into_spool = per_second(inside).with_late_event_handler(SideOutputLateEventHandler(JsonSink("spool")))
    with pytest.raises(PlanError, match="late rows and the memory stream"):
        into_spool.run()
    assert not list((home / "out").iterdir())
