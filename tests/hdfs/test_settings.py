"""How HDFS is reached: settings of Hadoop's, in this process and in others; what is wrong is reported before a query begins."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from krishiv_py import MemorySink, ParquetSink, Session
from krishiv_py.errors import EnvironmentSetupError, PlanError
from krishiv_py.spark.setup.config import use_stores_of
from krishiv_py.storage import store as settings
from krishiv_py.storage.files import check_reachable, read_at, store_at
from krishiv_py.storage.hdfs import as_os_errors, hdfs_client
from krishiv_py.storage.store import Stores
from tests.hdfs.server import Server, closed_port
from tests.spark.conftest import DDL, per_second

pytestmark = pytest.mark.usefixtures("settings")


def service(hdfs: Server) -> dict[str, str]:
    """A name service of two namenodes, the first of which is gone."""
    return {
        "fs.defaultFS": "hdfs://ns",
        "dfs.nameservices": "ns",
        "dfs.ha.namenodes.ns": "gone,here",
        "dfs.namenode.rpc-address.ns.gone": f"127.0.0.1:{closed_port()}",
        "dfs.namenode.rpc-address.ns.here": hdfs.root.removeprefix("hdfs://"),
    }


def refused(*paths: str, written: bool = False) -> str:
    """What is said of paths, in less than the time a client of Hadoop's tries for."""
    began = time.monotonic()
    with pytest.raises(EnvironmentSetupError) as problem:
        check_reachable(paths, written=written)
    assert time.monotonic() - began < 15
    return str(problem.value)


class TestSettings:
    def test_the_name_of_a_service_and_of_none(self, hdfs: Server) -> None:
        settings.use(service(hdfs))
        name = f"/named/{uuid.uuid4().hex} #1"
        store, path = store_at(f"hdfs://ns{name}")
        store.add_folder(path)
        store.put(f"{path}/file", b"1")
        for root in ("hdfs://", hdfs.root):
            assert read_at(f"{root}{name}/file") == b"1"
        check_reachable([f"hdfs://ns{name}", f"hdfs://{name}", None, "nosuch://bucket/x", "/local"], written=True)
        assert [each.base_name for each in store.entries(path)] == ["file"], "no probe is left"

    def test_they_go_to_tasks_and_are_shown_nowhere(self, hdfs: Server) -> None:
        settings.use(service(hdfs))
        sent = base64.b64encode(pickle.dumps(Stores())).decode()
        program = f"""
            import base64, pickle
            stores = pickle.loads(base64.b64decode({sent!r}))
            from krishiv_py.storage.files import store_at
            store, path = store_at("hdfs://ns/")
            system = store.arrow
            print(stores, system.get_file_info(path).type.name)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
        assert done.stdout == "Stores() Directory\n", done.stderr

    def test_a_client_is_made_again_when_settings_change(self, hdfs: Server) -> None:
        host = hdfs.root.removeprefix("hdfs://")
        one = hdfs_client(host)
        assert hdfs_client(host) is one
        settings.use({"dfs.client.socket-timeout": "30000"})
        assert hdfs_client(host) is not one

    def test_sparks_settings(self, session: Session) -> None:
        given = {
            "spark.hadoop.dfs.nameservices": "a",
            "spark.hadoop.fs.defaultFS": "hdfs://a",
            "spark.dfs.x": "1",
            "spark.hadoop.fs.x": "1",
        }
        use_stores_of(session.spark, given)
        assert settings.known_settings().items() >= {"dfs.nameservices": "a", "fs.defaultFS": "hdfs://a"}.items()
        assert not {"dfs.x", "spark.dfs.x", "fs.x"} & settings.known_settings().keys()


class TestRefused:
    def test_nobody_answers(self) -> None:
        given = refused(f"hdfs://127.0.0.1:{closed_port()}/x")
        assert "/x cannot be reached: no namenode answers (got: Connection refused" in given
        assert "spark.hadoop.fs.defaultFS" in given

    def test_names_that_are_unknown(self) -> None:
        assert "hdfs://nowhere/x cannot be reached: no namenode of this name is known" in refused("hdfs://nowhere/x")
        assert "hdfs:///x cannot be reached: it names no host" in refused("hdfs:///x")

    @pytest.fixture
    def stranger(self, hdfs: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        """A folder of this user's, when another one asks."""
        store, root = store_at(f"{hdfs.root}/private/{uuid.uuid4().hex}")
        store.add_folder(root)
        hdfs_client(hdfs.root.removeprefix("hdfs://")).set_permission(root, 0o700)
        monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
        settings.use({"dfs.client.socket-timeout": "30000"})  # another client
        yield f"{hdfs.root}{root}"

    def test_a_user_that_may_not(self, stranger: str) -> None:
        given = refused(f"{stranger}/out", written=True)
        assert f"{stranger}/out cannot be reached: the user may not do that (got: Permission denied: user=stranger" in given
        assert "\n" not in given
        store, root = store_at(stranger)
        with pytest.raises(PermissionError, match="user=stranger"):
            store.put(f"{root}/file", b"1")

    def test_sparks_user_is_the_one(self, stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HADOOP_USER_NAME")
        monkeypatch.setenv("SPARK_USER", "sparks")
        settings.use({"dfs.client.socket-timeout": "31000"})
        assert "Permission denied: user=sparks" in refused(f"{stranger}/out", written=True)
        assert os.environ.pop("HADOOP_USER_NAME") == "sparks"

    def test_a_namenode_that_takes_no_files_yet(self, hdfs: Server) -> None:
        hdfs.safe_mode(True)
        try:
            assert "the namenode takes no files yet" in refused(f"{hdfs.root}/never", written=True)
        finally:
            hdfs.safe_mode(False)
        check_reachable([f"{hdfs.root}/later"], written=True)

    def test_at_the_start_of_a_query(self, session: Session, hdfs: Server) -> None:
        gone = "hdfs://nowhere"
        stream, _ = session.memory_stream(DDL)
        calls: list[Any] = [
            lambda: per_second(stream).start(MemorySink(), checkpoint=f"{gone}/checkpoint"),
            lambda: per_second(stream).start(ParquetSink(f"{gone}/out"), checkpoint=f"{hdfs.root}/never"),
            lambda: session.read_parquet(f"{gone}/in", DDL, streaming=True),
        ]
        for call in calls:
            with pytest.raises(EnvironmentSetupError, match="cannot be reached: no namenode of this name is known"):
                call()
        with pytest.raises(PlanError, match=r"the spool of a memory stream .* HDFS"):
            session.memory_stream(DDL, spool=f"{hdfs.root}/spool")


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (
            RuntimeError('RPCError("org.x.AccessControlException", "Permission denied: \\"a\\"\\n\\tat x")'),
            PermissionError,
            'Permission denied: "a"',
        ),
        (RuntimeError('RPCError("org.x.Other", "text")'), OSError, "text"),
        (RuntimeError('InvalidArgument("No NameNode")'), OSError, "InvalidArgument: No NameNode"),
        (RuntimeError("ChecksumError"), OSError, "ChecksumError"),
        (RuntimeError(""), OSError, ""),
        (OSError("first\n\tat x"), OSError, "first"),
        (FileNotFoundError(), FileNotFoundError, "FileNotFoundError"),
        (FileNotFoundError("Path is not a file: /a"), IsADirectoryError, "Path is not a file: /a"),
    ],
)
def test_what_a_client_raises_is_one_line(raised: Exception, kind: type[OSError], text: str) -> None:
    with pytest.raises(kind) as problem, as_os_errors():
        raise raised
    assert (type(problem.value), str(problem.value)) == (kind, text)
