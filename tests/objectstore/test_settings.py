"""How stores are reached: options, Hadoop's settings, and errors that show no secret."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import Session
from krishiv_py.api.session_options import spark_settings
from krishiv_py.errors import EnvironmentSetupError, PlanError
from krishiv_py.runtime.checkpoint.sparklog import lost_file
from krishiv_py.storage import store as settings
from krishiv_py.storage.store import Stores
from krishiv_py.storage.stores import s3
from krishiv_py.storage.stores.s3 import check_s3, client, reached
from tests.objectstore.store import BUCKET, KEY, SECRET, Store, running
from tests.store_rules import file_system

ALL = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "aws_session_token": "TOKENnobodymaysee",
    "AWS_REGION": "eu-central-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
}


def test_options_become_settings_and_are_not_shown() -> None:
    actual = dict(spark_settings(ALL))
    assert actual == {
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.session.token": "TOKENnobodymaysee",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    shown = repr(Session.builder().storage_options(ALL))
    assert "eu-central-1" in shown
    assert not any(secret in shown for secret in (KEY, SECRET, "TOKEN"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("AWS_REGION", "not a dict"),
        ({"AWS_ACCESS_KEY_ID": KEY}, "half of a pair of keys"),
        ({"AWS_SECRET_ACCESS_KEY": SECRET}, "half of a pair of keys"),
        ({"AWS_SECRET": SECRET}, "no such option of a store"),
        ({"AWS_ENDPOINT_URL": "http://x", "AWS_ALLOW_HTTP": "false"}, "not encrypted"),
        ({"AWS_SKIP_SIGNATURE": "maybe"}, "neither true nor false"),
        ({"AWS_REGION": None}, "AWS_REGION"),
    ],
)
def test_wrong_options_are_refused(options: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text) as error:
        Session.builder().storage_options(options)
    assert SECRET not in str(error.value)


def using(monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    """Reach stores by these settings in a test."""
    monkeypatch.setattr(settings, "_known", {f"fs.s3a.{k.replace('__', '.')}": v for k, v in options.items()})


def test_a_bucket_may_have_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    own = {"bucket__logs__endpoint": "minio:9000", "bucket__logs__connection__ssl__enabled": "false"}
    using(monkeypatch, access__key="a", secret__key="b", endpoint="https://s3.example.org/", **own)
    one, logs = reached("events"), reached("logs")
    assert (one.scheme, one.host, one.key, one.region, one.path_style) == ("https", "s3.example.org", "a", "us-east-1", None)
    assert (logs.scheme, logs.host, logs.key) == ("http", "minio:9000", "a")
    assert "'b'" not in repr(one)


def test_without_a_key_the_other_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    using(
        monkeypatch, secret__key="left over", endpoint="x", aws__credentials__provider="org.x.AnonymousAWSCredentialsProvider"
    )
    actual = reached("b")
    assert (actual.key, actual.secret, actual.anonymous) == (None, None, True)


def test_requests_that_are_not_signed_need_no_key_of_an_earlier_session(monkeypatch: pytest.MonkeyPatch) -> None:
    signed, plain = ALL, {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
    every = {name.removeprefix("spark.hadoop."): value for each in (signed, plain) for name, value in spark_settings(each)}
    monkeypatch.setattr(settings, "_known", every)
    by = reached("one")
    assert by.anonymous and by.key is by.secret is by.token is None
    assert file_system("s3a://unsigned/x")[1] == "unsigned/x"


def test_settings_go_with_a_pickle_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, access__key=KEY, secret__key=SECRET)
    sent = pickle.dumps(Stores())
    assert SECRET not in repr(Stores())
    monkeypatch.setattr(settings, "_known", {})
    pickle.loads(sent)
    assert settings._known == {"fs.s3a.access.key": KEY, "fs.s3a.secret.key": SECRET}
    pickle.loads(pickle.dumps(Stores({})))
    assert settings._known, "a query without settings takes none away"


def test_credentials_in_a_path_are_refused() -> None:
    for path in (f"s3a://{KEY}:{SECRET}@bucket/events", f"s3://{KEY}@bucket/events"):
        with pytest.raises(PlanError, match="a path holds credentials") as error:
            file_system(path)
        assert SECRET not in str(error.value) and KEY not in str(error.value)


def test_paths_are_read_as_hadoop_reads_them(used: Store) -> None:
    assert file_system(f"s3a://{BUCKET}")[1] == BUCKET
    assert file_system(f"s3a://{BUCKET}/a//b/./c/../d e#%20?/")[1] == f"{BUCKET}/a/b/d e#%20?"
    assert file_system(f"s3a://{BUCKET}/../x")[1] == f"{BUCKET}/x"
    with pytest.raises(PlanError, match="a path names no bucket"):
        file_system("s3a:///x")


def test_a_store_that_fails_is_no_damaged_checkpoint() -> None:
    """Whoever reads that it is damaged might remove it."""
    trace = "Job aborted: CANNOT_LOAD_STATE_STORE s3a://b/cp/state/0/1.zip\nCaused by: {}"
    missing = lost_file(trace.format("software.amazon.awssdk.core.exception.SdkClientException: timeout"), "q", "/c")
    assert "the store did not take or give a file" in str(missing) and "as whole as before" in str(missing)
    gone = lost_file(trace.format("java.io.FileNotFoundException: s3a://b/cp/state/0/1.zip"), "q", "/c")
    assert "s3a://b/cp/state/0/1.zip cannot be read" in str(gone)


def test_what_is_wrong_with_a_store_is_reported(used: Store) -> None:
    check_s3(f"s3a://{BUCKET}/any")
    with pytest.raises(EnvironmentSetupError, match="s3a://nowhere/any cannot be reached: there is no such bucket"):
        check_s3("s3a://nowhere/any")
    settings.use({**used.settings, "fs.s3a.endpoint": "http://127.0.0.1:1"})
    with pytest.raises(EnvironmentSetupError, match="no store answers there") as error:
        check_s3(f"s3a://{BUCKET}/any")
    assert SECRET not in str(error.value)


def test_a_store_that_says_nothing_is_reported_in_seconds(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, as a machine behind a wall that keeps what is sent to it."""
    monkeypatch.setattr(s3, "_PROBE_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.use({**used.settings, "fs.s3a.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        since = time.monotonic()
        with pytest.raises(EnvironmentSetupError, match="no store answers there"):
            check_s3(f"s3a://{BUCKET}/any")
        assert time.monotonic() - since < 10


def test_wrong_keys_are_reported() -> None:
    before = dict(settings._known)
    with running() as store:
        right = store.checking()
        try:
            settings.use(right.settings)
            check_s3(f"s3a://{BUCKET}/any")
            for wrong in ({"fs.s3a.access.key": "AKIAwrong"}, {"fs.s3a.secret.key": SECRET}):
                settings.use({**right.settings, **wrong})
                with pytest.raises(EnvironmentSetupError, match="the credentials are refused") as error:
                    check_s3(f"s3a://{BUCKET}/any")
                assert SECRET not in str(error.value) and right.secret not in str(error.value)
        finally:
            settings.use(before)


def test_other_settings_make_another_connection(used: Store) -> None:
    one, other = client(BUCKET), file_system(f"s3a://{BUCKET}/x")[0]
    settings.use(used.settings)
    assert client(BUCKET) is one and file_system(f"s3a://{BUCKET}/y")[0] is other
    settings.use({**used.settings, "fs.s3a.session.token": "t"})
    assert client(BUCKET) is not one and file_system(f"s3a://{BUCKET}/x")[0] is not other


def test_without_boto3_the_extra_is_named(used: Store) -> None:
    program = (
        "import sys; sys.modules['boto3'] = None; from krishiv_py.storage.store import use; "
        f"from krishiv_py.storage.stores.s3 import client; use({used.settings!r}); client('{BUCKET}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=Path.cwd())
    assert "MissingExtraError: boto3" in done.stderr and 'pip install ".[s3]"' in done.stderr


def test_a_store_nobody_knows_is_reported() -> None:
    with pytest.raises(EnvironmentSetupError, match="Arrow cannot reach nosuch://"):
        file_system("nosuch://host/x")
