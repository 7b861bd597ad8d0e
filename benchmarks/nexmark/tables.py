"""Queries whose texts have no window, said without one: tables that change, and results that are taken back.

They give what Flink gives, every change of a result; the rows that are left are those of :mod:`benchmarks.nexmark.truth`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.nexmark.queries import BIDS, TRADES, Plan, Query, Streams, extra_of, q13
from benchmarks.nexmark.truth import WON
from krishiv_py import avg, col, count
from krishiv_py import max as largest
from krishiv_py.api.stages.results import ResultStream


def q3(s: Streams) -> Plan:
    """Who sells in some states, in one category."""
    people = s.person.filter("state IN ('OR', 'ID', 'CA')").select("name", "city", "state", seller=col("id"))
    auctions = s.auction.filter("category = 10").select("id", "seller")
    return auctions.join(people, on="seller").select("name", "city", "state", "id")


def valid_bids(s: Streams, *of_auction: str, of_bid: tuple[str, ...] = ()) -> ResultStream:
    """Bids with their auction, while it was open."""
    own = [n for n in of_bid if n != "bid_extra"]
    bids = s.bid.select("price", *own, id=col("auction"), bid_time=col("date_time"), **extra_of(of_bid))
    pairs = s.auction.select(*dict.fromkeys(("id", "date_time", "expires", *of_auction))).join(bids, on="id")
    return pairs.filter("bid_time >= date_time AND bid_time <= expires")


def q4(s: Streams) -> Plan:
    """The mean of the winning bids of each category."""
    winning = valid_bids(s, "category").key_by("id", "category").agg(largest("price").alias("final"))
    return winning.key_by("category").agg(avg("final").alias("final"))


def q6(s: Streams) -> Plan:
    """The mean of the winning bids of a seller's last ten auctions, now."""
    pairs = valid_bids(s, "seller")
    winning = pairs.key_by("id", "seller", "expires").agg(largest("price").alias("final"))
    ten = winning.key_by("seller").top_rows(10, by=["expires", "id"])
    return ten.key_by("seller").agg(avg("final").alias("final"), count().alias("n"))


def q9(s: Streams) -> Plan:
    """The winning bid of each auction."""
    kept = [name for name in s.auction.schema.names if name not in ("id", "date_time", "expires")]
    pairs: Any = valid_bids(s, *kept, of_bid=("bidder", "bid_extra"))
    sooner: Any = pairs.with_column("sooner", "-unix_millis(bid_time)")
    best = sooner.key_by("id").top_rows(1, by=["price", "sooner"])
    result: Plan = best.drop("sooner")
    return result


def q20(s: Streams) -> Plan:
    """Bids with their auction, of one category."""
    auctions = s.auction.filter("category = 10").rename(date_time="opened", extra="auction_extra")
    return s.bid.rename(auction="id").join(auctions, on="id")


TABLES: dict[str, Query] = {
    build.__name__: Query(build.__name__, sides, build)
    for sides, builds in ((BIDS, (q13,)), (("auction", "person"), (q3,)), (TRADES, (q4, q6, q9)), (("bid", "auction"), (q20,)))
    for build in builds
}
TRUTH = {
    "q6": f"""SELECT seller, avg(price) AS final, count(*) AS n FROM (SELECT *, row_number() OVER (
        PARTITION BY seller ORDER BY expires DESC, id DESC) AS nth FROM ({WON})) WHERE nth <= 10 GROUP BY seller"""
}
"""Where the text has a window over rows, which is another question than the mean of the last ten now."""
