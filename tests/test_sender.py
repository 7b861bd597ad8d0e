"""Sends that come close together are one micro-batch: no row is lost, doubled or in another order."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import SchemaError, SenderClosedError, SpoolError
from krishiv_py.api.sender import SendBuffer, Sender
from krishiv_py.storage.local import private_folder
from krishiv_py.storage.sends.log import ReplayLog, control_of

SCHEMA = pa.schema([("n", pa.int64())])


def sender(folder: Path, linger_us: int = 20_000, most: int | None = None) -> Sender:
    private_folder(str(folder))
    return Sender(ReplayLog(str(folder)), SCHEMA, lambda: 0, linger_us=linger_us, max_batch_rows=most)


def batches(folder: Path) -> list[list[int]]:
    """The rows of every micro-batch; controls are left out."""
    tables = [pq.read_table(path) for path in ReplayLog(str(folder)).files()]
    return [table["n"].to_pylist() for table in tables if control_of(table) is None]


def test_sends_of_many_threads_share_micro_batches(tmp_path: Path) -> None:
    feeding = sender(tmp_path)
    with ThreadPoolExecutor(32) as pool:
        numbers = list(pool.map(lambda n: feeding.send([{"n": n}]), range(200)))
    actual = batches(tmp_path)
    assert sorted(n for batch in actual for n in batch) == list(range(200))
    assert all(n in actual[number] for n, number in enumerate(numbers)), "each gets the number of the batch that has its rows"
    assert len(actual) <= 50


def test_an_event_loop_goes_on_meanwhile(tmp_path: Path) -> None:
    async def run(feeding: Sender) -> list[int]:
        return await asyncio.gather(*(feeding.send_async([{"n": n}]) for n in range(100)))

    assert set(asyncio.run(run(sender(tmp_path / "lingers", 1_000_000)))) == {0}
    assert batches(tmp_path / "lingers") == [list(range(100))]
    assert sorted(asyncio.run(run(sender(tmp_path / "each", 0)))) == list(range(100))


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=20), st.integers(1, 8))
def test_full_batches_do_not_wait_and_no_send_is_divided(sizes: list[int], most: int) -> None:
    written: list[int] = []

    def write(table: pa.Table) -> int:
        written.append(table.num_rows)
        return len(written)

    lingering = SendBuffer(write, 60_000_000, most)
    futures = [lingering.add(pa.table({"n": pa.array(range(size), pa.int64())})) for size in sizes]
    lingering.close()
    assert [f.result(0) for f in futures] == sorted(f.result(0) for f in futures)
    assert sum(written) == sum(sizes)
    assert all(n <= max(most, *sizes) for n in written)


def test_what_was_sent_before_comes_before(tmp_path: Path) -> None:
    feeding = sender(tmp_path, 60_000_000)
    waiting = feeding.send_soon([{"n": 1}])
    feeding.advance_watermark(5)
    assert waiting.result(0) == 0
    last = feeding.send_soon([{"n": 2}])
    feeding.close()
    assert last.result(0) == 2
    assert batches(tmp_path) == [[1], [2]]
    for call in (feeding.send, feeding.send_soon):
        with pytest.raises(SenderClosedError, match="closed sender"):
            call([{"n": 3}])


def test_wrong_rows_are_refused_at_the_call(tmp_path: Path) -> None:
    feeding = sender(tmp_path)
    with pytest.raises(SchemaError):
        feeding.send_soon([{"n": "one"}])
    feeding.close()
    assert batches(tmp_path) == []


def test_who_sent_rows_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    spool, away = tmp_path / "spool", tmp_path / "away"
    spool.mkdir()
    feeding = sender(spool)
    spool.rename(away)
    for is_empty in (False, True):  # an empty folder is where a mount is missing: nothing is written there
        if is_empty:
            private_folder(str(spool))
        problems = [f.exception(10) for f in (feeding.send_soon([{"n": 1}]), feeding.send_soon([{"n": 2}]))]
        assert all(isinstance(p, SpoolError) and p.errno == errno.ENOENT for p in problems), problems
    assert not list(spool.iterdir())
    spool.rmdir()
    away.rename(spool)
    assert feeding.send([{"n": 3}]) == 0, "a later send is written again"


@pytest.mark.parametrize("segments", [True, False])
def test_a_sender_writes_into_no_stream_but_its_own(tmp_path: Path, segments: bool) -> None:
    """A sender that was made while a mount was missing knows another stream than the one that is there later."""
    spool, away = tmp_path / "spool", tmp_path / "away"
    spool.mkdir()
    ReplayLog(str(spool), begins_segments=segments).tidy()
    whole = {file.name: file.read_bytes() for file in spool.iterdir()}
    spool.rename(away)
    spool.mkdir()
    log = ReplayLog(str(spool), begins_segments=segments)
    log.tidy()
    spool.rename(tmp_path / "below")
    away.rename(spool)
    with pytest.raises(SpoolError, match=r"another one than before .*session\.memory_stream"):
        log.append(pa.table({"n": [1]}))
    assert {file.name: file.read_bytes() for file in spool.iterdir()} == whole


def test_rows_that_wait_can_be_taken_back(tmp_path: Path) -> None:
    feeding = sender(tmp_path, 60_000_000)
    kept, dropped = feeding.send_soon([{"n": 1}]), feeding.send_soon([{"n": 2}])
    assert dropped.cancel()
    feeding.flush()
    assert kept.result(10) == 0 and batches(tmp_path) == [[1]]
    with pytest.raises(CancelledError):
        dropped.result(0)
    feeding.close()


def test_closing_while_others_send(tmp_path: Path) -> None:
    feeding, sent, refused = sender(tmp_path, 1_000), list[Future[int]](), list[int]()

    def feed(thread: int) -> None:
        for n in range(300):
            try:
                sent.append(feeding.send_soon([{"n": 1_000 * thread + n}]))
            except SenderClosedError:
                refused.append(n)

    threads = [threading.Thread(target=feed, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    feeding.close()
    for thread in threads:
        thread.join()
    stated = [f for f in sent if f.exception(10) is None]
    assert all(isinstance(f.exception(), SenderClosedError) for f in sent if f not in stated)
    assert len(sent) + len(refused) == 1_200
    assert sum(map(len, batches(tmp_path))) == len(stated)


def test_a_disk_without_room_is_an_error_of_ours_that_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(ReplayLog(str(tmp_path)), pa.schema([("at", pa.int64())]))
    sender.send([{"at": 1}])
    before = sorted(os.listdir(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("utime", "link"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            with pytest.raises(SpoolError, match="No space left") as caught:
                sender.send([{"at": 2}])
            assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOSPC
        assert sorted(os.listdir(tmp_path)) == before
    assert sender.send([{"at": 3}]) == 1


@pytest.mark.parametrize("linger_us", [0, 50_000])
def test_a_forked_sender_works_or_says_at_once_why_not(tmp_path: Path, linger_us: int) -> None:
    sender = Sender(ReplayLog(str(tmp_path)), pa.schema([("at", pa.int64())]), linger_us=linger_us)
    sender.send([{"at": 1}])
    child = os.fork()
    if child == 0:
        actual = 1
        try:
            sender.send([{"at": 2}])
            actual = 2
        except SpoolError:
            actual = 3
        finally:
            os._exit(actual)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (3 if linger_us else 2)
