"""Queries as SQL of the library, where it has the words: the texts of the benchmark with bounds in time added.

The others need sessions whose gap is a column (q4, q6, q9), lists as rows (q7), ``last`` of every column (q18), sessions
that touch (q11), the clock (q12), or a table next to the streams (q13, which SQL can say with a registered one; q20 as q3).
"""

from __future__ import annotations

from benchmarks.nexmark.generator import STREAMS
from benchmarks.nexmark.queries import Streams
from krishiv_py import ResultStream, Stream
from krishiv_py.sql import SqlContext

PARTS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def ranges(what: str, name: str) -> str:
    """An aggregate over all bids and three ranges of prices."""
    parts = (f"{what} FILTER (WHERE {part}) AS rank{n}_{name}" for n, part in enumerate(PARTS, 1))
    return ", ".join([f"{what} AS total_{name}", *parts])


BIDDING = ", ".join(
    [ranges("COUNT(*)", "bids"), ranges("COUNT(DISTINCT bidder)", "bidders"), ranges("COUNT(DISTINCT auction)", "auctions")]
)
HOPS = """SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
DAYS = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' DAY))"
DAY = "date_format(window_start, 'yyyy-MM-dd') AS day"
EVER = "INTERVAL '36500' DAY"
CHANNEL = "'(&|^)channel_id=([^&]*)'"
KNOWN = "('apple', 'google', 'facebook', 'baidu')"
TENS = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
TEXTS: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908BD * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        AND p.date_time BETWEEN a.date_time - INTERVAL '{reach}' SECOND AND a.date_time + INTERVAL '{reach}' SECOND
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q5": f"""SELECT c.auction, c.num, c.window_end FROM ({HOPS}) c JOIN (
        SELECT MAX(num) AS most, window_start, window_end FROM ({HOPS}) GROUP BY window_start, window_end) m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most""",
    "q8": f"""SELECT p.id, p.name, p.window_start FROM {TENS.format("person")} p SEMI JOIN {TENS.format("auction")} a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q10": """SELECT auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd') AS day,
        date_format(date_time, 'HH:mm') AS minute FROM bid""",
    "q14": """SELECT auction, bidder, 0.908BD * price AS price, date_time, extra, regexp_count(extra, 'c') AS c_counts,
        CASE WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
            WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type
        FROM bid WHERE 0.908BD * price > 1000000 AND 0.908BD * price < 50000000""",
    "q15": f"SELECT {DAY}, {BIDDING} FROM {DAYS} GROUP BY window_start, window_end",
    "q16": f"""SELECT channel, {DAY}, date_format(MAX(date_time), 'HH:mm') AS minute, {BIDDING} FROM {DAYS}
        GROUP BY channel, window_start, window_end""",
    "q17": f"""SELECT auction, {DAY}, {ranges("COUNT(*)", "bids")}, MIN(price) AS min_price, MAX(price) AS max_price,
        AVG(price) AS avg_price, SUM(price) AS sum_price FROM {DAYS} GROUP BY auction, window_start, window_end""",
    "q19": f"""SELECT auction, bidder, price, channel, url, date_time, extra, rank_number FROM (SELECT *,
        ROW_NUMBER() OVER (PARTITION BY window_start, window_end, auction ORDER BY price DESC) AS rank_number
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), {EVER}))) WHERE rank_number <= 10""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0'
            WHEN lower(channel) = 'google' THEN '1' WHEN lower(channel) = 'facebook' THEN '2'
            WHEN lower(channel) = 'baidu' THEN '3' ELSE regexp_extract(url, {CHANNEL}, 2) END AS channel_id
        FROM bid WHERE rlike(url, {CHANNEL}) OR lower(channel) IN {KNOWN}""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bid""",
}


def planned(name: str, streams: Streams) -> Stream | ResultStream:
    """The query of a text over streams."""
    context = SqlContext()
    for stream in STREAMS:
        context.register(stream, getattr(streams, stream), event_time="date_time", lag=4_000)
    result = context.sql(TEXTS[name].replace("{reach}", str(-(-streams.reach_ms // 1_000))))
    assert result is not None
    return result
