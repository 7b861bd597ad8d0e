"""What a Kafka sink and source refuse at the call, without a broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import KafkaSink
from krishiv_py.connectors.kafka.client import brokers
from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.sink import OutputBatch
from krishiv_py.errors import OperatorError, PlanError


@pytest.mark.parametrize(
    "address",
    ["host", "host:9092", "a:1,b:2", " a:1 , b:2,", "SASL_SSL://a:9093", "[::1]:9092", "[::1]", "10.0.0.1:65535", ["a:1", "b"]],
)
def test_addresses_of_brokers(address: str | list[str]) -> None:
    assert brokers(address) == (address if isinstance(address, str) else "a:1,b")


@pytest.mark.parametrize(
    "address",
    [
        "",
        ",",
        "host:",
        "host:port",
        "host:0",
        "host:65536",
        "http://host:9092",
        "host:9092/x",
        "a b:1",
        "u:hunter2@host:1",
        None,
        5,
    ],
)
def test_what_is_no_address_is_refused_and_no_password_shown(address: Any) -> None:
    with pytest.raises(PlanError, match="`bootstrap_servers` is no") as refused:
        KafkaSink("t", bootstrap_servers=address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ä", ".", "..", "x" * 250, "a\n", None])
def test_names_that_no_topic_has_are_refused(topic: Any) -> None:
    with pytest.raises(PlanError, match="topic"):
        KafkaSink(topic, bootstrap_servers="host:9092")


@pytest.mark.parametrize(
    ("kafka_options", "match"),
    [
        ({"options": {"acks": 0}, "delivery": "at_least_once"}, "acks=0.*nobody would know"),
        ({"options": {"request.required.acks": "1"}}, "request.required.acks=1"),
        ({"options": {"enable.idempotence": False}}, "transactions need it"),
        ({"key": ["a", "a"]}, "`key` names columns"),
        ({"format": "avro", "schema_registry": 5}, "`schema_registry` is not a text"),
        ({"format": "avro", "schema_registry": {}}, "`schema_registry` is not a text"),
    ],
)
def test_what_drops_a_promise_or_means_nothing_is_refused(kafka_options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        KafkaSink("t", bootstrap_servers="host:9092", **kafka_options)


def test_what_keeps_the_promise_is_taken() -> None:
    KafkaSink("t", bootstrap_servers="host:9092", options={"acks": "all", "enable.idempotence": True})
    KafkaSink("t", bootstrap_servers="host:9092", options={"acks": -1}, delivery="at_least_once")
    KafkaSink("t", bootstrap_servers="host:9092", options={"enable.idempotence": False}, delivery="at_least_once")


def test_a_column_of_ones_own_called_op_is_not_left_out() -> None:
    sink = KafkaSink("t", bootstrap_servers="host:9092", key="k", upsert=True)
    number = pa.table({"k": ["a"], "op": [5]})
    assert sink._columns(number.schema) == ["k", "op"]
    batch = OutputBatch("q", "a query", "results", 0, False, number.schema)
    assert [value for value, *_ in sink._messages(batch, number, [b"whole"], 0)] == [b"whole"]
    with pytest.raises(OperatorError, match=r"no known change .got: 'buy'.*another name than `op`"):
        sink._messages(batch, pa.table({"k": ["a"], "op": ["buy"]}), [b"part"], 0)


def test_an_avro_schema_without_the_columns_is_refused() -> None:
    record = '{"type": "record", "name": "e", "fields": [{"name": "id", "type": "long"}]}'
    with pytest.raises(PlanError, match=r"do not fit \(got: none of the columns user, at; it has: id.*Hint"):
        kafka_source("t", bootstrap_servers="h:1", schema="user bigint, at bigint", value_format="avro", avro_schema=record)
