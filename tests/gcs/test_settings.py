"""How Google's store is reached: options, the connector's settings, and errors that come in seconds and show no key."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow.fs as pafs
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from krishiv_py import Session
from krishiv_py.api.session_options import spark_settings
from krishiv_py.errors import EnvironmentSetupError, OperatorError, PlanError
from krishiv_py.planner.places import place_of
from krishiv_py.runtime.checkpoint.sparklog import lost_file
from krishiv_py.spark.setup.config import check_stores
from krishiv_py.storage import store as settings
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Stores
from krishiv_py.storage.stores import google
from krishiv_py.storage.stores.google import check_google, client, reached
from tests.gcs.store import Google
from tests.store_rules import file_system


def test_options_become_settings() -> None:
    assert dict(
        spark_settings({"google_service_account": "/keys/stream.json", "GOOGLE_BASE_URL": "http://127.0.0.1:9000"})
    ) == {
        "spark.hadoop.fs.gs.storage.root.url": "http://127.0.0.1:9000",
        "spark.hadoop.fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "spark.hadoop.fs.gs.auth.service.account.json.keyfile": "/keys/stream.json",
    }
    assert dict(spark_settings({"GOOGLE_SKIP_SIGNATURE": "true"})) == {"spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED"}
    assert spark_settings({"GOOGLE_SKIP_SIGNATURE": "false"}) == ()
    both = dict(spark_settings({"AWS_REGION": "eu-central-1", "GOOGLE_APPLICATION_CREDENTIALS": "/k"}))
    assert {name.split(".")[3] for name in both} == {"s3a", "gs"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"GOOGLE_SERVICE_ACCOUNT_KEY": "nobodymaysee"}, "no such option of a store"),
        ({"GOOGLE_SERVICE_ACCOUNT": '{"private_key": "nobodymaysee"}'}, "a key is where the path of its file belongs"),
        ({"GOOGLE_SERVICE_ACCOUNT": "/a", "GOOGLE_SKIP_SIGNATURE": "true"}, "given in two ways"),
        ({"GOOGLE_SERVICE_ACCOUNT": "/a", "GOOGLE_APPLICATION_CREDENTIALS": "/b"}, "given in two ways"),
        ({"GOOGLE_SKIP_SIGNATURE": "maybe"}, "neither true nor false"),
    ],
)
def test_wrong_options_are_refused(options: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text) as error:
        Session.builder().storage_options(options)
    assert "nobodymaysee" not in str(error.value)


def test_the_settings_in_use(used: Google) -> None:
    assert reached() == google.GoogleAccess(used.endpoint, None, True, "tests")
    settings.use({"fs.gs.storage.root.url": "https://storage.googleapis.com/", "fs.gs.auth.type": "COMPUTE_ENGINE"})
    assert reached() == google.GoogleAccess("", None, False, None)
    settings.use({"fs.gs.auth.type": "COMPUTE_ENGINE", "fs.gs.auth.service.account.json.keyfile": "/left/over"})
    assert reached().key_file is None
    pickle.loads(pickle.dumps(Stores(used.settings)))
    assert reached().endpoint == used.endpoint


def test_paths_are_read_as_hadoop_reads_them(used: Google) -> None:
    assert file_system("gs://streams")[1] == "streams"
    assert file_system("gs://streams/a//b/./c/../d e#%20?/")[1] == "streams/a/b/d e#%20?"
    assert place_of("gs://streams/a") == place_of("gcs://streams/a/")
    with pytest.raises(PlanError, match=r"a path names no bucket .*write gs://bucket"):
        file_system("gs:///x")
    with pytest.raises(PlanError, match="a path holds credentials") as error:
        file_system("gs://nobodymaysee@streams/x")
    assert "nobodymaysee" not in str(error.value)


def test_files_are_whole(used: Google) -> None:
    store, root = store_at(used.url("whole"))
    store.make_folder(root)
    store.write(f"{root}/a b#%?/note", b"1", durable=True)
    store.write(f"{root}/a b#%?/note", b"2")
    assert store.read(f"{root}/a b#%?/note") == b"2" and store.read(f"{root}/none") is None
    assert used.keys("whole") == ["whole/", "whole/a b#%?/note"]


def test_folders_ask_for_no_right_to_the_bucket_and_make_none(recorder: Recorder) -> None:
    """The recorder refuses whoever looks at the bucket, as the store does where a role is for objects alone."""
    settings.use({"fs.gs.storage.root.url": recorder.endpoint, "fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.project.id": "p"})
    store, root = store_at("gs://bucket/a/b")
    store.make_folder(root)
    store.make_folder("bucket")
    assert store.entries(root) == []
    requested = [path for path, _ in recorder.requests_seen]
    assert requested.count("/upload/storage/v1/b/bucket/o") == 1 and "/storage/v1/b" not in requested


def test_a_bucket_that_is_not_there_is_reported(used: Google) -> None:
    check_google(used.url("any"))
    with pytest.raises(EnvironmentSetupError, match="gs://nowhere/any cannot be reached: there is no such bucket"):
        check_google("gs://nowhere/any")


@pytest.mark.slow
def test_a_store_that_is_not_there_is_reported_in_seconds(used: Google) -> None:
    settings.use({**used.settings, "fs.gs.storage.root.url": "http://127.0.0.1:1"})
    since = time.monotonic()
    with pytest.raises(EnvironmentSetupError, match="no store answers there"):
        check_google(used.url("any"))
    assert time.monotonic() - since < 20


@pytest.mark.slow
def test_a_store_that_says_nothing_is_reported_in_seconds(used: Google) -> None:
    """It takes the connection, as a machine behind a wall that keeps what is sent to it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.use({**used.settings, "fs.gs.storage.root.url": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        since = time.monotonic()
        with pytest.raises(EnvironmentSetupError, match="no store answers there"):
            check_google(used.url("any"))
        assert time.monotonic() - since < 30


@attrs.define
class Recorder:
    """A store that notes who asks, and answers as it was set to."""

    endpoint: str
    answers: int = 200
    requests_seen: list[tuple[str, str]] = attrs.field(factory=list)


@pytest.fixture
def recorder(used: Google) -> Iterator[Recorder]:
    """It listens while a test runs."""
    actual = Recorder("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> Any:
            if name in ("do_GET", "do_POST"):
                return self.answer
            raise AttributeError(name)

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.path == "/token"
            actual.requests_seen.append((self.path.partition("?")[0], self.headers.get("Authorization") or ""))
            said = {"access_token": "given", "expires_in": 3_600, "token_type": "Bearer"} if token else {"items": []}
            body = json.dumps(said).encode()
            bucket = self.path.partition("?")[0] == "/storage/v1/b/bucket"  # Google's client looks at it by the way
            self.send_response(403 if bucket else 200 if token else actual.answers)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    actual.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield actual
    server.shutdown()
    server.server_close()


def key_file(folder: Path, endpoint: str) -> str:
    """The key of a service account."""
    made = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    kind = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    names = {"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": "a@b.c", "client_id": "1"}
    path = folder / "key.json"
    path.write_text(json.dumps({**names, "private_key": made.private_bytes(*kind).decode(), "token_uri": f"{endpoint}/token"}))
    return str(path)


def test_a_key_file_signs_the_requests_of_arrow_and_of_google(recorder: Recorder, tmp_path: Path) -> None:
    """And whoever asks without it is another one: the environment is as it was."""
    before = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    options = {"GOOGLE_SERVICE_ACCOUNT": key_file(tmp_path, recorder.endpoint), "GOOGLE_BASE_URL": recorder.endpoint}
    settings.use({name.removeprefix("spark.hadoop."): value for name, value in spark_settings(options)})
    system, root = file_system("gs://bucket/x")
    assert system.get_file_info(pafs.FileSelector(root, allow_not_found=True)) == []
    [(path, signed)] = recorder.requests_seen
    assert path == "/storage/v1/b/bucket/o" and signed.startswith("Bearer ey")
    recorder.requests_seen.clear()
    check_google("gs://bucket/x")
    assert ("/storage/v1/b/bucket/o", "Bearer given") in recorder.requests_seen
    assert os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") == before


def test_credentials_that_are_refused_are_reported(recorder: Recorder, tmp_path: Path) -> None:
    settings.use({"fs.gs.storage.root.url": recorder.endpoint, "fs.gs.auth.type": "UNAUTHENTICATED"})
    for answer in (401, 403):
        recorder.answers = answer
        with pytest.raises(EnvironmentSetupError, match="gs://bucket/x cannot be reached: the credentials are refused"):
            check_google("gs://bucket/x")
    recorder.answers = 400
    with pytest.raises(EnvironmentSetupError, match="gs://bucket/x cannot be reached: the store refuses"):
        check_google("gs://bucket/x")
    with pytest.raises(OSError, match="400"):
        store_at("gs://bucket/x")[0].write_if("bucket/x", b"", None)
    with pytest.raises(OperatorError, match=r"a file cannot be published .*bucket/new: 400"):
        store_at("gs://bucket/x")[0].rename([("bucket/old", "bucket/new")])
    keyed = {"fs.gs.auth.type": google.KEY_FILE, "fs.gs.auth.service.account.json.keyfile": str(tmp_path / "none.json")}
    settings.use(keyed)
    with pytest.raises(EnvironmentSetupError, match=r"the key file cannot be used .*none\.json"):
        check_google("gs://bucket/x")
    (tmp_path / "none.json").write_text("no key")
    with pytest.raises(EnvironmentSetupError, match="the key file cannot be used") as error:
        check_google("gs://bucket/x")
    assert "no key" not in str(error.value)


def test_without_credentials_the_error_says_so(used: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    settings.use({})
    with pytest.raises(EnvironmentSetupError, match="there are no credentials that can be used"):
        check_google("gs://bucket/x")


def test_other_settings_make_another_connection(used: Google) -> None:
    one, other = client(), file_system("gs://streams/x")[0]
    settings.use(used.settings)
    assert client() is one and file_system("gs://other/y")[0] is other
    settings.use({**used.settings, "fs.gs.project.id": "another"})
    assert client() is not one and file_system("gs://streams/x")[0] is not other


def test_without_the_connector_spark_is_reported_what_it_lacks(used: Google, session: Session) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"Spark has no file system for gs:// .*put Google's connector"):
        check_stores(session.spark, [used.url("in")])
    with pytest.raises(PlanError, match="Spark reads and writes Google's store as gs://"):
        check_stores(session.spark, ["gcs://streams/in"])
    check_stores(session.spark, [None, "/tmp", "gcs://streams/in"], by_spark=False)


def test_a_store_that_fails_is_no_damaged_checkpoint() -> None:
    trace = "Job aborted: CANNOT_LOAD_STATE_STORE gs://b/cp/state/0/1.zip\nCaused by: {}"
    failed = "com.google.cloud.hadoop.repackaged.gcs.com.google.api.client.http.HttpResponseException: 503"
    missing = lost_file(trace.format(failed), "q", "/c")
    assert "the store did not take or give a file" in str(missing) and "as whole as before" in str(missing)
    gone = lost_file(trace.format("java.io.FileNotFoundException: gs://b/cp/state/0/1.zip"), "q", "/c")
    assert "gs://b/cp/state/0/1.zip cannot be read" in str(gone)
