"""What each query has to give: DuckDB over the same files, all at once, written apart from the pipelines.

Rows of equal time come in the order of the file (column ``n``).
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from benchmarks.check import SIGN, Verdict, output_files
from benchmarks.nexmark.generator import STREAMS
from benchmarks.nexmark.queries import SIDE_ROWS
from benchmarks.truth import one

WON = """SELECT * FROM (SELECT a.*, b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra,
        min(b.date_time) OVER (PARTITION BY a.id) AS first_bid,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.n) AS place
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) WHERE place = 1"""
HOPS = """SELECT auction, count(*) AS num, e AS window_end FROM (
        SELECT auction, unnest(range(t // 2000000 * 2000000 + 2000000, t // 2000000 * 2000000 + 12000000, 2000000)) AS e
        FROM (SELECT auction, epoch_us(date_time) AS t FROM bid)) GROUP BY ALL"""
RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def ranges(what: str, name: str) -> str:
    """An aggregate over all bids and three ranges of prices."""
    return ", ".join([f"{what} AS total_{name}", *(f"{what} FILTER ({r}) AS rank{n}_{name}" for n, r in enumerate(RANKS, 1))])


def bidding(*keys: str) -> str:
    """q15 and q16."""
    counts = [
        ranges("count(*)", "bids"),
        ranges("count(DISTINCT bidder)", "bidders"),
        ranges("count(DISTINCT auction)", "auctions"),
    ]
    latest = ["strftime(max(date_time), '%H:%M') AS minute"] if keys else []
    day = "strftime(date_time, '%Y-%m-%d') AS day"
    return f"SELECT {', '.join([*keys, day, *latest, *counts])} FROM bid GROUP BY {', '.join([*keys, 'day'])}"


CHANNEL = "'(?:&|^)channel_id=([^&]*)'"
TRUTH: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, date_time, extra, 0.908 * price AS price FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, avg(price) AS final FROM ({WON}) GROUP BY category",
    "q5": f"""SELECT auction, num, make_timestamp(window_end)::TIMESTAMPTZ AS window_end FROM ({HOPS})
        QUALIFY num = max(num) OVER (PARTITION BY window_end)""",
    "q6": f"""SELECT seller, avg(price) OVER ten AS final, row_number() OVER ranked AS number FROM ({WON})
        WINDOW ranked AS (PARTITION BY seller ORDER BY expires, first_bid, id),
        ten AS (PARTITION BY seller ORDER BY expires, first_bid, id ROWS 9 PRECEDING) QUALIFY number >= 10""",
    "q7": """SELECT auction, price, bidder, date_time, extra FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY epoch_us(date_time) // 10000000)""",
    "q8": """SELECT id, name, make_timestamp(w * 10000000)::TIMESTAMPTZ AS window_start
        FROM (SELECT id, name, epoch_us(date_time) // 10000000 AS w FROM person) p
        SEMI JOIN (SELECT seller, epoch_us(date_time) // 10000000 AS w FROM auction) a ON p.id = a.seller AND p.w = a.w""",
    "q9": f"SELECT * EXCLUDE (n, place, first_bid) FROM ({WON})",
    "q10": """SELECT auction, bidder, price, date_time, extra, strftime(date_time, '%Y-%m-%d') AS day,
        strftime(date_time, '%H:%M') AS minute FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count,
        min(date_time) AS window_start, max(date_time) + INTERVAL 10 SECOND AS window_end
        FROM (SELECT *, sum(begins::INT) OVER (PARTITION BY bidder ORDER BY date_time, n) AS session FROM (
            SELECT *, coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time, n)
                > INTERVAL 10 SECOND, true) AS begins FROM bid))
        GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": f"""SELECT auction, bidder, price, date_time, value FROM bid
        JOIN (SELECT range AS key, 'value-' || range AS value FROM range({SIDE_ROWS})) ON auction % {SIDE_ROWS} = key""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price, date_time, extra,
        CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(date_time) <= 6 OR hour(date_time) >= 20
            THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
        length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": bidding(),
    "q16": bidding("channel"),
    "q17": f"""SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, {ranges("count(*)", "bids")}, min(price) AS min_price,
        max(price) AS max_price, avg(price) AS avg_price, sum(price)::BIGINT AS sum_price FROM bid GROUP BY auction, day""",
    "q18": """SELECT * EXCLUDE n FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction
        ORDER BY date_time DESC, n DESC) = 1""",
    "q19": """SELECT * EXCLUDE n, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, n) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
    "q20": """SELECT a.id, a.date_time AS opened, a.extra AS auction_extra, a.* EXCLUDE (id, n, date_time, extra),
        b.* EXCLUDE (n, auction) FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE regexp_extract(url, {CHANNEL}, 1) END AS channel_id
        FROM bid WHERE regexp_matches(url, {CHANNEL}) OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bid""",
}
FOLDED = {"q12": "SELECT bidder, sum(bid_count) AS bid_count FROM {} GROUP BY bidder"}
"""Where only a sum over results can be known: by the clock, nobody knows in which window a bid falls."""


def views(data: Path) -> str:
    """SQL that makes the streams of `data` views."""
    statements = ["SET TimeZone = 'UTC'"]
    for name in STREAMS:
        # The parts are in order, and a file of 20 million rows has fewer than 2^32.
        number = "regexp_extract(filename, 'part-([0-9]+)', 1)::BIGINT << 32 | file_row_number"
        source = f"read_parquet('{data}/{name}/part-*.parquet', filename = true, file_row_number = true)"
        statements.append(
            f"CREATE TEMP VIEW {name} AS SELECT * EXCLUDE (filename, file_row_number), {number} AS n FROM {source}"
        )
    return ";\n".join(statements)


def standing(source: str, kept: str) -> str:
    """What a log of changes leaves standing; what was taken back without having been given is an error."""
    net = f"SELECT {kept}, sum({SIGN})::BIGINT AS net_rows FROM {source} GROUP BY ALL"
    given = "CASE WHEN net_rows < 0 THEN error('taken back, but never given') ELSE net_rows END"
    return f"(SELECT {kept}, unnest(range({given})) FROM ({net}))"


def check(query: str, data: Path, out: Path, truth: str | None = None) -> Verdict:
    """Compare what was written for `query` over `data` with its truth, or another one."""
    with duckdb.connect() as db:
        db.execute(views(data))
        db.execute(f"CREATE TEMP TABLE truth AS {truth or TRUTH[query]}")
        source = output_files(out)
        names = [row[0] for row in db.execute("DESCRIBE truth").fetchall()]
        if not source:
            (expected,) = one(db, "SELECT count(*) FROM truth")
            return Verdict(expected == 0, 0, expected, 0, "no output")
        kept = ", ".join(f'"{name}"' for name in names)
        try:
            if "op" in (row[0] for row in db.execute(f"DESCRIBE FROM {source}").fetchall()):
                source = standing(source, kept)
            db.execute(f"CREATE TEMP TABLE got AS SELECT {kept} FROM ({FOLDED.get(query, 'FROM {}').format(source)})")
        except duckdb.Error as error:
            return Verdict(False, 0, 0, 0, f"output cannot be read: {error}")
        (compared,) = one(db, "SELECT count(*) FROM truth")
        both = f"SELECT count(*) FROM (SELECT {kept} FROM {{}} EXCEPT ALL SELECT {kept} FROM {{}})"
        (missing,), (unexpected,) = one(db, both.format("truth", "got")), one(db, both.format("got", "truth"))
        note = "" if compared else "nothing to compare"
        return Verdict(missing == unexpected == 0 and not note, compared, missing, unexpected, note)
