"""q0 to q22 in krishiv_py. How each is said, and why the answer is that of the benchmark: README.md."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from attrs import frozen

from benchmarks.nexmark.generator import ACTIVE, AUCTIONS, IN_FLIGHT, LEAD, ROUND
from benchmarks.nexmark.processing_time import stamped
from krishiv_py import avg, col, count, count_distinct, last, lit, top_k, when, windows
from krishiv_py import max as largest
from krishiv_py import min as smallest
from krishiv_py import sum as total
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.aggregates.calls import AggCall

Plan: TypeAlias = "Stream | ResultStream"

LAG = "4 s"
EVER = "36500 days"
"""A window that holds all time there is, 1970 to 2069: a group without a window, whose result comes at the end of input."""
SIDE_ROWS = 10_000
AT_MOST_EQUAL = 10
CHEAP, DEAR = 10_000, 1_000_000


@frozen
class Streams:
    """The three streams, without event time yet, and events a second of event time."""

    person: Stream
    auction: Stream
    bid: Stream
    rate: int = 10_000

    def span_ms(self, events: int) -> int:
        """Milliseconds that so many events take, and one for the rounding."""
        return -(-events * 1_000 // self.rate) + 1

    @property
    def longest_ms(self) -> int:
        """The longest an auction can be open."""
        return 2 * self.span_ms(IN_FLIGHT * ROUND // AUCTIONS)

    @property
    def reach_ms(self) -> int:
        """How far an event and the person or auction it names can be apart: the last 1 000 people are the farthest."""
        return self.span_ms((ACTIVE + LEAD + 1) * ROUND)


def q0(s: Streams) -> Plan:
    """Bids as they are."""
    return s.bid.select("auction", "bidder", "price", "date_time", "extra")


def q1(s: Streams) -> Plan:
    """Prices in another currency."""
    return s.bid.select("auction", "bidder", "date_time", "extra", price=col("price") * lit(Decimal("0.908")))


def q2(s: Streams) -> Plan:
    """Bids for some auctions."""
    return s.bid.filter(col("auction") % 123 == 0).select("auction", "price")


def q3(s: Streams) -> Plan:
    """Who sells in some states, in one category."""
    people = s.person.filter("state IN ('OR', 'ID', 'CA')").select(
        "name", "city", "state", seller=col("id"), joined=col("date_time")
    )
    auctions = s.auction.filter("category = 10").select("id", "seller", "date_time").watermark("date_time", LAG)
    pairs = auctions.interval_join(people.watermark("joined", LAG), "seller", lower=-s.reach_ms, upper=s.reach_ms)
    return pairs.select("name", "city", "state", "id")


def valid_bids(s: Streams, *of_auction: str, of_bid: tuple[str, ...] = ()) -> ResultStream:
    """Bids with their auction, while it was open; `left_ms` is for how long it still is."""
    taken = [n for n in of_auction if n not in ("id", "date_time", "expires")]
    auctions = s.auction.select("id", "date_time", "expires", *taken).watermark("date_time", LAG)
    bids = s.bid.select(
        "auction", "price", *(n for n in of_bid if n != "bid_extra"), bid_time=col("date_time"), **extra_of(of_bid)
    )
    pairs = auctions.interval_join(bids.watermark("bid_time", LAG), {"id": "auction"}, lower=0, upper=s.longest_ms)
    open_ms = "unix_millis(expires) - unix_millis(bid_time) + 1"
    return pairs.filter("bid_time <= expires").with_column("left_ms", open_ms)


def extra_of(of_bid: tuple[str, ...]) -> dict[str, str]:
    """The column `bid_extra`, if asked for."""
    return {"bid_extra": "extra"} if "bid_extra" in of_bid else {}


def q4(s: Streams) -> Plan:
    """The mean of the winning bids of each category."""
    auctions = valid_bids(s, "category").key_by("id", "category").session_window(col("left_ms"))
    winning = auctions.agg(largest("price").alias("final"))
    return winning.key_by("category").tumbling_window(EVER).agg(avg("final").alias("final")).select("category", "final")


def bids_by(s: Streams, *keys: str) -> KeyedStream:
    """Bids by `keys`, with event time."""
    return s.bid.watermark("date_time", LAG).key_by(*keys)


def q5(s: Streams) -> Plan:
    """The auctions with the most bids in the last ten seconds, every two seconds; all of them where several have as many."""
    counts = bids_by(s, "auction").hopping_window("10 s", "2 s").agg(count().alias("num"))
    # Results of hopping windows lie in the last slide of their window, so tumbling windows of a slide hold those of one.
    most = counts.tumbling_window("2 s").agg(largest("num").alias("most"))
    result = counts.interval_join(most, {"num": "most"}, lower=0, upper=0, suffixes=("", "_most"))
    return result.select("auction", "num", "window_end")


def q6(s: Streams) -> Plan:
    """The mean of the winning bids of a seller's last ten auctions, at each auction that is closed."""
    auctions = valid_bids(s, "seller").key_by("id", "seller").session_window(col("left_ms"))
    winning = auctions.agg(largest("price").alias("final"))
    ten = winning.key_by("seller").count_window(10, 1).agg(avg("final").alias("final"), count().alias("n"))
    return ten.filter("n = 10").select("seller", "final", number=col("window_end"))


