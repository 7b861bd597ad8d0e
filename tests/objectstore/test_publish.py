"""Files of a sink in a bucket: nobody sees them before the batch is published, and a repeated batch replaces them."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from krishiv_py import ParquetSink, SideOutputLateEventHandler, count
from krishiv_py.connectors.publish import Publisher, staging_of, write_staged
from krishiv_py.connectors.sink import FileSink
from krishiv_py.errors import OperatorError
from krishiv_py.storage.files import store_at
from krishiv_py.storage.stores import s3
from krishiv_py.storage.stores.s3 import Upload, client
from krishiv_py.testing import Driver, stream_of
from tests.objectstore.store import BUCKET, Store
from tests.store_rules import file_system


def values(folder: str) -> list[int]:
    """What any reader of the folder finds."""
    system, root = file_system(f"s3a://{BUCKET}/{folder}")
    return sorted(ds.dataset(root, filesystem=system).to_table()["n"].to_pylist())


def written(folder: str, batch: int, *numbers: int, mark: str = "cafe") -> list[str]:
    """Files of a batch, one for each number, not published."""
    sink = ParquetSink(f"s3a://{BUCKET}/{folder}")
    return [name for n in numbers for name in write_staged(sink, sink.path, mark, batch, n, pa.table({"n": [n]}))]


def complete(folder: str, staged: str) -> None:
    """Make one file visible."""
    store, root = store_at(f"s3a://{BUCKET}/{folder}")
    store.publish(root, staged)


def publisher(folder: str, mark: str = "cafe") -> Publisher:
    """As a query has it that has just been started."""
    return Publisher(f"s3a://{BUCKET}/{folder}", mark)


def test_files_are_there_when_they_are_published_and_never_copied(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = written("seen", 0, 1, 2)
    assert used.keys("seen/") == [] and len(used.uploads()) == 2
    requested: list[str] = []
    client(BUCKET).meta.events.register("before-call.s3.*", lambda model, **_: requested.append(model.name))
    publisher("seen").publish(0, names)
    assert values("seen") == [1, 2] and used.uploads() == []
    assert "CompleteMultipartUpload" in requested and not any("Copy" in name for name in requested)


def test_a_repeated_batch_replaces_its_files_and_gives_up_what_was_left(used: Store) -> None:
    publisher("again").publish(0, written("again", 0, 1, 2))
    complete("again", written("again", 1, 3, 4)[0])  # one of two, then the process died
    assert values("again") == [1, 2, 3] and len(used.uploads()) == 1
    written("again", 1, 8, mark="beef")  # of another query
    running = publisher("again")
    running.publish(1, written("again", 1, 3, 4))
    assert values("again") == [1, 2, 3, 4]
    assert [key.partition("beef")[1] for key in used.uploads()] == ["beef"], "another query's uploads are not ours"
    running.publish(2, written("again", 2, 5))
    assert values("again") == [1, 2, 3, 4, 5]


def test_what_a_process_uploaded_that_was_thought_dead_cannot_be_published(used: Store) -> None:
    """It wakes up after another one has gone on from the checkpoint."""
    old = written("fenced", 0, 1)
    publisher("fenced").publish(0, written("fenced", 0, 1))
    with pytest.raises(OperatorError, match="a file cannot be published"):
        complete("fenced", Upload("part-gone", "no-such-upload", ["tag"]).text())
    with pytest.raises(OperatorError, match="a file cannot be published"):
        publisher("fenced", "f00d").publish(0, old)
    assert values("fenced") == [1]
    with pytest.raises(
        OperatorError, match=r"a file cannot be published: it is gone \(got: 1 of 1 uploads to streams/fenced\)"
    ):
        publisher("fenced").publish(0, old)
    assert values("fenced") == [1], "it removed nothing of the one that went on"


def test_a_store_that_lists_no_uploads_keeps_them(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(name: str) -> Any:
        raise client(BUCKET).exceptions.ClientError({"Error": {"Code": "AccessDenied"}}, name)

    left = written("unlisted", 0, 1)
    names = written("unlisted", 0, 1)
    monkeypatch.setattr(client(BUCKET), "get_paginator", denied)
    publisher("unlisted").publish(0, names)
    monkeypatch.undo()
    assert values("unlisted") == [1] and Upload.of(left[0]).name in "".join(used.uploads())


def test_a_publisher_that_was_overtaken_is_found_without_a_list(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """MinIO lists no uploads of a prefix: of each upload of the batch it is asked whether it is open."""
    old = written("silent", 0, 1)
    publisher("silent").publish(0, written("silent", 0, 1))
    monkeypatch.setattr(s3, "open_uploads", lambda folder: {})
    with pytest.raises(OperatorError, match="1 of 1 uploads to streams/silent"):
        publisher("silent").publish(0, old)
    assert values("silent") == [1]
    publisher("silent").publish(1, written("silent", 1, 2))
    assert values("silent") == [1, 2]


def test_a_file_that_cannot_be_uploaded_leaves_nothing(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OSError("the line is dead")

    before = used.uploads()
    monkeypatch.setattr(client(BUCKET), "upload_part", broken)
    with pytest.raises(OperatorError, match=r"a file cannot be uploaded .*broken/.*the line is dead"):
        written("broken", 0, 1)
    assert used.uploads() == before


def test_files_of_several_parts(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @attrs.frozen
    class Bytes(FileSink):
        path: str = f"s3a://{BUCKET}/parts"
        suffix = ".bin"

        def write_table(self, table: pa.Table, stream: Any) -> None:
            stream.write(b"x" * (11 << 20))

    monkeypatch.setattr(s3, "_PART_BYTES", 5 << 20)
    (name,) = write_staged(Bytes(), Bytes().path, "cafe", 0, 0, pa.table({"n": [1]}))
    assert len(Upload.of(name).parts) == 3
    publisher("parts").publish(0, [name])
    [key] = used.keys("parts/part")
    assert used.client().head_object(Bucket=BUCKET, Key=key)["ContentLength"] == 11 << 20


def test_the_driver_writes_there_too(used: Store) -> None:
    late = SideOutputLateEventHandler(ParquetSink(f"s3a://{BUCKET}/driver-late"))
    stream = stream_of("n bigint, at bigint").watermark("at", 0).key_by("n").tumbling_window(10).agg(count())
    driver = Driver(stream.with_late_event_handler(late), sink=ParquetSink(f"s3a://{BUCKET}/driver"))
    for rows in ([{"n": 1, "at": 50}], [{"n": 2, "at": 7}], [{"n": 3, "at": 70}]):
        driver.send(rows)
    assert (values("driver"), values("driver-late")) == ([1], [2])


def test_a_staging_folder_goes_though_nothing_was_in_it(used: Store) -> None:
    """As Spark leaves it that writes no row as JSON: a mark that it is done, and an empty file."""
    store, root = store_at(f"s3a://{BUCKET}/staged")
    there = f"{root}/{staging_of('cafe', 0)}"
    store.put(f"{there}/_SUCCESS", b"")
    store.put(f"{there}/part-0.json", b"")
    running = publisher("staged")
    running.publish(0, [])
    assert [key for key in used.keys("staged/") if not key.endswith("/")] == []
    store.put(f"{root}/{staging_of('cafe', 1)}/part-1.json", b"{}")
    running.publish(1, ["part-1.json"])
    assert used.keys("staged/part") == ["staged/part-cafe-000000000001-00000.json"]
