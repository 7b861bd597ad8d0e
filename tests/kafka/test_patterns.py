"""Topics of a pattern come and go, on a cluster inside librdkafka: no JVM is needed, and ids of topics are made up."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from krishiv_py.connectors import Malformed, kafka_source
from krishiv_py.connectors.kafka import source as source_module
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.source import Planned
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.testing import micro_batches

Send = Callable[..., str]


@pytest.fixture
def cluster() -> Iterator[tuple[str, Send]]:
    """Its address, and what writes numbers to a topic, which is made by the first of them."""
    to = confluent_kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (one,) = to.list_topics(timeout=10).brokers.values()

    def send(name: str, *numbers: int) -> str:
        for n in numbers:
            to.produce(name, json.dumps({"n": n}).encode(), partition=0, key=b"\x02")
        assert to.flush(20) == 0
        return name

    yield f"{one.host}:{one.port}", send


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The ids of topics, which such a cluster does not have."""
    actual: dict[str, str] = {}
    monkeypatch.setattr(source_module, "identities", lambda _c, topics, _s: {t: actual.get(t, f"id of {t}") for t in topics})
    return actual


def source_of(cluster: tuple[str, Send], topics: Any, **more: Any) -> KafkaSource:
    """Topics of numbers."""
    return kafka_source(topics, bootstrap_servers=cluster[0], schema="n bigint", timeout="10 s", **more)


def planned(source: KafkaSource, last: Planned | None = None) -> Planned:
    """The next batch, with topics looked up again."""
    source._looked.at_s = float("-inf")
    actual = source.plan(None if last is None else json.loads(json.dumps(last.position)))
    assert actual is not None
    return actual


def read(source: KafkaSource, batch: Planned) -> list[int]:
    """The numbers of a batch."""
    rows = [b for r in batch.ranges for b in source.read(r, ["n"])]
    return sorted(n for b in rows if not isinstance(b, Malformed) for n in b["n"].to_pylist())


def position(batch: Planned) -> Any:
    """Where it ends."""
    return batch.position


def test_new_topics_are_read_from_their_first_record(cluster: tuple[str, Send], ids: dict[str, str]) -> None:
    send = cluster[1]
    a = send("orders-a", 1, 2)
    send("other-orders-a", 99)
    source = source_of(cluster, "^orders-.*", starting="latest")
    assert source.topics == (a,) and source.pattern == "^orders-.*"
    first = planned(source)
    assert read(source, first) == []
    b = send("orders-b", 10, 11)
    send(a, 3)
    second = planned(source, first)
    assert read(source, second) == [3, 10, 11]
    assert set(position(second)["at"]) == set(position(second)["ids"]) == {a, b}
    assert source.plan(position(second)) is None
    send(b, 12)
    restarted = source_of(cluster, "^orders-.*", starting="latest")
    assert restarted.topics == (a, b) and read(restarted, planned(restarted, second)) == [12]
    ended = source_of(cluster, "^orders-.*$", ending="latest")
    assert sorted(n for table in micro_batches(ended) for n in table["n"].to_pylist()) == [1, 2, 3, 10, 11, 12]
    only = source_of(cluster, "^orders-a$", starting={a: {0: 2}}, ending="latest")
    assert [n for table in micro_batches(only) for n in table["n"].to_pylist()] == [3]


def test_a_topic_that_goes_holds_up_no_other(cluster: tuple[str, Send], ids: dict[str, str]) -> None:
    send = cluster[1]
    a = send("orders-a", 1)
    source = source_of(cluster, "^orders-.*")
    first = planned(source)
    gone: Any = {
        "at": {**position(first)["at"], "orders-gone": {"0": 5}},
        "ids": {**position(first)["ids"], "orders-gone": "x"},
    }
    send(a, 2)
    with pytest.warns(RuntimeWarning, match="the topic orders-gone has gone"):
        second = planned(source, Planned(gone, first.ranges))
    assert read(source, second) == [2]
    assert position(second)["at"]["orders-gone"] == {"0": 5} and position(second)["ids"]["orders-gone"] == "x"
    send(a, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        third = planned(source, second)
    assert read(source, third) == [3] and position(third)["at"]["orders-gone"] == {"0": 5}
    send("orders-gone", 50)
    with pytest.raises(SourceError, match=r"was deleted and made again .*orders-gone"):
        planned(source, third)
    patient = source_of(cluster, "^orders-.*", on_lost="warn")
    with pytest.warns(RuntimeWarning, match="orders-gone was deleted and made again: it is read from its first record"):
        fourth = planned(patient, third)
    assert read(patient, fourth) == [50] and position(fourth)["ids"]["orders-gone"] == "id of orders-gone"
    assert patient.plan(position(fourth)) is None


def test_when_all_topics_have_gone_nothing_is_planned(cluster: tuple[str, Send], ids: dict[str, str]) -> None:
    cluster[1]("orders-a", 1)
    source = source_of(cluster, "^orders-.*")
    with pytest.warns(RuntimeWarning, match="orders-x has gone"):
        actual = source.plan({"at": {"orders-x": {"0": 5}}, "ids": {"orders-x": "x"}})
    assert actual is not None and read(source, actual) == [1], "the other topic is new"
    source = attrs_without_topics(source)
    with pytest.warns(RuntimeWarning, match="orders-x has gone"):
        assert source.plan({"at": {"orders-x": {"0": 5}}, "ids": {"orders-x": "x"}}) is None


def attrs_without_topics(source: KafkaSource) -> KafkaSource:
    """The same over a pattern that no topic fits any more."""
    object.__setattr__(source, "pattern", "^nothing-.*")
    source._looked.at_s, source._looked.gone = float("-inf"), set()
    return source


@pytest.mark.parametrize("pattern", [None, "^orders-.*"])
def test_a_topic_made_again_with_fewer_partitions_says_so(
    cluster: tuple[str, Send], ids: dict[str, str], pattern: str | None
) -> None:
    a = cluster[1]("orders-a", 1)
    source = source_of(cluster, pattern or a)
    n = len(position(planned(source))["at"][a])
    with pytest.raises(SourceError, match=rf"fewer partitions than before.*orders-a has {n}, and partition {n + 2} was read"):
        planned(source, Planned({"at": {a: {"0": 0, str(n + 2): 4}}, "ids": {}}, []))


def test_what_is_no_pattern_is_refused(cluster: tuple[str, Send]) -> None:
    with pytest.raises(PlanError, match="`topics` is not a pattern"):
        source_of(cluster, "^(")
    with pytest.raises(PlanError, match="a pattern in a list"):
        source_of(cluster, ["^orders-.*", "b"])
    with pytest.raises(SourceError, match="no topic fits the pattern"):
        source_of(cluster, "^nothing-.*")


def test_keys_of_a_topic(cluster: tuple[str, Send], ids: dict[str, str]) -> None:
    a = cluster[1]("orders-a", 1)
    given: dict[str, Any] = {"key_format": "avro", "key_schema": "id bigint", "avro_key_schema": '"long"', "ending": "latest"}
    assert [row for t in micro_batches(source_of(cluster, a, **given)) for row in t.to_pylist()] == [{"n": 1, "id": 1}]
