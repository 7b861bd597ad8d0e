"""Every file of a checkpoint in process, damaged in every way at every kind of moment: the right answer, or an error of ours.

The moments are those at which a query can be broken off: each step of a batch, before and after it, and a stop in order. The
ordinary run has some of them; ``nox -s damage`` all, with every file and one to three workers.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    Batches,
    MultiSourceWatermarkSpec,
    ParquetSink,
    Session,
    SideOutputLateEventHandler,
    StateTtlConfig,
    WatermarkSpec,
    count,
    sum,
)
from krishiv_py import max as largest
from krishiv_py.errors import CheckpointError, KrishivError
from krishiv_py.in_process import checkpoint
from tests.damage.kinds import is_known, kind_of
from tests.damage.trial import AFTER, SCHEMA, batch, codes, flipped, rows
from tests.in_process.test_hardships import POINTS, BrokenOffError

LONG = os.environ.get("KRISHIV_DAMAGE") == "long"
MINUTE: Final = 60_000_000
Damage: TypeAlias = Callable[[Path, list[Path]], None]
Outcome: TypeAlias = tuple[Counter[Any], Counter[Any]]
"""Results and late rows."""


def kept(data: Callable[[bytes], bytes]) -> Damage:
    """Other bytes in the place of those of a file."""

    def damage(path: Path, _alike: list[Path]) -> None:
        path.write_bytes(data(path.read_bytes()))

    return damage


def mixed_up(path: Path, alike: list[Path], which: int) -> None:
    """A file in the place of another of its kind, of the first one or of the one before it."""
    others = [other for other in alike if other.read_bytes() != path.read_bytes()]
    before = [other for other in others if other < path] if which else others
    if before:
        shutil.copyfile(before[-which], path)


def doubled(path: Path, _alike: list[Path]) -> None:
    """A copy next to the file, with the name of the one after the last: of numbered files the next number."""
    digits = path.name.split(".")[0]
    if digits.isdigit():
        last = max(int(p.name.split(".")[0]) for p in path.parent.iterdir() if p.name.split(".")[0].isdigit())
        copy = path.with_name(path.name.replace(digits, str(last + 1).zfill(len(digits) if digits[0] == "0" else 0), 1))
    else:
        copy = path.with_name(f"{path.name}-copy")
    shutil.copyfile(path, copy)


SOME: Final = ("removed", "cut", "flipped at 10 %", "flipped at 50 %", "flipped at its end", "mixed up", "doubled")
"""Those of the ordinary run."""
DAMAGES: Final[dict[str, Damage]] = {
    "removed": lambda path, _alike: path.unlink(),
    "emptied": kept(lambda data: b""),
    "cut": kept(lambda data: data[: len(data) * 2 // 3]),
    "cut at its last byte": kept(lambda data: data[:-1]),
    "longer": kept(lambda data: data + b"0"),
    **{
        f"flipped at {tenths}0 %": kept(lambda data, tenths=tenths: flipped(data, len(data) * tenths // 10))  # type: ignore[misc]
        for tenths in range(10)
    },
    "flipped at its end": kept(lambda data: flipped(data, len(data) - 1)),
    "mixed up": partial(mixed_up, which=0),
    "mixed up with the one before": partial(mixed_up, which=1),
    "doubled": doubled,
}


@attrs.define
class Query:
    """A query in a folder: a memory stream and files, looked up in a table that changes, in sessions that expire."""

    home: Path
    workers: int = 1
    now_us: int = 1_700_000_000_000_000

    def run(self, *numbers: int, closes: int | None = None) -> None:
        """Batches of these numbers, from wherever the query is; a key is closed in the one of a number."""
        (self.home / "codes").mkdir(exist_ok=True)
        (self.home / "codes" / "code").write_text(str(numbers[0]))
        with Session.in_process(workers=self.workers) as session:
            session.use_clock(lambda: self.now_us)
            stream, sender = session.memory_stream(SCHEMA, spool=str(self.home / "spool"))
            lags = MultiSourceWatermarkSpec.new()
            for name in "ab":
                lags = lags.source(name, WatermarkSpec.fixed_lag(100))
            files = session.read_parquet(str(self.home / "in"), SCHEMA, streaming=True, max_files_per_batch=1)
            coded = session.union({"a": stream, "b": files}).lookup_join(
                partial(codes, self.home / "codes"), "user", reload="1 us"
            )
            keyed = coded.with_watermark(lags, "at", source_column="source").key_by("user", "code")
            late = SideOutputLateEventHandler(ParquetSink(str(self.home / "late")))
            plan = keyed.session_window(300).agg(count(), sum("amount"), largest("amount"))
            plan = plan.with_state_ttl(StateTtlConfig("1 min", clock="processing")).with_late_event_handler(late)
            batches = Batches.available_now() if numbers[0] % 2 else None  # the one plans all batches before the first
            for number in numbers if batches else ():
                self.give(sender, number)
            query = plan.start(ParquetSink(str(self.home / "out")), checkpoint=str(self.home / "cp"), batches=batches)
            try:
                if batches:
                    query.await_termination()
                    return
                for number in numbers:
                    with query._engine.batch:  # type: ignore[attr-defined]  # both are of one batch
                        self.give(sender, number)
                        if number == closes:
                            query.close_key(("u3", None))
                    query.process_all_available()
            finally:
                query.stop()

    def give(self, sender: Any, number: int) -> None:
        """Rows for both streams, and some seconds, so that it matters what a batch noted of the time."""
        self.now_us += 9_000_000
        sender.send(batch(number))
        pq.write_table(pa.Table.from_pylist(batch(number), SCHEMA), self.home / "in" / f"{number}.parquet")

    def begin(self, point: str, when: str, patched: pytest.MonkeyPatch) -> None:
        """The first half, and a crash at a point of a batch, or a stop in order."""
        (self.home / "in").mkdir(parents=True)
        self.run(0, 1)
        self.run(3, 5)
        if point == "stopped":
            self.run(2, 6, closes=6)
            return
        of_class, name = POINTS[point]
        calm = getattr(of_class, name)
        left = [1 if point == "closed" else 2]  # of the second batch, which closes a key

        def broken(engine: Any, *given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                raise BrokenOffError
            result = calm(engine, *given, **more)
            if left[0] == 0:
                raise BrokenOffError
            return result

        with patched.context() as breaking, pytest.raises(KrishivError, match="BrokenOffError"):
            breaking.setattr(of_class, name, broken)
            self.run(2, 6, closes=6)

    def kinds(self) -> dict[str, list[Path]]:
        """All files but the user's own by kind, the oldest first."""
        kinds: dict[str, list[Path]] = {}
        for path in sorted(p for p in self.home.rglob("*") if p.is_file()):
            kind = kind_of(path.relative_to(self.home))
            if kind is not None:
                kinds.setdefault(kind, []).append(path)
        return kinds

    def outcome(self) -> Outcome:
        """The second half, and what both have given."""
        self.now_us = 1_700_000_070_000_000
        self.run(*AFTER)
        return rows(self.home / "out"), rows(self.home / "late")


