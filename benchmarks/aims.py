"""What was aimed at next to what was found: a row for each aim, made from the kept runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from benchmarks.summary import Summary, interleaved

ENOUGH: Final = 5
"""Rounds, interleaved where two sides are compared, that a median should be of."""
WINDOWED: Final = ("J1", "J2", "J3")
COMPARED: Final = (*WINDOWED, "J4", "J5")
PIPELINES: Final = ("P1", "P2", "P3")
Place = tuple[str, str, str, str]
"""Mode, job, data and side."""
Places = Mapping[Place, Mapping[str, Summary]]
"""The rounds of a place by processor."""


@frozen
class Figure:
    """What one side took over what another did; without another, what it took.

    ``of`` names a field of :class:`~benchmarks.summary.Summary` or one of its extras; ``bound`` is here where it is not that of
    the aim.
    """

    label: str
    over: Place
    under: Place | None
    of: str = "cpu"
    bound: float | None = None


@frozen
class Aim:
    """A row of the table."""

    measure: str
    sign: str
    bound: float
    figures: tuple[Figure, ...]

    def reached(self, figure: Figure, value: float) -> bool:
        """Whether a figure is as good as was aimed at."""
        bound = self.bound if figure.bound is None else figure.bound
        return value >= bound if self.sign == "≥" else value <= bound


def behind(
    side: str, data: str, jobs: Iterable[str], own: str = "krishiv", bounds: dict[str, float] | None = None
) -> tuple[Figure, ...]:
    """How many times the CPU of ours another side takes for a backlog."""
    return tuple(
        Figure(job, ("backlog", job, data, side), ("backlog", job, data, own), bound=(bounds or {}).get(job)) for job in jobs
    )


def next_to(label: str, mode: str, job: str, data: str, of: str, bound: float | None = None) -> Figure:
    """What ours takes over what native PySpark on RocksDB does."""
    return Figure(label, (mode, job, data, "krishiv"), (mode, job, data, "native_rocksdb"), of, bound)


def steady(rate: str) -> tuple[Figure, ...]:
    """CPU and latency at a fixed rate."""
    data = f"B-{rate}"
    return next_to("CPU", "steady", "S1", data, "cpu"), next_to("p99", "steady", "S1", data, "latency_p99_s", bound=1.0)


def memory(data: str, jobs: Sequence[str] = WINDOWED) -> tuple[Figure, ...]:
    """Peak memory of a backlog."""
    return tuple(next_to(job, "backlog", job, data, "memory_mb") for job in jobs)


def pipelines() -> tuple[Aim, ...]:
    """Deduplication, a join and two stages, next to native PySpark and PyFlink."""
    result = []
    for events, many in (("2000000", "2 million"), ("20000000", "20 million")):
        for data, keys, least in (("B", "500 000 keys", 3), ("A", "10 000 keys", 1)):
            place = f"{data}-{events}"
            what = f"{', '.join(PIPELINES)} with {keys}, {many} events"
            result += [
                Aim(f"CPU of native PySpark over ours: {what}", "≥", least, behind("native_rocksdb", place, PIPELINES)),
                Aim(f"of PyFlink: {what}", "≥", 1.5, behind("flink", place, PIPELINES)),
                Aim(f"peak memory of ours over native PySpark: {what}", "≤", 1, memory(place, PIPELINES)),
            ]
    return tuple(result)


def whole() -> tuple[Aim, ...]:
    """Whole processes in process next to Spark and peers, starting included."""

    def over(side: str, data: str, jobs: Sequence[str]) -> tuple[Figure, ...]:
        return tuple(Figure(job, ("whole", job, data, side), ("whole", job, data, "in_process")) for job in jobs)

    def under(side: str, data: str, jobs: Sequence[str]) -> tuple[Figure, ...]:
        return tuple(Figure(job, ("whole", job, data, "in_process"), ("whole", job, data, side)) for job in jobs)

    result = []
    for events in ("2000000", "20000000"):
        for keys, many, most in (("B", "500 000 keys", 2), ("A", "10 000 keys", 3)):
            data, what = f"{keys}-{events}", f"{many}, {int(events) // 1_000_000} million events"
            result += [
                Aim(f"whole processes: Spark over in process: {what}", "≥", 5, over("krishiv", data, (*COMPARED, *PIPELINES))),
                Aim(f"whole processes: PyFlink over in process: {what}", "≥", 1, over("flink", data, (*COMPARED, *PIPELINES))),
                Aim(f"whole processes: Bytewax over in process: {what}", "≥", 1, over("bytewax", data, COMPARED)),
                Aim(f"whole processes: Pathway over in process: {what}", "≥", 1, over("pathway", data, COMPARED)),
                Aim(f"whole processes: Polars over in process: {what}", "≥", 1, over("polars", data, (*WINDOWED, "J4"))),
                Aim(f"whole processes: in process over DuckDB: {what}", "≤", most, under("duckdb", data, (*WINDOWED, "J4"))),
            ]
    return tuple(result)


def opened(keys: str, side: str) -> Place:
    """Batches with so many open keys."""
    return "open_state", "O1", f"open-{keys}", side


def collected(label: str, data: str, against: str | None = "duckdb") -> Figure:
    """Seconds of ``collect()``, or how many times those of a whole process."""
    under = None if against is None else ("bounded", "J1", data, against)
    return Figure(label, ("bounded", "J1", data, "krishiv"), under, "seconds")


AIMS: Final = (
    Aim(
        "CPU of native PySpark on RocksDB over ours: 500 000 keys, 20 million events",
        "≥",
        4,
        behind("native_rocksdb", "B-20000000", WINDOWED),
    ),
    Aim(
        'of native PySpark on its better store: 10 000 keys, 20 million events, `late_rule="window"` (Spark\'s own)',
        "≥",
        1,
        behind("native_hdfs", "A-20000000", WINDOWED, "krishiv_window"),
    ),
    Aim("the same, default rule", "≥", 0.8, behind("native_hdfs", "A-20000000", WINDOWED)),
    Aim("of PyFlink: 500 000 keys, 2 million events", "≥", 1, behind("flink", "B-2000000", COMPARED)),
    Aim("of PyFlink: 10 000 keys, 2 million events", "≥", 1, behind("flink", "A-2000000", COMPARED)),
    Aim("of PyFlink: 10 000 keys, 20 million events", "≥", 1, behind("flink", "A-20000000", (*WINDOWED, "J5"))),
    Aim("of Bytewax: 500 000 keys, 2 million events", "≥", 4, behind("bytewax", "B-2000000", COMPARED, bounds={"J4": 1.5})),
    Aim("of Bytewax: 10 000 keys, 2 million events", "≥", 4, behind("bytewax", "A-2000000", COMPARED, bounds={"J4": 1.5})),
    Aim("of Bytewax: 10 000 keys, 5 million events", "≥", 1.5, behind("bytewax", "A-5000000", ["J4"])),
    Aim("of Bytewax: 10 000 keys, 20 million events", "≥", 4, behind("bytewax", "A-20000000", ["J3", "J5"])),
    Aim("of Pathway: 500 000 keys, 2 million events", "≥", 4, behind("pathway", "B-2000000", COMPARED)),
    Aim("of Pathway: 10 000 keys, 2 million events", "≥", 4, behind("pathway", "A-2000000", COMPARED)),
    Aim("of Pathway: 10 000 keys, 5 million events", "≥", 4, behind("pathway", "A-5000000", ["J4"])),
    Aim(
        "of `transformWithStateInPandas` keyed by user: 10 000 keys, 2 million events",
        "≥",
        30,
        behind("tws_pandas", "A-2000000", ("J3", "J4", "J5")),
    ),
    Aim(
        "of `transformWithStateInPandas` keyed by user: 10 000 keys, 5 million events",
        "≥",
        30,
        behind("tws_pandas", "A-5000000", ["J4"]),
    ),
    Aim(
        "batches of one row: ours over native PySpark on RocksDB",
        "≤",
        1.4,
        (next_to("CPU", "micro", "J1", "one-row", "cpu"), next_to("time", "micro", "J1", "one-row", "wall")),
    ),
    Aim("5 000 events a second: ours over native PySpark on RocksDB", "≤", 1.4, steady("5000")),
    Aim("50 000 events a second: ours over native PySpark on RocksDB", "≤", 1.4, steady("50000")),
    Aim(
        "CPU of a batch at 5 million open keys over one at 50 thousand",
        "≤",
        1.3,
        (Figure("ours", opened("5000000", "krishiv"), opened("50000", "krishiv")),),
    ),
    Aim(
        "time of `collect()` over DuckDB's whole process: 2 million rows",
        "≤",
        3,
        (collected("10 000 keys", "A-2000000"), collected("500 000 keys", "B-2000000")),
    ),
    Aim(
        "seconds of `collect()`: 1 000 rows",
        "≤",
        0.5,
        (collected("10 000 keys", "A-1000", against=None), collected("500 000 keys", "B-1000", against=None)),
    ),
    Aim("peak memory of ours over native PySpark on RocksDB: 500 000 keys, 20 million events", "≤", 1, memory("B-20000000")),
    Aim("the same: 10 000 keys, 20 million events", "≤", 1, memory("A-20000000")),
    Aim(
        "the same: batches of one row; 5 000 and 50 000 events a second",
        "≤",
        1,
        (
            next_to("one row", "micro", "J1", "one-row", "memory_mb"),
            next_to("5 000", "steady", "S1", "B-5000", "memory_mb"),
            next_to("50 000", "steady", "S1", "B-50000", "memory_mb"),
        ),
    ),
    *pipelines(),
    *whole(),
)


def table(result: Sequence[Summary]) -> list[str]:
    """The aims as a table; rows without any figure are left out."""
    by_place: dict[Place, dict[str, Summary]] = defaultdict(dict)
    for s in result:
        by_place[s.mode, s.job, s.data, s.side][s.processor] = s
    rows = [row(aim, by_place) for aim in AIMS]
    if not any(rows):
        return []
    head = ["", "### Aimed at and found", "", "| measure | aim | found |", "|---|---|---|"]
    note = (
        f"Medians of all rounds, {ENOUGH} of them and more interleaved; a number in brackets says how many were, where it was "
        "fewer. Below noise: in a round the work took less than starting varies. At least (at most): the worst round of one "
        "side against the best of the other; stated where the median is below noise or that alone would not do. Only rounds on "
        "the same processor are compared; of two processors the worse figure is reported, and the rounds of both are counted."
    )
    return [*head, *(r for r in rows if r), "", note]


def row(aim: Aim, by_place: Places) -> str:
    """One aim; nothing where none of its figures was measured."""
    given = [text for figure in aim.figures if (text := cell(aim, figure, by_place))]
    if not given:
        return ""
    others = {f"{f.label} {aim.sign} {f.bound:g}" for f in aim.figures if f.bound is not None}
    bounds = ", ".join([f"{aim.sign} {aim.bound:g}", *sorted(others)])
    return f"| {aim.measure} | {bounds} | {', '.join(given)} |"


def cell(aim: Aim, figure: Figure, by_place: Places) -> str:
    """One figure; nothing where a side has no run that counts on a processor of the other."""
    sides = [by_place.get(place, {}) for place in (figure.over, figure.under) if place is not None]
    compared = [[side[name] for side in sides] for name in sides[0] if all(name in side for side in sides)]
    if not compared:
        return ""
    worse = min if aim.sign == "≥" else max
    rounds = sum(map(together, compared))
    few = f" ({rounds})" if rounds < ENOUGH else ""
    extremes = [worst(aim, known) for known in compared] if figure.of == "cpu" else [None]
    sure = None if None in extremes else worse(value for value in extremes if value is not None)
    bound = "" if sure is None else f"at {'least' if aim.sign == '≥' else 'most'} {number(sure)}"
    if figure.of == "cpu" and not all(s.clear for known in compared for s in known):
        return f"{figure.label} below noise{bound and ', '}{bound}{few}"
    value = worse(ratio([taken(s, figure.of) for s in known]) for known in compared)
    text = f"{figure.label} {number(value)}{few}"
    if not aim.reached(figure, value):
        return f"**{text}, missed**"
    return text if sure is None or aim.reached(figure, sure) else f"{text} ({bound})"


def together(known: Sequence[Summary]) -> int:
    """Of how many rounds a figure is: the interleaved ones of two sides, all of one side."""
    if len({s.side for s in known}) == 1:
        return min(s.rounds for s in known)
    return interleaved(*known)


def worst(aim: Aim, known: Sequence[Summary]) -> float | None:
    """The worst ratio of CPU of any two rounds: the least of the one side over the most of the other, or the other way."""
    if len(known) < 2:
        return None
    over, under = known
    upper, lower = (over.low, under.high) if aim.sign == "≥" else (over.high, under.low)
    return upper / lower if upper > 0 and lower > 0 else None


def ratio(values: Sequence[float]) -> float:
    """The first over the second, if there is one."""
    return values[0] / values[1] if len(values) == 2 else values[0]


def taken(s: Summary, of: str) -> float:
    """A field of a summary, or one of its extras."""
    return s.extra[of] if of in s.extra else float(getattr(s, of))


def number(value: float) -> str:
    """About three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