def q7(s: Streams) -> Plan:
    """The dearest bids of every ten seconds."""
    best = top_k(AT_MOST_EQUAL, "price", "auction", "bidder", "date_time", "extra").alias("best")
    result = s.bid.watermark("date_time", LAG).tumbling_window("10 s").agg(best, largest("price").alias("most"))
    return result.unnest("best").filter("price = most").select("auction", "price", "bidder", "date_time", "extra")


def q8(s: Streams) -> Plan:
    """Who sells in the ten seconds in which they came."""
    people = s.person.select("id", "name", "date_time").watermark("date_time", LAG)
    auctions = s.auction.select("seller", opened=col("date_time")).watermark("opened", LAG)
    result = people.window_join(auctions, {"id": "seller"}, window=windows.tumbling("10 s"), how="semi")
    return result.select("id", "name", "window_start")


def q9(s: Streams) -> Plan:
    """The winning bid of each auction."""
    pairs = valid_bids(s, of_bid=("bidder", "bid_extra")).key_by("id").session_window(col("left_ms"))
    won = pairs.top_rows(1, "price", "bidder", "bid_time", "bid_extra").drop("window_start", "window_end", "rank")
    # The rows of auctions are wide: they meet the one winning bid, instead of going along with every bid.
    auctions = s.auction.watermark("date_time", LAG)
    return won.interval_join(auctions, "id", lower=-s.longest_ms - 2, upper=0).drop("join_time")


def q10(s: Streams) -> Plan:
    """A log of bids by day and minute."""
    day, minute = "date_format(date_time, 'yyyy-MM-dd')", "date_format(date_time, 'HH:mm')"
    return s.bid.select("auction", "bidder", "price", "date_time", "extra", day=day, minute=minute)


def q11(s: Streams) -> Plan:
    """How many bids somebody makes before ten seconds without one."""
    return bids_by(s, "bidder").session_window("10 s", touch="merge").agg(count().alias("bid_count"))


def q12(s: Streams) -> Plan:
    """How many bids somebody makes in ten seconds of the clock."""
    bids = s.bid.select("bidder").map_batches(
        stamped, pa.schema([("bidder", pa.int64()), ("p_time", pa.timestamp("us", "UTC"))])
    )
    return bids.watermark("p_time", "1 s").key_by("bidder").tumbling_window("10 s").agg(count().alias("bid_count"))


def q13(s: Streams) -> Plan:
    """Bids with a value of a table that does not change."""
    side = pa.table({"key": np.arange(SIDE_ROWS), "value": [f"value-{n}" for n in range(SIDE_ROWS)]})
    bids = s.bid.select("auction", "bidder", "price", "date_time", key=col("auction") % SIDE_ROWS)
    return bids.lookup_join(side, "key", how="inner").drop("key")


def q14(s: Streams) -> Plan:
    """Bids of a range of prices, their time of day, and how many letters c there are next to them."""
    hour = "hour(date_time)"
    kind = f"""CASE WHEN {hour} >= 8 AND {hour} <= 18 THEN 'dayTime' WHEN {hour} <= 6 OR {hour} >= 20 THEN 'nightTime'
        ELSE 'otherTime' END"""
    bids = s.bid.with_column("price", col("price") * lit(Decimal("0.908"))).filter("price > 1000000 AND price < 50000000")
    letters = "regexp_count(extra, 'c')"
    return bids.select("auction", "bidder", "price", "date_time", "extra", bid_time_type=kind, c_counts=letters)