MOMENTS: Final = [(point, when) for point in POINTS for when in ("before", "after")] + [("stopped", "")]
SHORT: Final = [("published", "before"), ("committed", "after"), ("stopped", "")]


UNDONE: Final = {
    ("planned", "after"),
    *((point, when) for point in ("published", "closed") for when in ("before", "after")),
    ("committed", "before"),
}
"""Moments at which a batch is planned and not committed. Without its plan it is as if it had never begun, but for the table
that it had loaded.
"""


def uncoded(outcome: Outcome) -> list[Counter[Any]]:
    """Results and late rows without what comes from the table."""
    return [
        Counter({(*row[:place], *row[place + 1 :]): n for row, n in part.items()})
        for part, place in zip(outcome, (1, 4), strict=True)
    ]


def without(home: Path, patched: pytest.MonkeyPatch) -> Outcome:
    """What a query gives that is broken off before it plans that batch."""
    query = Query(home, workers=2 if LONG else 1)
    query.begin("planned", "before", patched)
    return query.outcome()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("point", "when"), MOMENTS if LONG else SHORT, ids=lambda x: str(x))
def test_a_damaged_file_gives_the_right_answer_or_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    monkeypatch.setattr(checkpoint, "_LARGE", 3_000)  # so that some values are files of their own
    home, begun = tmp_path / "q", tmp_path / "begun"
    query = Query(home, workers=2 if LONG else 1)
    query.begin(point, when, monkeypatch)
    shutil.copytree(home, begun)
    right = query.outcome()
    begun_plan = max((begun / "cp/offsets").iterdir(), key=lambda p: int(p.name)).relative_to(begun)
    undone = right if (point, when) not in UNDONE else without(tmp_path / "undone", monkeypatch)
    assert len(right[0]) > 20 and len(right[1]) > 5, "the trial would prove little"
    wrong, tried = [], 0
    for path, damage, alike in cases(begun):
        shutil.rmtree(home)
        shutil.copytree(begun, home)
        here = home / path
        DAMAGES[damage](here, [home / one for one in alike])
        tried += 1
        try:
            outcome = query.outcome()
            same = outcome == right or ((path, damage) == (begun_plan, "removed") and uncoded(outcome) == uncoded(undone))
        except CheckpointError as problem:
            named = home if damage in ("doubled", "removed") else here.parent  # a gap in a log has two sides
            if str(named) not in str(problem) or "Hint: " not in str(problem):
                wrong.append(f"{path} {damage}: {problem}")
        except Exception as problem:
            wrong.append(f"{path} {damage}: {type(problem).__name__}: {problem}")
        else:
            if not same:
                wrong.append(f"{path} {damage}: another result")
    assert not wrong, f"{len(wrong)} of {tried}\n" + "\n".join(wrong)
    assert tried > 100


def cases(begun: Path) -> Iterator[tuple[Path, str, list[Path]]]:
    """Files of each kind, the newest and one from the middle, in every way; in the long form all of them."""
    for kind, paths in Query(begun).kinds().items():
        assert is_known(kind), kind
        some = paths if LONG else dict.fromkeys((paths[-1], paths[len(paths) // 2]))
        alike = [path.relative_to(begun) for path in paths]
        for path, damage in itertools.product(some, DAMAGES if LONG else SOME):
            if not damage.startswith("mixed up") or len(paths) > 1:
                yield path.relative_to(begun), damage, alike
