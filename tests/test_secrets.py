"""Planted secrets appear in no text: reprs, plans, HTML, errors, notes of a checkpoint, metric labels, progress lines."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.errors import AnalysisException

from krishiv_py import JsonSink, ParquetSink, Progress, ResultStream, Session, SideOutputLateEventHandler, Stream, count
from krishiv_py import errors as own
from krishiv_py.api.query import NoRunner
from krishiv_py.display.html import query_html
from krishiv_py.display.progress import of_query
from krishiv_py.errors import PlanError
from krishiv_py.failures.redaction import HIDDEN, redacted
from krishiv_py.metrics import register
from krishiv_py.plan.nodes import FileSource
from krishiv_py.plan.schema import as_schema
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.session import SessionBuilder
from krishiv_py.spark import sessions
from krishiv_py.testing import Driver, stream_of

WORD = "hunTer2"
PLANTED = (
    f"s3a://AKIA:{WORD}@bucket/events",
    f"s3a://AKIA:a/b+{WORD}/c@bucket/events",
    f"s3a://AKIA:12/{WORD}@bucket/events",
    f"jdbc:postgresql://u:p@{WORD}@host/db",
    f"jdbc:oracle:thin:scott/{WORD}@//host:1521/x",
    f"https://host/x?sv=1&sig={WORD}&se=2",
    f"https://host/x?X-Amz-Signature={WORD}",
    f"wasbs://box:{WORD}@account.blob.core.windows.net/in",
    f"sc://host:15002/;token={WORD};user_id=me",
    f"AccountKey={WORD}==;EndpointSuffix=core",
    f"spark.hadoop.fs.s3a.secret.key={WORD}",
    f"{{'kafka.sasl.password': '{WORD} and \\' more'}}",
    f'(("ssl.keystore.Password", "{WORD}"),)',
    f"Authorization: Bearer {WORD}.{WORD}",
    f"Authorization: Basic {WORD}==",
    f"Authorization: Basic {WORD}",
    f"{{'Authorization': 'Basic {WORD}'}}",
    f"authorization={WORD}",
    f"password = {WORD}",
    f"password: {WORD}",
    f"PASSWORD :\t{WORD}",
    f"password = '{WORD} and more'",
    f'"password": "{WORD}"',
    f'{{"db_password" : "{WORD}"}}',
    f"host=db user=me password={WORD} dbname=x",
    f"host = db password = '{WORD} x' dbname = y",
    f'PlainLoginModule required username="me" password="{WORD}";',
    f'ScramLoginModule required username="me" password = "{WORD}" ;',
    f"kafka+ssl://me:{WORD}@broker:9093",
    f"api_key: {WORD}",
    f"client_secret : {WORD}",
)
SCHEMA = "user string, at bigint, url string"


def files(address: str, options: tuple[tuple[str, str], ...] = ()) -> ResultStream:
    schema = as_schema(SCHEMA)
    stream = Stream(FileSource(address, "parquet", schema, bounded=True, options=options), schema, NoRunner())
    return stream.watermark("at", 100).key_by("user").tumbling_window(1_000).agg(count())


def addresses() -> list[str]:
    return [p for p in PLANTED if "://" in p]


@pytest.mark.parametrize("text", PLANTED)
def test_a_text_loses_its_secret_and_nothing_is_taken_twice(text: str) -> None:
    shown = redacted(f"before {text} after")
    assert WORD not in shown and HIDDEN in shown
    assert shown.startswith("before ") and redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "hdfs://namenode:8020/in/a@b",
        "file:///in/a@b.parquet",
        "abfss://events@account.dfs.core.windows.net/in",
        "mail a@b.c",
        "tokens: string, user: string",
        "(token = 'abc')",
        "count(*) AS n [late_rule=event, emit=final]",
        "",
        "https://host/x?design=1&sv=2",
        "Bearer of news",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.text(st.sampled_from("ab:/@=&?'\"\\;, sp3://token.secret-"), max_size=80))
def test_a_password_in_an_address_is_never_shown(noise: str) -> None:
    assert "PASSWORD" not in redacted(f"{noise} s3a://key:PASSWORD@bucket {noise}")
    assert "PASSWORD" not in redacted(f"{noise} fs.secret.key=PASSWORD")


@pytest.mark.parametrize("address", addresses())
def test_streams_plans_and_pages(address: str) -> None:
    plan = files(address, (("password", WORD), ("header", "true")))
    parts: list[Any] = [
        plan,
        plan._stage_node,
        plan._stage_node.input,
        plan._stage_node.input.input,
        plan.explain(),
        plan._repr_html_(),
    ]
    for shown in parts:
        assert WORD not in str(shown) and WORD not in repr(shown)
    assert "'header': 'true'" in repr(plan._stage_node)
    assert WORD in plan._node.input.input.path  # type: ignore[attr-defined]  # what Spark gets is whole


@pytest.mark.parametrize(
    "step",
    [
        lambda s, a: s,
        lambda s, a: s.filter(f"url = '{a}'"),
        lambda s, a: s.watermark("at", 1),
        lambda s, a: s.watermark("at", 1).tumbling_window(1_000),
    ],
)
@pytest.mark.parametrize("address", addresses())
def test_every_stage_of_the_builder(step: Callable[[Stream, str], object], address: str) -> None:
    schema = as_schema(SCHEMA)
    source = FileSource(address, "csv", schema, bounded=True, options=(("sig", WORD),))
    assert WORD not in repr(step(Stream(source, schema, NoRunner()), address))


def test_settings_of_a_session() -> None:
    builder: SessionBuilder = Session.builder().master(f"sc://h/;token={WORD}").config("spark.hadoop.fs.s3a.secret.key", WORD)
    for name in ("javax.jdo.option.ConnectionPassword", "my.api-key", "credentials", "spark.ssl.keyPassword", "fs.azure.sas"):
        builder = builder.config(name, WORD)
    builder = builder.config("spark.jars", f"https://u:{WORD}@host/x.jar").config("spark.app.tag", "shown")
    assert WORD not in repr(builder) and "shown" in repr(builder)
    assert [v for _, v in builder._settings].count(WORD) == 6


def test_a_setting_that_cannot_be_changed_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: str, value: str) -> None:
        raise AnalysisException("fixed")

    running: Any = SimpleNamespace(conf=SimpleNamespace(set=refuse, get=lambda key, default: WORD))
    with warnings.catch_warnings(record=True) as stated:
        warnings.simplefilter("always")
        sessions._adjust(running, {"spark.ssl.keyPassword": WORD})
    assert len(stated) == 1 and WORD not in str(stated[0].message)


@pytest.mark.parametrize("address", addresses())
def test_sinks_and_handlers(address: str) -> None:
    for sink in (ParquetSink(address), JsonSink(address)):
        assert WORD not in repr(sink) and WORD not in repr(SideOutputLateEventHandler(sink))
        assert sink.path == address


@pytest.mark.parametrize("text", PLANTED)
def test_every_error_of_ours(text: str) -> None:
    classes = [c for c in vars(own).values() if isinstance(c, type) and issubclass(c, own.KrishivError)]
    assert len(classes) > 10
    for kind in classes:
        problem = kind("a thing", got=text, then="nothing works", hint=f"see {text}")
        for shown in (problem, pickle.loads(pickle.dumps(problem)), copy.copy(problem)):
            assert WORD not in str(shown) and WORD not in repr(shown) and "nothing works" in str(shown)
    with pytest.raises(PlanError) as caught:
        Session.connect(f"http://u:{WORD}@host")
    assert WORD not in str(caught.value)


@pytest.mark.parametrize("address", addresses())
def test_notes_of_a_checkpoint(address: str) -> None:
    def spec(secret: str) -> Any:
        return stream_of(SCHEMA).watermark("at", 1).tumbling_window(1_000).agg(count().filter(f"url = '{secret}'"))._spec()

    mine, other = fingerprint(spec(address)), fingerprint(spec(address.replace(WORD, "other")))
    assert WORD not in repr(mine) and WORD not in repr(differences(mine, other))
    assert differences(mine, mine) == [] and len(differences(mine, other)) == 1
    as_before = {name: value if HIDDEN not in value else value.split(" #")[0] for name, value in mine.items()}
    assert WORD not in repr(differences(as_before, other))


@pytest.mark.parametrize("text", addresses())
def test_running_things(text: str) -> None:
    driver = Driver(stream_of(SCHEMA).watermark("at", 1).tumbling_window(1_000).agg(count()), name=text)
    registry = CollectorRegistry()
    register(driver, registry)
    assert WORD not in generate_latest(registry).decode()
    assert WORD not in repr(of_query(text, Progress(source_watermarks_us={text: 1})))
    assert WORD not in query_html(text, "failed", Progress(source_watermarks_us={text: 1}), f"it failed at {text}")


def test_a_long_text_takes_no_longer_than_its_length_allows() -> None:
    for piece in ("a", "secret", "://a:", "'", "s3a://", "x=1 ", "token='"):
        assert isinstance(redacted(piece * (200_000 // len(piece)) + "="), str)  # would not end if it took the square
    assert pa.schema([("token", pa.string())]).names == ["token"]


@given(
    name=st.sampled_from(
        ["password", "db.password", "PASSWD", "api_key", "client-secret", "access.key", "token", "passphrase"]
    ),
    before=st.sampled_from(["", " ", "  ", "\t"]),
    sign=st.sampled_from([":", "="]),
    after=st.sampled_from(["", " ", "\t", "   "]),
    quote=st.sampled_from(["", "'", '"']),
    around=st.sampled_from(["{}", "x {} y", "({})", "user=me, {}; host=db", "line\n{}\nline"]),
)
def test_a_secret_is_found_however_it_is_spaced_and_quoted(
    name: str, before: str, sign: str, after: str, quote: str, around: str
) -> None:
    assume(name != "token" or sign == ":" or not before)  # an expression over a column of this name
    text = around.format(f"{name}{before}{sign}{after}{quote}{WORD}{quote}")
    shown = redacted(text)
    assert WORD not in shown and redacted(shown) == shown


@pytest.mark.parametrize("text", ["token: string", "password: bigint, at: timestamp", "basic ideas", "the token was taken"])
def test_types_of_columns_and_prose_stay(text: str) -> None:
    assert redacted(text) == text
