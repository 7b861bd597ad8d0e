"""A query that is broken off half way, and what becomes of it when one of its files is damaged meanwhile."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    Batches,
    MultiSourceWatermarkSpec,
    ParquetSink,
    Sender,
    Session,
    SideOutputLateEventHandler,
    StateTtlConfig,
    WatermarkSpec,
    count,
    sum,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.connectors.publish import Publisher
from krishiv_py.errors import KrishivError
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control
from krishiv_py.runtime.controls import ControlFolder
from krishiv_py.storage.sends.log import wall_clock_us
from tests.connectors.sinks import SparkJsonSink
from tests.damage.kinds import kind_of

SCHEMA: Final = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
BEFORE: Final = (0, 1)
CRASHED: Final = (2, 3)
"""Sends of a second run, which crashes in its second batch."""
AFTER: Final = (4,)
END: Final = 1_000_000
SETTINGS: Final = {"spark.krishiv.chunkFileBytes": "100", "spark.sql.streaming.fileSource.log.compactInterval": "2"}
"""Small chunks of state are files too, and logs are compacted early."""
PLANS: Final = ("spark", "ledger")
"""By the clock: tumbling windows of one source, and sessions with a time to live of two, whose rows are looked up; by sink:
Parquet and JSON."""
_publish: Final = Publisher.publish
Damage = Callable[[bytes], bytes | None]
DAMAGES: Final[dict[str, Damage]] = {
    "removed": lambda data: None,
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "flipped at the end": lambda data: flipped(data, len(data) - 2),
    "flipped": lambda data: flipped(data, len(data) // 2),
    "flipped at the front": lambda data: flipped(data, len(data) // 10),
}


def flipped(data: bytes, at: int) -> bytes:
    """One bit: in text a digit becomes another digit, a letter another letter."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else data


def batch(number: int) -> list[dict[str, Any]]:
    """Rows of 20 users, some of them late; the last batch is far ahead of all windows."""
    base = 10_000 + number * 700
    rows = [{"user": f"u{n % 20}", "at": base + n * 7 % 900, "amount": n} for n in range(number, 50)]
    late = [{"user": f"u{n}", "at": base - 2_500 - 200 * n, "amount": 1} for n in range(3)] if number else []
    return rows + late + ([{"user": "end", "at": END, "amount": 0}] if number in AFTER else [])


def codes(folder: Path) -> pa.Table:
    """A table that is another in every run."""
    code = int((folder / "code").read_text())
    return pa.table({"user": [f"u{n}" for n in range(15)], "code": [code] * 15})


