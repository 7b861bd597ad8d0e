"""Names of other systems, and what is written for them here or what comes nearest: one table, by the kind of object.

They are those of Structured Streaming, Flink, Kafka Streams, Bytewax, Quix Streams, Pathway, Polars and pandas. A line has the
names of one thing. In a name ``*`` is any text; in a hint ``{name}`` is the name that was tried, ``{x}`` the column. Each stage
of a stream has lines for the steps of the other stages, too, which say where they belong.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

WINDOWS: Final = (
    "tumbling_window hopping_window sliding_window cumulate_window lookback_window session_window count_window windowed_by "
    "time_interval_window"
)
JOINS: Final = "interval_join asof_join versioned_join window_join with_rules"
RESULTS: Final = "collect collect_with_aggs to_pandas to_dataframe start run"
_OF_RESULTS: Final = "results to explain plan toPandas toDF to_df"
_OPTIONS: Final = (
    "allowed_lateness late_rule emit trigger preset accumulation future_tolerance null_keys max_listed named with_pane "
    "with_state_ttl"
)
_KEYS: Final = (
    "groupBy group_by groupby keyBy partition_by partitionBy selectKey select_key key_on groupByKey group_by_key set_index "
    "group_by_dynamic_key partitioned_by"
)
_WINDOWINGS: Final = (
    "window windowAll time_window timeWindow group_by_dynamic window_all windowby window_by tumble hop slide resample asfreq "
    "upsample groupby_dynamic window_into WindowInto timeWindowAll"
)
_COUNT_WINDOWS: Final = "count_window_all countWindow countWindowAll tumbling_count_window hopping_count_window"
_AGGREGATE: Final = (
    "aggregate aggregates reduce apply fold fold_final fold_window reduce_final reduce_window collect_window "
    "flat_aggregate applyInPandas applyInArrow combine_per_key groupby_apply cube rollup"
)
_MARKS: Final = (
    "withWatermark with_watermarks assign_timestamps_and_watermarks assignTimestampsAndWatermarks set_timestamp with_timestamp "
    "assign_timestamps assignTimestamps with_timestamps event_time"
)
_TOP: Final = (
    "top_n topn topN top_k topk bottom_k nlargest nsmallest rank row_number top with_row_index with_row_count top_rows"
)

STEPS: Final = {
    "filter(...)": "where",
    'filter("amount > 100")': "query remove filterNot filter_not filter_value",
    'filter("amount IS NOT NULL")': "dropna drop_nulls drop_nans",
    'filter("xxhash64(id) % 10 = 0")': "sample randomSplit sampleBy",
    "with_column(...)": "withColumn withColumns",
    'with_column("total", "price * n")': "with_columns with_columns_seq assign add_columns add_or_replace_columns eval",
    'with_column("amount", "coalesce(amount, 0)")': "fillna fill_null fill_nan fill replace",
    'with_column("amount", "cast(amount as double)")': "cast astype",
    "rename(...)": "withColumnRenamed",
    'rename(old="new")': "withColumnsRenamed rename_columns set_axis",
    'drop("amount")': "drop_columns",
    "select(...)": "selectExpr",
    'select("user", "amount")': "project select_seq",
    "unnest(...)": "explode",
    'unnest("items")': "explode_outer",
    "map_batches(...)": "map flat_map flatMap mapInArrow mapInPandas",
    "map_batches(function)": "map_values mapValues flat_map_values flatMapValues map_value flat_map_value flat_map_batch "
    "filter_map filter_map_value map_rows map_elements applymap mapPartitions map_partitions transform_batch par_do inspect "
    "inspect_debug peek tap do transform",
}
"""Stateless steps, each with the names that others have for it."""
_OF_COLUMNS: Final = ("select", "filter", "expect", "with_column", "rename", "drop", "from_changelog", "latest")
"""Steps that may follow the watermark, as long as the stream has no key."""
_OF_ROWS: Final = ("map_batches", "unnest", "lookup_join", "split")
"""Steps that come before the watermark."""

_AGGREGATES: Final = {
    **{n: n for n in ("sum", "count", "min", "max", "mode", "first", "last", "median", "count_if", "any_value", "histogram")},
    **{n: n for n in ("approx_count_distinct", "collect_set", "bool_and", "bool_or")},
    "avg": "avg mean",
    "stddev": "stddev std",
    "variance": "variance var",
    "count_distinct": "count_distinct nunique n_unique",
    "percentile": "percentile quantile approxQuantile",
    "collect_list": "collect_list implode agg_list",
    "max_by": "max_by idxmax arg_max maxBy",
    "min_by": "min_by idxmin arg_min minBy",
}
"""Aggregates that others have as methods, each with their names for it."""
_COUNTS: Final = {
    **_AGGREGATES,
    "count": "count count_window_by_key count_final size value_counts length height shape",
    "min": "min min_final min_window",
    "max": "max max_final max_window",
    "avg": f"{_AGGREGATES['avg']} describe summary",
}
"""The same for streams, which count by more names."""
_OF_COLUMN: Final = {
    **_AGGREGATES,
    "approx_count_distinct": "approx_count_distinct approx_n_unique",
    "collect_list": f"{_AGGREGATES['collect_list']} tolist to_list",
    "collect_set": "collect_set unique",
    "bool_or": "bool_or any",
    "bool_and": "bool_and all",
}

_WINDOW_CALL: Final = 'write .tumbling_window("1 minute"), or another window, and then .agg(count())'
_MARK: Final = 'write .watermark("event_time", "5 seconds")'
_RANKS: Final = 'write .tumbling_window("1 minute"), or another window, and then .top_rows(3, "amount")'
_PARTS: Final = 'call .split("amount > 100") before .watermark(...), or part results with .filter(...)'
_FIRST: Final = (
    "a stream has no end, so its rows have no order and no first ones; the rows of a finite input are .collect().slice(0, 10), "
    'the largest of a window .tumbling_window("1 minute").top_rows(3, "amount")'
)
_STATE: Final = (
    'write .watermark("at", "5 seconds").key_by("user").process(function, returns="n bigint", state=Seen): the function gets a '
    "row, the state of its key, and a context"
)
_ASYNC: Final = (
    "there are no asynchronous steps; .map_batches(function) calls a service once a batch, and the function may use threads; "
    '.lookup_join(load, on="user", reload="1 minute") reads a table'
)
_LOOKUP: Final = (
    'write .lookup_join(table, on="user"), on rows or results, for a table that every worker has; streams meet in '
    ".interval_join(...)"
)
_JOIN: Final = (
    'write left.join(right, on="user") for all rows as they are now, or for rows that are close in time '
    'left.interval_join(right, on="user", lower="-10 minutes", upper="5 minutes") on streams with .watermark(...)'
)
_BOTH: Final = f"{_JOIN}; for the rows of both in one stream write session.union({{...}})"
_CONNECT: Final = (
    "krishiv_py.connect makes several keyed streams one, each by a name, for .process(...) with a call for each; "
    'a join is left.join(right, on="user")'
)
_SORT: Final = "a stream has no end, so its rows have no order; results come in ascending order of their windows"
_RANGE: Final = (
    'what looks at rows before a row is a window: write .watermark("at", "5 seconds").key_by("user")'
    '.lookback_window("1 hour").agg(sum("amount"))'
)
_KEPT: Final = (
    "a stream is a plan, there is nothing to keep; outputs that share steps run in one query: "
    "session.start([a.to(sink), b.to(other)], checkpoint=...)"
)
_SPREAD: Final = (
    "rows are shared out by key by themselves: .key_by(...) says by which; how many workers there are is said by "
    "Session.in_process(workers=2), or by Spark's settings"
)
_PATTERN: Final = (
    'write .watermark("at", "5 seconds").key_by("user").match(step("a", "amount < 5").followed_by(step("b", "amount > 500")), '
    'within="1 hour")'
)
_ROWS: Final = "write .collect(), an Arrow table of a finite input; .collect().to_pylist() has its rows as dicts"
_SCHEMA: Final = "write stream.schema, the columns and their types; .explain() shows the plan"
_LATE: Final = 'write .with_late_event_handler(SideOutputLateEventHandler(ParquetSink("late")))'
_EACH: Final = "write .start(function), which is called with each micro-batch of results and its number"
_SETS: Final = 'there are no sets of rows without end; .interval_join(..., how="anti") leaves out rows that have a partner'
_CSV: Final = (
    'there are no such sinks; .start(ParquetSink("out")) or .start(JsonSink("out")) write files, .start(function) anything'
)
_PIVOT: Final = (
    'write a column for each value: .agg(sum("amount").filter("kind = \'a\'").alias("a"), '
    'sum("amount").filter("kind = \'b\'").alias("b"))'
)
_START: Final = "an argument of where it ends: .start(sink, checkpoint=..., batches=..., name=...)"


_ORDERED: Final = {
    "absent": ("an alert takes the place of windows", 'key_by("user").absent("5 minutes")'),
    "with_previous": ("rows before are those of a key", 'key_by("user").with_previous(before=prev("amount"))'),
    "match": ("a pattern takes the place of windows", 'key_by("user").match(step("a").then(step("b", "amount > 500")))'),
    "process": ("a process function takes the place of windows", 'key_by("user").process(function, returns="n bigint")'),
}
"""Stages in order of event time: what there is to know, and how each is called."""
_ON_STREAM: Final = {
    "join crossJoin merge intervalJoin coGroup cogroup join_interval join_where leftJoin": _JOIN,
    "changelog fromChangelogStream from_changelog_stream read_cdc cdc fromChangelog table": (
        'write .from_changelog("debezium", key="id"), or "upsert", "log" or "cdf" for other formats'
    ),
    "last_by latest_by keep_latest max_version": 'write .latest("user", by="at"), the newest row of every key as a table',
    "outerJoin outer_join left_outer_join right_outer_join full_outer_join rightJoin innerJoin": _JOIN,
    "left_join right_join inner_join": _JOIN,
    "connect": _CONNECT,
    "broadcast join_broadcast join_lookup lookup enrich lookupJoin join_lateral lateralJoin": _LOOKUP,
    "map_async mapAsync async_map apply_async unordered_wait ordered_wait enrich_cached async_io": _ASYNC,
    "map_with_state mapWithState flat_map_with_state flatMapWithState stateful_map stateful_flat_map": _STATE,
    "stateful_batch stateful mapGroupsWithState flatMapGroupsWithState applyInPandasWithState transformWithState": _STATE,
    "transformWithStateInPandas updateStateByKey update_state_by_key process_values processValues transformValues": _STATE,
    "process process_function key_process scan stateful_reduce deduplicate_with_state": _STATE,
    "match_recognize matchRecognize pattern cep detect sequence_match followed_by find_pattern": _PATTERN,
    "join_asof merge_asof asofJoin": 'write left.asof_join(right, on="user", tolerance="1 minute")',
    "join_window windowJoin": 'write left.window_join(right, on="user", window=windows.tumbling("1 minute"))',
    "orderBy order_by sort sort_by sort_values sort_index sortWithinPartitions reverse set_sorted": _SORT,
    "limit head take tail slice fetch offset first_row iloc loc at islice gather_every": _FIRST,
    "rolling expanding ewm cumsum cum_sum cumcount over over_window ffill bfill": _RANGE,
    "forward_fill backward_fill interpolate rolling_sum rolling_mean": _RANGE,
    "shift lag lead diff pct_change previous prev": (
        'write .watermark("at", "5 seconds").key_by("user").with_previous(before=prev("amount"))'
    ),
    "show print display print_table glimpse execute_and_print": (
        "start it with .start(ConsoleSink()), or try it with krishiv_py.testing.Driver"
    ),
    "write write_stream writeStream sink add_sink addSink sink_to output": (
        'write .start(ParquetSink("out"), checkpoint="..."); after a window .agg(...) comes first'
    ),
    "write_parquet to_parquet sink_parquet": 'write .start(ParquetSink("out"), checkpoint="checkpoint")',
    "write_json to_json write_ndjson sink_ndjson toJSON": 'write .start(JsonSink("out"), checkpoint="checkpoint")',
    "write_csv to_csv sink_csv write_excel write_ipc sink_ipc write_avro to_feather to_orc write_text": _CSV,
    "write_delta sink_delta writeTo saveAsTable toTable to_table": 'write .start(DeltaSink("table"), checkpoint="state")',
    "write_iceberg sink_iceberg": 'write .start(IcebergSink("db.table", catalog=catalog), checkpoint="checkpoint")',
    "write_kafka to_kafka to_topic through produce": (
        'write .start(KafkaSink("topic", bootstrap_servers="host:9092"), checkpoint="checkpoint")'
    ),
    "write_database to_sql write_postgres to_postgres jdbc write_jdbc": (
        'write .start(PostgresSink("host=db dbname=reports", "results"), checkpoint="checkpoint")'
    ),
    "execute_insert insert_into insertInto write_table": (
        'write .start(sink); in SQL session.register_sink("out", sink) and session.sql("INSERT INTO out SELECT ...")'
    ),
    "foreachBatch for_each_batch foreach for_each forEach foreachPartition subscribe sink_batches": _EACH,
    "execute execute_async submit run_async awaitTermination await_termination process_all_available": (
        "write query = .start(sink), and query.await_termination()"
    ),
    "outputMode output_mode suppress current final": (
        '.emit("final") gives a result once, .emit("updates") whenever it changes, .emit("retractions") with the old one'
    ),
    "option options format queryName query_name": f"it is {_START}",
    "grace": 'write .allowed_lateness("1 minute") after .watermark(...)',
    "side_output side_output_late_data sideOutputLateData get_side_output getSideOutput late_output": _LATE,
    "branch": 'write large, rest = .split("amount > 100") before .watermark(...)',
    "union unionAll unionByName concat merge_sorted extend vstack append concat_reindex flatten": (
        'write session.union({"a": stream_a, "b": stream_b}), or in a test union_of({...}) of krishiv_py.testing'
    ),
    "exceptAll subtract minus minus_all intersect intersectAll intersect_all": _SETS,
    "distinct dropDuplicates drop_duplicates dropDuplicatesWithinWatermark unique deduplicate dedup duplicated": (
        'write .drop_duplicates("id", within="10 minutes") after .watermark(...) and before a window; '
        'count_distinct("x") counts distinct values in a window'
    ),
    "cache persist unpersist localCheckpoint checkpoint clone copy": _KEPT,
    "repartition coalesce rebalance shuffle redistribute rescale forward set_parallelism setParallelism": _SPREAD,
    "partition_custom repartitionByRange set_max_parallelism disable_chaining start_new_chain slot_sharing_group": _SPREAD,
    "printSchema print_schema dtypes columns collect_schema get_schema getSchema width info": _SCHEMA,
    "toArrow to_arrow to_dicts to_dict to_numpy to_records rows iter_rows iterrows itertuples values": _ROWS,
    "toLocalIterator execute_and_collect collect_async to_pylist to_polars lazy": _ROWS,
    "pivot pivot_table crosstab": _PIVOT,
    "unpivot melt stack unstack transpose": "write .map_batches(function) before .watermark(...), which gives other rows",
    "evict evictor": 'write .lookback_window("1 hour", max_rows_per_key=100), whose windows have at most the newest rows',
    "name uid set_uid": 'write .named("orders") after .watermark(...); a query has its name of .start(sink, name="orders")',
    "pipe": "write function(stream): a step is a function of a stream that returns one",
    "createTempView createOrReplaceTempView create_temporary_view createGlobalTempView registerTempTable sql": (
        'write session.register("name", stream), and session.sql("SELECT ...")'
    ),
    "iterate iteration": "there are no loops: a stage reads what comes before it; write results to a topic and read that",
    "delay throttle rate_limit set_buffer_timeout": (
        'rows are taken as they come; .start(sink, batches=Batches.every("10 seconds")) says how often a batch begins'
    ),
    "observe": "numbers of a running query are in query.progress; what must hold of rows is said by .expect(...)",
    "hint with_context profile": "there are no hints: .explain() shows what runs, and query.progress what it costs",
    "isStreaming is_streaming": "every stream may be started; .collect() wants a finite input",
    "toTableStream toStream to_stream queryable queryableStoreName store interactive_query": (
        "the state of a running query is read with query.lookup(key) in process, and query.state()"
    ),
    "write_* sink_* save_* save": "write .start(sink): ParquetSink, JsonSink, KafkaSink, DeltaSink, IcebergSink and "
    "PostgresSink are there, and a function that gets each batch",
    "read_* scan_* from_*": "sources belong to a session: session.read_parquet(path, schema, streaming=True)",
    "to_*": "write .collect(), an Arrow table of a finite input, and its method; .start(sink) writes results somewhere",
    "*_async async_*": _ASYNC,
    "*_with_state stateful_* *WithState": _STATE,
    "calendar_window": 'write .window(calendar_window("day", "Europe/Berlin"))',
    "matches pairs": "only .lookback_window(...) tells which rows met",
    "on_events": "only .time_interval_window(...) tells events of panes",
    **{name: f"{why}: write .{call}" for name, (why, call) in _ORDERED.items()},
    "history": 'versions are those of a changelog: write .watermark("at", "5 s").from_changelog("upsert", key="id").history()',
    "to_changelog": 'changes are those of a table: write .key_by("user").agg(count()).to_changelog()',
    _AGGREGATE: 'write .agg(count(), sum("x")); udaf(...) makes an aggregate of your own',
}
"""At any stage of a stream."""


def _once(ready: str) -> dict[str, str]:
    """Return the ways of the end of a pipeline, which can be written once the stream is `ready`."""
    ends = ("write .start(", "write .collect(", "start it with .start(", "write query = .start(")
    return {names: f"{ready}; then {way}" for names, way in _ON_STREAM.items() if way.startswith(ends)}


def _steps(way: str, of: tuple[str, ...] = (*_OF_COLUMNS, *_OF_ROWS)) -> dict[str, str]:
    """Return the same `way` for the names of some steps at other systems; ``{ours}`` in it is the call."""
    return {names: way.replace("{ours}", call) for call, names in STEPS.items() if call.partition("(")[0] in of}


def _own(before: str, of: tuple[str, ...]) -> dict[str, str]:
    return {" ".join(of): f"call .{{name}}(...) before {before}"}


_LATER: Final = {
    **_steps("call .{ours} before .watermark(...)", _OF_ROWS),
    **_own(".watermark(...)", _OF_ROWS),
    "split": _PARTS,
    f"watermark with_watermark {_MARKS}": "the stream has one; call .watermark(...) once",
    "processing_time": "the stream has its time; call either .watermark(...) or .processing_time(), once",
    **{names: f"write .agg({ours}(...))" for ours, names in _COUNTS.items()},
}
"""After the watermark."""
_GO_ON: Final = {
    _KEYS: 'write .key_by("user_id"); windows follow it',
    _WINDOWINGS: _WINDOW_CALL,
    _COUNT_WINDOWS: "write .count_window(100), and then .agg(count())",
}
_ON_ROWS: Final = {
    **_ON_STREAM,
    _OF_RESULTS: f"{_WINDOW_CALL} first",
    _TOP: f"{_MARK}; then {_RANKS}",
    _MARKS: _MARK,
    **_steps("write .{ours}"),
    _KEYS: 'write .key_by("user_id")',
    _WINDOWINGS: f"{_MARK}, and then a window",
    _COUNT_WINDOWS: f"{_MARK}, and then .count_window(100)",
    **{names: f"{_MARK}, a window, and then .agg({ours}(...))" for ours, names in _COUNTS.items()},
    "key_by": f"the stream is keyed already; {_MARK} next",
    _OPTIONS: f"{_MARK} first",
    f"agg collect_with_aggs {WINDOWS} {JOINS}": 'call .watermark("column", lag) first',
    **{name: f"rows go by event time: {_MARK}.{call}" for name, (_, call) in _ORDERED.items()},
}
_ON_TIMED: Final = {
    **_ON_STREAM,
    **_LATER,
    **_own(".key_by(...)", _OF_COLUMNS),
    **_steps("write .{ours}, before .key_by(...)", _OF_COLUMNS),
    **_GO_ON,
    _OF_RESULTS: f"{_WINDOW_CALL} first",
    _TOP: _RANKS,
    "key_by": "the stream is keyed already; name all key columns in one key_by",
    f"agg {RESULTS}": "call .tumbling_window(...) or another window first",
}
_ON_WINDOWED: Final = {
    **_ON_STREAM,
    **_once("write .agg(count()) first"),
    **_LATER,
    **_own(".watermark(...)", _OF_COLUMNS),
    **_steps("call .{ours} before .watermark(...)", _OF_COLUMNS),
    _TOP: 'write .top_rows(3, "amount"), the largest rows of every window with their ranks',
    f"{WINDOWS} {_WINDOWINGS} {_COUNT_WINDOWS}": (
        "a stream has one window; call .agg(...), or branch the stream before its window"
    ),
    f"key_by {_KEYS}": 'call .key_by("user_id") before the window',
    _OF_RESULTS: "write .agg(count()) first",
    JOINS: "call it before the window, or join results after .agg(...)",
    RESULTS: "call .agg(...) first",
}

CALLS: Final = {
    "isNull isna isnull": "is_null()",
    "isNotNull notna notnull": "is_not_null()",
    "getField": 'field("name")',
    "astype": 'cast("double")',
    "is_in": "isin(1, 2)",
    "is_between": "between(1, 5)",
    "rename name": 'alias("name")',
    "to_integer": 'cast("bigint")',
    "to_decimal": 'cast("decimal(10, 2)")',
    "eqNullSafe eq_missing": "equal_null(other)",
    "list.eval": "transform(lambda x: x + 1)",
    "json_decode": 'from_json("a bigint")',
    "json_path_match": 'get_json_object("$.a")',
    "list.len map.len": "size()",
    "getItem": "getitem(0)",
    "list.last": "element_at(-1)",
    "map.get": 'element_at("key")',
    "list.first": "get(0)",
    "list.contains": "array_contains(1)",
    "list.unique": "array_distinct()",
    "list.set_union": "array_union(other)",
    "list.set_intersection": "array_intersect(other)",
    "list.set_difference": "array_except(other)",
    "list.drop_nulls": "array_compact()",
    "list.max": "array_max()",
    "list.min": "array_min()",
    "list.sort": "sort_array()",
    "list.join": 'array_join(",")',
    "list.head": "slice(1, 5)",
    "map.keys": "map_keys()",
    "map.values": "map_values()",
    "map.contains_key": 'map_contains_key("key")',
    "absolute": "abs()",
    "ceiling": "ceil()",
    "floordiv": "div(2)",
    "sgn signum": "sign()",
    "power": "pow(2)",
    "log": "ln()",
    "isNaN is_nan": "isnan()",
    "to_lowercase": "lower()",
    "to_uppercase": "upper()",
    "len len_chars": "length()",
    "len_bytes": "octet_length()",
    "startswith": 'starts_with("a")',
    "endswith": 'ends_with("a")',
    "match": 'rlike("a+")',
    "fullmatch": 'rlike("^a+$")',
    "extract": 'regexp_extract("(a+)", 1)',
    "count_matches": 'regexp_count("a")',
    "substr": "substring(1, 3)",
    "strip strip_chars": "trim()",
    "lstrip strip_chars_start": "ltrim()",
    "rstrip strip_chars_end": "rtrim()",
    "rjust pad_start": "lpad(10)",
    "zfill": 'lpad(10, "0")',
    "ljust pad_end": "rpad(10)",
    "find": 'instr("a")',
    "replace_all": 'replace("a", "b")',
    "week": "weekofyear()",
    "dayofmonth": "day()",
    "ordinal_day": "dayofyear()",
    "weekday": "dayofweek()",
    "truncate trunc": 'date_trunc("hour")',
    "offset_by": "plus_days(1)",
    "strftime to_string": 'date_format("yyyy-MM-dd")',
    "epoch": "unix_micros()",
    "strptime to_datetime": 'to_timestamp("yyyy-MM-dd HH:mm:ss")',
}
"""Methods of a column that others have by another name, some of them as ``list.len`` of a namespace."""
WRITTEN: Final = {
    "fillna fill_null combine_first": "coalesce({x}, 0)",
    "fill_nan": "when({x}.isnan(), 0.0).otherwise({x})",
    "is_not_nan": "~{x}.isnan()",
    "clip": "greatest(least({x}, 5), 1)",
    "where": "when({x} > 1, {x})",
    "mask": "when({x} <= 1, {x})",
    "add": "{x} + 1",
    "sub subtract": "{x} - 1",
    "mul multiply": "{x} * 2",
    "truediv divide": "{x} / 2",
    "mod": "{x} % 2",
    "neg": "-{x}",
    "eq": "{x} == 1",
    "ne": "{x} != 1",
    "lt": "{x} < 1",
    "le": "{x} <= 1",
    "gt": "{x} > 1",
    "ge": "{x} >= 1",
    "and_": "({x} > 1) & ({x} < 5)",
    "or_": "({x} > 1) | ({x} < 5)",
    "not_": "~({x} > 1)",
    "ne_missing": "~{x}.equal_null(other)",
    "bitwiseAND bitwise_and": 'func("bit_and", {x}, 7)',
    "bitwiseOR bitwise_or": 'func("bit_or", {x}, 7)',
    "bitwiseXOR bitwise_xor xor": 'func("bit_xor", {x}, 7)',
    "hash": 'func("xxhash64", {x})',
    "is_infinite": '{x}.abs() == float("inf")',
    "is_finite": '({x}.abs() < float("inf"))',
    "log1p": "(1 + {x}).ln()",
    "millisecond": "{x}.unix_millis() % 1000",
    "microsecond": "{x}.unix_micros() % 1000000",
    "otherwise when": "when({x} > 1, {x}).otherwise(0)",
}
"""Expressions of a column that others have as methods."""


def _aggregated(call: str) -> str:
    by = ', "other"' if call in ("max_by", "min_by") else ""
    written = f"{call}({{x}}{by})"
    return f"write {written} as an aggregate of a window: .agg({written})"


_MEMORY: Final = "write stream, sender = session.memory_stream(schema), and sender.send(rows)"
_OWN: Final = (
    "such sources are not here; your own is a small class, a krishiv_py.connectors.Source: session.read_source(source); "
    "or a program reads it and sends rows: stream, sender = session.memory_stream(schema)"
)
_FILES: Final = (
    "files are read with session.read_parquet(path, schema, streaming=True), session.read_json(...) and session.read_csv(...)"
)

NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "rows": _ON_ROWS,
    "keyed rows": {
        **_ON_ROWS,
        **_own(".key_by(...)", (*_OF_COLUMNS, *_OF_ROWS)),
        **_steps("call .{ours} before .key_by(...)"),
        _KEYS: "the stream is keyed already",
        **_once(f"{_MARK}, a window, and .agg(...)"),
        "with_late_event_handler": "call it before .key_by(...), or after .watermark(...)",
        RESULTS: 'call .watermark("column", lag) first',
        " ".join(_ORDERED): 'call .watermark("event_time", "5 seconds") first',
    },
    "timed": _ON_TIMED,
    "windowed": _ON_WINDOWED,
    "panes": {
        **_ON_WINDOWED,
        "get_window_data": "a timeInterval window has no storage of its own: read pane.data in a handler of .on_events(...)",
    },
    "results": {
        **_ON_TIMED,
        **_steps("write .{ours}"),
        f"with_watermark {_MARKS}": 'write .watermark("window_time", lag)',
        "processing_time": "results have the time of their windows, and go on by the clock of the stage before",
        f"agg {_AGGREGATE} {' '.join(_COUNTS.values())}": (
            "name all aggregates in one .agg(...); another stage begins with .key_by(...) or a window"
        ),
        _TOP: 'a window of the same size ranks results: after windows of "1 hour" write '
        '.tumbling_window("1 hour").top_rows(3, "total"); for rows write .top_rows(3, "amount") instead of .agg(...)',
        "split": 'part results with .filter(...) for each part: one.filter("n > 3"), one.filter("n <= 3 OR n IS NULL")',
        "toPandas": "write .to_pandas()",
        "toDF to_df": "write .to_dataframe()",
        "writeStream": "write .start(sink)",
    },
    "column": {
        "asc desc asc_nulls_first asc_nulls_last desc_nulls_first desc_nulls_last sort sort_by rank": (
            'a stream has no order; write .top_rows(3, "amount") after a window for the first rows of each window'
        ),
        "over shift diff rolling ewm expanding cum_sum cumsum pct_change forward_fill ffill": (
            'what looks at other rows is a window: write .lookback_window("1 hour") on the stream, or .asof_join(...)'
        ),
        "apply map map_elements map_batches pipe capitalize": (
            "write .map_batches(function) on the stream: it gets Arrow batches"
        ),
        "explode flat_map": 'write .unnest("column") on the stream',
        "drop_nulls dropna": 'write .filter("column IS NOT NULL") on the stream',
        "cat bin": "functions are methods of the column: {x}.lower()",
        "arr": "write {x}.list.size()",
        "withField dropFields": 'write func("named_struct", "a", {x}.field("a"))',
        "outer": "lateral columns are not known; a lookup is .lookup_join(table, on=...) on the stream",
        "head limit tail sample": "a stream has no end; write .filter(...), or {x}.substring(1, 3)",
        "tz_convert tz_localize convert_time_zone replace_time_zone": (
            'times are in UTC; write .window(calendar_window("day", "Europe/Berlin")) for windows of local days'
        ),
        **{names: _aggregated(call) for call, names in _OF_COLUMN.items()},
        **{names: f"write {text}" for names, text in WRITTEN.items()},
        **{names: f"write {{x}}.{call}" for names, call in CALLS.items()},
    },
    "session": {
        "read readStream read_stream read_files read_folder from_path": (
            "write session.read_parquet(path, schema, streaming=True), or another session.read_..."
        ),
        "scan_parquet parquet": "write session.read_parquet(path, schema, streaming=True)",
        "scan_csv csv": "write session.read_csv(path, schema, streaming=True)",
        "read_ndjson scan_ndjson read_jsonl json": "write session.read_json(path, schema, streaming=True)",
        "scan_delta delta": "write session.read_delta(path, streaming=True)",
        "scan_iceberg iceberg": 'write session.read_iceberg("db.table", catalog=catalog, streaming=True)',
        "from_kafka kafka topic read_topic add_source_kafka": (
            'write session.read_kafka("topic", bootstrap_servers="host:9092", schema="user string, at bigint")'
        ),
        "read_cdc from_cdc cdc read_debezium debezium": (
            'changes of a database come as a topic: session.read_kafka("db.public.orders", bootstrap_servers="host:9092", '
            'schema="op string, after struct<id: bigint>"), and each is a row: .filter("op <> \'d\'").select(id="after.id"); '
            "of a Delta table session.read_delta(path, streaming=True) reads what is added"
        ),
        "read_postgres read_mysql read_sql read_database read_jdbc jdbc read_db read_mongo read_redis": (
            "databases are not read as streams; a table is looked up with stream.lookup_join(load, on=..., reload=...), its "
            "changes come from a topic with session.read_kafka(...), and rows that a program reads by session.memory_stream"
        ),
        "read_table from_table": (
            "write session.table(name, streaming=True) on Spark, session.read_delta or session.read_iceberg"
        ),
        "read_text read_orc read_avro read_excel read_ipc read_xml read_protobuf scan_ipc": (
            f"{_FILES}; another format is a source of your own, session.read_source(source)"
        ),
        "read_socket socket socketTextStream socket_text_stream read_kinesis read_pulsar read_pubsub read_eventhubs": _OWN,
        "read_mqtt read_rabbitmq read_nats read_websocket read_http read_redis_stream": _OWN,
        "stream source add_source from_source addSource input": (
            "write session.read_source(source), or stream, sender = session.memory_stream(schema)"
        ),
        "createDataFrame from_pandas from_polars from_arrow from_dicts from_collection from_records from_elements": _MEMORY,
        "create_data_frame parallelize from_list from_iterable from_data_stream from_table_env": _MEMORY,
        "close shutdown exit": "write session.stop(), or with Session.in_process() as session:",
        "execute_sql executeSql query": "write session.sql(...)",
        "conf config set option options": 'write Session.builder().config("spark....", value) before the session starts',
        "run execute execute_async awaitTermination await_termination": (
            "write query = stream.start(sink), or session.start([stream.to(sink)]), and query.await_termination()"
        ),
        "add_sink sink sink_to write to_topic": "write stream.start(sink), or session.start([a.to(sink), b.to(other)])",
        "createTempView create_temporary_view createOrReplaceTempView create_table create_view register_table": (
            'write session.register("name", stream); session.sql("SELECT ...") reads it'
        ),
        "udf register_function create_temporary_function register_udf": (
            "a function of yours is udf(...) of krishiv_py, called on columns: col('x'), or stream.map_batches(function)"
        ),
        "range": "write session.rate(rows_per_second=10) for numbers that go on, or session.memory_stream(schema)",
        "newSession new_session getOrCreate get_or_create": "write Session.in_process(), or Session.builder()",
        "enable_checkpointing checkpoint": 'write stream.start(sink, checkpoint="checkpoint"): it belongs to a query',
        "sparkContext sc version catalog": "write session.spark, the SparkSession of a session on Spark, and its attribute",
        "broadcast": 'write stream.lookup_join(table, on="user") for a table that every worker has',
        "read_* scan_*": f"{_FILES}; session.read_kafka, read_delta, read_iceberg and read_source are there, too",
        "write_* sink_* to_*": "write stream.start(sink), or session.start([a.to(sink), b.to(other)])",
        "from_*": _MEMORY,
    },
    "query": {
        "rows late counters open_windows state_bytes firings doubts stages backlog": "write query.progress.{name}",
        "result output table collect to_pandas": "write query.results(), for a query that writes to MemorySink()",
        "close cancel terminate kill": "write query.stop(); sender.close() ends the input of a memory stream",
        "send": "write sender.send(rows), with stream, sender = session.memory_stream(...)",
        "restart restarted resume start": "start the pipeline again from its checkpoint: .start(sink, checkpoint=...)",
        "join wait run awaitTermination": "write query.await_termination()",
        "processAllAvailable flush": "write query.process_all_available()",
        "runId run_id": "write query.id",
        "lastProgress recentProgress": "write query.progress",
        "isActive is_active is_running running": 'write query.status == "running"',
    },
    "driver": {
        "results result output": "each call gives its own: driver.send(rows).results; "
        "Driver(stream, sink=MemorySink()) keeps all",
        "late_rows late": "each call gives its own: driver.send(rows).late; "
        "a SideOutputLateEventHandler(MemorySink()) keeps all",
        "restart resume": "write again = driver.restarted()",
        "stop end finish flush": "write driver.close(), the end of input: it fires what is open",
        "run start collect process_all_available await_termination": "each call is a batch: write driver.send(rows)",
        "sender put push feed": "write driver.send(rows)",
    },
    "sender": {
        "put push write append emit publish add produce send_row send_many": "write sender.send([{...}, {...}])",
        "end finish stop complete": "write sender.close(), the end of input, or with sender:",
    },
    "memory sink": {
        "rows results result output collect read to_arrow": "write sink.table(), an Arrow table of all rows so far",
        "to_pandas to_pylist to_pydict": "write sink.table().{name}()",
        "clear reset": "make a new MemorySink(), and start the query with it",
    },
}
"""For each kind of object, names that it does not have and what to write; of a name in several lines the last one counts."""


@functools.cache
def ways(kind: str) -> Mapping[str, str]:
    """Return what to write for each name that a `kind` of object does not have."""
    return {name: way.replace("{name}", name) for names, way in NAMES[kind].items() for name in names.split()}
