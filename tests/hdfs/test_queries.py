"""Queries with input, checkpoint and outputs in HDFS have the rows of the JVM-free driver, over restarts and kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, JsonSink, MemorySink, ParquetSink, Session, SideOutputLateEventHandler
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.storage.files import store_at
from krishiv_py.testing import Driver, stream_of
from tests.crash import killing
from tests.crash.job import SCHEMA, plan
from tests.crash.killing import counted, write_input
from tests.hdfs.server import Server, closed_port
from tests.spark.conftest import DDL, per_second, row, sorted_rows


def dataset(folder: str, kind: str = "parquet") -> pa.Table:
    """Every row of an output, as any reader finds it."""
    store, root = store_at(folder)
    return ds.dataset(root, filesystem=store.arrow, format=kind).to_table()


def files_in(folder: str) -> list[str]:
    """Every file below a folder."""
    store, root = store_at(folder)
    every = store.arrow.get_file_info(pafs.FileSelector(root, recursive=True))
    return sorted(each.path.removeprefix(f"{root}/") for each in every if each.is_file)


@pytest.mark.slow
def test_a_memory_stream_over_restarts(session: Session, hdfs: Server) -> None:
    """The second start is after a batch whose end Spark did not note, so it is run and published again."""
    work = f"{hdfs.root}/memory/{uuid.uuid4().hex}"
    stream, sender = session.memory_stream(DDL)
    late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
    query_plan, driver, seeded = per_second(stream).with_late_event_handler(late), Driver(per_second(stream)), random.Random(7)
    expected, refused = [], []
    for step in range(3):
        query = query_plan.start(ParquetSink(f"{work}/out 1%"), checkpoint=f"{work}/check point")
        batch = [row(seeded.choice("abc"), step * 700 + seeded.randrange(-900, 900)) for _ in range(20)]
        sender.send(batch)
        given = driver.send(batch)
        if step == 2:
            sender.close()
        query.process_all_available()
        if step == 1:
            with pytest.raises(CheckpointError, match=f"check point is in use .*of process {os.getpid()}"):
                query_plan.start(ParquetSink(f"{work}/out 1%"), checkpoint=f"{work}/check point")
            with pytest.raises(PlanError, match=r"the state of a checkpoint of this name cannot be read .*/check point"):
                query.state()
        query.stop()
        if step == 0:
            store, commits = store_at(f"{work}/check point/commits")
            last = max(int(name) for name in files_in(f"{work}/check point/commits") if name.isdigit())
            store.delete(f"{commits}/{last}")
        expected += sorted_rows(given.results)
        refused += given.late["at"].to_pylist()
    expected += sorted_rows(driver.close().results)
    assert sorted_rows(dataset(f"{work}/out 1%")) == sorted(expected, key=repr)
    assert sorted(dataset(f"{work}/late")["at"].to_pylist()) == sorted(refused) != []
    left = files_in(work)
    assert not [path for path in left if "staging" in path or "lease.json" in path or path.endswith((".tmp", ".new", ".old"))]


@pytest.fixture
def service(session: Session, hdfs: Server) -> Iterator[Session]:
    """A session that knows the namenode by the name of a service, whose first namenode is gone."""
    settings = {
        "dfs.nameservices": "ns",
        "dfs.ha.namenodes.ns": "gone,here",
        "dfs.namenode.rpc-address.ns.gone": f"127.0.0.1:{closed_port()}",
        "dfs.namenode.rpc-address.ns.here": hdfs.root.removeprefix("hdfs://"),
        "dfs.client.failover.proxy.provider.ns": "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
        "fs.defaultFS": "hdfs://ns",
        "spark.krishiv.chunkFileBytes": "2000",
    }
    builder = Session.builder().master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name if name.startswith("spark.") else f"spark.hadoop.{name}", value)
    yield builder.get_or_create()
    for name in settings:
        for each in (name, f"spark.hadoop.{name}"):
            session.spark.conf.unset(each)
    Session.from_spark(session.spark)


def run_on(session: Session, work: str, *, last: bool) -> None:
    """Run a query to the end of the files there are, from wherever it was."""
    late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
    read = session.read_parquet(f"{work}/in", SCHEMA, streaming=True, max_files_per_batch=1)
    actual = plan(lambda: read, "tumbling", late)
    batches = Batches.available_now(flush=last)
    actual.start(JsonSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=batches).await_termination()


@pytest.mark.slow  # of stores, the object store has the short form on Spark
def test_files_over_a_restart_by_the_name_of_a_service(service: Session, tmp_path: Path) -> None:
    """Settings of Spark reach the driver and the tasks; half of the files come after the first run has ended."""
    work = f"hdfs://ns/files/{uuid.uuid4().hex}"
    write_input(tmp_path / "in", 5, 2)
    files = sorted((tmp_path / "in").iterdir())
    store, root = store_at(f"{work}/in")
    store.add_folder(root)
    expected: Counter[tuple[str, ...]] = Counter()
    late: Counter[tuple[str, ...]] = Counter()
    driver = Driver(plan(lambda: stream_of(SCHEMA), "tumbling", SideOutputLateEventHandler(MemorySink())))
    for number, path in enumerate(files):
        store.put(f"{root}/{path.name}", path.read_bytes())
        given = [driver.send(pq.read_table(path)), *([driver.close()] if number else [])]
        expected += sum((counted(step.results.to_pylist()) for step in given), Counter())
        late += sum((counted(step.late.to_pylist()) for step in given), Counter())
        run_on(service, work, last=bool(number))
    assert counted(dataset(f"{work}/out", "json").to_pylist()) == expected
    assert counted(dataset(f"{work}/late").to_pylist()) == late
    assert sum(expected.values()) > 20 and sum(late.values()) > 20
    assert [path for path in files_in(f"{work}/checkpoint") if path.startswith("krishiv/chunks/0")]


KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))


@pytest.mark.slow
def test_a_killed_query_goes_on(hdfs: Server, tmp_path: Path) -> None:
    """The process tree dies at a random moment; what it left is replaced, and readers see each row once."""
    seeded = random.Random(int(os.environ.get("KRISHIV_SEED", "11")))
    work, undisturbed = (f"{hdfs.root}/{what}/{uuid.uuid4().hex}" for what in ("killed", "undisturbed"))
    write_input(tmp_path / "in", 6, 4)
    for folder in (work, undisturbed):
        store, root = store_at(folder)
        store.add_folder(f"{root}/in")
        for path in sorted((tmp_path / "in").iterdir()):
            store.put(f"{root}/in/{path.name}", path.read_bytes())
    store, root = store_at(work)
    killing.run("tumbling", tmp_path / "in", tmp_path / "plain")
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tests.hdfs.job", undisturbed], check=True, timeout=400)
    killed = killing.killed_until_done(
        lambda: subprocess.Popen([sys.executable, "-m", "tests.hdfs.job", work], start_new_session=True),
        lambda: bool(store.arrow.get_file_info(f"{root}/done").is_file),
        KILLS,
        seeded,
        time.monotonic() - began,
    )
    assert killed
    for output in ("out", "late"):
        assert counted(dataset(f"{work}/{output}").to_pylist()) == killing.rows(tmp_path / "plain" / output)
    assert not [path for path in files_in(work) if "staging" in path or "lease.json" in path]
