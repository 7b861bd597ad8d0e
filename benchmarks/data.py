"""Seeded event data: 20 minutes of event time, some out of order, a few late, as parquet parts in arrival order.

    python -m benchmarks.data --events 2000000 --set A

Set A has 10 000 keys with Zipf weights, set B 500 000 and set K 5 000 keys with equal weights. The parts are cached under
``benchmarks/.data``, their modification times strictly increasing, so that a file source takes them one by one in
arrival order.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import asdict, frozen
from pyarrow import csv

ROOT = Path(__file__).resolve().parent / ".data"
SPAN_US = 20 * 60 * 1_000_000
ORIGIN_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SOURCES = 4  # of J8
OPEN_STATE_ROWS, OPEN_STATE_TOUCHED = 10_000, 50_000
Ints = npt.NDArray[np.int64]
KeySet = Literal["A", "B", "K"]
KEYS: dict[KeySet, int] = {"A": 10_000, "B": 500_000, "K": 5_000}
JOINED_SCHEMA = pa.schema([("user_id", pa.int64()), ("event_time", pa.timestamp("ms", tz="UTC")), ("amount", pa.int64())])
SCHEMA = pa.schema([("user_id", pa.int64()), ("event_time", pa.timestamp("us", tz="UTC")), ("amount", pa.int64())])


@frozen
class Spec:
    """What is generated; equal specs give equal rows."""

    events: int
    keys: KeySet = "A"
    parts: int = 20
    seed: int = 42
    late: float = 0.002
    disordered: float = 0.05
    repeated: float = 0.0

    @property
    def name(self) -> str:
        """Folder name."""
        late = "" if self.late == 0.002 else f"-late{self.late:g}"
        repeated = f"-repeated{self.repeated:g}" if self.repeated else ""
        return f"{self.keys}-{self.events}-p{self.parts}-s{self.seed}{late}{repeated}"


def key_table(spec: Spec) -> tuple[int, npt.NDArray[np.float64] | None]:
    """Number of keys and, for the Zipf set, the cumulative weights."""
    if spec.keys != "A":
        return KEYS[spec.keys], None
    weights = 1.0 / np.arange(1, KEYS["A"] + 1)
    return KEYS["A"], np.cumsum(weights) / weights.sum()


def draw(spec: Spec, part: int) -> pa.Table:
    """The rows of one part, in arrival order."""
    rng = np.random.default_rng([spec.seed, spec.events, spec.parts, ord(spec.keys), part])
    low, high = (spec.events * part // spec.parts, spec.events * (part + 1) // spec.parts)
    n = high - low
    time_us: Ints = ORIGIN_US + (np.arange(low, high, dtype=np.int64) * SPAN_US) // spec.events
    kind = rng.random(n)
    late = kind < spec.late
    disordered = (kind >= spec.late) & (kind < spec.late + spec.disordered)
    time_us[late] -= rng.integers(60_000_000, 300_000_001, int(late.sum()))
    time_us[disordered] -= rng.integers(1, 4_000_001, int(disordered.sum()))
    time_us -= time_us % 1_000  # whole milliseconds: the finest event time Flink SQL takes
    n_keys, cumulative = key_table(spec)
    if cumulative is None:
        keys = rng.integers(0, n_keys, n)
    else:
        rank = np.searchsorted(cumulative, rng.random(n), side="right")
        # Heavy keys must not be neighbours by hash or by number: spread the ranks over the key space.
        keys = (np.minimum(rank, n_keys - 1) * 7919) % n_keys
    amount = rng.integers(1, 1_001, n)
    if spec.repeated:
        again = np.flatnonzero(rng.random(n) < spec.repeated)
        before = np.maximum(again - rng.integers(1, 1_000, len(again)), 0)
        keys[again], time_us[again], amount[again] = keys[before], time_us[before], amount[before]
    return pa.table(
        [pa.array(keys, pa.int64()), pa.array(time_us, pa.int64()).cast(SCHEMA.field(1).type), pa.array(amount, pa.int64())],
        schema=SCHEMA,
    )


def parts_of(folder: Path) -> list[Path]:
    """Parquet parts of a data folder in arrival order."""
    return sorted(folder.glob("part-*.parquet"))


def stamp(path: Path, index: int) -> None:
    """Give part `index` its modification time: one second after the part before."""
    os.utime(path, (ORIGIN_US // 1_000_000 + index, ORIGIN_US // 1_000_000 + index))


def make(spec: Spec, root: Path = ROOT) -> Path:
    """Folder with the data of `spec`, generated unless it is there."""
    folder = root / spec.name
    if (folder / "_spec.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in range(spec.parts):
        path = folder / f"part-{part:05d}.parquet"
        pq.write_table(draw(spec, part), path)
        stamp(path, part)
    (folder / "_spec.json").write_text(json.dumps(asdict(spec)))
    return folder


def make_sources(spec: Spec, root: Path = ROOT) -> Path:
    """Folder with ``source-0`` .. ``source-3`` for J8: the rows of `spec` dealt out; the last source falls silent half way.

    Without late rows, so that the result does not depend on the moment (in processing time) a source counts as idle.
    """
    folder = root / f"sources-{spec.name}"
    if (folder / "_spec.json").exists():
        return folder
    if spec.late:
        raise ValueError("the data of several sources is generated without late rows: Spec(late=0.0)")
    shutil.rmtree(folder, ignore_errors=True)
    for part in range(spec.parts):
        table = draw(spec, part)
        for source in range(SOURCES):
            if source == SOURCES - 1 and part >= max(spec.parts // 2, 1):
                continue
            path = folder / f"source-{source}" / f"part-{part:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = table.take(pa.array(np.arange(source, table.num_rows, SOURCES)))
            rows = rows.append_column("source", pa.array([path.parent.name] * rows.num_rows))
            pq.write_table(rows, path)
            stamp(path, part * SOURCES + source)
    (folder / "_spec.json").write_text(json.dumps(asdict(spec)))
    return folder


def first_parts(folder: Path, count: int) -> Path:
    """Folder with the first `count` parts of `folder` (hard links, so the modification times hold)."""
    sources = sorted(folder.glob("source-*"))
    if sources:
        target = folder.with_name(f"{folder.name}-first{count}")
        for source in sources:
            link_parts(source, target / source.name, count)
        return target
    if count >= len(parts_of(folder)):
        return folder
    return link_parts(folder, folder.with_name(f"{folder.name}-first{count}"), count)


def link_all(folder: Path, target: Path) -> Path:
    """Hard-link all parts into `target`, as far as they are not there."""
    return link_parts(folder, target, len(parts_of(folder)))


def link_parts(folder: Path, target: Path, count: int) -> Path:
    """Hard-link the first `count` parts into `target`, as far as they are not there."""
    target.mkdir(parents=True, exist_ok=True)
    for path in parts_of(folder)[:count]:
        if not (target / path.name).exists():
            os.link(path, target / path.name)
    return target


def join(folder: Path) -> Path:
    """Sibling folder with the parts of each source joined to ``joined.parquet``, a row group each, times in ms (for Flink)."""
    target = folder.with_name(f"joined-{folder.name}")
    for source in sorted(folder.glob("source-*")) or [folder]:
        path = target / source.relative_to(folder) / "joined.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(path.with_suffix(".part"), JOINED_SCHEMA) as writer:
                for part in parts_of(source):
                    writer.write_table(pq.read_table(part, columns=SCHEMA.names, partitioning=None).cast(JOINED_SCHEMA))
            path.with_suffix(".part").rename(path)
    return target


def as_csv(folder: Path) -> Path:
    """Sibling folder with the parts as CSV, times in microseconds (for Pathway)."""
    target = folder.with_name(f"csv-{folder.name}")
    target.mkdir(exist_ok=True)
    for part in parts_of(folder):
        path = target / f"{part.stem}.csv"
        if not path.exists():
            table = pq.read_table(part, partitioning=None)
            table = table.set_column(1, "event_time", table.column("event_time").cast(pa.int64()))
            csv.write_csv(table, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
    return target


def one_row_parts(spec: Spec, count: int, root: Path = ROOT) -> Path:
    """Folder with `count` parts of a single row each (the micro mode), a second of event time apart."""
    folder = root / f"micro-{spec.keys}-{count}-s{spec.seed}"
    if (folder / "_spec.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([spec.seed, count])
    for part in range(count):
        row = {
            "user_id": [int(rng.integers(0, 50))],
            "event_time": [ORIGIN_US + part * 1_000_000],
            "amount": [int(rng.integers(1, 1_001))],
        }
        path = folder / f"part-{part:05d}.parquet"
        pq.write_table(pa.table(row).cast(SCHEMA), path)
        stamp(path, part)
    (folder / "_spec.json").write_text(json.dumps(asdict(spec)))
    return folder


def open_state(keys: int, count: int, seed: int, root: Path = ROOT) -> Path:
    """Folder whose first part opens `keys` keys, one row each; then small parts alike whatever `keys` is, a second apart."""
    folder = root / f"open-{keys}-{count}-s{seed}"
    if (folder / "_spec.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(count):
        rng = np.random.default_rng([seed, part])
        n = keys if part == 0 else OPEN_STATE_ROWS
        users = rng.permutation(keys) if part == 0 else rng.integers(0, OPEN_STATE_TOUCHED, n)
        times = ORIGIN_US + part * 1_000_000 + np.sort(rng.integers(0, 1_000, n)) * 1_000
        columns = [pa.array(users, pa.int64()), pa.array(times, pa.int64()), pa.array(rng.integers(1, 1_001, n))]
        path = folder / f"part-{part:05d}.parquet"
        pq.write_table(pa.table(columns, names=SCHEMA.names).cast(SCHEMA), path)
        stamp(path, part)
    (folder / "_spec.json").write_text(json.dumps({"keys": keys, "seed": seed}))
    return folder


def closed(folder: Path) -> Path:
    """Folder with the parts of `folder` and one more: a row two hours on, beyond the end of every window the others open."""
    parts = parts_of(folder)
    target = link_all(folder, folder.with_name(f"closed-{folder.name}"))
    path = target / f"part-{len(parts):05d}.parquet"
    if not path.exists():
        row = {"user_id": [0], "event_time": [ORIGIN_US + 2 * 3_600_000_000], "amount": [1]}
        pq.write_table(pa.table(row).cast(SCHEMA), path.with_suffix(".part"))
        stamp(path.with_suffix(".part"), len(parts))
        path.with_suffix(".part").rename(path)
    return target


def rows_of(folder: Path) -> int:
    """Rows of all parts below `folder`."""
    return sum(pq.ParquetFile(path).metadata.num_rows for path in folder.rglob("part-*.parquet"))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--set", dest="keys", choices=sorted(KEYS), default="A")
    parser.add_argument("--parts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--sources", action="store_true", help="four sources instead of one (J8)")
    given = parser.parse_args(argv)
    if given.sources:
        print(make_sources(Spec(given.events, given.keys, given.parts, given.seed, late=0.0)))
    else:
        print(make(Spec(given.events, given.keys, given.parts, given.seed)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
