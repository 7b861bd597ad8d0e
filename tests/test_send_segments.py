"""Memory streams in segments: the same rows under the same numbers as in files, damage, cuts, several senders, both engines."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import MemorySink, Sender, Session, count
from krishiv_py.connectors.source import JsonValue
from krishiv_py.errors import CheckpointError, SenderClosedError, SpoolError
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control
from krishiv_py.runtime.ranges.sent import SentSource, scanned_of
from krishiv_py.storage.sends import segments as replay_files
from krishiv_py.storage.sends.log import HandedSends, ReplayLog, handed_sends
from krishiv_py.storage.sends.segments import Segments, Send
from tests.examples import scaled

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
SENDING = """
import sys, pyarrow as pa
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.api.sender import Sender
sender = Sender(ReplayLog(sys.argv[1], begins_segments=True), pa.schema([("n", pa.int64()), ("word", pa.string())]))
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    sender.send([{"n": n, "word": "w"}])
"""


def sender(folder: Path, schema: pa.Schema = SCHEMA) -> Sender:
    """One more sender of the stream in a folder."""
    folder.mkdir(exist_ok=True)
    return Sender(ReplayLog(str(folder), begins_segments=True), schema)


def row(n: int) -> list[dict[str, Any]]:
    """The rows of a send."""
    return [{"n": n, "word": f"w{n}" if n % 3 else None}]


def numbers(folder: Path) -> list[int]:
    """All that was sent."""
    return [n for send in ReplayLog(str(folder)).sends() if send.rows is not None for n in send.rows.column("n").to_pylist()]


@given(sizes=st.lists(st.integers(0, 40), max_size=30), rolled=st.sampled_from([200, 1_000, 1 << 20]))
@settings(max_examples=scaled(40), deadline=None)
def test_sends_are_read_in_any_order_under_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], rolled: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replay_files, "_ROLLED_BYTES", rolled)
        sending = [sender(folder), sender(folder)]
        for number, size in enumerate(sizes):
            assert sending[number % 2].send([{"n": number, "word": "x" * number}] * size) == number
    log = ReplayLog(str(folder))
    for number in [*reversed(range(len(sizes))), *range(len(sizes))]:
        send = log.read(number)
        assert send is not None and send.num_rows == sizes[number] and send.now_us is not None
        assert send.rows is not None and set(send.rows.column("n").to_pylist()) <= {number}
    assert log.read(len(sizes)) is None
    assert log.following() == len(sizes)


def test_a_send_is_one_write_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, writes = sender(tmp_path), list[int]()
    feeding.send(row(0))
    write = os.pwrite

    def counted(fd: int, data: Any, at: int) -> int:
        writes.append(len(data))
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    feeding.send(row(1))
    assert len(writes) == 2, "the rows, and the number in the book"
    assert sorted(os.listdir(tmp_path)) == ["000000000000.sends", "_krishiv_spool"]


def test_senders_in_processes_lose_nothing(tmp_path: Path) -> None:
    sender(tmp_path)
    starts = [(0, 150), (150, 300)]
    running = [subprocess.Popen([sys.executable, "-c", SENDING, str(tmp_path), str(a), str(b)]) for a, b in starts]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert sorted(numbers(tmp_path)) == list(range(300))


def test_senders_in_threads_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_files, "_ROLLED_BYTES", 2_000)
    senders, taken = [sender(tmp_path) for _ in range(4)], list[int]()
    shared = senders[0]

    def send(at: int) -> None:
        for n in range(at * 50, at * 50 + 50):
            taken.append((shared if n % 2 else senders[at]).send(row(n)))
            assert not shared.closed

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers(tmp_path)) == list(range(200))
    assert sorted(taken) == list(range(200))


def test_a_stream_stays_what_it_began_as(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    Sender(ReplayLog(str(tmp_path / "files")), SCHEMA).send(row(0))
    sender(tmp_path / "files").send(row(1))
    assert len(ReplayLog(str(tmp_path / "files")).files()) == 2
    sender(tmp_path / "segments").send(row(0))
    Sender(ReplayLog(str(tmp_path / "segments")), SCHEMA).send(row(1))
    assert not list((tmp_path / "segments").glob("*.parquet"))
    for kind in ("files", "segments"):
        assert numbers(tmp_path / kind) == [0, 1]


def test_the_rest_of_a_send_that_was_broken_off_is_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    feeding = sender(folder)
    for n in range(3):
        feeding.send(row(n))
    path, index = folder / "000000000000.sends", folder / "_krishiv_spool"
    before, noted = path.read_bytes(), index.read_bytes()
    feeding.send(row(3))
    whole = path.read_bytes()
    for cut in range(len(before), len(whole)):
        path.write_bytes(whole[:cut])
        index.write_bytes(noted)
        assert numbers(folder) == [0, 1, 2]
        assert sender(folder).send(row(4)) == 3
        assert numbers(folder) == [0, 1, 2, 4]
    path.write_bytes(before + bytes(500))  # a loss of power leaves zeros
    index.write_bytes(noted)
    assert sender(folder).send(row(5)) == 3
    assert numbers(folder) == [0, 1, 2, 5]
    path.write_bytes(whole)
    index.write_bytes(noted)  # broken off before the book was written
    assert sender(folder).send(row(6)) == 4
    assert numbers(folder) == [0, 1, 2, 3, 6]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_damage_is_named_and_no_send_is_lost_silently(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "segments"
    for n in range(4):
        sender(folder).send(row(n))
    path = folder / "000000000000.sends"
    whole = path.read_bytes()
    for i in range(0, len(whole), 5):
        if damage == "gone":
            path.unlink(missing_ok=True)
        else:
            flipped = whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :]
            path.write_bytes({"flip": flipped, "cut": whole[:i], "empty": b""}[damage])
        with pytest.raises(CheckpointError, match=r"000000000000|is missing|is damaged"):
            actual = numbers(folder)
            assert actual == [0, 1, 2, 3], "read though it is damaged"
    path.write_bytes(whole)
    assert numbers(folder) == [0, 1, 2, 3]


def test_a_segment_in_the_middle_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_files, "_ROLLED_BYTES", 600)
    folder = tmp_path / "segments"
    feeding = sender(folder)
    for n in range(9):
        feeding.send(row(n))
    actual = sorted(folder.glob("*.sends"))
    assert len(actual) > 3
    actual[1].unlink()
    with pytest.raises(CheckpointError, match=f"{actual[1].name} is missing"):
        numbers(folder)
    with pytest.raises(CheckpointError, match="is missing"):
        ReplayLog(str(folder)).read(int(actual[1].name[:12]) + 1)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_the_index_is_made_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "segments"
    one = sender(folder)
    one.send(row(0))
    identity, index = ReplayLog(str(folder)).identity(), folder / "_krishiv_spool"
    index.unlink() if damage == "gone" else index.write_bytes(b"0000")
    assert sender(folder).send(row(1)) == 1
    assert ReplayLog(str(folder)).identity() == identity
    assert numbers(folder) == [0, 1]


class Few:
    """Takes a few sends together."""

    def most(self) -> tuple[int, int]:
        """See Together."""
        return 1_000, 1 << 20

    def count(self, sends: Sequence[Send]) -> int:
        """See Together."""
        return min(len(sends), 3)


def reading(folder: Path) -> SentSource:
    """A source of the stream in a folder that sends are handed over to."""
    source = SentSource(SCHEMA, str(folder))
    source.together, source.handed = Few(), HandedSends(threading.Event())
    return source


@given(
    steps=st.lists(st.sampled_from(["handed", "in a file", "a control", "handed", "read", "planned"]), max_size=60),
    rolled=st.sampled_from([1, 400, 1 << 20]),
)
@settings(max_examples=scaled(60), deadline=None)
def test_sends_that_are_handed_over_and_those_in_files_are_read_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rolled: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    feeding, log, source = sender(folder), ReplayLog(str(folder)), reading(folder)
    assert source.handed is not None
    sent, actual = list[int | None](), list[int | None]()
    position: JsonValue = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replay_files, "_ROLLED_BYTES", rolled)
        for step in [*steps, "read"]:
            if step == "handed":
                with handed_sends(str(folder), source.handed):
                    feeding.send(row(len(sent)))
                sent.append(len(sent))
            elif step == "in a file":
                feeding.send(row(len(sent)))
                sent.append(len(sent))
            elif step == "a control":
                log.control(Control(UNSET, None, 1), "advance_watermark()")
                sent.append(None)
            while step in ("read", "planned") and (planned := source.plan(position)) is not None:
                position = planned.position
                held = source.taken(planned.ranges, SCHEMA)
                scanned = held or [one for planned_one in planned.ranges for one in source.scanned(planned_one, SCHEMA)]
                actual += [n for one in scanned for n in ([None] if one.batch is None else one.batch.column(0).to_pylist())]
                if step == "planned":
                    break
    assert actual == sent


def test_sends_that_were_handed_over_are_passed_over_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_files, "_ROLLED_BYTES", 2_000)
    folder, looked, frame = tmp_path / "segments", list[int](), Segments._frame
    feeding, source = sender(folder), reading(folder)
    assert source.handed is not None
    with handed_sends(str(folder), source.handed):
        for n in range(200):
            feeding.send(row(n))
    position: JsonValue = None

    def counted(self: Segments) -> Any:
        looked.append(1)
        return frame(self)

    monkeypatch.setattr(Segments, "_frame", counted)
    while (planned := source.plan(position)) is not None:
        position = planned.position
        assert source.taken(planned.ranges, SCHEMA) is not None
    assert position == {"stream": ReplayLog(str(folder)).identity(), "send": 199}
    assert len(looked) < 50, "a look at the end for each batch at most, and none at each send"
    feeding.send(row(200))  # not handed over: its schema is at the begin of the segment
    planned = source.plan(position)
    assert planned is not None
    batches = [one.batch for one in source.taken(planned.ranges, SCHEMA) or []]
    assert [n for one in batches if one is not None for n in one.column(0).to_pylist()] == [200]


def test_trimmed_sends_are_gone_and_the_numbers_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_files, "_ROLLED_BYTES", 600)
    folder = tmp_path / "segments"
    feeding, log = sender(folder), ReplayLog(str(folder))
    for n in range(9):
        feeding.send(row(n))
    before = len(list(folder.glob("*.sends")))
    assert log.drop_before(7) == 7
    assert len(list(folder.glob("*.sends"))) < before
    with pytest.raises(CheckpointError, match="7 of them"):
        numbers(folder)
    actual = log.read(7)
    assert actual is not None and actual.rows is not None and actual.rows.column("n").to_pylist() == [7]
    assert log.drop_before(99) == 2
    assert feeding.send(row(9)) == 9
    assert log.in_segments and log.following() == 10


def test_a_close_is_seen_by_every_sender(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    one, other = sender(folder), sender(folder)
    other.send(row(1))
    one.advance_watermark(5, "a")
    assert not other.closed
    one.close()
    assert other.closed and sender(folder).closed
    with pytest.raises(SenderClosedError, match=r"send\(\) on a closed sender"):
        other.send(row(2))


def test_no_room_leaves_nothing_and_goes_on_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "segments"
    feeding, write = sender(folder), os.pwrite
    feeding.send(row(0))
    before = (folder / "000000000000.sends").read_bytes()

    def full(fd: int, data: Any, at: int) -> int:
        if len(data) <= 48:
            return write(fd, data, at)
        if at == len(before):
            return write(fd, data[:48], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpoolError, match=r"No space left.*nothing of this send was kept"):
        feeding.send(row(1))
    assert (folder / "000000000000.sends").read_bytes() == before
    monkeypatch.setattr(os, "pwrite", write)
    assert feeding.send(row(2)) == 1
    assert numbers(folder) == [0, 2]


def test_a_folder_that_was_removed_is_an_error_and_a_new_sender_begins_a_new_stream(tmp_path: Path) -> None:
    """An empty folder in its place may be that of a mount that is missing: the sender writes nothing there."""
    folder = tmp_path / "segments"
    feeding = sender(folder)
    feeding.send(row(0))
    shutil.rmtree(folder)
    for is_empty in (False, True):
        if is_empty:
            folder.mkdir()
        with pytest.raises(SpoolError, match=r"mount the folder.*make the sender again"):
            feeding.send(row(1))
    assert not list(folder.iterdir())
    assert sender(folder).send(row(2)) == 0


def test_a_forked_sender_writes_into_the_same_stream(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    feeding = sender(folder)
    feeding.send(row(0))
    child = os.fork()
    if child == 0:
        os._exit(7 if feeding.send(row(1)) == 1 else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert feeding.send(row(2)) == 2
    assert numbers(folder) == [0, 1, 2]


TYPES = {
    "words": pa.string(),
    "lists": pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "maps": pa.map_(pa.string(), pa.float64()),
    "times": pa.timestamp("us", "UTC"),
    "decimals": pa.decimal128(20, 3),
    "dictionaries": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_values_of_all_types_come_back(tmp_path: Path, name: str) -> None:
    values = {
        "words": ["ä", None, ""],
        "lists": [[{"a": 1, "b": None}], None, []],
        "maps": [[("k", 0.5)], [], None],
        "times": [1, None, -(1 << 40)],
        "decimals": ["1.5", None, "-0.001"],
        "dictionaries": ["x", None, "x"],
    }[name]
    kind = TYPES[name]
    array = pa.array(values).cast(kind) if name == "decimals" else pa.array(values, kind)
    rows = pa.record_batch([array], names=["v"])
    feeding = sender(tmp_path / "segments", rows.schema)
    feeding.send(rows)
    feeding.send(rows.slice(1, 1))
    read = [s.rows for s in ReplayLog(str(tmp_path / "segments")).sends()]
    assert read[0] is not None and read[0].column(0).to_pylist() == rows.column(0).to_pylist()
    assert read[1] is not None and read[1].column(0).to_pylist() == rows.slice(1, 1).column(0).to_pylist()


def test_a_stream_with_another_column_is_read_as_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    sender(folder).send(row(1))
    wider = SCHEMA.append(pa.field("more", pa.float64()))
    sender(folder, wider).send([{"n": 2, "word": "b", "more": 0.5}])
    sends = list(ReplayLog(str(folder)).sends())
    narrow = [s.batch for send in sends for s in scanned_of(send, pa.schema([("n", pa.int64())]))]
    assert [b.to_pydict() for b in narrow if b is not None] == [{"n": [1]}, {"n": [2]}]
    wide = [s.batch for send in sends for s in scanned_of(send, wider)]
    assert [b.column(2).to_pylist() for b in wide if b is not None] == [[None], [0.5]]


def test_a_query_goes_on_from_a_trimmed_stream(tmp_path: Path) -> None:
    for part in range(3):
        with Session.in_process() as session:
            stream, feeding = session.memory_stream("key string, at bigint", spool=str(tmp_path / "segments"))
            plan = stream.watermark("at", 0).key_by("key").tumbling_window(10).agg(count())
            sink = MemorySink()
            query = plan.start(sink, checkpoint=str(tmp_path / "c"))
            for n in range(60):
                feeding.send([{"key": "a", "at": part * 600 + n * 10}])
                if n % 2 == 0:
                    query.process_all_available()
            query.process_all_available()
            removed = feeding.trim()
            assert removed > 0, "of a stream that is read by ranges too"
            query.stop()
            assert query.results().num_rows == (59 if part == 0 else 60)
