"""Functions as methods of expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from krishiv_py.plan.expressions.more_methods import MoreMethods

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Func

TruncUnit: TypeAlias = Literal[
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"
]


class FunctionMethods(MoreMethods):
    """What can be called on an expression; each is Spark's function of that name (docs/expressions.md)."""

    __slots__ = ()

    def lower(self) -> Func:
        """The text in lower case."""
        return self._call("lower")

    def upper(self) -> Func:
        """The text in upper case; one letter may become two."""
        return self._call("upper")

    def length(self) -> Func:
        """Characters of a text, bytes of binary."""
        return self._call("length")

    def starts_with(self, part: object) -> Func:
        """Whether the text starts with `part`, a column or constant."""
        return self._call("starts_with", part)

    def ends_with(self, part: str) -> Func:
        """Whether the text ends with `part`, a constant."""
        return self._call("ends_with", part)

    def contains(self, part: object) -> Func:
        """Whether `part`, a column or constant, lies in the text."""
        return self._call("contains", part)

    def like(self, pattern: str) -> Func:
        r"""Whether the whole text is like `pattern`: ``%`` any text, ``_`` one character, ``\%`` a percent sign."""
        return self._call("like", pattern)

    def ilike(self, pattern: str) -> Func:
        """:meth:`like` `pattern`, upper and lower case alike."""
        return self._call("ilike", pattern)

    def rlike(self, pattern: str) -> Func:
        """Whether a part of the text matches Java's regular expression `pattern`.

        Raises
        ------
        ExpressionError
            For a pattern that cannot be evaluated as Spark does: look-around, back references, flags, word bounds.
        """
        return self._call("rlike", pattern)

    def regexp_extract(self, pattern: str, group: int = 1) -> Func:
        """The group numbered `group` (0: all) of the first match of `pattern`; empty text where nothing matches."""
        return self._call("regexp_extract", pattern, group)

    def regexp_replace(self, pattern: str, by: str) -> Func:
        """Every match of `pattern` replaced `by` a text, in which ``$1`` is the first group."""
        return self._call("regexp_replace", pattern, by)

    def split(self, pattern: str) -> Func:
        """A list of the texts between matches of the regular expression `pattern`; ``.split("/")[0]`` is the first."""
        return self._call("split", pattern)

    def substring(self, start: int, length: int | None = None) -> Func:
        """At most `length` characters from place `start` on, which counts from 1, below 0 from the end."""
        return self._call("substring", start) if length is None else self._call("substring", start, length)

    def trim(self, characters: str = " ") -> Func:
        """Without blanks, or without `characters`, at both ends."""
        return self._call("trim") if isinstance(characters, str) and characters == " " else self._call("trim", characters)

    def ltrim(self, characters: str = " ") -> Func:
        """:meth:`trim` of `characters` at the begin only."""
        return self._call("ltrim") if isinstance(characters, str) and characters == " " else self._call("ltrim", characters)

    def rtrim(self, characters: str = " ") -> Func:
        """:meth:`trim` of `characters` at the end only."""
        return self._call("rtrim") if isinstance(characters, str) and characters == " " else self._call("rtrim", characters)

    def concat(self, *others: object) -> Func:
        """The text, then `others`, columns or constants; null if one is null."""
        return self._call("concat", *others)

    def abs(self) -> Func:
        """The number without its sign."""
        return self._call("abs")

    def round(self, digits: int = 0) -> Func:
        """Rounded half away from zero to `digits` after the point; below 0 to tens."""
        return self._call("round", digits)

    def width_bucket(self, low: object, high: object, n: object) -> Func:
        """The number of the part that the number is in when `low` to `high` is cut into `n`: 0 below, n + 1 above them."""
        return self._call("width_bucket", low, high, n)

    def nullif(self, other: object) -> Func:
        """Null where it equals `other`."""
        return self._call("nullif", other)

    def getitem(self, place: object) -> Func:
        """The element of a list at `place`, a column or constant that counts from 0; an error where the list is shorter.

        Of a map, the value of the key `place`, a constant; null where there is no such key.
        """
        return self._call("item", place)

    def __getitem__(self, place: object) -> Func:
        return self._call("item", place)

    __iter__ = None  # an index alone would make it a sequence without an end

    def year(self, time_zone: str = "UTC") -> Func:
        """The year of a date or time; ``int``, as all such parts, as a clock in the `time_zone` shows it."""
        return self._in_zone("year", time_zone)

    def quarter(self, time_zone: str = "UTC") -> Func:
        """The quarter, 1 to 4, as a clock in the `time_zone` shows it."""
        return self._in_zone("quarter", time_zone)

    def month(self, time_zone: str = "UTC") -> Func:
        """The month, 1 to 12, as a clock in the `time_zone` shows it."""
        return self._in_zone("month", time_zone)

    def weekofyear(self, time_zone: str = "UTC") -> Func:
        """The ISO week of the year, 1 to 53, as a clock in the `time_zone` shows it."""
        return self._in_zone("weekofyear", time_zone)

    def day(self, time_zone: str = "UTC") -> Func:
        """The day of the month, 1 to 31, as a clock in the `time_zone` shows it."""
        return self._in_zone("day", time_zone)

    def dayofyear(self, time_zone: str = "UTC") -> Func:
        """The day of the year, 1 to 366, as a clock in the `time_zone` shows it."""
        return self._in_zone("dayofyear", time_zone)

    def dayofweek(self, time_zone: str = "UTC") -> Func:
        """The day of the week: 1 is Sunday, 7 Saturday, as a clock in the `time_zone` shows it."""
        return self._in_zone("dayofweek", time_zone)

    def hour(self, time_zone: str = "UTC") -> Func:
        """The hour, 0 to 23, as a clock in the `time_zone` shows it."""
        return self._in_zone("hour", time_zone)

    def minute(self, time_zone: str = "UTC") -> Func:
        """The minute, 0 to 59, as a clock in the `time_zone` shows it."""
        return self._in_zone("minute", time_zone)

    def second(self, time_zone: str = "UTC") -> Func:
        """The second, 0 to 59, as a clock in the `time_zone` shows it."""
        return self._in_zone("second", time_zone)

    def date_add(self, days: object) -> Func:
        """The date so many `days` later; a column or constant."""
        return self._call("date_add", days)

    def date_sub(self, days: object) -> Func:
        """The date so many `days` earlier; a column or constant."""
        return self._call("date_sub", days)

    def datediff(self, start: object) -> Func:
        """Days from `start` to this date."""
        return self._call("datediff", start)

    def add_months(self, months: object) -> Func:
        """The date so many `months` later; the last day of a month that is too short."""
        return self._call("add_months", months)

    def plus_months(self, months: object) -> Func:
        """A date, or a time with its time of day, so many `months` later: ``x + INTERVAL 1 MONTH`` in text."""
        return self._call("plus_months", months)

    def plus_days(self, days: object) -> Func:
        """A date, or a time, so many `days` later: ``x + INTERVAL 1 DAY`` in text."""
        return self._call("plus_days", days)

    def last_day(self) -> Func:
        """The last day of the month the date lies in."""
        return self._call("last_day")

    def date_format(self, pattern: str, time_zone: str = "UTC") -> Func:
        """The time by a `pattern` such as ``"yyyy-MM-dd HH:mm"``, as a clock in the `time_zone` shows it."""
        return self._in_zone("date_format", time_zone, pattern)

    def from_utc_timestamp(self, time_zone: str) -> Func:
        """What a clock in the `time_zone` shows when it is this time in UTC, as a ``timestamp``."""
        return self._call("from_utc_timestamp", time_zone)

    def to_utc_timestamp(self, time_zone: str) -> Func:
        """The time in UTC when a clock in the `time_zone` shows this, as a ``timestamp``.

        A time that the clock skips counts as if it had not been put forward yet; of one that it shows twice, the first counts.
        """
        return self._call("to_utc_timestamp", time_zone)

    def at_time_zone(self, time_zone: str) -> Func:
        """Of a ``timestamp`` what a clock in the `time_zone` shows, a ``timestamp_ntz``; of a ``timestamp_ntz`` the instant.

        In SQL text: ``at AT TIME ZONE 'Europe/Berlin'``.
        """
        return self._call("at_time_zone", time_zone)

    def _in_zone(self, name: str, time_zone: str, *more: object) -> Func:
        """The function of this name of what a clock in the zone shows."""
        if isinstance(time_zone, str) and time_zone == "UTC":
            return self._call(name, *more)
        return self.from_utc_timestamp(time_zone)._call(name, *more)

    def from_unixtime(self, pattern: str = "yyyy-MM-dd HH:mm:ss") -> Func:
        """Whole seconds since 1970 as a time, written by a `pattern`."""
        return self._call("from_unixtime", pattern)

    def unix_seconds(self) -> Func:
        """Whole seconds from 1970 to the time, as :meth:`unix_millis` and :meth:`unix_micros` count theirs."""
        return self._call("unix_seconds")

    def unix_millis(self) -> Func:
        """Whole milliseconds from 1970 to the time."""
        return self._call("unix_millis")

    def unix_micros(self) -> Func:
        """Microseconds from 1970 to the time."""
        return self._call("unix_micros")

    def element_at(self, place: object) -> Func:
        """The element of a list at `place`, which counts from 1, below 0 from the end; of a map, the value of a key."""
        return self._call("element_at", place)

    def from_json(self, schema: str) -> Func:
        """The text as a struct of a DDL `schema`: ``col("body").from_json("id bigint, tags array<string>").field("id")``.

        Fields that are missing or do not fit are null; of a text that is no JSON object, all are.
        """
        return self._call("from_json", schema)

    def size(self) -> Func:
        """How many elements a list or map has."""
        return self._call("size")

    def lpad(self, length: int, by: str = " ") -> Func:
        """The text with `by` before it, again and again, or cut, so that it has `length` characters."""
        return self._call("lpad", length, by)

    def rpad(self, length: int, by: str = " ") -> Func:
        """The text with `by` behind it, again and again, or cut, so that it has `length` characters."""
        return self._call("rpad", length, by)

    def split_part(self, delimiter: str, part: int) -> Func:
        """The `part` between delimiters, counted from 1, below 0 from the end; `delimiter` is plain text."""
        return self._call("split_part", delimiter, part)

    def regexp_count(self, pattern: str) -> Func:
        """How often the regular expression `pattern` matches."""
        return self._call("regexp_count", pattern)

    def array_contains(self, value: object) -> Func:
        """Whether a list has `value`, a column or constant, among its elements; null if it is not found beside a null."""
        return self._call("array_contains", value)
