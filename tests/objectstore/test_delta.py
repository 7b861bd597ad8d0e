"""A folder of a store that is to become a Delta table is taken when its query starts, with the table's own settings."""

from __future__ import annotations

import deltalake
import pytest

from krishiv_py import DeltaSink, Session, count
from krishiv_py.errors import CheckpointError
from krishiv_py.storage.files import store_at
from tests.objectstore.store import BUCKET, Store


def test_the_folder_of_a_table_is_taken_before_its_first_commit(store: Store) -> None:
    place, options = f"s3://{BUCKET}/taken", {**store.options, "AWS_ALLOW_HTTP": "true"}
    with Session.builder().engine("in-process").storage_options(store.options).get_or_create() as session:
        stream, sender = session.memory_stream("at bigint")
        plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = plan.start(DeltaSink(place, storage_options=options))
        sender.send([{"at": 1}])
        query.process_all_available()
        files, root = store_at(store.url("taken"))
        assert not files.entries(f"{root}/_delta_log"), "no window has ended"
        for path in ("taken/mine", "taken/data/mine"):
            with pytest.raises(CheckpointError, match="a savepoint is inside of an output folder"):
                query.savepoint(store.url(path))
        query.savepoint(store.url("not taken"))
        sender.send([{"at": 40}])
        query.process_all_available()
        query.stop()
    table = deltalake.DeltaTable(place, storage_options=options)
    assert table.to_pyarrow_table().column("count").to_pylist() == [1]
    assert [entry.base_name for entry in files.entries(f"{root}/_krishiv_outputs")], "a note of the query"


def test_the_settings_of_a_table_may_be_others_than_those_of_the_session(store: Store) -> None:
    place, options = f"s3://{BUCKET}/apart", {**store.options, "AWS_ALLOW_HTTP": "true"}
    with Session.in_process() as session:  # it knows no store
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(DeltaSink(place, storage_options=options))
        sender.send([{"at": 1}, {"at": 40}])
        query.process_all_available()
        query.stop()
    listed = store.client().list_objects_v2(Bucket=BUCKET, Prefix="apart/_krishiv_outputs/")
    assert listed["KeyCount"] == 1
