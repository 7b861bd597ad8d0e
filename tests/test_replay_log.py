"""Memory streams on disk: several senders at once, damage, and what else may lie in the folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Sender
from krishiv_py.errors import CheckpointError, SenderClosedError
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.storage.sends.segments import opened

SCHEMA = pa.schema([("n", pa.int64())])
SENDING = """
import sys, pyarrow as pa
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.api.sender import Sender
sender = Sender(ReplayLog(sys.argv[1]), pa.schema([("n", pa.int64())]))
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    sender.send([{"n": n}])
"""


def sender(folder: Path) -> Sender:
    """One more sender of the stream in a folder."""
    return Sender(ReplayLog(str(folder)), SCHEMA)


def numbers(folder: Path) -> list[int]:
    """All that was sent."""
    read = [opened(pa.memory_map(f).read_buffer(), f).read()["n"].to_pylist() for f in ReplayLog(str(folder)).files()]
    return sorted(n for table in read for n in table)


def test_senders_in_threads_lose_nothing(tmp_path: Path) -> None:
    senders = [sender(tmp_path) for _ in range(4)]
    taken: list[int] = []

    def send(at: int) -> None:
        taken.extend([senders[at].send([{"n": n}]) for n in range(at * 100, at * 100 + 100)])

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(tmp_path) == list(range(400))
    assert sorted(taken) == list(range(400)), "every send has a number of its own"


def test_senders_in_processes_lose_nothing(tmp_path: Path) -> None:
    starts = [(0, 150), (150, 300)]
    running = [subprocess.Popen([sys.executable, "-c", SENDING, str(tmp_path), str(a), str(b)]) for a, b in starts]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert numbers(tmp_path) == list(range(300))
    stamps = [Path(f).stat().st_mtime for f in ReplayLog(str(tmp_path)).files()]
    assert stamps == sorted(set(stamps)), "modification times order the files"


def test_a_close_is_seen_by_every_sender(tmp_path: Path) -> None:
    one, other = sender(tmp_path), sender(tmp_path)
    other.send([{"n": 1}])
    one.close()
    assert other.closed
    with pytest.raises(SenderClosedError, match=r"send\(\) on a closed sender"):
        other.send([{"n": 2}])
    with pytest.raises(SenderClosedError, match=r"advance_watermark\(\) on a closed"):
        sender(tmp_path).advance_watermark(5)
    other.close()
    assert len(ReplayLog(str(tmp_path)).files()) == 2, "the end of input is there once"


def test_the_end_of_one_source_is_no_end(tmp_path: Path) -> None:
    """As far as the file goes: an end that names a source leaves the others open."""
    one = sender(tmp_path)
    one.advance_watermark(1_000, "a")
    assert not sender(tmp_path).closed


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_a_damaged_send_is_named(tmp_path: Path, damage: str) -> None:
    sender(tmp_path).send([{"n": n} for n in range(50)])
    path = tmp_path / "000000000000.parquet"
    whole = path.read_bytes()
    for i in range(0, len(whole), 7):
        if damage == "flip":
            path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        elif damage == "cut":
            path.write_bytes(whole[:i])
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            pq.write_table(pa.table({"n": [1]}), path)
        with pytest.raises(CheckpointError, match=r"000000000000\.parquet is damaged .*Hint: put the file back"):
            opened(pa.py_buffer(path.read_bytes()), str(path))
    path.write_bytes(whole)
    assert numbers(tmp_path) == list(range(50))


def test_any_parquet_reader_reads_what_was_sent(tmp_path: Path) -> None:
    sender(tmp_path).send([{"n": n} for n in range(1_000)])
    assert pq.read_table(tmp_path / "000000000000.parquet")["n"].to_pylist() == list(range(1_000))


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_missing_send_is_an_error_and_its_number_is_not_taken_again(tmp_path: Path, removed: int) -> None:
    """Spark remembers names: rows sent under a number that was read already would be skipped."""
    first = sender(tmp_path)
    for n in range(3):
        first.send([{"n": n}])
    (tmp_path / f"{removed:012d}.parquet").unlink()
    with pytest.raises(CheckpointError, match=f"{removed:012d}.parquet is missing"):
        ReplayLog(str(tmp_path)).files()
    assert first.send([{"n": 3}]) == 3
    with pytest.raises(CheckpointError, match="is missing"):
        sender(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_the_index_of_numbers_is_made_again(tmp_path: Path, damage: str) -> None:
    sender(tmp_path).send([{"n": 0}])
    index = tmp_path / "_krishiv_spool"
    whole = index.read_bytes()
    changed: Any = {"gone": None, "cut": whole[:9], "flipped": whole.replace(b"1 ", b"7 ", 1)}[damage]
    index.unlink()
    if changed is not None:
        index.write_bytes(changed)
    assert sender(tmp_path).send([{"n": 1}]) == 1
    assert numbers(tmp_path) == [0, 1]
    assert index.read_bytes().startswith(b"000000000000 000000000002 ")


def test_a_index_lost_after_a_trim_says_so(tmp_path: Path) -> None:
    one = sender(tmp_path)
    for n in range(3):
        one.send([{"n": n}])
    ReplayLog(str(tmp_path)).drop_before(2)
    (tmp_path / "_krishiv_spool").write_bytes(b"00000")
    assert sender(tmp_path).send([{"n": 3}]) == 3
    assert ReplayLog(str(tmp_path)).first() == 2
    with pytest.raises(CheckpointError, match=r"the first sends of .* were trimmed \(got: 2 of them\)"):
        ReplayLog(str(tmp_path)).files()
    (tmp_path / "000000000002.parquet").unlink()
    with pytest.raises(CheckpointError, match=r"000000000002\.parquet is missing"):
        sender(tmp_path)


def test_what_no_sender_wrote_is_refused_and_hidden_names_are_left_alone(tmp_path: Path) -> None:
    sender(tmp_path).send([{"n": 1}])
    (tmp_path / "_note").touch()
    (tmp_path / ".hidden.parquet").touch()
    (tmp_path / "_died.tmp").touch()
    assert numbers(tmp_path) == [1]
    sender(tmp_path)
    assert not (tmp_path / "_died.tmp").exists(), "left by a sender that died"
    for name in ("stray.parquet", "1.parquet", "000000000001.PARQUET", "notes.txt", "0000000000001.parquet"):
        (tmp_path / name).touch()
        with pytest.raises(CheckpointError, match=f"{name} was written by no sender"):
            sender(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "sub").mkdir()
    with pytest.raises(CheckpointError, match=r"sub was written by no sender \(got: a folder"):
        sender(tmp_path)
