"""Checkpoints in process and savepoints of earlier versions go on, as if the library had never been replaced."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py import Session
from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint import notes
from krishiv_py.runtime.checkpoint.notes import FORMAT
from krishiv_py.runtime.savepoints import VERSION
from krishiv_py.testing import Driver, stream_of
from tests.spark.conftest import sorted_rows
from tests.spark.fixtures.make import BEGUN, HERE, SCHEMA, TO_COME, archives, run, windows

ARCHIVES: dict[str, str | None] = {archives(number, VERSION)[1]: None for number in range(1, FORMAT + 1)}
ARCHIVES |= {archives(FORMAT, version)[2]: "savepoint" for version in range(1, VERSION + 1)}
"""What earlier versions wrote, and the folder of the savepoint in it if it is one."""


def unpacked(name: str, home: Path) -> Path:
    """An archive of an earlier version."""
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    return home


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_an_earlier_version_wrote_goes_on(name: str, tmp_path: Path) -> None:
    home, savepoint = unpacked(name, tmp_path), ARCHIVES[name]
    with Session.in_process() as session:
        run(session, home, TO_COME, last=True, savepoint=None if savepoint is None else str(home / savepoint))
    driver = Driver(windows(stream_of(SCHEMA)))
    outs = [driver.send(rows) for rows in BEGUN + TO_COME] + [driver.close()]
    assert sorted_rows(pq.read_table(home / "out")) == sorted((r for o in outs for r in sorted_rows(o.results)), key=repr)
    assert sorted(pq.read_table(home / "late")["at"].to_pylist()) == [900, 2_000]


def test_a_later_format_says_to_write_a_savepoint_with_the_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = unpacked(archives(1, VERSION)[1], tmp_path)
    monkeypatch.setattr(notes, "OLDEST", FORMAT)
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    with Session.in_process() as session, pytest.raises(CheckpointError) as caught:
        run(session, home, [], last=True)
    text = str(caught.value)
    assert f"format 1, written by krishiv_py 0.1.0, in process; krishiv_py 0.1.0 reads formats {FORMAT} to {FORMAT}" in text
    assert f"write a savepoint with the version that wrote it, `krishiv savepoint {home / 'checkpoint'} FOLDER`" in text
    assert "start this version with savepoint=FOLDER and a new checkpoint" in text
    after = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    assert {p: after[p] for p in before if p.is_relative_to(home / "checkpoint")} == {
        p: data for p, data in before.items() if p.is_relative_to(home / "checkpoint")
    }
