"""Random queries in two spellings: ours, over streams, and DuckDB's, over the same rows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final

import attrs

COLUMNS: Final = ("k", "s", "v", "w", "ts", "nr")
DDL: Final = "k string, s string, v bigint, w bigint, ts bigint, nr bigint"


@attrs.frozen
class Source:
    """What FROM names, in both spellings, with the columns a query may use by their types; `start` where it has windows."""

    ours: str
    theirs: str
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    windowed: bool = False
    hops: bool = False


@attrs.frozen
class Pair:
    """A query in both spellings."""

    ours: str
    theirs: str

    @property
    def reads(self) -> list[str]:
        """Return the streams that it reads."""
        return [name for name in "ab" if re.search(rf"(FROM|TABLE|JOIN|,)\s+{name}\b", self.theirs)]


class Queries:
    """Makes queries; each is of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self) -> Pair:
        """Return the next query."""
        kinds: list[Callable[[], Pair]] = [
            *(self._rows, self._grouped, self._grouped, self._twice, self._later, self._ranked, self._over, self._distinct),
            *(self._interval, self._interval, self._windows, self._windows, self._counts_joined, self._version, self._lookup),
            *(self._exists, self._joined_grouped, self._united),
        ]
        return self.random.choice(kinds)()

    # Parts

    def _number(self, names: tuple[str, ...], depth: int = 2) -> str:
        r = self.random
        name = r.choice(names)
        if depth == 0 or r.random() < 0.4:
            return name
        one, other = self._number(names, depth - 1), self._number(names, depth - 1)
        return r.choice(
            [
                f"({one} + {other})",
                f"({one} - {r.randint(0, 9)})",
                f"({one} * {r.randint(-2, 3)})",
                f"({one} % {r.randint(2, 7)})",
                f"COALESCE({one}, {other})",
                f"abs({one})",
                f"(-{one})",
                f"CASE WHEN {one} > {r.randint(0, 9)} THEN {other} END",
                f"CASE WHEN {one} IS NULL THEN {r.randint(0, 3)} ELSE {other} END",
                f"greatest({one}, {r.randint(0, 9)})",
                f"nullif({one}, {other})",
            ]
        )

    def _text(self, names: tuple[str, ...]) -> str:
        name = self.random.choice(names)
        return self.random.choice([name, name, f"upper({name})", f"COALESCE({name}, 'none')", f"({name} || '-')"])

    def _condition(self, numbers: tuple[str, ...], texts: tuple[str, ...], depth: int = 2) -> str:
        r = self.random
        number, limit = self._number(numbers, 1), r.randint(-3, 15)
        plain = [f"{number} {r.choice(['<', '<=', '>', '>=', '=', '<>'])} {limit}", f"{number} BETWEEN {limit} AND {limit + 9}"]
        plain += [f"{number} IS {r.choice(['', 'NOT '])}NULL", f"{number} {r.choice(['', 'NOT '])}IN (1, 2, {limit})"]
        if texts:
            text = r.choice(texts)
            plain += [f"{text} = 'a'", f"{text} IN ('a', 'b')", f"{text} IS NULL", f"{text} LIKE '%b'", f"{text} <> 'c'"]
            plain += [f"{text} IS NOT DISTINCT FROM {r.choice(texts)}"]
        if depth == 0 or r.random() < 0.5:
            return r.choice(plain)
        one, other = (self._condition(numbers, texts, depth - 1) for _ in range(2))
        return r.choice([f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})"])

    def _where(self, numbers: tuple[str, ...], texts: tuple[str, ...]) -> str:
        return f" WHERE {self._condition(numbers, texts)}" if self.random.random() < 0.5 else ""

    def _aggregate(self, numbers: tuple[str, ...], texts: tuple[str, ...]) -> str:
        r = self.random
        number = self._number(numbers, 1)
        call = r.choice(
            [
                *("COUNT(*)", f"COUNT({number})", f"SUM({number})", f"MIN({number})", f"MAX({number})", f"AVG({number})"),
                *(f"COUNT(DISTINCT {number})", f"MAX({r.choice(texts)})" if texts else "COUNT(1)"),
            ]
        )
        return f"{call} FILTER (WHERE {self._condition(numbers, texts, 1)})" if r.random() < 0.3 else call

    # Sources

    def _table(self, name: str | None = None) -> Source:
        """Return a registered stream, or a query in brackets over it."""
        r = self.random
        name = name or r.choice("ab")
        if r.random() < 0.6:
            return Source(name, name, ("v", "w", "nr"), ("k", "s"))
        number = self._number(("v", "w", "nr"), 1)
        where = self._where(("v", "w", "nr"), ("k", "s"))
        query = f"(SELECT k, s, {number} AS v, w, ts, nr FROM {name}{where})"
        return Source(query, query, ("v", "w", "nr"), ("k", "s"))

    def _in_windows(self, source: Source) -> Source:
        """Return the rows of a source with the bounds of windows."""
        r = self.random
        data = source.ours if source.ours.startswith("(") else f"TABLE {source.ours}"
        size = r.choice([20, 30, 60]) * 1_000
        offset = r.choice([0, 0, 7_000])
        more = f", INTERVAL '{offset // 1000}' SECOND" if offset else ""
        seconds = f"INTERVAL '{size // 1000}' SECOND"
        begin = f"(ts - (((ts - {offset}) % {size}) + {size}) % {size})"
        kind = r.choice(["TUMBLE", "TUMBLE", "HOP", "CUMULATE"])
        if kind == "TUMBLE":
            ours = f"TABLE(TUMBLE({data}, DESCRIPTOR(ts), {seconds}{more}))"
            theirs = f"(SELECT *, {begin} AS window_start, {begin} + {size} AS window_end FROM {source.theirs})"
            return attrs.evolve(source, ours=ours, theirs=theirs, windowed=True)
        step = r.choice([10, 20] if size != 30_000 else [10, 15]) * 1_000
        steps = f"INTERVAL '{step // 1000}' SECOND"
        if kind == "HOP":
            ours = f"TABLE(HOP({data}, DESCRIPTOR(ts), {steps}, {seconds}{more}))"
            first = f"(ts - (((ts - {offset}) % {step}) + {step}) % {step})"
            numbers = ", ".join(f"({i})" for i in range(-(-size // step)))
            theirs = (
                f"(SELECT * EXCLUDE (i), {first} - {step} * i AS window_start, {first} - {step} * i + {size} AS window_end "
                f"FROM {source.theirs}, (VALUES {numbers}) AS steps(i) WHERE {first} - {step} * i + {size} > ts)"
            )
            return attrs.evolve(source, ours=ours, theirs=theirs, windowed=True, hops=True)
        size = -(-size // step) * step
        begin = f"(ts - (((ts - {offset}) % {size}) + {size}) % {size})"
        ours = f"TABLE(CUMULATE({data}, DESCRIPTOR(ts), {steps}, INTERVAL '{size // 1000}' SECOND{more}))"
        numbers = ", ".join(f"({i})" for i in range(1, size // step + 1))
        theirs = (
            f"(SELECT * EXCLUDE (i), {begin} AS window_start, {begin} + {step} * i AS window_end "
            f"FROM {source.theirs}, (VALUES {numbers}) AS steps(i) WHERE {begin} + {step} * i > ts)"
        )
        return attrs.evolve(source, ours=ours, theirs=theirs, windowed=True, hops=True)

    def _groups(self, having: bool = True) -> tuple[Source, str]:
        """Return a query that groups, with its columns: keys, bounds, aggregates n and m."""
        r = self.random
        source = self._in_windows(self._table())
        numbers, texts = source.numbers, source.texts
        keys = r.choice([[], ["k"], ["k"], ["k", "s"], ["s"]])
        items = [*keys, "window_start", "window_end"]
        one, other = (self._aggregate(numbers, texts).replace("MAX(k)", "COUNT(k)").replace("MAX(s)", "COUNT(s)") for _ in "nm")
        where = self._where(numbers, texts)
        tail = f"{where} GROUP BY {', '.join(r.sample(items, len(items)))}"
        if having and r.random() < 0.4:
            tail += f" HAVING {self._condition((one, other, 'COUNT(*)'), tuple(keys), 1)}"
        text = f"SELECT {', '.join(items)}, {one} AS n, {other} AS m FROM {{}}{tail}"
        pair = Source(text.format(source.ours), text.format(source.theirs), ("n", "m"), tuple(keys), True, source.hops)
        return pair, tail

    # Queries

    def _rows(self) -> Pair:
        source = self._table()
        items = [f"{self._number(source.numbers)} AS x", f"{self._text(source.texts)} AS y", "nr"]
        text = f"SELECT {', '.join(items)} FROM {{}} AS t{self._where(source.numbers, source.texts)}"
        return Pair(text.format(source.ours), text.format(source.theirs))

    def _grouped(self) -> Pair:
        source, _ = self._groups()
        if self.random.random() < 0.5:
            return Pair(source.ours, source.theirs)
        where = self._where(source.numbers, source.texts)
        text = f"SELECT window_start, {self._number(source.numbers)} AS x, n FROM ({{}}) AS g{where}"
        return Pair(text.format(source.ours), text.format(source.theirs))

    def _twice(self) -> Pair:
        """Return groups of the results of the same windows."""
        source, _ = self._groups()
        text = f"SELECT window_start, window_end, {self._aggregate(source.numbers, source.texts)} AS x FROM ({{}}) AS g"
        text += f"{self._where(source.numbers, source.texts)} GROUP BY window_start, window_end"
        return Pair(text.format(source.ours), text.format(source.theirs))

    def _later(self) -> Pair:
        """Return larger windows over results, by their time."""
        source, _ = self._groups()
        item = self._aggregate(source.numbers, source.texts)
        ours = f"SELECT tumble_start(window_time, INTERVAL '2' MINUTE) AS b, {item} AS x FROM ({source.ours}) AS g "
        begin = "(window_end - 1 - (((window_end - 1) % 120000) + 120000) % 120000)"
        where = self._where(source.numbers, source.texts)
        ours += f"{where} GROUP BY tumble(window_time, INTERVAL '2' MINUTE)"
        return Pair(ours, f"SELECT {begin} AS b, {item} AS x FROM ({source.theirs}) AS g{where} GROUP BY {begin}")

    def _ranked(self) -> Pair:
        r = self.random
        source = self._in_windows(self._table())
        by = self._number(source.numbers, 1)
        keys = r.choice(["", ", k", ", k, s"])
        order = r.choice([f"{by} DESC NULLS LAST, nr NULLS LAST", f"{by} NULLS LAST, nr DESC NULLS LAST"])
        rank = f"ROW_NUMBER() OVER (PARTITION BY window_start, window_end{keys} ORDER BY {order})"
        where = self._where(source.numbers, source.texts)
        inner = f"SELECT nr, window_start, k, v, window_end, {rank} AS place FROM {{}}{where}"
        text = f"SELECT * FROM ({inner}) AS t WHERE place <= {r.randint(1, 3)}"
        return Pair(text.format(source.ours), text.format(source.theirs))

    def _over(self) -> Pair:
        r = self.random
        source = self._table()
        by = r.choice(["PARTITION BY k ", "PARTITION BY k, s ", ""])
        call = r.choice(["SUM", "COUNT", "MIN", "MAX"])
        size = r.choice([1, 20, 60])
        frame = f"({by}ORDER BY ts RANGE BETWEEN {{}} PRECEDING AND CURRENT ROW)"
        number, where = self._number(source.numbers, 1), self._where(source.numbers, source.texts)
        text = f"SELECT nr, {call}({number}) OVER {{}} AS x FROM {{}}{where}"
        ours = text.format(frame.format(f"INTERVAL '{size}' SECOND"), source.ours)
        return Pair(ours, text.format(frame.format(size * 1_000), source.theirs))

    def _distinct(self) -> Pair:
        source = self._in_windows(self._table())
        items = self.random.choice(["k", "k, s", "s, k IS NULL AS z"])
        text = f"SELECT DISTINCT window_start, window_end, {items} FROM {{}}{self._where(source.numbers, source.texts)}"
        return Pair(text.format(source.ours), text.format(source.theirs))

    def _sides(self) -> tuple[Source, Source, tuple[str, ...], tuple[str, ...]]:
        left, right = self._table("a"), self._table("b")
        return left, right, tuple(f"{t}.{n}" for t in "lr" for n in left.numbers), tuple(f"{t}.{n}" for t in "lr" for n in "ks")

    def _near(self) -> tuple[str, str]:
        r = self.random
        low, high = r.choice([(0, 30), (-5, 30), (-20, -1), (0, 0)])
        one = f"r.ts BETWEEN l.ts + {low * 1000} AND l.ts + {high * 1000}"
        ours = r.choice(
            [
                one,
                f"r.ts BETWEEN l.ts {'-' if low < 0 else '+'} INTERVAL '{abs(low)}' SECOND AND l.ts + {high * 1000}",
                f"r.ts >= l.ts + {low * 1000} AND l.ts >= r.ts - {high * 1000}",
            ]
        )
        return ours, one

    def _interval(self) -> Pair:
        r = self.random
        left, right, numbers, texts = self._sides()
        how = r.choice(
            ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", ",", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        )
        key, (near, plain) = r.choice(["l.k = r.k", "l.k = r.k AND l.s = r.s", "upper(l.k) = r.k"]), self._near()
        alone = ""
        if r.random() < 0.5:
            side = r.choice("lr")
            alone = " AND " + self._condition((f"{side}.v", f"{side}.nr"), (f"{side}.k",), 1)
        items = "l.nr AS x, r.nr AS y, l.k AS a, r.k AS b"
        rest = ""
        if how in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            items, word = "l.nr AS x, l.k AS a", how.split()[1]
            theirs = f"SELECT {items} FROM {left.theirs} l {word} JOIN {right.theirs} r ON {key} AND {plain}{alone}"
            return Pair(f"SELECT {items} FROM {left.ours} l {how} {right.ours} r ON {key} AND {near}{alone}", theirs)
        if r.random() < 0.4:
            rest = self._condition(numbers, texts, 1)
        if how in ("CROSS JOIN", ","):
            where = f"{key} AND {near}{alone}{' AND ' + rest if rest else ''}"
            ours = f"SELECT {items} FROM {left.ours} l {how} {right.ours} r WHERE {where}"
            return Pair(ours, f"SELECT {items} FROM {left.theirs} l, {right.theirs} r WHERE {where.replace(near, plain)}")
        if how == "JOIN" and r.random() < 0.5:
            parts = [key, near]
            r.shuffle(parts)
            more = f"{alone}{' AND ' + rest if rest else ''}"
            ours = f"SELECT {items} FROM {left.ours} l JOIN {right.ours} r ON {parts[0]} WHERE {parts[1]}{more}"
            return Pair(ours, f"SELECT {items} FROM {left.theirs} l, {right.theirs} r WHERE {key} AND {plain}{more}")
        text = f"SELECT {items} FROM {{}} l {how} {{}} r ON {key} AND {{}}{alone}{' WHERE ' + rest if rest else ''}"
        return Pair(text.format(left.ours, right.ours, near), text.format(left.theirs, right.theirs, plain))

    def _bounds(self) -> tuple[Source, Source]:
        while True:
            state = self.random.getstate()
            left = self._in_windows(self._table("a"))
            self.random.setstate(state)
            right = self._in_windows(self._table("a"))
            if "CUMULATE" not in left.ours:
                swap = [t.replace("FROM a", "FROM b").replace("TABLE a", "TABLE b") for t in (right.ours, right.theirs)]
                return left, attrs.evolve(right, ours=swap[0], theirs=swap[1])
            self.random.random()

    def _windows(self) -> Pair:
        """Return a join of rows of the same windows; a side without a row has no bounds."""
        r = self.random
        left, right = self._bounds()
        how = r.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        on = "l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"
        items = "l.nr AS x, r.nr AS y, l.window_start AS a, r.window_start AS b, r.window_end IS NULL AS c, l.k AS d"
        where = r.choice(
            ["", "", " WHERE r.window_start IS NULL", " WHERE l.window_end IS NOT NULL", " WHERE l.v > 3 OR r.v < 2"]
        )
        text = f"SELECT {items} FROM {{}} l {how} {{}} r ON {on}{where}"
        if r.random() < 0.4:
            bound = {"JOIN": "l.{}", "LEFT JOIN": "l.{}", "RIGHT JOIN": "r.{}", "FULL JOIN": "COALESCE(l.{0}, r.{0})"}[how]
            start, end = bound.format("window_start"), bound.format("window_end")
            item = r.choice(["COUNT(l.window_start)", "COUNT(r.window_end)", "MAX(r.v)", "SUM(l.v)", "COUNT(DISTINCT r.k)"])
            key = r.choice(["", "", ", l.k", ", r.s"])
            items, groups = f"{start} AS a, {item} AS n, COUNT(*) AS m", f"GROUP BY {start}, {end}{key}"
            text = f"SELECT {items} FROM {{}} l {how} {{}} r ON {on}{where} {groups}"
        return Pair(text.format(left.ours, right.ours), text.format(left.theirs, right.theirs))

    def _counts_joined(self) -> Pair:
        """Return a join of results of the same windows."""
        r = self.random
        left, right = self._bounds()
        groups = "(SELECT k, window_start, window_end, COUNT(*) AS n, SUM(v) AS m FROM {} GROUP BY k, window_start, window_end)"
        how = r.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        where = r.choice(["", " WHERE r.n IS NULL", " WHERE r.window_start IS NULL OR l.n > 1", " WHERE l.n <> r.n"])
        text = (
            f"SELECT l.k AS a, r.k AS b, l.n AS n, r.m AS m, l.window_start AS c, r.window_end AS d FROM {groups} l "
            f"{how} {groups} r ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end{where}"
        )
        return Pair(text.format(left.ours, right.ours), text.format(left.theirs, right.theirs))

    def _version(self) -> Pair:
        r = self.random
        how, limit = r.choice(["JOIN", "LEFT JOIN"]), r.choice(["", " AND r.ts >= l.ts - 60000"])
        ours = f"SELECT l.nr AS x, r.nr AS y FROM a l {how} b FOR SYSTEM_TIME AS OF l.ts AS r ON l.k = r.k{limit}"
        rest = r.choice(["", " WHERE r.v > 3", " WHERE l.v = r.v"]) if how == "JOIN" else ""
        theirs = (
            "SELECT x, y FROM (SELECT l.nr AS x, r.nr AS y, l.v AS lv, r.v AS rv, ROW_NUMBER() OVER (PARTITION BY l.nr "
            f"ORDER BY r.ts DESC, r.nr DESC) AS place FROM a l {how} b r ON l.k = r.k AND r.ts <= l.ts{limit}) WHERE place = 1"
        )
        return Pair(ours + rest, theirs + rest.replace("WHERE", "AND").replace("r.v", "rv").replace("l.v", "lv"))

    def _lookup(self) -> Pair:
        r = self.random
        source = self._table("a")
        how = r.choice(["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "EXISTS", "NOT EXISTS", "IN"])
        key = r.choice(["t.k = d.k", "t.k = d.k AND t.v = d.n", "upper(t.k) = upper(d.k)"])
        rest = self._condition(("t.v", "t.nr"), ("t.k",), 1)
        if how in ("EXISTS", "NOT EXISTS"):
            text = f"SELECT nr FROM {{}} t WHERE {how} (SELECT 1 FROM d WHERE {key}) AND {rest}"
        elif how == "IN":
            text = f"SELECT nr FROM {{}} t WHERE t.k IN (SELECT k FROM d) AND {rest}"
        else:
            items = "nr, d.n AS n" if how in ("JOIN", "LEFT JOIN") else "nr"
            text = f"SELECT {items} FROM {{}} t {how} d ON {key} WHERE {rest}"
        theirs = text.format(source.theirs).replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
        return Pair(text.format(source.ours), theirs)

    def _exists(self) -> Pair:
        r = self.random
        near, plain = self._near()
        no, rest = r.choice(["", "NOT "]), self._condition(("l.v", "l.nr"), ("l.k",), 1)
        text = f"SELECT nr, v FROM a l WHERE {no}EXISTS (SELECT 1 FROM b r WHERE l.k = r.k AND {{}} AND r.v > 2) AND {rest}"
        return Pair(text.format(near), text.format(plain))

    def _joined_grouped(self) -> Pair:
        """Return groups of what a join gives."""
        near, plain = self._near()
        item = self._aggregate(("v", "w"), ("k",))
        inner = "SELECT l.k AS k, l.v AS v, r.v AS w, {} AS t FROM a l JOIN b r ON l.k = r.k AND {}"
        text = f"SELECT k, {item} AS x FROM ({inner}) AS j"
        ours = text.format("join_time", near) + " GROUP BY k, tumble(t, INTERVAL '1' MINUTE)"
        return Pair(ours, text.format("greatest(l.ts, r.ts)", plain) + " GROUP BY k, t // 60000")

    def _united(self) -> Pair:
        number = self._number(("v", "w", "nr"), 1)
        where = self._where(("v", "w", "nr"), ("k", "s"))
        union = f"(SELECT k, ts, {number} AS v FROM a{where} UNION ALL SELECT s, ts, w FROM b) AS u"
        if self.random.random() < 0.5:
            union = f"(SELECT upper(k) AS k, ts, v FROM {union}{self._where(('v',), ('k',))}) AS u"
        item = self._aggregate(("v",), ("k",))
        ours = f"SELECT k, {item} AS x FROM {union} GROUP BY k, tumble(ts, INTERVAL '1' MINUTE)"
        return Pair(ours, f"SELECT k, {item} AS x FROM {union} GROUP BY k, ts // 60000")
