"""A checkpoint that was moved goes on, with its memory stream and outputs; what would be read twice is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, ParquetSink, Session
from krishiv_py.api.sender import Sender
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.runtime.checkpoint.moved import follow
from krishiv_py.runtime.checkpoint.sparklog import forget_unplanned, trim
from krishiv_py.storage.sends.log import ReplayLog
from tests.spark.conftest import DDL, per_second, row, sorted_rows

SCHEMA = pa.schema([("n", pa.int64())])


def log_of(checkpoint: Path, *paths: str) -> Path:
    """A checkpoint whose source has read some files."""
    for folder in ("sources/0", "offsets", "state/0/_metadata/v2"):
        (checkpoint / folder).mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    entries = [f'{{"path":"{path}","timestamp":1,"batchId":0}}' for path in paths]
    (checkpoint / "sources" / "0" / "0").write_text("\n".join(["v1", *entries]))
    return checkpoint / "sources" / "0" / "0"


def stream(folder: Path) -> MemorySource:
    """A memory stream with a send."""
    folder.mkdir(parents=True, exist_ok=True)
    Sender(ReplayLog(str(folder)), SCHEMA).send([{"n": 1}])
    return MemorySource("memory", SCHEMA, str(folder))


def test_paths_of_a_moved_stream_are_written_as_spark_writes_them(tmp_path: Path) -> None:
    old, new = stream(tmp_path / "old"), tmp_path / "nøw {a} #1%20 (x)"
    follow(str(tmp_path / "cp"), [old])
    log = log_of(tmp_path / "cp", f"file://{old.spool}/000000000000.parquet", "file:///elsewhere/x.parquet")
    shutil.move(old.spool, new)
    follow(str(tmp_path / "cp"), [MemorySource("memory", SCHEMA, str(new))])
    home = f"file://{tmp_path}/n\N{LATIN SMALL LETTER O WITH STROKE}w%20%7Ba%7D%20%231%2520%20(x)"
    assert f'"path":"{home}/000000000000.parquet","timestamp":1,"batchId":0}}\n' in log.read_text()
    assert "file:///elsewhere/x.parquet" in log.read_text()


def test_the_schema_of_state_is_found_where_the_checkpoint_is(tmp_path: Path) -> None:
    log_of(tmp_path / "cp")
    metadata = tmp_path / "cp" / "state" / "0" / "_metadata" / "v2" / "0"
    metadata.write_text('v2\n{"stateSchemaFilePaths":["file:/old/place/state/0/_stateSchema/default/0_ab"]}')
    metadata.with_name(".0.crc").touch()
    follow(str(tmp_path / "cp"), [])
    assert f'["file:{tmp_path}/cp/state/0/_stateSchema/default/0_ab"]' in metadata.read_text()
    assert not metadata.with_name(".0.crc").exists()


def test_a_stream_made_again_in_its_folder_is_refused(tmp_path: Path) -> None:
    follow(str(tmp_path / "cp"), [stream(tmp_path / "spool")])
    log_of(tmp_path / "cp", f"file://{tmp_path}/spool/000000000000.parquet")
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(CheckpointError, match="was made again"):
        follow(str(tmp_path / "cp"), [stream(tmp_path / "spool")])
    follow(str(tmp_path / "cp"), [stream(tmp_path / "another")])


def test_files_that_would_be_read_twice_are_refused(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").touch()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    log_of(tmp_path / "cp", f"file://{tmp_path}/old/a.parquet")

    def source(path: str) -> list[SourceNode]:
        return [FileSource(f"{tmp_path}/{path}", "parquet", SCHEMA, bounded=False)]

    for same in ("old", "old/", "old/*.parquet", "o*"):
        follow(str(tmp_path / "cp"), source(same))
    for moved in ("new", "link", "new/*.parquet"):
        with pytest.raises(CheckpointError, match=r"files were read from .*/old, and are in .*a\.parquet in both"):
            follow(str(tmp_path / "cp"), source(moved))
    (tmp_path / "new" / "a.parquet").rename(tmp_path / "new" / "b.parquet")
    follow(str(tmp_path / "cp"), source("new"))


def test_what_a_loss_of_power_cut_behind_the_last_plan_is_struck_out(tmp_path: Path) -> None:
    log = log_of(tmp_path / "cp", "file:///x/a.parquet")
    for cut in (b"", b'v1\n{"pa', b"\xff"):
        log.with_name("1").write_bytes(cut)
        log.with_name(".1.crc").write_bytes(b"crc\0")
        forget_unplanned(str(tmp_path / "cp"))
        assert sorted(p.name for p in log.parent.iterdir()) == ["0"]
    (log.parent.parent / "1").mkdir()
    other = log.parent.parent / "1" / "0"  # of a source that keeps something else
    other.write_text('v1\n{"topic":{}}')
    forget_unplanned(str(tmp_path / "cp"))
    assert other.exists()


def test_what_a_compact_file_has_too_is_not_looked_at(tmp_path: Path) -> None:
    log = log_of(tmp_path / "cp", "file:///x/a.parquet")
    log.with_name("1.compact").write_bytes(log.read_bytes())
    log.write_bytes(b"\xff")
    follow(str(tmp_path / "cp"), [])
    log.with_name("1.compact").write_bytes(b'v1\n{"path":7}')
    with pytest.raises(CheckpointError, match=r"1\.compact is damaged"):
        follow(str(tmp_path / "cp"), [])


@pytest.mark.slow
def test_a_moved_query_goes_on(session: Session, tmp_path: Path) -> None:
    home = tmp_path / "here"
    rows = []
    for moment in (0, 1, 2):
        if moment == 1:
            moved = tmp_path / "there and back"
            shutil.move(home, moved)
            home = moved
        stream, sender = session.memory_stream(DDL, spool=str(home / "spool"))
        rows += [[row("a", moment * 700), row("b", moment * 900)]]
        sender.send(rows[-1])
        query = per_second(stream).start(
            ParquetSink(str(home / "out")), checkpoint=str(home / "cp"), batches=Batches.available_now(flush=moment == 2)
        )
        query.await_termination()
        query.stop()
    assert sorted_rows(pq.read_table(home / "out")) == [
        ("a", 0, 1_000, 2, 2),
        ("a", 1_000, 2_000, 1, 1),
        ("b", 0, 1_000, 2, 2),
        ("b", 1_000, 2_000, 1, 1),
    ]
    assert query.progress.rows == 6


class TestTrimming:
    """What every query has finished long ago may go."""

    def read(self, checkpoint: Path, spool: str, upto: int, oldest: int) -> None:
        """A checkpoint that has read so many sends, one a batch, and could go back to an older batch."""
        for folder in ("sources/0", "offsets", "commits", "krishiv"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / "krishiv" / "plan.json").touch()
        for n in range(upto):
            entry = f'{{"path":"file://{spool}/{n:012d}.parquet","timestamp":1,"batchId":{n}}}'
            (checkpoint / "sources" / "0" / str(n)).write_text(f"v1\n{entry}")
            if n >= oldest:
                (checkpoint / "offsets" / str(n)).write_text(f'v1\n{{}}\n{{"logOffset":{n}}}')
                (checkpoint / "commits" / str(n)).write_text("v1\n{}")

    def test_nothing_goes_that_a_query_has_yet_to_read(self, tmp_path: Path) -> None:
        source = stream(tmp_path / "spool")
        spool, sender = ReplayLog(source.spool), Sender(ReplayLog(source.spool), SCHEMA, trimming=trim)
        for n in range(1, 10):
            sender.send([{"n": n}])
        assert sender.trim() == 0, "nobody has read"
        follow(str(tmp_path / "one"), [source])
        self.read(tmp_path / "one", source.spool, upto=9, oldest=5)
        follow(str(tmp_path / "two"), [source])
        self.read(tmp_path / "two", source.spool, upto=6, oldest=2)
        assert sender.trim() == 3, "the second query could go back to batch 2, which read send 2"
        assert sender.trim() == 0
        assert sender.send([{"n": 10}]) == 10
        with pytest.raises(CheckpointError, match=r"were trimmed \(got: 3 of them\)"):
            spool.files()
        for known in ("one", "two"):
            follow(str(tmp_path / known), [source])
        with pytest.raises(CheckpointError, match=r"the sends before 3 were removed .*got: read so far: 0"):
            follow(str(tmp_path / "three"), [source])
        shutil.rmtree(tmp_path / "two")
        assert sender.trim() == 3
        (tmp_path / "spool" / f"{7:012d}.parquet").unlink()
        with pytest.raises(CheckpointError, match=r"000000000007\.parquet is missing"):
            Sender(spool, SCHEMA)

    def test_the_log_forgets_what_was_removed(self, tmp_path: Path) -> None:
        source = stream(tmp_path / "spool")
        follow(str(tmp_path / "cp"), [source])
        log = log_of(
            tmp_path / "cp", *(f"file://{source.spool}/{n:012d}.parquet" for n in (7, 0, 8)), "file:///else/where", "file:///x"
        )
        compact = log.rename(log.with_name("9.compact"))
        follow(str(tmp_path / "cp"), [source])
        assert [line.partition(",")[0] for line in compact.read_text().splitlines()[1:]] == [
            f'{{"path":"file://{source.spool}/{0:012d}.parquet"',
            '{"path":"file:///else/where"',
            '{"path":"file:///x"',
        ]
