"""A pipeline and its tests, in milliseconds and without Java: ``pytest examples/cookbook/unit_test.py``."""

from krishiv_py import ResultStream, Stream, col, count, sum
from krishiv_py.testing import Driver, stream_of

SCHEMA = "shop string, amount bigint, at bigint"


def revenue(orders: Stream) -> ResultStream:
    """The pipeline is a function of a stream, so that the code of production is the code that is tested."""
    return (
        orders.filter(col("amount") > 0)
        .watermark("at", "5 seconds")
        .key_by("shop")
        .tumbling_window("1 minute")
        .agg(count(), sum("amount").alias("total"))
    )


def order(amount: int, moment: int) -> dict[str, object]:
    """An order of shop a."""
    return {"shop": "a", "amount": amount, "at": moment}


def test_a_minute_fires_when_the_watermark_has_reached_its_end() -> None:
    driver = Driver(revenue(stream_of(SCHEMA)))
    assert driver.send([order(5, 1_000), order(7, 64_999)]).results.num_rows == 0  # 59 999: one millisecond is missing
    (row,) = driver.send([order(1, 65_000)]).results.to_pylist()
    assert (row["window_end"], row["count"], row["total"]) == (60_000, 1, 5)


def test_a_row_behind_the_watermark_is_late_and_not_lost() -> None:
    driver = Driver(revenue(stream_of(SCHEMA)))
    driver.send([order(5, 66_000)])
    (late,) = driver.send([order(9, 3_000)]).late.to_pylist()
    assert (late["amount"], late["reason"], late["lateness"]) == (9, "late", 58_000)


def test_an_order_without_amount_counts_nothing() -> None:
    driver = Driver(revenue(stream_of(SCHEMA)))
    driver.send([order(-5, 1_000), order(0, 2_000)])
    assert driver.close().results.num_rows == 0  # the end of input fires what is open: there is nothing
