"""Texts: SQL, expressions, schemas, durations. Shuffled words of the language, and characters of any kind."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
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
STREAMING: Final = (
    "TABLE TUMBLE HOP CUMULATE SESSION DESCRIPTOR DATA TIMECOL SIZE => PARTITION BY ORDER DESC ASC NULLS LAST "
    "ROW_NUMBER OVER RANGE "
    "PRECEDING CURRENT ROW JOIN LEFT RIGHT FULL SEMI ANTI INNER OUTER ON USING EXISTS NOT UNION ALL EXCEPT WITH AS "
    "WHERE rn <= 2 1 "
    "FOR SYSTEM_TIME OF e f others kinds window window_start window_end window_time window.start session_window join_time "
    "( ) ( ) , SELECT FROM * DISTINCT HAVING COUNT(*) n at user GROUP LIMIT RANK QUALIFY LATERAL VALUES"
)
TVF: Final = "TABLE ( TUMBLE ( TABLE events , DESCRIPTOR ( at ) , INTERVAL '1' MINUTE ) )"
RIGHTS: Final = [
    text.split(" ")
    for text in (
        f"SELECT user , window_start , SUM ( n ) / COUNT ( * ) AS m FROM {TVF} GROUP BY user , window_start , window_end "
        "HAVING COUNT ( * ) > 0",
        f"SELECT * FROM ( SELECT * , ROW_NUMBER ( ) OVER ( PARTITION BY window_start , window_end ORDER BY n DESC ) "
        f"AS rn FROM {TVF} ) "
        "WHERE rn <= 2",
        f"WITH w AS ( SELECT user , window_start AS s , window_end AS e , COUNT ( * ) AS n FROM {TVF} GROUP BY user , "
        f"window_start , "
        "window_end ) SELECT MAX ( n ) AS top , s FROM w WHERE n > 0 GROUP BY s , e",
        "SELECT e . user , f . n AS other FROM events e LEFT JOIN others f ON e . user = f . user AND f . at BETWEEN e . at - "
        "INTERVAL '1' SECOND AND e . at + 5000",
        "SELECT user FROM events e WHERE NOT EXISTS ( SELECT 1 FROM others f WHERE f . user = e . user AND f . at = e "
        ". at ) AND n > 1",
        "SELECT e . user , kind FROM events e JOIN kinds ON e . n = kinds . n",
        "SELECT user , COUNT ( * ) OVER ( PARTITION BY user ORDER BY at RANGE BETWEEN 5000 PRECEDING AND CURRENT ROW "
        ") AS c FROM events",
        "SELECT user , at FROM events UNION ALL SELECT user , at FROM others",
        "SELECT window . start AS s , COUNT ( * ) FROM events GROUP BY window ( at , '1 minute' )",
    )
]
RIGHT: Final = "SELECT user , COUNT ( * ) AS n FROM events WHERE at > 3 GROUP BY user , tumble ( at , INTERVAL '1' MINUTE )"
WORDS, QUERY = [*LANGUAGE.split(" "), *STREAMING.split(" ")], RIGHT.split(" ")
soup = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
characters = st.text(max_size=40)


@st.composite
def broken_queries(draw: st.DrawFn) -> str:
    """A query that is right but for some words."""
    words = list(draw(st.sampled_from([QUERY, *RIGHTS])))
    for _ in range(draw(st.integers(0, 3))):
        moment = draw(st.integers(0, len(words) - 1))
        words[moment : moment + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from(WORDS), max_size=2))
        if not words:
            break
    return " ".join(words)


def tried(call: Any) -> None:
    """An error of ours with a hint, or a pipeline that runs; values may stop it."""
    try:
        actual = completed(call())
    except KrishivError as refused:
        assert "Hint:" in str(refused), str(refused)
        event("refused")
        return
    event("accepted")
    if actual is not None:
        try:
            run(actual)
        except KrishivError as stopped:
            assert "cannot be computed" in str(stopped) or "64" in str(stopped), str(stopped)


@MANY
@given(st.one_of(soup, characters, broken_queries()))
@example("SELECT user, COUNT(*) AS n FROM events ? at > 3 GROUP BY user, tumble(at, INTERVAL '1' MINUTE)")
def test_sql(text: str) -> None:
    made = sql()
    made.register("others", stream_of(SCHEMA), event_time="at", lag=0)
    made.register("kinds", pa.table({"n": pa.array([1, 2, None], pa.int32()), "kind": ["a", "b", "c"]}))
    tried(lambda: made.sql(text))


def test_the_queries_that_words_are_changed_of_are_right() -> None:
    for words in [QUERY, *RIGHTS]:
        made = sql()
        made.register("others", stream_of(SCHEMA), event_time="at", lag=0)
        made.register("kinds", pa.table({"n": pa.array([1, 2, None], pa.int32()), "kind": ["a", "b", "c"]}))
        assert made.sql(" ".join(words)) is not None


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
