"""Files replayed by the driver without a JVM: the micro-batches that a query made of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.api.stages.running import RunMethods
from krishiv_py.connectors.fit import FILE, MisfitError, lacking
from krishiv_py.connectors.parquet_columns import explained, file_columns, open_parquet
from krishiv_py.errors import PlanError, SourceError, failure_text, shown
from krishiv_py.plan.checks import is_collection
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.sends import StepOutput


def replay(stream: RunMethods, files: Iterable[str | os.PathLike[str]], *, close: bool = True) -> StepOutput:
    """Run a stream over parquet files, one micro-batch a file, as a query with ``max_files_per_batch=1`` took them.

    Parameters
    ----------
    stream : Stream, TimedStream or ResultStream
        The pipeline, made of :func:`stream_of` with the columns of the files.
    files : iterable of str or os.PathLike
        The files, in the order in which they came. They are read as ``read_parquet`` reads them (docs/sources.md).
    close : bool
        Whether the input ends with the last file, so that what is open fires.

    Returns
    -------
    StepOutput
        All results, all late rows, and the watermark at the end.

    Raises
    ------
    PlanError
        For a value that is not a sequence of files.
    SourceError
        For a file that cannot be read, or does not fit the columns of the stream.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> import pyarrow.parquet as pq
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import stream_of
    >>> latest = stream_of("at bigint").watermark("at", 0).lookback_window("30 s", emit="arrival").agg(count())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"at": [0, 10_000]}), f"{folder}/1.parquet")
    ...     pq.write_table(pa.table({"at": [20_000, 40_000]}), f"{folder}/2.parquet")
    ...     replay(latest, [f"{folder}/1.parquet", f"{folder}/2.parquet"]).results["count"].to_pylist()
    [1, 2, 3, 3]
    """
    if isinstance(files, os.PathLike) or not is_collection(files):
        hint = "pass them in the order in which they came: sorted(folder.glob('*.parquet'))"
        raise PlanError("replay takes files", got=shown(files), hint=hint)
    driver = Driver(stream, idle_batches=False)
    schema = driver._spec.source_schema
    done = [driver.send(_rows(file, schema)) for file in files]
    if close or not done:
        done.append(driver.close() if close else driver.tick())
    results, late = (pa.concat_tables([getattr(d, name) for d in done]) for name in ("results", "late"))
    by_stage = {name: pa.concat_tables([d.late_by_stage[name] for d in done]) for name in done[-1].late_by_stage}
    return StepOutput(results, late, done[-1].watermark_us, by_stage)


def _rows(file: str | os.PathLike[str], schema: pa.Schema) -> pa.Table:
    try:
        with open(os.fspath(file), "rb") as opened:
            parquet = open_parquet(opened)
            if not parquet.metadata.num_rows:
                return schema.empty_table()
            stored = file_columns(schema, parquet, FILE)
            columns = [stored.get(field.name) or _missing(field.name, parquet) for field in schema]
            parts = parquet.iter_batches(columns=[column.name for column in columns])
            batches = [pa.record_batch([column.of(part) for column in columns], schema) for part in parts]
        return pa.Table.from_batches(batches, schema)
    except MisfitError as problem:
        hint = "use the columns of the files in stream_of"
        got = f"{shown(file)}: {explained(problem)}"
        raise SourceError("a file does not fit the stream", got=got, hint=hint) from problem
    except (OSError, TypeError, pa.ArrowInvalid) as problem:
        hint = "pass paths of parquet files"
        raise SourceError("a file cannot be replayed", got=shown(file), then=failure_text(problem), hint=hint) from problem


def _missing(name: str, parquet: pq.ParquetFile) -> NoReturn:
    raise lacking(parquet.schema_arrow.names, name)
