"""Functions as methods of columns, from krishiv_py/functions: ``python -m scripts.functions`` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_py.plan.expressions.called import Calls, Pair, Single, TruncUnit, unless

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Func


class TextMethods(Calls):
    """Functions of text as methods."""

    __slots__ = ()

    def concat(self, *others: object) -> Func:
        """Return the text, bytes or list, then `others`, columns or constants; null if one is null.

        SQL text: ``'a' || 'b'`` is ``ab``.
        """
        return self._call("concat", *others)

    def contains(self, part: object) -> Func:
        """Return whether `part`, a column or constant, lies in the text.

        SQL text: ``contains('abc', 'b')`` is true.
        """
        return self._call("contains", part)

    def ends_with(self, part: str) -> Func:
        """Return whether the text ends with `part`, a constant.

        SQL text: ``endswith('abc', 'bc')`` is true.
        """
        return self._call("ends_with", part)

    def ilike(self, pattern: str) -> Func:
        """Return what ``like`` does with this `pattern`, upper and lower case alike.

        SQL text: ``'abc' ILIKE 'A%'`` is true.
        """
        return self._call("ilike", pattern)

    def instr(self, part: object) -> Func:
        """Return the place of the first character of `part`, a column or constant, from 1 on; 0 if it is not in the text.

        SQL text: ``instr('abc', 'c')`` is 3.
        """
        return self._call("instr", part)

    def length(self) -> Func:
        """Return the number of characters of a text, of bytes of binary.

        SQL text: ``length('日本')`` is 2.
        """
        return self._call("length")

    def like(self, pattern: str) -> Func:
        r"""Return whether the whole text is like `pattern`: ``%`` is any text, ``_`` one character, ``\%`` a percent sign.

        SQL text: ``'abc' LIKE 'a%'`` is true.
        """
        return self._call("like", pattern)

    def lower(self) -> Func:
        """Return the text in lower case.

        SQL text: ``lower('ÅB')`` is ``åb``.
        """
        return self._call("lower")

    def lpad(self, length: int, by: str = " ") -> Func:
        """Return the text with `by` before it, again and again, or cut, so that it has `length` characters.

        SQL text: ``lpad('7', 3, '0')`` is ``007``.
        """
        return self._call("lpad", length, by)

    def ltrim(self, characters: str = " ") -> Func:
        """Return the text without blanks, or without `characters`, at the beginning only.

        SQL text: ``ltrim('  a')`` is ``a``.
        """
        return self._call("ltrim", *unless(characters, " "))

    def octet_length(self) -> Func:
        """Return the number of bytes of binary, or of a text as UTF-8.

        SQL text: ``octet_length('日本')`` is 6.
        """
        return self._call("octet_length")

    def regexp_count(self, pattern: str) -> Func:
        """Return how often the regular expression `pattern` matches.

        SQL text: ``regexp_count('banana', 'an')`` is 2.
        """
        return self._call("regexp_count", pattern)

    def regexp_extract(self, pattern: str, group: int = 1) -> Func:
        """Return the group numbered `group` (0: all) of the first match of `pattern`; empty text where nothing matches.

        SQL text: ``regexp_extract('a-7', '([a-z])-([0-9])', 2)`` is ``7``.
        """
        return self._call("regexp_extract", pattern, group)

    def regexp_replace(self, pattern: str, by: str) -> Func:
        """Return the text with every match of `pattern` replaced `by` a text, in which ``$1`` is the first group.

        SQL text: ``regexp_replace('a7', '([0-9])', '-$1')`` is ``a-7``.
        """
        return self._call("regexp_replace", pattern, by)

    def repeat(self, times: int) -> Func:
        """Return the text so many `times`.

        SQL text: ``repeat('ab', 2)`` is ``abab``.
        """
        return self._call("repeat", times)

    def replace(self, part: str, by: str = "") -> Func:
        """Return the text with every `part`, a plain text, exchanged for the text `by`.

        SQL text: ``replace('aXb', 'X', '-')`` is ``a-b``.
        """
        return self._call("replace", part, by)

    def reverse(self) -> Func:
        """Return the characters of the text, or the elements of the list, from the end on.

        SQL text: ``reverse('abc')`` is ``cba``.
        """
        return self._call("reverse")

    def rlike(self, pattern: str) -> Func:
        """Return whether a part of the text matches Java's regular expression `pattern`.

        SQL text: ``'abc' RLIKE 'b+'`` is true.

        Raises
        ------
        ExpressionError
            For a pattern that cannot be evaluated as Spark does: look-around, back references, flags, word bounds.
        """
        return self._call("rlike", pattern)

    def rpad(self, length: int, by: str = " ") -> Func:
        """Return the text with `by` after it, again and again, or cut, so that it has `length` characters.

        SQL text: ``rpad('7', 3, '0')`` is ``700``.
        """
        return self._call("rpad", length, by)

    def rtrim(self, characters: str = " ") -> Func:
        """Return the text without blanks, or without `characters`, at the end only.

        SQL text: ``TRIM(TRAILING 'x' FROM 'axx')`` is ``a``.
        """
        return self._call("rtrim", *unless(characters, " "))

    def split(self, pattern: str) -> Func:
        """Return the list of the texts between matches of the regular expression `pattern`; ``.split("/")[0]`` is the first.

        SQL text: ``split('a/b', '/')`` is ``[a, b]``.
        """
        return self._call("split", pattern)

    def split_part(self, delimiter: str, part: int) -> Func:
        """Return the `part` between delimiters, counted from 1, below 0 from the end; `delimiter` is plain text.

        SQL text: ``split_part('a.b.c', '.', -1)`` is ``c``.
        """
        return self._call("split_part", delimiter, part)

    def starts_with(self, part: object) -> Func:
        """Return whether the text starts with `part`, a column or constant.

        SQL text: ``startswith('abc', 'ab')`` is true.
        """
        return self._call("starts_with", part)

    def substring(self, start: int, length: int | None = None) -> Func:
        """Return at most `length` characters from place `start` on, which counts from 1, below 0 from the end.

        SQL text: ``substring('abcd', 2, 2)`` is ``bc``.
        """
        return self._call("substring", start, *unless(length, None))

    def translate(self, characters: str, by: str) -> Func:
        """Return the text with each of the `characters` exchanged for the one at its place in `by`, or left out.

        SQL text: ``translate('abc', 'ab', 'x')`` is ``xc``.
        """
        return self._call("translate", characters, by)

    def trim(self, characters: str = " ") -> Func:
        """Return the text without blanks, or without `characters`, at both ends.

        SQL text: ``trim(' a ')`` is ``a``.
        """
        return self._call("trim", *unless(characters, " "))

    def upper(self) -> Func:
        """Return the text in upper case; one letter may become two.

        SQL text: ``upper('ß')`` is ``SS``.
        """
        return self._call("upper")


class NumberMethods(Calls):
    """Functions of numbers as methods."""

    __slots__ = ()

    def abs(self) -> Func:
        """Return the number without its sign; an error for the smallest integer.

        SQL text: ``abs(-3)`` is 3.
        """
        return self._call("abs")

    def ceil(self) -> Func:
        """Return the least whole number that is not below it: ``bigint``, of a decimal one without digits after the point.

        SQL text: ``ceil(-1.5)`` is -1.
        """
        return self._call("ceil")

    def div(self, divisor: object) -> Func:
        """Return how often an integer `divisor` goes into it, cut off towards zero: ``a DIV b`` in text.

        SQL text: ``-7 DIV 2`` is -3.
        """
        return self._call("div", divisor)

    def exp(self) -> Func:
        """Return the power of e.

        SQL text: ``exp(0)`` is 1.0.
        """
        return self._call("exp")

    def floor(self) -> Func:
        """Return the greatest whole number that is not above it: ``bigint``, of a decimal one without digits after the point.

        SQL text: ``floor(-1.5)`` is -2.
        """
        return self._call("floor")

    def isnan(self) -> Func:
        """Return whether the number is NaN; false for null.

        SQL text: ``isnan(CAST('NaN' AS double))`` is true.
        """
        return self._call("isnan")

    def ln(self) -> Func:
        """Return the natural logarithm; null of 0 and below.

        SQL text: ``ln(1)`` is 0.0.
        """
        return self._call("ln")

    def log10(self) -> Func:
        """Return the logarithm to the base 10; null of 0 and below.

        SQL text: ``log10(1000)`` is 3.0.
        """
        return self._call("log10")

    def log2(self) -> Func:
        """Return the logarithm to the base 2; null of 0 and below.

        SQL text: ``log2(8)`` is 3.0.
        """
        return self._call("log2")

    def pmod(self, divisor: object) -> Func:
        """Return the remainder by `divisor`, moved by it once where it is negative.

        SQL text: ``pmod(-7, 3)`` is 2.
        """
        return self._call("pmod", divisor)

    def pow(self, exponent: object) -> Func:
        """Return the power with an `exponent`, a column or constant.

        SQL text: ``pow(2, 10)`` is 1024.0.
        """
        return self._call("pow", exponent)

    def round(self, digits: int = 0) -> Func:
        """Return the number rounded half away from zero to `digits` after the point; below 0 to tens.

        SQL text: ``round(2.675, 2)`` is 2.68.
        """
        return self._call("round", digits)

    def shiftleft(self, bits: object) -> Func:
        """Return the integer with its `bits` moved to the left.

        SQL text: ``shiftleft(4, 1)`` is 8.
        """
        return self._call("shiftleft", bits)

    def shiftright(self, bits: object) -> Func:
        """Return the integer with its `bits` moved to the right, its sign kept.

        SQL text: ``shiftright(4, 2)`` is 1.
        """
        return self._call("shiftright", bits)

    def shiftrightunsigned(self, bits: object) -> Func:
        """Return the integer with its `bits` moved to the right, and zeros in their place.

        SQL text: ``shiftrightunsigned(4, 2)`` is 1.
        """
        return self._call("shiftrightunsigned", bits)

    def sign(self) -> Func:
        """Return -1.0, 0.0 or 1.0; a zero keeps its sign.

        SQL text: ``sign(-2)`` is -1.0.
        """
        return self._call("sign")

    def sqrt(self) -> Func:
        """Return the square root; NaN of a negative number.

        SQL text: ``sqrt(9)`` is 3.0.
        """
        return self._call("sqrt")

    def width_bucket(self, low: object, high: object, n: object) -> Func:
        """Return the number of the part that the number is in when `low` to `high` is cut into `n`: 0 below, n + 1 above them.

        Null where there are no such parts: `low` equals `high`, a bound is not finite, `n` is below 1, or the value is NaN.

        SQL text: ``width_bucket(5, 0, 10, 4)`` is 3.
        """
        return self._call("width_bucket", low, high, n)


class TimeMethods(Calls):
    """Functions of dates and times as methods."""

    __slots__ = ()

    def add_months(self, months: object) -> Func:
        """Return the date so many `months` later; the last day of a month that is too short.

        SQL text: ``add_months(DATE '2024-01-31', 1)`` is ``2024-02-29``.
        """
        return self._call("add_months", months)

    def at_time_zone(self, time_zone: str) -> Func:
        """Return of a ``timestamp`` what a clock in the `time_zone` shows, without zone; of a ``timestamp_ntz`` the instant.

        In SQL text: ``at AT TIME ZONE 'Europe/Berlin'``.

        SQL text: ``TIMESTAMP '2024-01-31 12:00:00' AT TIME ZONE 'Europe/Berlin'`` is ``2024-01-31 13:00:00``.
        """
        return self._call("at_time_zone", time_zone)

    def date_add(self, days: object) -> Func:
        """Return the date so many `days` later; a column or constant.

        SQL text: ``date_add(DATE '2024-02-28', 2)`` is ``2024-03-01``.
        """
        return self._call("date_add", days)

    def date_format(self, pattern: str, time_zone: str = "UTC") -> Func:
        """Return the time by a `pattern` such as ``"yyyy-MM-dd HH:mm"``, as a clock in the `time_zone` shows it.

        SQL text: ``date_format(TIMESTAMP '2024-02-29 12:30:15.25', 'dd/MM/yyyy HH:mm')`` is ``29/02/2024 12:30``.
        """
        return self._in_zone("date_format", time_zone, pattern)

    def date_sub(self, days: object) -> Func:
        """Return the date so many `days` earlier; a column or constant.

        SQL text: ``date_sub(DATE '2024-03-01', 1)`` is ``2024-02-29``.
        """
        return self._call("date_sub", days)

    def date_trunc(self, unit: TruncUnit, time_zone: str = "UTC") -> Func:
        """Return the instant at which the `unit` of the time began, by a clock in the `time_zone`; weeks begin on Mondays.

        SQL text: ``date_trunc('hour', TIMESTAMP '2024-02-29 12:30:15.25')`` is ``2024-02-29 12:00:00`` UTC.
        """
        return self._call("date_trunc", unit, *unless(time_zone, "UTC"), subject=1)

    def datediff(self, start: object) -> Func:
        """Return the days from `start` to this date.

        SQL text: ``datediff(DATE '2024-03-01', DATE '2024-02-28')`` is 2.
        """
        return self._call("datediff", start)

    def day(self, time_zone: str = "UTC") -> Func:
        """Return the day of the month, 1 to 31, as a clock in the `time_zone` shows it.

        SQL text: ``day(TIMESTAMP '2024-02-29 12:30:15.25')`` is 29.
        """
        return self._in_zone("day", time_zone)

    def dayofweek(self, time_zone: str = "UTC") -> Func:
        """Return the day of the week: 1 is Sunday, 7 Saturday, as a clock in the `time_zone` shows it.

        SQL text: ``dayofweek(TIMESTAMP '2024-02-29 12:30:15.25')`` is 5.
        """
        return self._in_zone("dayofweek", time_zone)

    def dayofyear(self, time_zone: str = "UTC") -> Func:
        """Return the day of the year, 1 to 366, as a clock in the `time_zone` shows it.

        SQL text: ``dayofyear(TIMESTAMP '2024-02-29 12:30:15.25')`` is 60.
        """
        return self._in_zone("dayofyear", time_zone)

    def from_unixtime(self, pattern: str = "yyyy-MM-dd HH:mm:ss") -> Func:
        """Return whole seconds since 1970 as a time, written by a `pattern`.

        SQL text: ``from_unixtime(0)`` is ``1970-01-01 00:00:00``.
        """
        return self._call("from_unixtime", pattern)

    def from_utc_timestamp(self, time_zone: str) -> Func:
        """Return what a clock in the `time_zone` shows when it is this time in UTC.

        SQL text: ``from_utc_timestamp(TIMESTAMP '2024-01-31 12:00:00', 'Europe/Berlin')`` is ``2024-01-31 13:00:00`` UTC.
        """
        return self._call("from_utc_timestamp", time_zone)

    def hour(self, time_zone: str = "UTC") -> Func:
        """Return the hour, 0 to 23, as a clock in the `time_zone` shows it.

        SQL text: ``hour(TIMESTAMP '2024-02-29 12:30:15.25')`` is 12.
        """
        return self._in_zone("hour", time_zone)

    def last_day(self) -> Func:
        """Return the last day of the month the date lies in.

        SQL text: ``last_day(DATE '2024-02-03')`` is ``2024-02-29``.
        """
        return self._call("last_day")

    def minute(self, time_zone: str = "UTC") -> Func:
        """Return the minute, 0 to 59, as a clock in the `time_zone` shows it.

        SQL text: ``minute(TIMESTAMP '2024-02-29 12:30:15.25')`` is 30.
        """
        return self._in_zone("minute", time_zone)

    def month(self, time_zone: str = "UTC") -> Func:
        """Return the month, 1 to 12, as a clock in the `time_zone` shows it.

        SQL text: ``month(TIMESTAMP '2024-02-29 12:30:15.25')`` is 2.
        """
        return self._in_zone("month", time_zone)

    def months_between(self, start: object, round_off: bool = True) -> Func:
        """Return the months from `start` to the date or time, a fraction in 31 days; rounded to eight digits with `round_off`.

        SQL text: ``months_between(DATE '2024-03-31', DATE '2024-02-29')`` is 1.0.
        """
        return self._call("months_between", start, *unless(round_off, True))

    def plus_days(self, days: object) -> Func:
        """Return a date, or a time, so many `days` later: ``x + INTERVAL 1 DAY`` in text.

        SQL text: ``DATE '2024-01-31' + INTERVAL 1 DAY`` is ``2024-02-01``.
        """
        return self._call("plus_days", days)

    def plus_months(self, months: object) -> Func:
        """Return a date, or a time with its time of day, so many `months` later: ``x + INTERVAL 1 MONTH`` in text.

        SQL text: ``DATE '2024-01-31' + INTERVAL 1 MONTH`` is ``2024-02-29``.
        """
        return self._call("plus_months", months)

    def quarter(self, time_zone: str = "UTC") -> Func:
        """Return the quarter, 1 to 4, as a clock in the `time_zone` shows it.

        SQL text: ``quarter(TIMESTAMP '2024-02-29 12:30:15.25')`` is 1.
        """
        return self._in_zone("quarter", time_zone)

    def second(self, time_zone: str = "UTC") -> Func:
        """Return the second, 0 to 59, as a clock in the `time_zone` shows it.

        SQL text: ``second(TIMESTAMP '2024-02-29 12:30:15.25')`` is 15.
        """
        return self._in_zone("second", time_zone)

    def to_date(self, pattern: str | None = None) -> Func:
        """Return the text as a date, written by a `pattern` such as ``"dd/MM/yyyy"``; an error where it is not.

        SQL text: ``to_date('31/01/2024', 'dd/MM/yyyy')`` is ``2024-01-31``.
        """
        return self._call("to_date", *unless(pattern, None))

    def to_timestamp(self, pattern: str | None = None) -> Func:
        """Return the text as a time in UTC, written by a `pattern`; an error where it is not.

        SQL text: ``to_timestamp('31/01/2024', 'dd/MM/yyyy')`` is ``2024-01-31 00:00:00`` UTC.
        """
        return self._call("to_timestamp", *unless(pattern, None))

    def to_utc_timestamp(self, time_zone: str) -> Func:
        """Return the time in UTC when a clock in the `time_zone` shows this.

        A time that the clock skips counts as if it had not been put forward yet; of one that it shows twice, the first counts.

        SQL text: ``to_utc_timestamp(TIMESTAMP '2024-01-31 13:00:00', 'Europe/Berlin')`` is ``2024-01-31 12:00:00`` UTC.
        """
        return self._call("to_utc_timestamp", time_zone)

    def try_to_timestamp(self, pattern: str | None = None) -> Func:
        """Return the text as a time in UTC, written by a `pattern`; null where it is not.

        SQL text: ``try_to_timestamp('soon', 'dd/MM/yyyy')`` is null.
        """
        return self._call("try_to_timestamp", *unless(pattern, None))

    def unix_micros(self) -> Func:
        """Return the microseconds from 1970 to the time.

        SQL text: ``unix_micros(TIMESTAMP '1970-01-01 00:00:02')`` is 2000000.
        """
        return self._call("unix_micros")

    def unix_millis(self) -> Func:
        """Return the whole milliseconds from 1970 to the time.

        SQL text: ``unix_millis(TIMESTAMP '1970-01-01 00:00:02')`` is 2000.
        """
        return self._call("unix_millis")

    def unix_seconds(self) -> Func:
        """Return the whole seconds from 1970 to the time; before 1970 those of the second that contains it.

        SQL text: ``unix_seconds(TIMESTAMP '1970-01-01 00:00:02')`` is 2.
        """
        return self._call("unix_seconds")

    def weekofyear(self, time_zone: str = "UTC") -> Func:
        """Return the ISO week of the year, 1 to 53, as a clock in the `time_zone` shows it.

        SQL text: ``weekofyear(TIMESTAMP '2024-02-29 12:30:15.25')`` is 9.
        """
        return self._in_zone("weekofyear", time_zone)

    def year(self, time_zone: str = "UTC") -> Func:
        """Return the year of a date or time, as a clock in the `time_zone` shows it.

        SQL text: ``year(TIMESTAMP '2024-02-29 12:30:15.25')`` is 2024.
        """
        return self._in_zone("year", time_zone)


class ListMethods(Calls):
    """Functions of lists as methods."""

    __slots__ = ()

    def aggregate(self, start: object, merge: Pair, finish: Single | None = None) -> Func:
        """Return what `merge` makes of `start` and the first element, then of that and the second one, and so on.

        SQL text: ``aggregate(array(1, 2), 0, (acc, x) -> acc + x)`` is 3.

        Parameters
        ----------
        start : Expr or constant
            What is there before the first element; `merge` must give values of its type.
        merge : callable
            Of what is there so far, and an element.
        finish : callable, optional
            Makes the result of what is there in the end.
        """
        return self._call("aggregate", start, merge, *unless(finish, None))

    def array_compact(self) -> Func:
        """Return the list without nulls.

        SQL text: ``array_compact(array(1, NULL))`` is ``[1]``.
        """
        return self._call("array_compact")

    def array_contains(self, value: object) -> Func:
        """Return whether a list has `value`, a column or constant, among its elements; null if it is not found and one is null.

        SQL text: ``array_contains(array(1, 2), 2)`` is true.
        """
        return self._call("array_contains", value)

    def array_distinct(self) -> Func:
        """Return the list without what is equal to an element before. Null equals null, NaN equals NaN.

        SQL text: ``array_distinct(array(1, 2, 1))`` is ``[1, 2]``.
        """
        return self._call("array_distinct")

    def array_except(self, other: object) -> Func:
        """Return the elements that the `other` list does not have, each once.

        SQL text: ``array_except(array(1, 2), array(2, 3))`` is ``[1]``.
        """
        return self._call("array_except", other)

    def array_intersect(self, other: object) -> Func:
        """Return the elements that the `other` list has as well, each once.

        SQL text: ``array_intersect(array(1, 2), array(2, 3))`` is ``[2]``.
        """
        return self._call("array_intersect", other)

    def array_join(self, delimiter: object, null: object = None) -> Func:
        """Return the texts of a list with a `delimiter` between them; nulls are left out, or written as the text `null`.

        SQL text: ``array_join(array('a', NULL, 'b'), '-', '?')`` is ``a-?-b``.
        """
        return self._call("array_join", delimiter, *unless(null, None))

    def array_max(self) -> Func:
        """Return the greatest element; nulls are left out, NaN is the greatest.

        SQL text: ``array_max(array(1, 3, NULL))`` is 3.
        """
        return self._call("array_max")

    def array_min(self) -> Func:
        """Return the least element; nulls are left out.

        SQL text: ``array_min(array(1, 3, NULL))`` is 1.
        """
        return self._call("array_min")

    def array_position(self, value: object) -> Func:
        """Return the place of the first element that equals `value`, from 1 on; 0 if there is none.

        SQL text: ``array_position(array(7, 8), 8)`` is 2.
        """
        return self._call("array_position", value)

    def array_remove(self, value: object) -> Func:
        """Return the list without the elements that equal `value`; nulls stay.

        SQL text: ``array_remove(array(1, 2, 1), 1)`` is ``[2]``.
        """
        return self._call("array_remove", value)

    def array_repeat(self, times: object) -> Func:
        """Return a list of the value so many `times`; empty if the number is below 0.

        SQL text: ``array_repeat('a', 2)`` is ``[a, a]``.
        """
        return self._call("array_repeat", times)

    def array_sort(self, compare: Pair | None = None) -> Func:
        """Return the list in ascending order, nulls last; or as a function says of any two elements.

        SQL text: ``array_sort(array(2, NULL, 1))`` is ``[1, 2, null]``.

        Parameters
        ----------
        compare : callable, optional
            Of two elements, which may be null: a whole number below 0 if the first one comes first, above 0 if the second one
            does, else 0; equal ones keep their order. Null is an error.
        """
        return self._call("array_sort", *unless(compare, None))

    def array_union(self, other: object) -> Func:
        """Return the elements of the list and the `other` one, each once.

        SQL text: ``array_union(array(1, 2), array(2, 3))`` is ``[1, 2, 3]``.
        """
        return self._call("array_union", other)

    def arrays_overlap(self, other: object) -> Func:
        """Return whether the list and the `other` one have an element in common; null if none is found and one is null.

        SQL text: ``arrays_overlap(array(1, 2), array(2, 3))`` is true.
        """
        return self._call("arrays_overlap", other)

    def element_at(self, place: object) -> Func:
        """Return the element of a list at `place`, which counts from 1, below 0 from the end; of a map, the value of a key.

        SQL text: ``element_at(array(7, 8), -1)`` is 8.
        """
        return self._call("element_at", place)

    def exists(self, function: Single) -> Func:
        """Return whether a `function` is true for an element; null if it is for none, and null for one.

        SQL text: ``exists(array(1, 2), x -> x > 1)`` is true.
        """
        return self._call("exists", function)

    def filter(self, function: Single | Pair) -> Func:
        """Return the elements for which a `function`, of the element or of element and place, is true.

        SQL text: ``filter(array(1, 2), x -> x > 1)`` is ``[2]``.
        """
        return self._call("filter", function)

    def flatten(self) -> Func:
        """Return the elements of the lists in a list, as one list; null if one of them is.

        SQL text: ``flatten(array(array(1), array(2, 3)))`` is ``[1, 2, 3]``.
        """
        return self._call("flatten")

    def forall(self, function: Single) -> Func:
        """Return whether a `function` is true for every element; null if it is false for none, and null for one.

        SQL text: ``forall(array(1, 2), x -> x > 1)`` is false.
        """
        return self._call("forall", function)

    def get(self, place: object) -> Func:
        """Return the element of a list at `place`, which counts from 0; null beyond the list.

        SQL text: ``get(array(7, 8), 2)`` is null.
        """
        return self._call("get", place)

    def getitem(self, place: object) -> Func:
        """Return the element of a list at `place`, a column or constant that counts from 0; an error where the list is shorter.

        Of a map, the value of the key `place`, a constant; null where there is no such key.

        SQL text: ``array(7, 8)[0]`` is 7.
        """
        return self._call("item", place)

    def sequence(self, stop: object, step: object = None) -> Func:
        """Return the list of whole numbers, dates or times from this one to `stop`.

        SQL text: ``sequence(1, 7, 3)`` is ``[1, 4, 7]``.

        Parameters
        ----------
        stop : Expr or constant
            The last element, if a `step` meets it.
        step : Expr or constant, optional
            A whole number; of dates and times a ``timedelta``. 1 or a day, backwards where `stop` comes before, by default.
        """
        return self._call("sequence", stop, *unless(step, None))

    def size(self) -> Func:
        """Return how many elements a list or map has.

        SQL text: ``size(array(7, 8))`` is 2.
        """
        return self._call("size")

    def slice(self, start: object, length: object) -> Func:
        """Return at most `length` elements from place `start` on, which counts from 1, below 0 from the end.

        SQL text: ``slice(array(1, 2, 3), 2, 2)`` is ``[2, 3]``.
        """
        return self._call("slice", start, length)

    def sort_array(self, ascending: bool = True) -> Func:
        """Return the list in order, `ascending` with nulls first, else descending with nulls last.

        SQL text: ``sort_array(array(2, NULL, 1), false)`` is ``[2, 1, null]``.
        """
        return self._call("sort_array", ascending)

    def transform(self, function: Single | Pair) -> Func:
        """Return a list of what a `function` gives for each element, or for element and place, which counts from 0.

        SQL text: ``transform(array(1, 2), x -> x + 1)`` is ``[2, 3]``.
        """
        return self._call("transform", function)

    def zip_with(self, other: object, function: Pair) -> Func:
        """Return a list of what a `function` gives for the elements at one place of it and `other`; null where one ends.

        SQL text: ``zip_with(array(1, 2), array(3, 4), (x, y) -> x + y)`` is ``[4, 6]``.
        """
        return self._call("zip_with", other, function)


class MapMethods(Calls):
    """Functions of maps as methods."""

    __slots__ = ()

    def map_contains_key(self, key: object) -> Func:
        """Return whether a map has a `key`.

        SQL text: ``map_contains_key(map('a', 1), 'b')`` is false.
        """
        return self._call("map_contains_key", key)

    def map_filter(self, function: Pair) -> Func:
        """Return the entries of a map for which a `function` of key and value is true.

        SQL text: ``map_filter(map('a', 1, 'b', 2), (k, v) -> v > 1)`` is ``{b: 2}``.
        """
        return self._call("map_filter", function)

    def map_from_arrays(self, values: object) -> Func:
        """Return a map of the list, its keys, to the list `values`; keys that are null, or equal to another one, are errors.

        SQL text: ``map_from_arrays(array('a'), array(1))`` is ``{a: 1}``.
        """
        return self._call("map_from_arrays", values)

    def map_keys(self) -> Func:
        """Return the keys of a map as a list.

        SQL text: ``map_keys(map('a', 1))`` is ``[a]``.
        """
        return self._call("map_keys")

    def map_values(self) -> Func:
        """Return the values of a map as a list.

        SQL text: ``map_values(map('a', 1))`` is ``[1]``.
        """
        return self._call("map_values")

    def transform_values(self, function: Pair) -> Func:
        """Return a map with what a `function` of key and value gives in the place of each value.

        SQL text: ``transform_values(map('a', 1), (k, v) -> v + 1)`` is ``{a: 2}``.
        """
        return self._call("transform_values", function)


class ConditionMethods(Calls):
    """Functions of conditions as methods."""

    __slots__ = ()

    def equal_null(self, other: object) -> Func:
        """Return whether it equals `other`, or both are null; never null. ``a <=> b`` in text, ``IS NOT DISTINCT FROM``.

        SQL text: ``NULL <=> NULL`` is true.
        """
        return self._call("equal_null", other)

    def nullif(self, other: object) -> Func:
        """Return null where it equals `other`, else the value.

        SQL text: ``nullif(2, 2)`` is null.
        """
        return self._call("nullif", other)


class JsonMethods(Calls):
    """Functions of JSON as methods."""

    __slots__ = ()

    def from_json(self, schema: str) -> Func:
        """Return the text as a struct of a DDL `schema`: ``col("body").from_json("id bigint").field("id")``.

        Fields that are missing or do not fit are null; of a text that holds no JSON object, all are.

        SQL text: ``from_json('{"a": 1}', 'a bigint').a`` is 1.
        """
        return self._call("from_json", schema)

    def get_json_object(self, path: str) -> Func:
        """Return what a `path` such as ``"$.user.tags[0]"`` leads to: a text as it is, anything else as JSON; or null.

        SQL text: ``get_json_object('{"a": [7]}', '$.a[0]')`` is ``7``.
        """
        return self._call("get_json_object", path)


class FunctionMethods(TextMethods, NumberMethods, TimeMethods, ListMethods, MapMethods, ConditionMethods, JsonMethods):
    """All functions as methods, each Spark's of that name."""

    __slots__ = ()
