"""Files of a sink in a bucket of Google's: staged, renamed by the driver, and replaced when a batch is repeated."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from krishiv_py import ParquetSink, SideOutputLateEventHandler, count
from krishiv_py.connectors.publish import Publisher, staging_of, write_staged
from krishiv_py.connectors.sink import FileSink
from krishiv_py.errors import OperatorError
from krishiv_py.storage import store
from krishiv_py.storage.files import store_at
from krishiv_py.storage.stores.google import Google as Store
from krishiv_py.testing import Driver, stream_of
from tests.gcs.store import Google
from tests.store_rules import file_system


def values(store: Google, folder: str) -> list[int]:
    """What any reader of the folder finds."""
    system, root = file_system(store.url(folder))
    return sorted(ds.dataset(root, filesystem=system).to_table()["n"].to_pylist())


def written(store: Google, folder: str, batch: int, *numbers: int, mark: str = "cafe") -> list[str]:
    """Files of a batch, one for each number, not published."""
    sink = ParquetSink(store.url(folder))
    return [name for n in numbers for name in write_staged(sink, sink.path, mark, batch, n, pa.table({"n": [n]}))]


def publisher(store: Google, folder: str, mark: str = "cafe") -> Publisher:
    """As a query has it that has just been started."""
    return Publisher(store.url(folder), mark)


def test_files_are_staged_and_renamed(used: Google) -> None:
    names = written(used, "seen", 0, 1, 2)
    assert all("_krishiv_staging/" in key for key in used.files("seen/")) and len(used.files("seen/")) == 2
    running = publisher(used, "seen")
    running.publish(0, names)
    running.publish(1, [])
    running.publish(2, written(used, "seen", 2, 3))
    assert values(used, "seen") == [1, 2, 3]
    assert [key.rpartition("/")[2].rpartition("-")[0] for key in used.files("seen/")] == [
        "part-cafe-000000000000-00000",
        "part-cafe-000000000000-00001",
        "part-cafe-000000000002-00000",
    ], "no folder, and nothing that was staged, is left"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", range(7))
def test_a_kill_at_each_step_is_mended_by_the_next_run(used: Google, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The steps: what was staged before is removed, two files are, two are copied, and their originals removed."""
    folder = f"killed-{after}"
    publisher(used, folder).publish(0, written(used, folder, 0, 1, 2))
    written(used, folder, 0, 99)  # a task of a run before, whose file nobody will publish
    left = [after]

    def step(real: Any) -> Any:
        def stepping(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **options)

        return stepping

    storage_blob = type(used.bucket().blob("x"))
    monkeypatch.setattr(storage_blob, "rewrite", step(storage_blob.rewrite))
    monkeypatch.setattr(storage_blob, "delete", step(storage_blob.delete))
    monkeypatch.setattr(Store, "delete_one", step(Store.delete_one))
    names = written(used, folder, 0, 1, 2)
    with pytest.raises(Killed):
        publisher(used, folder).publish(0, names)
    monkeypatch.undo()
    publisher(used, folder).publish(0, written(used, folder, 0, 1, 2))
    assert values(used, folder) == [1, 2] and len(used.files(folder)) == 2


def test_who_was_thought_dead_removes_nothing_and_publishes_nothing(used: Google) -> None:
    old = written(used, "fenced", 0, 1)
    publisher(used, "fenced").publish(0, written(used, "fenced", 0, 1))
    with pytest.raises(OperatorError, match=r"a file cannot be published: it is gone \(got: 1 of 1 in "):
        publisher(used, "fenced").publish(0, old)
    with pytest.raises(OperatorError, match=r"a file cannot be published: it is gone"):
        publisher(used, "fenced").publish(1, ["00000-none.parquet"])
    assert values(used, "fenced") == [1]


