"""Checkpoints of earlier versions: what this one reads goes on with right results, what it cannot read is refused by name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from krishiv_py import ParquetSink, Session
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.running import RENAMED
from krishiv_py.runtime.checkpoint.notes import FORMAT, OLDEST, CheckpointNotes
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.testing import Driver, stream_of
from krishiv_py.version import __version__
from tests.spark.conftest import DDL, per_second, sorted_rows
from tests.spark.fixtures.make import BEGUN, HERE, SCHEMA, TO_COME, run, windows

pytestmark = pytest.mark.two_tasks

SPEC = per_second(stream_of(DDL))._plan()


def unpacked(name: str, home: Path) -> Path:
    """A checkpoint of an earlier version."""
    with tarfile.open(HERE / f"checkpoint-{name}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    return home


def written(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> CheckpointNotes:
    """A plan note, changed and sealed again."""
    notes = CheckpointNotes(str(checkpoint))
    notes.claim(SPEC, 2, f"PySpark {pyspark.__version__}")
    path = checkpoint / "krishiv" / "plan.json"
    note = json.loads(unsealed(path.read_bytes(), "note", ""))
    change(note)
    path.write_bytes(sealed(json.dumps(note).encode()))
    return notes


def test_a_plan_note_says_its_format_and_who_wrote_it(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    notes = written(tmp_path, seen.append)
    assert seen[0]["format"] == FORMAT
    assert seen[0]["written by"].startswith(f"krishiv_py {__version__}, PySpark 4.")
    notes.claim(SPEC, 2)
    notes.check(SPEC)


@pytest.mark.parametrize("other", [0, FORMAT + 1, 999, "1", None, [1]])
def test_another_format_is_refused_by_number_and_writer(tmp_path: Path, other: Any) -> None:
    notes = written(tmp_path, lambda note: note.update({"format": other, "written by": "krishiv_py 7.1"}))
    got = "none, from before formats had numbers" if other is None else f"format {other!r}"
    for use in (notes.plan, lambda: notes.claim(SPEC, 2), lambda: notes.check(SPEC)):
        with pytest.raises(CheckpointError) as caught:
            use()
        text = str(caught.value)
        assert f"the checkpoint {tmp_path} has a format this version cannot read" in text
        assert f"{got}, written by krishiv_py 7.1; krishiv_py {__version__} reads formats {OLDEST} to {FORMAT}" in text
        assert "Hint: go on with the version that wrote it, or start with a new checkpoint" in text


def test_a_note_without_format_or_writer_is_refused(tmp_path: Path) -> None:
    notes = written(tmp_path, lambda note: [note.pop(k) for k in ("format", "written by")])
    with pytest.raises(CheckpointError, match=r"got: none, from before formats had numbers; krishiv_py "):
        notes.plan()


def test_a_plain_note_of_an_early_version_is_distinguished_from_a_damaged_one(tmp_path: Path) -> None:
    home = unpacked("without-format", tmp_path)
    notes = CheckpointNotes(str(home / "checkpoint"))
    with pytest.raises(CheckpointError, match=r"has a format this version cannot read .*none, from before"):
        notes.plan()
    path = home / "checkpoint" / "krishiv" / "plan.json"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"plan\.json is damaged"):
        notes.plan()


def test_a_checkpoint_of_another_format_is_left_as_it_is(session: Session, tmp_path: Path) -> None:
    home = unpacked("without-format", tmp_path)
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    plan = windows(session.memory_stream(SCHEMA)[0])
    with pytest.raises(CheckpointError, match="has a format this version cannot read"):
        plan.start(ParquetSink(str(home / "out")), checkpoint=str(home / "checkpoint"))
    with pytest.raises(CheckpointError, match="has a format this version cannot read"):
        session.read_state(str(home / "checkpoint"), plan)
    with pytest.raises(CheckpointError, match=r"000000000000\.parquet is damaged .*an older version"):
        session.memory_stream(SCHEMA, spool=str(home / "spool"))
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_checkpoint_of_an_earlier_version_goes_on(session: Session, tmp_path: Path, number: int) -> None:
    """State, late rows, counters: as if the library had never been replaced. Where this fails, FORMAT must be raised."""
    home = unpacked(f"format-{number}", tmp_path)
    run(session, home, TO_COME, last=True)
    driver = Driver(windows(stream_of(SCHEMA)))
    outs = [driver.send(rows) for rows in BEGUN + TO_COME] + [driver.close()]
    assert sorted_rows(pq.read_table(home / "out")) == sorted((r for o in outs for r in sorted_rows(o.results)), key=repr)
    late = sorted(moment for o in outs for moment in o.late["at"].to_pylist())
    assert sorted(pq.read_table(home / "late")["at"].to_pylist()) == late == [900, 2_000]
    kept = CheckpointNotes(str(home / "checkpoint")).metrics()["buckets"].values()
    assert [set(RENAMED) & set(report["counters"]) for report in kept] == [set()] * len(kept)  # counters have today's names
