"""Azure holds what the other stores hold: leases, outputs that appear at once, whole queries, and errors that show no key."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler, count
from krishiv_py.api.session_options import spark_settings
from krishiv_py.connectors.publish import Publisher, write_staged
from krishiv_py.errors import EnvironmentSetupError, OperatorError, PlanError
from krishiv_py.planner.places import place_of
from krishiv_py.storage import store as settings
from krishiv_py.storage.files import check_reachable, facts_of, files_at, store_at
from krishiv_py.storage.stores import azure
from krishiv_py.storage.stores.azure import Azure, reached
from tests.azure.store import CONTAINER, HOST, KEY, Storage
from tests.store_rules import LeaseRules, file_system


@pytest.fixture
def folder() -> str:
    """A folder that does not exist."""
    return uuid.uuid4().hex


class TestLease(LeaseRules):
    """See LeaseRules."""

    def test_odd_names_and_containers_that_are_not_there(self, used: Storage, folder: str) -> None:
        store, path = store_at(used.url(f"{folder}/a b#%?"))
        assert store.write_if(path, b"3", None) is not None
        assert store.read(path) == b"3" and used.keys(folder) == [f"{folder}/a b#%?"]
        with pytest.raises(OSError, match="404"):
            store.write_if("nowhere/x", b"", None)


class Killed(BaseException):
    """The process ends here."""


class TestPublish:
    def written(self, store: Storage, folder: str, batch: int, *numbers: int) -> list[str]:
        """Files of a batch, one for each number, not published."""
        sink = ParquetSink(store.url(folder))
        return [name for n in numbers for name in write_staged(sink, sink.path, "cafe", batch, n, pa.table({"n": [n]}))]

    def values(self, store: Storage, folder: str) -> list[int]:
        """What any reader of the folder finds."""
        system, root = file_system(store.url(folder))
        return sorted(ds.dataset(root, filesystem=system).to_table()["n"].to_pylist())

    def test_files_are_staged_and_renamed(self, used: Storage, folder: str) -> None:
        names = self.written(used, folder, 0, 1, 2)
        assert all("_krishiv_staging/" in key for key in used.keys(folder)) and len(used.keys(folder)) == 2
        running = Publisher(used.url(folder), "cafe")
        running.publish(0, names)
        running.publish(1, [])
        running.publish(2, self.written(used, folder, 2, 3))
        assert self.values(used, folder) == [1, 2, 3]
        assert len(used.keys(folder)) == 3, "nothing that was staged is left"

    @pytest.mark.parametrize("after", range(5))
    def test_a_kill_at_each_step_is_mended_by_the_next_run(
        self, used: Storage, folder: str, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        Publisher(used.url(folder), "cafe").publish(0, self.written(used, folder, 0, 1, 2))
        self.written(used, folder, 0, 99)  # a task of a run before, whose file nobody will publish
        left, real_delete, real_rename = [after], Azure.delete_one, Azure.rename_one

        def step() -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        def delete_one(store: Azure, path: str) -> None:
            step()
            real_delete(store, path)

        def rename_one(store: Azure, source: str, target: str) -> None:
            step()
            real_rename(store, source, target)

        monkeypatch.setattr(Azure, "delete_one", delete_one)
        monkeypatch.setattr(Azure, "rename_one", rename_one)
        names = self.written(used, folder, 0, 1, 2)
        with pytest.raises(Killed):
            Publisher(used.url(folder), "cafe").publish(0, names)
        monkeypatch.undo()
        Publisher(used.url(folder), "cafe").publish(0, self.written(used, folder, 0, 1, 2))
        assert self.values(used, folder) == [1, 2] and len(used.keys(folder)) == 2

    def test_who_was_thought_dead_publishes_nothing(self, used: Storage, folder: str) -> None:
        old = self.written(used, folder, 0, 1)
        Publisher(used.url(folder), "cafe").publish(0, self.written(used, folder, 0, 1))
        with pytest.raises(OperatorError, match=r"a file cannot be published: it is gone \(got: 1 of 1 in "):
            Publisher(used.url(folder), "cafe").publish(0, old)
        store, root = store_at(used.url(folder))
        with pytest.raises(OperatorError, match="a file cannot be published"):
            store.rename([(f"{root}/none", f"{root}/new")])
        assert self.values(used, folder) == [1]

    def test_a_copy_that_is_not_done_is_waited_for(self, used: Storage, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        answers, real = iter([False, False]), azure._is_copied
        monkeypatch.setattr(azure, "_LOOK_S", 0)
        monkeypatch.setattr(azure, "_is_copied", lambda *given: next(answers, None) is None and real(*given))
        store, root = store_at(used.url(folder))
        store.put(f"{root}/old", b"1")
        store.rename([(f"{root}/old", f"{root}/new")])
        assert used.keys(folder) == [f"{folder}/new"] and next(answers, None) is None
        store.put(f"{root}/new2", b"other")
        store.put(f"{root}/old2", b"12345")
        monkeypatch.setattr(azure, "_REQUEST_S", -1)
        with pytest.raises(OperatorError, match="was not copied within"):
            store.rename([(f"{root}/old2", f"{root}/new2")])

    def test_a_rename_whose_answer_was_lost_is_taken_for_done(self, used: Storage, folder: str) -> None:
        store, root = store_at(used.url(folder))
        store.put(f"{root}/old", b"1")
        for _ in range(2):
            store.rename([(f"{root}/old", f"{root}/new")])
        assert used.keys(folder) == [f"{folder}/new"]


def test_what_is_in_a_container_counts_as_on_disk(used: Storage, folder: str, tmp_path: Path) -> None:
    far, near = used.url(folder), f"{tmp_path}/{folder}"
    for name in ("a #1%20", "b", "user=7/x", "deep/er/y", "_h/x", ".x", "x.tmp", "_SUCCESS", "empty"):
        for home in (far, near):
            store, path = store_at(f"{home}/{name}")
            store.write(path, b"" if name == "empty" else b"12")
    for pattern in ("", "/{a,user=7}*", "/*/x"):
        actual = {file.path.removeprefix(far): file.size for file in files_at(f"{far}{pattern}", literal=not pattern)}
        local = {f.path.removeprefix(f"file:{near}"): f.size for f in files_at(f"{near}{pattern}", literal=not pattern)}
        assert actual == local and actual
    facts = facts_of(f"{far}/b")
    assert facts is not None and facts[0] == 2 and facts_of(f"{far}/none") is None


def test_a_query_in_process_goes_on_after_a_restart(used: Storage, folder: str, tmp_path: Path) -> None:
    settings.use({})
    builder = Session.builder().engine("in-process").storage_options(used.options)
    late = SideOutputLateEventHandler(ParquetSink(used.url(f"{folder}/late")))
    for number, times in enumerate([[1, 12], [25, 2, 47]]):
        pq.write_table(pa.table({"user": ["a"] * len(times), "at": times}), tmp_path / "rows")
        used.put(f"{folder}/in/{number}.parquet", (tmp_path / "rows").read_bytes())
        with builder.get_or_create() as session:
            read = session.read_parquet(used.url(f"{folder}/in"), "user string, at bigint", streaming=True)
            windows = read.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
            windows.with_late_event_handler(late).start(
                ParquetSink(used.url(f"{folder}/out")), checkpoint=used.url(f"{folder}/cp"), batches=Batches.available_now()
            ).await_termination()
    system, root = file_system(used.url(folder))
    actual = ds.dataset(f"{root}/out", filesystem=system).to_table().select(["window_start", "count"]).to_pylist()
    assert sorted(row["window_start"] for row in actual) == [0, 10, 20] and all(row["count"] == 1 for row in actual)
    assert ds.dataset(f"{root}/late", filesystem=system).to_table()["at"].to_pylist() == [2]
    assert not any(KEY.encode() in used.read(key) for key in used.keys(folder))


class TestSettings:
    def test_options_become_settings_and_are_not_shown(self) -> None:
        actual = dict(spark_settings({"azure_storage_account_key": KEY, "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1"}))
        assert actual == {
            "spark.hadoop.fs.azure.account.key": KEY,
            "spark.hadoop.fs.azure.account.auth.type": "SharedKey",
            "spark.hadoop.fs.azure.endpoint": "http://127.0.0.1:1",
        }
        application = {
            "AZURE_STORAGE_CLIENT_ID": "c",
            "AZURE_STORAGE_CLIENT_SECRET": "nobodymaysee",
            "AZURE_STORAGE_TENANT_ID": "t",
        }
        settings_of = {name.removeprefix("spark.hadoop."): value for name, value in spark_settings(application)}
        before = dict(settings._known)
        settings.use(settings_of)
        by = reached(HOST)
        settings.use(before)
        assert (by.account, by.client, by.secret, by.tenant, by.key) == ("devstoreaccount1", "c", "nobodymaysee", "t", None)
        assert "nobodymaysee" not in repr(by)
        shown = repr(Session.builder().storage_options({**application}))
        assert "nobodymaysee" not in shown and KEY not in repr(
            Session.builder().storage_options({"AZURE_STORAGE_ACCOUNT_KEY": KEY})
        )

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"AZURE_STORAGE_KEY": KEY}, "no such option of a store"),
            ({"AZURE_STORAGE_CLIENT_ID": "c"}, "an application of Azure lacks a value"),
            ({"AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_CLIENT_ID": "c"}, "given in two ways"),
        ],
    )
    def test_wrong_options_are_refused(self, options: Any, text: str) -> None:
        with pytest.raises(PlanError, match=text) as error:
            Session.builder().storage_options(options)
        assert KEY not in str(error.value)

    def test_an_account_may_have_settings_of_its_own(self, used: Storage) -> None:
        settings.use({"fs.azure.account.key": "a", f"fs.azure.account.key.{HOST}": "b"})
        assert (reached(HOST).key, reached("other.dfs.core.windows.net").key) == ("b", "a")
        assert reached("x.dfs.core.chinacloudapi.cn").suffix == ".core.chinacloudapi.cn"

    def test_paths(self, used: Storage) -> None:
        store, path = store_at(used.url("a//b/./c/../d e#%20?/"))
        assert path == f"{CONTAINER}/a/b/d e#%20?" and store.uri(path) == used.url("a/b/d e#%20?")
        assert place_of(used.url("a")) == place_of(used.url("a/").replace("abfss", "abfs"))
        for wrong in ("abfss://streams/x", f"abfss://@{HOST}/x", "abfss:///x", f"abfss://user:{KEY[:9]}@{HOST}/x"):
            with pytest.raises(PlanError, match="a path of Azure names container and account") as error:
                store_at(wrong)
            assert KEY[:9] not in str(error.value)

    def test_what_is_wrong_with_a_store_is_reported(self, used: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        check_reachable([used.url("any")], written=True)
        with pytest.raises(EnvironmentSetupError, match="cannot be reached: there is no such container"):
            check_reachable([f"abfss://nowhere@{HOST}/any"])
        monkeypatch.setattr(azure, "_ANSWER_S", 1)
        settings.use({**used.settings, "fs.azure.endpoint": "http://127.0.0.1:1"})
        with pytest.raises(EnvironmentSetupError, match="no store answers there") as error:
            check_reachable([used.url("any")])
        assert KEY not in str(error.value)
        wrong = f"{KEY[:-8]}AAAAAA=="
        settings.use({**used.settings, "fs.azure.account.key": wrong})
        if used.account is not None:
            used.account.answer = 403
        with pytest.raises(EnvironmentSetupError, match="the credentials are refused") as error:
            check_reachable([used.url("any")])
        assert wrong not in str(error.value) and "\n" not in str(error.value)
        store, path = store_at(used.url("any"))
        with pytest.raises(OSError, match="403"):
            store.write_if(path, b"", None)
