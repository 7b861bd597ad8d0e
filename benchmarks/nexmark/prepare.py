"""The events as Flink takes them: one parquet file for each stream, times in milliseconds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import parts_of
from benchmarks.nexmark.generator import SCHEMAS, STREAMS

MS = pa.timestamp("ms", tz="UTC")


def joined(folder: Path) -> Path:
    """Sibling folder with the parts of each stream in one file, a row group a part."""
    target = folder.with_name(f"{folder.name}-joined")
    target.mkdir(exist_ok=True)
    for name in STREAMS:
        path = target / f"{name}.parquet"
        if path.exists():
            continue
        kinds = [(f.name, MS if pa.types.is_timestamp(f.type) else f.type) for f in SCHEMAS[name]]
        with pq.ParquetWriter(path.with_suffix(".part"), pa.schema(kinds)) as writer:
            for part in parts_of(folder / name):
                writer.write_table(pq.read_table(part).cast(pa.schema(kinds)))
        path.with_suffix(".part").rename(path)
    return target