@attrs.frozen
class Trial:
    """A query in a folder: input, checkpoint, results and late rows side by side."""

    session: Session
    home: Path
    plan: str

    def opened(self) -> tuple[ResultStream, Sender]:
        """The pipeline, and who feeds its memory stream."""
        stream, sender = self.session.memory_stream(SCHEMA, spool=str(self.home / "spool"))
        late = SideOutputLateEventHandler(ParquetSink(str(self.home / "late")))
        if self.plan == "spark":
            tumbling = stream.watermark("at", 100).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))
            return tumbling.with_late_event_handler(late), sender
        lags = MultiSourceWatermarkSpec.new()
        for name in "ab":
            lags = lags.source(name, WatermarkSpec.fixed_lag(100))
        files = self.session.read_parquet(str(self.home / "in"), SCHEMA, streaming=True, max_files_per_batch=1)
        coded = self.session.union({"a": stream, "b": files}).lookup_join(
            partial(codes, self.home / "codes"), "user", reload="1 us"
        )
        timed = coded.with_watermark(lags, "at", source_column="source")
        sessions = timed.key_by("user", "code").session_window(300).agg(count(), sum("amount"))
        return sessions.with_state_ttl(StateTtlConfig("30 days", clock="processing")).with_late_event_handler(late), sender

    def run(self, *numbers: int, flush: bool = False) -> None:
        """Batches of these numbers, from wherever the query is."""
        (self.home / "codes").mkdir(exist_ok=True)
        (self.home / "codes" / "code").write_text(str(numbers[0]))
        plan, sender = self.opened()
        sender.trim()
        for number in numbers:
            sender.send(batch(number))
            if self.plan == "ledger":
                pq.write_table(pa.Table.from_pylist(batch(number), SCHEMA), self.home / "in" / f"{number}.parquet")
        out = str(self.home / "out")
        sink = ParquetSink(out) if self.plan == "spark" else SparkJsonSink(out)
        query = plan.start(sink, checkpoint=str(self.home / "cp"), batches=Batches.available_now(flush=flush))
        try:
            query.await_termination()
        finally:
            query.stop()

    def begin(self) -> None:
        """The first half, and a crash: a batch with results has run, and nothing of it was published."""
        (self.home / "in").mkdir(parents=True)
        self.run(*BEFORE)
        with patch.object(Publisher, "publish", _full), pytest.raises(KrishivError, match="No space left"):
            self.run(*CRASHED, flush=self.plan == "spark")
        if self.plan == "ledger":
            controls = ControlFolder.of(str(self.home / "cp"), wanted=True)
            assert controls is not None
            controls.write(Control(UNSET, None, wall_clock_us()))

    def go_on(self) -> tuple[Counter[Any], Counter[Any]]:
        """The second half; results and late rows of both.

        Raises
        ------
        KrishivError
            When the query cannot go on, and says so.
        """
        self.run(*AFTER)
        return rows(self.home / "out"), rows(self.home / "late")

    def put_back(self) -> None:
        """Everything as it was after the crash."""
        if self.home.exists():
            shutil.rmtree(self.home)
        shutil.copytree(f"{self.home}-begun", self.home)

    def kinds(self) -> dict[str, list[Path]]:
        """All files but the user's own by kind, the oldest first."""
        actual: dict[str, list[Path]] = {}
        for path in sorted(self.home.rglob("*"), key=lambda p: (p.stat().st_mtime_ns, p)):
            kind = kind_of(path.relative_to(self.home)) if path.is_file() else None
            if kind is not None:
                actual.setdefault(kind, []).append(path)
        return actual

    def outcome(self, *damaged: tuple[Path, str]) -> str:
        """What becomes of the query with files damaged in some way: ``right``, ``wrong: …``, or the error."""
        self.put_back()
        for path, damage in damaged:
            changed = DAMAGES[damage](path.read_bytes())
            path.unlink()
            if changed is not None:
                path.write_bytes(changed)
        begun = time.monotonic()
        try:
            actual = self.go_on()
        except KrishivError as problem:
            said = f"{type(problem).__name__}: {problem}"
        except Exception as problem:
            said = f"foreign {type(problem).__name__}: {problem}"
        else:
            said = "right" if actual == self.expected() else f"wrong: {[len(f) for f in actual]}"
        moment, damage = damaged[0][0].relative_to(self.home), damaged[0][1]
        print(f"{time.monotonic() - begun:5.1f} s  {moment} {damage} ({len(damaged)}): {said}", flush=True)
        return said

    def expected(self) -> tuple[Counter[Any], Counter[Any]]:
        """What an undamaged run gave; kept next to the folder."""
        return rows(Path(f"{self.home}-right") / "out"), rows(Path(f"{self.home}-right") / "late")


def _full(publisher: Publisher, batch_id: int, names: list[str]) -> None:
    """What publishes, on a disk that is full when there are results."""
    if names and publisher.folder.endswith("/out"):
        raise OSError("No space left on device")
    _publish(publisher, batch_id, names)


def rows(folder: Path) -> Counter[Any]:
    """Every row of an output, and how often."""
    lines = [line for path in folder.glob("part-*.json") for line in path.read_text().splitlines()]
    tables = [pq.read_table(path) for path in folder.glob("part-*.parquet")]
    return Counter(lines) + Counter(tuple(r.values()) for table in tables for r in table.to_pylist())


def prepared(session: Session, home: Path, plan: str) -> Trial:
    """A query that was broken off half way, with a copy of its folder, and of how it ends when nothing happens to it."""
    trial = Trial(session, home / "q", plan)
    trial.begin()
    shutil.copytree(trial.home, f"{trial.home}-begun")
    trial.go_on()
    shutil.copytree(trial.home, f"{trial.home}-right")
    actual, late = trial.expected()
    assert len(actual) > 20 and len(late) > 5, "the trial would prove little"
    return trial
