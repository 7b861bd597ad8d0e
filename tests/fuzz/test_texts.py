"""Texts: SQL, expressions, schemas, durations. Shuffled words of the language, and characters of any kind."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import event, example, given
from hypothesis import strategies as st

from krishiv_py.errors import KrishivError
from krishiv_py.plan.durations import to_us
from krishiv_py.testing import stream_of
from tests.fuzz.catalogue import sql
from tests.fuzz.running import SCHEMA, completed, run
from tests.fuzz.test_chains import MANY

LANGUAGE: Final = (
    "SELECT FROM WHERE GROUP BY AND OR NOT IN IS NULL BETWEEN LIKE CASE WHEN THEN ELSE END AS CAST INTERVAL OVER DISTINCT "
    "HAVING ( ) , . * + - / % = < > <> || ' \" ` ; :: [ ] { } 1 0 -1 1.5 1e400 99999999999999999999 0x1F 'a' '5' \"x\" `at` "
    "at when user n amount tags flag events e TUMBLE HOP SESSION tumble_start COUNT SUM AVG MIN MAX PERCENTILE collect_list "
    "SECOND MINUTE '1' '10 seconds' FILTER true false lower upper length abs coalesce round date timestamp string bigint int "
    "double array<int> struct<a:int> map<int,int> decimal(10,2) decimal(99,99) array map<int> decimal(0) SET watermark.lag -- "
    "/* */ \\ \n \t ? @ # $ ^ & | ~ é 漢 \u200b"
)
RIGHT: Final = "SELECT user , COUNT ( * ) AS n FROM events WHERE at > 3 GROUP BY user , tumble ( at , INTERVAL '1' MINUTE )"
WORDS, QUERY = LANGUAGE.split(" "), RIGHT.split(" ")
soup = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
characters = st.text(max_size=40)


@st.composite
def broken_queries(draw: st.DrawFn) -> str:
    """A query that is right but for some words."""
    words = list(QUERY)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(words) - 1))
        words[at : at + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from(WORDS), max_size=2))
        if not words:
            break
    return " ".join(words)


def tried(call: Any) -> None:
    """An error of ours with a hint, or a pipeline that runs; values may stop it."""
    try:
        found = completed(call())
    except KrishivError as refused:
        assert "Hint:" in str(refused), str(refused)
        event("refused")
        return
    event("accepted")
    if found is not None:
        try:
            run(found)
        except KrishivError as stopped:
            assert "cannot be computed" in str(stopped) or "64" in str(stopped), str(stopped)


@MANY
@given(st.one_of(soup, characters, broken_queries()))
@example("SELECT user, COUNT(*) AS n FROM events ? at > 3 GROUP BY user, tumble(at, INTERVAL '1' MINUTE)")
def test_sql(text: str) -> None:
    tried(lambda: sql().sql(text))


@MANY
@given(st.one_of(soup, characters))
def test_conditions_and_values(text: str) -> None:
    tried(lambda: stream_of(SCHEMA).filter(text))
    tried(lambda: stream_of(SCHEMA).with_column("x", text))


@MANY
@given(st.one_of(soup, characters, st.lists(st.sampled_from(WORDS), max_size=4).map(lambda w: "at bigint, x " + " ".join(w))))
def test_schemas(text: str) -> None:
    tried(lambda: stream_of(text))


@MANY
@given(st.one_of(soup, characters, st.from_regex(r"\A[0-9.]{1,30} ?[a-zA-Zµ]{0,8}\Z")))
def test_durations(text: str) -> None:
    try:
        us = to_us(text, "size")
    except KrishivError as refused:
        assert "Hint:" in str(refused)
    else:
        assert us > 0


@MANY
@given(characters, characters)
def test_names(old: str, new: str) -> None:
    tried(lambda: stream_of("at bigint, v double").with_column(old, "v").rename(v=new))
