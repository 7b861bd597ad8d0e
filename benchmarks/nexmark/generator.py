"""Nexmark's events: people, their auctions, the bids, as parquet parts in the order of event time.

    python -m benchmarks nexmark generate --events 2000000

Of 50 events one is a person, three are auctions, 46 are bids. The numbers of the generators of Apache Beam and
nexmark-flink hold: half of the bids are for the hot auction (every hundredth), three of four by the hot bidder, three
of four auctions by the hot seller; the other ones are for one of the last 100 auctions or 1 000 people, or for one of
the next ten. An auction lasts twice as long as it takes to open 100 more, at most. Prices are spread evenly over their
logarithm, 1 to 1 000 000 (in hundredths).

Every part has the same stretch of events in ``person/``, ``auction/`` and ``bid/``, so that a micro-batch of so many
files of each is a stretch of time. Cached under ``benchmarks/.data``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import asdict, frozen

from benchmarks.data import ROOT, stamp
from benchmarks.nexmark.texts import Ints, chosen, digits, filling, texts
from krishiv_py.plan.schema import as_schema

ORIGIN_MS = 1_767_311_880_000  # 2026-01-01T23:58:00Z: two minutes to midnight, so that queries by day see two of them
PEOPLE, AUCTIONS, ROUND = 1, 3, 50
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1_000, 10, 5
IN_FLIGHT, ACTIVE, LEAD = 100, 1_000, 10
HOT_EVERY = 100
HOT_AUCTION, HOT_BIDDER, HOT_SELLER, HOT_CHANNEL = 2, 4, 4, 2
"""One in so many is *not* for the hot one."""
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
TIME = pa.timestamp("us", tz="UTC")
STREAMS = ("person", "auction", "bid")
SCHEMAS: dict[str, pa.Schema] = {
    "person": as_schema(
        """id bigint, name string, email string, credit_card string, city string, state string, date_time timestamp,
        extra string"""
    ),
    "auction": as_schema(
        """id bigint, item_name string, description string, initial_bid bigint, reserve bigint, date_time timestamp,
        expires timestamp, seller bigint, category bigint, extra string"""
    ),
    "bid": as_schema(
        "auction bigint, bidder bigint, price bigint, channel string, url string, date_time timestamp, extra string"
    ),
}


@frozen
class Spec:
    """What is generated; equal specs give equal rows. `rate` is events a second of event time."""

    events: int
    rate: int = 10_000
    parts: int = 20
    seed: int = 42

    @property
    def name(self) -> str:
        """Folder name."""
        return f"nexmark-{self.events}-r{self.rate}-p{self.parts}-s{self.seed}"


def times_ms(spec: Spec, event: Ints) -> Ints:
    """Event time of each event, in whole milliseconds, as Flink SQL takes them."""
    return ORIGIN_MS + event * 1_000 // spec.rate


def as_times(ms: Ints) -> pa.Array:
    """A column of times."""
    return pa.array(ms * 1_000, pa.int64()).cast(TIME)


def newest_auction(event: Ints) -> Ints:
    """Number of the auction opened last at or before each event, counted from 0; -1 before the first one."""
    place = event % ROUND
    return event // ROUND * AUCTIONS + np.clip(place - PEOPLE, -1, AUCTIONS - 1)


def some_auction(rng: np.random.Generator, event: Ints) -> Ints:
    """An auction that may be open at each event, or one of the next ten."""
    last = newest_auction(event)
    least = np.maximum(last - IN_FLIGHT, 0)
    return np.asarray(least + rng.integers(0, last - least + 1 + LEAD), dtype=np.int64)


def some_person(rng: np.random.Generator, event: Ints) -> Ints:
    """One of the last 1 000 people at each event, or one of the next ten."""
    people = event // ROUND + 1
    active = np.minimum(people, ACTIVE)
    return np.asarray(people - active + rng.integers(0, active + LEAD), dtype=np.int64)


def prices(rng: np.random.Generator, rows: int) -> Ints:
    """Prices in hundredths."""
    return np.round(np.power(10.0, rng.random(rows) * 6) * 100).astype(np.int64)


def channels(spec: Spec) -> tuple[pa.Array, pa.Array]:
    """All channels and their addresses, the hot ones first."""
    rng = np.random.default_rng([spec.seed, 1])
    count = len(HOT_CHANNELS) + CHANNELS
    folders = [texts(rng, count, 5, "_") for _ in range(3)]
    base = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    bits = np.unpackbits(np.arange(CHANNELS, dtype=">u4").view(np.uint8).reshape(-1, 4), axis=1)[:, ::-1]
    turned = np.abs(np.packbits(bits, axis=1).view(">i4").astype(np.int64).ravel())  # its bits in reverse order
    tail = pc.binary_join_element_wise("&channel_id=", pa.array(turned).cast(pa.string()), "")
    given = np.concatenate([np.zeros(len(HOT_CHANNELS), dtype=bool), rng.integers(0, 10, CHANNELS) > 0])
    tails = pc.if_else(pa.array(given), pa.concat_arrays([pa.array([""] * len(HOT_CHANNELS)), tail]), "")
    names = pa.array([*HOT_CHANNELS, *(f"channel-{n}" for n in range(CHANNELS))])
    return names, pc.binary_join_element_wise(base, tails, "")


def draw_people(spec: Spec, rng: np.random.Generator, event: Ints) -> pa.Table:
    """The people among the events."""
    rows = len(event)
    name = pc.binary_join_element_wise(chosen(rng, FIRST_NAMES, rows), chosen(rng, LAST_NAMES, rows), " ")
    moment = pc.binary_join_element_wise(texts(rng, rows, 7), texts(rng, rows, 5), "@")
    email = pc.binary_join_element_wise(moment, ".com", "")
    where = [chosen(rng, CITIES, rows), chosen(rng, STATES, rows)]
    columns = [pa.array(event // ROUND + FIRST_ID), name, email, digits(rng, rows), *where]
    return pa.table([*columns, as_times(times_ms(spec, event)), filling(rng, rows, 120)], schema=SCHEMAS["person"])


def draw_auctions(spec: Spec, rng: np.random.Generator, event: Ints) -> pa.Table:
    """The auctions among the events."""
    rows = len(event)
    begin, initial = times_ms(spec, event), prices(rng, rows)
    horizon = times_ms(spec, event + IN_FLIGHT * ROUND // AUCTIONS) - begin
    ends = begin + 1 + rng.integers(0, np.maximum(horizon * 2, 1))
    hot = event // ROUND // HOT_EVERY * HOT_EVERY
    seller = np.where(rng.integers(0, HOT_SELLER, rows) > 0, hot, some_person(rng, event)) + FIRST_ID
    columns = [
        pa.array(newest_auction(event) + FIRST_ID),
        texts(rng, rows, 20),
        texts(rng, rows, 100),
        pa.array(initial),
        pa.array(initial + prices(rng, rows)),
        as_times(begin),
        as_times(ends),
        pa.array(seller),
        pa.array(FIRST_CATEGORY + rng.integers(0, CATEGORIES, rows)),
        filling(rng, rows, 390),
    ]
    return pa.table(columns, schema=SCHEMAS["auction"])


def draw_bids(spec: Spec, rng: np.random.Generator, event: Ints) -> pa.Table:
    """The bids among the events."""
    rows = len(event)
    hot = newest_auction(event) // HOT_EVERY * HOT_EVERY
    auction = np.where(rng.integers(0, HOT_AUCTION, rows) > 0, hot, some_auction(rng, event)) + FIRST_ID
    hot = event // ROUND // HOT_EVERY * HOT_EVERY + 1
    bidder = np.where(rng.integers(0, HOT_BIDDER, rows) > 0, hot, some_person(rng, event)) + FIRST_ID
    names, urls = channels(spec)
    hot_channel, cold = rng.integers(0, len(HOT_CHANNELS), rows), len(HOT_CHANNELS) + rng.integers(0, CHANNELS, rows)
    channel = pa.array(np.where(rng.integers(0, HOT_CHANNEL, rows) > 0, hot_channel, cold))
    columns = [pa.array(auction), pa.array(bidder), pa.array(prices(rng, rows)), names.take(channel), urls.take(channel)]
    return pa.table([*columns, as_times(times_ms(spec, event)), filling(rng, rows, 68)], schema=SCHEMAS["bid"])


def draw(spec: Spec, part: int) -> dict[str, pa.Table]:
    """The rows of one part, by stream, in the order of events."""
    low, high = (spec.events * part // spec.parts, spec.events * (part + 1) // spec.parts)
    event = np.arange(low, high, dtype=np.int64)
    place = event % ROUND
    chosen_by = {
        "person": (draw_people, place < PEOPLE),
        "auction": (draw_auctions, (place >= PEOPLE) & (place < PEOPLE + AUCTIONS)),
        "bid": (draw_bids, place >= PEOPLE + AUCTIONS),
    }
    return {
        name: make_rows(spec, np.random.default_rng([spec.seed, spec.events, part, number]), event[mask])
        for number, (name, (make_rows, mask)) in enumerate(chosen_by.items())
    }


def make(spec: Spec, root: Path = ROOT) -> Path:
    """Folder with the data of `spec`, generated unless it is there."""
    folder = root / spec.name
    if (folder / "_spec.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for part in range(spec.parts):
        for number, (name, table) in enumerate(draw(spec, part).items()):
            path = folder / name / f"part-{part:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            stamp(path, part * len(STREAMS) + number)
    (folder / "_spec.json").write_text(json.dumps(asdict(spec)))
    return folder


def spec_of(folder: Path) -> Spec:
    """What a folder was generated of."""
    return Spec(**json.loads((folder / "_spec.json").read_text()))