def test_who_is_overtaken_while_it_publishes_ends_there(used: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its two files is copied when another driver goes on: that one takes it away, and the other one, too."""
    old = written(used, "overtaken", 0, 1, 2)
    blob = type(used.bucket().blob("x"))
    real = blob.rewrite

    def overtaken(*args: Any, **options: Any) -> Any:
        done = real(*args, **options)
        monkeypatch.undo()
        publisher(used, "overtaken").publish(0, written(used, "overtaken", 0, 1, 2))
        return done

    monkeypatch.setattr(store, "_AT_ONCE", 1)
    monkeypatch.setattr(blob, "rewrite", overtaken)
    with pytest.raises(OperatorError, match=r"a file cannot be published .*404"):
        publisher(used, "overtaken").publish(0, old)
    assert values(used, "overtaken") == [1, 2] and len(used.files("overtaken")) == 2


def test_a_copy_whose_answer_was_lost_is_taken_for_done(used: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.api_core.exceptions import PreconditionFailed

    blob = type(used.bucket().blob("x"))
    real = blob.rewrite

    def unheard(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise PreconditionFailed("it is there")  # what the store says to the same request again

    monkeypatch.setattr(blob, "rewrite", unheard)
    used.put("unheard/old", b"1")
    store_at(used.url(""))[0].rename([("streams/unheard/old", "streams/unheard/new")])
    assert used.files("unheard/") == ["unheard/new"] and used.read("unheard/new") == b"1"


def test_a_large_copy_is_polled_until_it_is_done(used: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = type(used.bucket().blob("x"))
    real, tokens = blob.rewrite, []

    def slowly(self: Any, source: Any, token: str | None = None, **options: Any) -> Any:
        tokens.append(token)
        return real(self, source, **options) if token == "second" else ("second" if token else "first", 1, 3)

    monkeypatch.setattr(blob, "rewrite", slowly)
    used.put("large/old", b"1")
    store_at(used.url(""))[0].rename([("streams/large/old", "streams/large/new")])
    assert tokens == [None, "first", "second"] and used.files("large/") == ["large/new"]


def test_a_sink_that_fails_half_way_leaves_nothing(used: Google) -> None:
    class Broken(FileSink):
        path = used.url("broken")
        suffix = ".bin"

        def write_table(self, table: pa.Table, stream: Any) -> None:
            stream.write(b"half")
            raise OSError("the disk is full")

    with pytest.raises(OperatorError, match="the disk is full"):
        write_staged(Broken(), Broken.path, "cafe", 0, 0, pa.table({"n": [1]}))
    assert used.files("broken") == []


def test_the_driver_writes_there_too(used: Google) -> None:
    late = SideOutputLateEventHandler(ParquetSink(used.url("driver-late")))
    stream = stream_of("n bigint, at bigint").watermark("at", 0).key_by("n").tumbling_window(10).agg(count())
    driver = Driver(stream.with_late_event_handler(late), sink=ParquetSink(used.url("driver")))
    for rows in ([{"n": 1, "at": 50}], [{"n": 2, "at": 7}], [{"n": 3, "at": 70}]):
        driver.send(rows)
    assert (values(used, "driver"), values(used, "driver-late")) == ([1], [2])


def test_a_staging_folder_goes_though_nothing_was_in_it(used: Google) -> None:
    """As Spark leaves it: a mark that it is done, an empty file, and an empty object that stands for the folder."""
    store, root = store_at(used.url("staged"))
    there = f"{root}/{staging_of('cafe', 0)}"
    used.put(f"{there.partition('/')[2]}/", b"")
    store.put(f"{there}/_SUCCESS", b"")
    store.put(f"{there}/part-0.json", b"")
    running = publisher(used, "staged")
    running.publish(0, [])
    assert used.files("staged/") == []
    store.put(f"{root}/{staging_of('cafe', 1)}/part-1.json", b"{}")
    running.publish(1, ["part-1.json"])
    [key] = used.files("staged/")
    assert key.startswith("staged/part-cafe-000000000001-00000-") and key.endswith(".json")
    store.delete_folder(f"{root}/not-there")
