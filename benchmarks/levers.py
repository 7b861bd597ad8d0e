"""Choices inside the kernels, each next to its alternative, as ``python -m benchmarks levers`` prints them.

CPU milliseconds of this process for a million rows of tumbling windows, medians; libraries that group have to find as many
groups before their time counts. No Spark.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from statistics import median

os.environ["POLARS_MAX_THREADS"] = "1"  # a task has one core; Polars reads it when it is imported

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.data import KeySet, Spec, draw
from benchmarks.jobs import JOBS
from benchmarks.krishiv import SCHEMA, keyed, windowed
from krishiv_py import col, count
from krishiv_py import sum as total
from krishiv_py.arrays.grouping import group
from krishiv_py.engine.stage import split
from krishiv_py.kernels.prepare import RowPreparer
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results import WindowOperator
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import UNSET
from krishiv_py.testing import stream_of

ROWS, TURNS = 1_000_000, 7


def cpu_ms(action: Callable[[], object]) -> float:
    """Median CPU milliseconds of a call."""
    result = []
    for _ in range(TURNS + 1):
        start = time.process_time()
        action()
        result.append((time.process_time() - start) * 1e3)
    return median(result[1:])


def line(step: str, choice: str, action: Callable[[], object], size: int | None = None) -> str:
    """A line of the table."""
    return f"| {step} | {choice} | {cpu_ms(action):.1f} | {'' if size is None else f'{size / 1e6:.1f}'} |"


def ready(table: pa.Table) -> tuple[WindowOperator, pa.Table]:
    """The operator of J1, and rows as it takes them."""
    spec = windowed(keyed(stream_of(SCHEMA), JOBS["J1"]), JOBS["J1"]).agg(count(col("*")), total(col("amount")))._spec()
    return operator_for(spec), RowPreparer(spec)(table.combine_chunks().to_batches()[0], UNSET).rows


def by_library(rows: pa.Table) -> dict[str, Callable[[], int]]:
    """Partial aggregates by key and slice in other libraries; each call gives the number of groups."""
    plain = rows.rename_columns(["t", "user_id", "amount"])
    size = JOBS["J1"].size_ms * 1_000

    def arrow() -> int:
        sliced = plain.append_column("s", pc.divide(plain["t"], size))
        groups = sliced.group_by(["user_id", "s"], use_threads=False)
        return int(groups.aggregate([([], "count_all"), ("amount", "sum")]).num_rows)

    def polars() -> int:
        frame = pl.DataFrame(pl.from_arrow(plain)).with_columns((pl.col("t") // size).alias("s"))
        return frame.group_by("user_id", "s").agg(pl.len(), pl.col("amount").sum()).height

    return {"pyarrow group_by": arrow, "Polars, one thread": polars}


def combining(keys: KeySet) -> list[str]:
    """Our grouping next to Arrow's and Polars'."""
    operator, rows = ready(draw(Spec(ROWS * 20, keys), 0))
    groups = operator.combine(rows).num_rows
    lines = [line("partial aggregates", f"{keys}: NumPy groups (ours)", lambda: operator.combine(rows))]
    for name, action in by_library(rows).items():
        if action() != groups:
            raise AssertionError(f"{name} finds other groups")
        lines.append(line("", f"{keys}: {name}", action))
    return lines


def compressing() -> list[str]:
    """A chunk of partial aggregates as Arrow IPC, plain and compressed: encoded and decoded."""
    operator, rows = ready(draw(Spec(ROWS * 20, "B"), 0))
    chunk, lines = operator.combine(rows), []
    for codec in (None, "lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=codec)

        def encoded(options: pa.ipc.IpcWriteOptions = options) -> pa.Buffer:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, chunk.schema, options=options) as writer:
                writer.write_table(chunk)
            return sink.getvalue()

        def there_and_back(encoded: Callable[[], pa.Buffer] = encoded) -> pa.Table:
            return pa.ipc.open_stream(encoded()).read_all()

        step = "chunk to bytes and back" if codec is None else ""
        lines.append(line(step, codec or "plain (ours)", there_and_back, encoded().size))
    return lines


def encoding_keys() -> list[str]:
    """Text keys numbered as they come, and if the source had them as a dictionary: what that could save at most."""
    keys = draw(Spec(ROWS * 20, "B"), 0)["user_id"].combine_chunks()
    plain = pc.binary_join_element_wise("user-", pc.utf8_lpad(keys.cast(pa.string()), 6, "0"), "")
    coded = plain.dictionary_encode()
    if group([plain], ROWS).n != group([coded], ROWS).n:
        raise AssertionError("dictionary keys find other groups")
    return [
        line("text keys numbered", "as they come (ours)", lambda: group([plain], ROWS), plain.nbytes),
        line("", "a dictionary from the source", lambda: group([coded], ROWS), coded.nbytes),
    ]


def counting_buckets() -> list[str]:
    """Split, append and fire with more buckets than two."""
    operator, rows = ready(draw(Spec(ROWS * 20, "B"), 0))
    chunk, lines = operator.combine(rows), []
    for number in (1, 2, 8, 32):

        def through(number: int = number) -> int:
            results, end = 0, Moment(JOBS["J1"].size_ms * 1_000_000_000)
            for _, part in split(chunk, ["k0"], tuple(range(number))):
                results += operator.step(Bucket(MemoryStore()), [part], end).results.num_rows
            return results

        lines.append(line("buckets: split, append, fire" if number == 1 else "", str(number), through))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    argparse.ArgumentParser(prog="python -m benchmarks levers", description=(__doc__ or "").splitlines()[0]).parse_args(argv)
    lines = [*combining("A"), *combining("B"), *compressing(), *encoding_keys(), *counting_buckets()]
    print("| step | choice | CPU ms | MB |\n|---|---|---|---|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
