"""Run a query over generated files on one of the engines; results are parquet files in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import parts_of
from benchmarks.jobs import HEAP
from benchmarks.nexmark.generator import SCHEMAS, spec_of
from benchmarks.nexmark.queries import Query, Streams
from krishiv_py import Batches, ParquetSink, Session, own_process
from krishiv_py.api.stages.stream import Stream
from krishiv_py.testing import Driver, stream_of

Engine = Literal["driver", "bounded", "streaming", "in-process"]
ENGINES: tuple[Engine, ...] = ("driver", "bounded", "streaming", "in-process")


def session(engine: Engine, buckets: int = 0) -> Session:
    """Session as the benchmarks prescribe it; on Spark with so many buckets, 0: as many as there are by themselves."""
    if engine == "in-process":
        own_process()
        return Session.in_process(profile="single-node-durable")
    builder = Session.builder().master("local[2]").app_name("nexmark").profile("single-node-durable")
    settings: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.memory": HEAP,
        "spark.log.level": "ERROR",
        **({"spark.krishiv.buckets": buckets} if buckets else {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.get_or_create()


def streams(data: Path, read: Callable[[str], Stream]) -> Streams:
    """The three streams of a folder."""
    return Streams(read("person"), read("auction"), read("bid"), spec_of(data).rate)


def rows_of(paths: list[Path], needed: Collection[str]) -> pa.Table:
    """The rows of some parts; columns that nobody reads are null, as a query does not read them either."""
    schema = pq.read_schema(paths[0])
    read = pa.concat_tables([pq.read_table(path, columns=[n for n in schema.names if n in needed]) for path in paths])
    return pa.table([read[f.name] if f.name in needed else pa.nulls(len(read), f.type) for f in schema], schema=schema)


def on_driver(query: Query, data: Path, out: Path, files: int) -> None:
    """Without Spark: the kernels in this process, so many files of each stream a batch."""
    driver = Driver(query.build(streams(data, lambda name: stream_of(SCHEMAS[name]))), idle_batches=False)
    inputs = inputs_of(driver)
    with pq.ParquetWriter(out / "result.parquet", driver.tick().results.schema) as writer:
        for low in range(0, len(parts_of(data / "bid")), files):
            rows = {side: rows_of(parts_of(data / name)[low : low + files], needed) for side, (name, needed) in inputs.items()}
            writer.write_table(driver.send(rows.get(None, rows)).results)
        writer.write_table(driver.close().results)


def inputs_of(driver: Driver) -> dict[str | None, tuple[str, set[str]]]:
    """What a driver calls its streams (None: it has one alone), with the stream of each and the columns that are read of it."""
    names = {tuple(schema.names): name for name, schema in SCHEMAS.items()}
    result: dict[str | None, tuple[str, set[str]]] = {}
    for read in driver._plan.reads:
        specs = [branch.spec for _, branch in read.takers]
        result[read.name] = names[tuple(specs[0].source_schema.names)], {n for spec in specs for n in spec.needs_columns}
    return result


def in_session(query: Query, data: Path, out: Path, files: int, engine: Engine, opened: Session) -> None:
    """In a session: one batch job, or a query that takes so many files of each stream a batch."""
    streaming = engine != "bounded"

    def read(name: str) -> Stream:
        return opened.read_parquet(str(data / name), SCHEMAS[name], streaming=streaming, max_files_per_batch=files)

    plan = query.build(streams(data, read))
    if streaming:
        sink, checkpoint = ParquetSink(str(out)), out.with_name(f"{out.name}-checkpoint")
        shutil.rmtree(checkpoint, ignore_errors=True)
        batches = Batches.available_now(flush=True)  # the files are all there is
        plan.start(sink, checkpoint=str(checkpoint), batches=batches).await_termination()
    else:
        pq.write_table(plan.collect(), out / "result.parquet")


def run(
    query: Query, data: Path, out: Path, engine: Engine, files: int = 1, opened: Session | None = None, buckets: int = 0
) -> None:
    """Run `query` over `data`; `out` is emptied first."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if engine == "driver":
        on_driver(query, data, out, files)
    elif opened is not None:
        in_session(query, data, out, files, engine, opened)
    else:
        with session(engine, buckets) as own:
            in_session(query, data, out, files, engine, own)
