"""A query that is stopped half way, and what becomes of it when one of its files is damaged meanwhile."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow.parquet as pq

from krishiv_py import (
    MultiSourceWatermarkSpec,
    ParquetSink,
    QueryTrigger,
    Sender,
    Session,
    SideOutputLateEventHandler,
    WatermarkSpec,
    count,
    sum,
)
from krishiv_py.api.aggregated import AggregatedStream
from krishiv_py.errors import KrishivError

DDL: Final = "source string, user string, at bigint, amount bigint"
BEFORE: Final = 6
"""Sends before the query is stopped: enough for Spark to compact the log of its source, with the setting below."""
SETTINGS: Final = {"spark.krishiv.chunkFileBytes": "100", "spark.sql.streaming.fileSource.log.compactInterval": "4"}
"""Small chunks of state are files too, and logs are compacted early."""
PLANS: Final = ("spark", "ledger")
Damage = Callable[[bytes], bytes | None]
DAMAGES: Final[dict[str, Damage]] = {
    "removed": lambda data: None,
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "flipped at the end": lambda data: _flipped(data, len(data) - 2),
    "flipped": lambda data: _flipped(data, len(data) // 2),
    "flipped at the front": lambda data: _flipped(data, len(data) // 10),
}


def _flipped(data: bytes, at: int) -> bytes:
    """One bit: in text a digit becomes another digit, a letter another letter."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else data


def batch(number: int) -> list[dict[str, Any]]:
    """Rows of 40 users, some of them late."""
    return [
        {"source": "ab"[n % 2], "user": f"u{n % 40}", "at": number * 400 + n * 7 % 900, "amount": n} for n in range(number, 160)
    ]


@attrs.frozen
class Trial:
    """A query in a folder: spool, checkpoint, results and late rows side by side."""

    session: Session
    home: Path
    plan: str

    def opened(self) -> tuple[AggregatedStream, Sender]:
        """The pipeline: large enough chunks of state are files."""
        stream, sender = self.session.memory_stream(DDL, spool=str(self.home / "spool"))
        if self.plan == "spark":
            timed = stream.watermark("at", 100)
        else:
            lags = MultiSourceWatermarkSpec.new(idle_timeout="1 h")
            for name in "ab":
                lags = lags.source(name, WatermarkSpec.fixed_lag_ms(100))
            timed = stream.with_watermark(lags, "at", source_column="source")
        late = SideOutputLateEventHandler(ParquetSink(str(self.home / "late")))
        return timed.key_by("user").tumbling_window(1_000).agg(count(), sum("amount")).with_late_event_handler(late), sender

    def begin(self) -> None:
        """The first half."""
        plan, sender = self.opened()
        query = plan.start(ParquetSink(str(self.home / "out")), checkpoint=str(self.home / "cp"))
        try:
            for number in range(BEFORE):
                sender.send(batch(number))
                query.process_all_available()
        finally:
            query.stop()

    def go_on(self) -> tuple[Counter[Any], Counter[Any]]:
        """The second half; results and late rows of both.

        Raises
        ------
        KrishivError
            When the query cannot go on, and says so.
        """
        plan, sender = self.opened()
        for number in range(BEFORE, BEFORE + 2):
            sender.send(batch(number))
        sender.close()
        trigger = QueryTrigger.available_now()
        query = plan.start(ParquetSink(str(self.home / "out")), checkpoint=str(self.home / "cp"), trigger=trigger)
        try:
            query.await_termination()
        finally:
            query.stop()
        return rows(self.home / "out"), rows(self.home / "late")

    def put_back(self, copy: Path) -> None:
        """Everything as it was in the copy."""
        shutil.rmtree(self.home)
        shutil.copytree(copy, self.home)

    def kinds(self) -> dict[str, list[Path]]:
        """All files by kind: names with numbers and marks left out; the oldest first."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.home.rglob("*"), key=lambda p: (p.stat().st_mtime_ns, p)):
            below = path.relative_to(self.home)
            if path.is_file() and (below.parts[0] in ("cp", "spool") or "_krishiv" in str(below)):
                found.setdefault(kind_of(below), []).append(path)
        return found

    def outcome(self, path: Path, damage: Damage) -> str:
        """What becomes of the query: ``right``, ``wrong: …``, or the error."""
        changed = damage(path.read_bytes())
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)
        try:
            found = self.go_on()
        except KrishivError as problem:
            return f"{type(problem).__name__}: {problem}"
        return f"wrong: {[len(f) for f in found]}" if found != self.expected() else "right"

    def expected(self) -> tuple[Counter[Any], Counter[Any]]:
        """What an undamaged run gave; kept beside the folder."""
        return rows(Path(f"{self.home}-right") / "out"), rows(Path(f"{self.home}-right") / "late")


def rows(folder: Path) -> Counter[Any]:
    """Every row of an output, and how often."""
    return Counter(tuple(r.values()) for r in pq.read_table(folder).to_pylist())


_MARKS: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]+-[0-9a-f]{12}|(?<![a-z])[0-9a-f]{8}(?=\.json)|[0-9]+")


def kind_of(path: Path) -> str:
    """A file's path without what is its own."""
    return _MARKS.sub("N", str(path))


def prepared(session: Session, home: Path, plan: str) -> Trial:
    """A query stopped half way, with a copy of its folder, and of how it ends when nothing happens to it."""
    trial = Trial(session, home / "q", plan)
    trial.home.mkdir()
    trial.begin()
    shutil.copytree(trial.home, home / "copy")
    trial.go_on()
    shutil.copytree(trial.home, home / "q-right")
    return trial
