"""Feature logs for tests, and a plain reference of what a label has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from krishiv_py import DeltaSink, IcebergSink
from krishiv_py.features import FeatureLog, FeatureTable
from krishiv_py.testing import Driver, ManualClock, stream_of

SCHEMA = "card string, at bigint, spent bigint"


def in_iceberg(folder: Path) -> FeatureTable:
    """Return a log in a table of a catalog in a folder."""
    folder.mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return FeatureTable(IcebergSink("features.spent", catalog=catalog), key="card", at="at")


KINDS: dict[str, Callable[[Path], FeatureLog | FeatureTable]] = {
    "parquet": lambda folder: FeatureLog(folder, key="card", at="at"),
    "delta": lambda folder: FeatureTable(DeltaSink(folder), key="card", at="at"),
    "iceberg": in_iceberg,
}
"""A log of each kind, in a folder."""


def log_of(folder: str, batches: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], schema: str = SCHEMA) -> FeatureLog:
    """Return a log with rows that were published at some times, ms; each is a micro-batch."""
    log, clock = FeatureLog(folder, key="card", at="at"), ManualClock()
    driver = Driver(stream_of(schema), sink=log, clock=clock)
    for now, rows in batches:
        clock.set(now)
        driver.send(list(rows))
    return log


def row(at: int | None, spent: int, card: str | None = "a") -> dict[str, Any]:
    """Return a feature row."""
    return {"card": card, "at": at, "spent": spent}


def expected(
    labels: Iterable[Mapping[str, Any]],
    batches: Iterable[tuple[int, Sequence[Mapping[str, Any]]]],
    *,
    as_of: str = "served",
    max_age: int | None = None,
    allow_exact: bool = False,
    known_at: int | None = None,
) -> list[Any]:
    """Return the value of each label: a loop over all rows, in ms."""
    rows = [(r["at"], now, number, r) for number, (now, some) in enumerate(batches) for r in some if r["at"] is not None]
    values = []
    for label in labels:
        best: Any = None
        for at, published, number, r in rows:
            if label["decided"] is None or label["card"] is None or r["card"] != label["card"]:
                continue
            if at > label["decided"] or (at == label["decided"] and not allow_exact):
                continue
            if as_of == "served" and published > label["decided"]:
                continue
            if known_at is not None and published > known_at:
                continue
            if best is None or (at, published, number) >= best[0]:
                best = (at, published, number), r
        if best is not None and max_age is not None and label["decided"] - best[0][0] >= max_age:
            best = None
        values.append(None if best is None else best[1]["spent"])
    return values