def ranges(made: Callable[[], AggCall], name: str) -> list[AggCall]:
    """An aggregate over all bids and those of three ranges of prices."""
    price = col("price")
    parts = [price < CHEAP, (price >= CHEAP) & (price < DEAR), price >= DEAR]
    return [made().alias(f"total_{name}"), *(made().filter(p).alias(f"rank{n}_{name}") for n, p in enumerate(parts, 1))]


def bidding() -> list[AggCall]:
    """What q15 and q16 count."""
    people, auctions = lambda: count_distinct("bidder"), lambda: count_distinct("auction")
    return [*ranges(count, "bids"), *ranges(people, "bidders"), *ranges(auctions, "auctions")]


DAY = "date_format(window_start, 'yyyy-MM-dd')"


def q15(s: Streams) -> Plan:
    """Bids, bidders and auctions of each day."""
    result = s.bid.watermark("date_time", LAG).tumbling_window("1 day").agg(*bidding())
    return result.with_column("day", DAY).drop("window_start", "window_end")


def q16(s: Streams) -> Plan:
    """The same of each channel, and the last minute with a bid."""
    latest = largest("date_time").alias("newest")
    result = bids_by(s, "channel").tumbling_window("1 day").agg(latest, *bidding()).with_column("day", DAY)
    return result.with_column("minute", "date_format(newest, 'HH:mm')").drop("window_start", "window_end", "newest")


def q17(s: Streams) -> Plan:
    """Bids and prices of each auction and day."""
    price = [smallest("price").alias("min_price"), largest("price").alias("max_price"), avg("price").alias("avg_price")]
    aggs = [*ranges(count, "bids"), *price, total("price").alias("sum_price")]
    return bids_by(s, "auction").tumbling_window("1 day").agg(*aggs).with_column("day", DAY).drop("window_start", "window_end")


def q18(s: Streams) -> Plan:
    """The last bid of each bidder for each auction."""
    kept = ("price", "channel", "url", "date_time", "extra")
    newest = bids_by(s, "bidder", "auction").tumbling_window(EVER).agg(*(last(name).alias(name) for name in kept))
    return newest.drop("window_start", "window_end")


def q19(s: Streams) -> Plan:
    """The ten dearest bids of each auction."""
    more = ("bidder", "channel", "url", "date_time", "extra")
    best = bids_by(s, "auction").tumbling_window(EVER).top_rows(10, "price", *more, rank="rank_number")
    return best.drop("window_start", "window_end")


def q20(s: Streams) -> Plan:
    """Bids with their auction, of one category."""
    names = {"date_time": "opened", "extra": "auction_extra"}
    auctions = s.auction.filter("category = 10").rename(**names).watermark("opened", LAG)
    bids = s.bid.rename(auction="id").watermark("date_time", LAG)
    return bids.interval_join(auctions, "id", lower=-s.reach_ms, upper=s.reach_ms).drop("join_time")


CHANNEL = "(&|^)channel_id=([^&]*)"


def q21(s: Streams) -> Plan:
    """The number of each channel: of the four known ones, or what the address says."""
    name = col("channel").lower()
    known = when(name == "apple", "0").when(name == "google", "1").when(name == "facebook", "2").when(name == "baidu", "3")
    given = col("url").rlike(CHANNEL) | name.isin("apple", "google", "facebook", "baidu")
    number = known.otherwise(col("url").regexp_extract(CHANNEL, 2))
    return s.bid.filter(given).select("auction", "bidder", "price", "channel", channel_id=number)


def q22(s: Streams) -> Plan:
    """The folders of the addresses."""
    folders = {f"dir{n}": col("url").split_part("/", n + 3) for n in (1, 2, 3)}
    return s.bid.select("auction", "bidder", "price", "channel", **folders)


@frozen
class Query:
    """One query: which streams it reads, as the sides of its join where there are two, and how it is made of them."""

    name: str
    sides: tuple[str, ...]
    build: Callable[[Streams], Plan]

    @property
    def title(self) -> str:
        """What it asks."""
        return (self.build.__doc__ or "").splitlines()[0].rstrip(".")


BIDS, TRADES = ("bid",), ("auction", "bid")
QUERIES: dict[str, Query] = {
    build.__name__: Query(build.__name__, sides, build)
    for sides, builds in (
        (BIDS, (q0, q1, q2, q5, q7, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q21, q22)),
        (("auction", "person"), (q3,)),
        (("person", "auction"), (q8,)),
        (TRADES, (q4, q6, q9)),
        (("bid", "auction"), (q20,)),
    )
    for build in builds
}
