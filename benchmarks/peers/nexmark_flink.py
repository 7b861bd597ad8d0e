"""Nexmark in PyFlink SQL, in streaming mode: ``python -m benchmarks.peers.nexmark_flink --query q5 --data DIR --out DIR``.

One parquet file for each stream (``benchmarks/nexmark/prepare.py``), for Flink hands out the files of a folder in no order.
Standard library and PyFlink only: it runs in an environment of its own. Results that Flink takes back go to the file as a
log of changes with the column ``op``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

HEAP = "3g"
JARS = Path(sys.prefix) / "jars"
FILES = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
COLUMNS = {
    "person": """id BIGINT, name STRING, email STRING, credit_card STRING, city STRING, state STRING, date_time TIMESTAMP(3),
        extra STRING""",
    "auction": """id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, date_time TIMESTAMP(3),
        expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING""",
    "bid": """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP(3), extra STRING""",
}
DAY = "DATE_FORMAT(date_time, 'yyyy-MM-dd')"
PARTS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def ranges(what: str, name: str) -> str:
    """An aggregate over all bids and three ranges of prices."""
    parts = (f"{what} FILTER (WHERE {part}) AS rank{n}_{name}" for n, part in enumerate(PARTS, 1))
    return ", ".join([f"{what} AS total_{name}", *parts])


BIDDING = ", ".join(
    [ranges("COUNT(*)", "bids"), ranges("COUNT(DISTINCT bidder)", "bidders"), ranges("COUNT(DISTINCT auction)", "auctions")]
)
VALID = "a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires"
HOPS = """SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
CHANNEL = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"
QUERIES: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, AVG(CAST(best AS DOUBLE)) AS final FROM (
        SELECT MAX(b.price) AS best, a.category FROM auction a, bid b WHERE {VALID} GROUP BY a.id, a.category)
        GROUP BY category""",
    "q5": f"""SELECT c.auction, c.num, c.window_end FROM ({HOPS}) c JOIN (
        SELECT MAX(num) AS most, window_start, window_end FROM ({HOPS}) GROUP BY window_start, window_end) m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most""",
    "q7": """SELECT b.auction, b.price, b.bidder, b.date_time, b.extra FROM bid b JOIN (
        SELECT MAX(price) AS most, window_end AS till
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND)) GROUP BY window_start, window_end) m
        ON b.price = m.most WHERE b.date_time BETWEEN m.till - INTERVAL '10' SECOND AND m.till""",
    "q8": """SELECT p.id, p.name, p.window_start FROM (
        SELECT id, name, window_start, window_end FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY id, name, window_start, window_end) p JOIN (
        SELECT seller, window_start, window_end FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"""SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra, bidder,
        price, bid_time, bid_extra FROM (
        SELECT a.*, b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra,
            ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS place
        FROM auction a, bid b WHERE {VALID}) WHERE place <= 1""",
    "q10": f"""SELECT auction, bidder, price, date_time, extra, {DAY} AS `day`, DATE_FORMAT(date_time, 'HH:mm') AS `minute`
        FROM bid""",
    "q11": """SELECT bidder, window_start, window_end, COUNT(*) AS bid_count
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price, date_time, extra,
        CASE WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'dayTime'
            WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
        CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {DAY} AS `day`, {BIDDING} FROM bid GROUP BY {DAY}",
    "q16": f"""SELECT channel, {DAY} AS `day`, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS `minute`, {BIDDING}
        FROM bid GROUP BY channel, {DAY}""",
    "q17": f"""SELECT auction, {DAY} AS `day`, {ranges("COUNT(*)", "bids")}, MIN(price) AS min_price, MAX(price) AS max_price,
        AVG(CAST(price AS DOUBLE)) AS avg_price, SUM(price) AS sum_price FROM bid GROUP BY auction, {DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place FROM bid)
        WHERE place <= 1""",
    "q19": """SELECT * FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
        WHERE rank_number <= 10""",
    "q20": """SELECT b.auction AS id, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item_name, a.description,
        a.initial_bid, a.reserve, a.date_time AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE WHEN LOWER(channel) = 'apple' THEN '0'
            WHEN LOWER(channel) = 'google' THEN '1' WHEN LOWER(channel) = 'facebook' THEN '2'
            WHEN LOWER(channel) = 'baidu' THEN '3' ELSE {CHANNEL} END AS channel_id
        FROM bid WHERE {CHANNEL} IS NOT NULL OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
        SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid""",
}
"""Without q6, which Flink cannot run (OVER takes no results that are taken back), q12, whose last window of processing time
Flink does not tell at the end of input, and q13, for whose side input Flink's connector for files has no lookup."""
TIME, PRICE = "TIMESTAMP(3)", "DECIMAL(23, 3)"
"""Types of which schemas print no digits; the only decimals are prices in another currency."""
TAKEN_BACK = {"q4", "q9", "q15", "q16", "q17", "q18", "q19"}


def environment(checkpoint: Path, state: str) -> TableEnvironment:
    """Local mini cluster with two slots."""
    configuration = Configuration()
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in sorted(JARS.glob("*.jar"))),
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.managed.size": "1g",
        "state.backend.type": state,
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": f"file://{checkpoint}",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "false",
    }
    for key, value in settings.items():
        configuration.set_string(key, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


def run(query: str, data: Path, out: Path, state: str) -> None:
    """Run one query to the end of its input."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-Xmx{HEAP}")
    env = environment(out.with_name(f"{out.name}-checkpoint"), state)
    for name, columns in COLUMNS.items():
        path = data / f"{name}.parquet"
        env.execute_sql(
            f"""CREATE TABLE {name} ({columns}, WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND)
            WITH ('path' = 'file://{path}', {FILES})"""
        )
    env.execute_sql(f"CREATE TEMPORARY VIEW found AS {QUERIES[query]}")
    rows = "TO_CHANGELOG(input => TABLE found)" if query in TAKEN_BACK else "found"
    schema = env.sql_query(f"SELECT * FROM {rows}").get_schema()
    printed = zip(schema.get_field_names(), schema.get_field_data_types(), strict=True)
    types = {name: sql_type(str(kind)) for name, kind in printed}
    fields = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    # A sink takes one event time only: the others are values.
    given = ", ".join(f"CAST(`{name}` AS {kind})" if kind == TIME else f"`{name}`" for name, kind in types.items())
    env.execute_sql(f"CREATE TABLE sink ({fields}) WITH ('path' = 'file://{out}', {FILES})")
    env.execute_sql(f"INSERT INTO sink SELECT {given} FROM {rows}").wait()


def sql_type(kind: str) -> str:
    """Flink's SQL name of a type as its schemas print it."""
    plain = kind.upper().replace(" NOT NULL", "").replace("(2147483647)", "").replace("VARCHAR", "STRING")
    short = {"TIMESTAMP": TIME, "DECIMAL": PRICE, "STRING": "STRING"}
    return next((name for begin, name in short.items() if plain.startswith(begin)), plain)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.nexmark_flink")
    parser.add_argument("--query", choices=list(QUERIES), required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder of benchmarks/nexmark/prepare.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--state", choices=("hashmap", "rocksdb"), default="hashmap")
    given = parser.parse_args(argv)
    shutil.rmtree(given.out, ignore_errors=True)
    run(given.query, given.data.resolve(), given.out.resolve(), given.state)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
