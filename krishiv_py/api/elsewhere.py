"""Names of streams and sessions in other systems, and what is written for them here, or what comes nearest.

They are those of Structured Streaming, Flink, Kafka Streams, Bytewax, Quix Streams, Pathway, Polars and pandas. A line has the
names of one thing; :mod:`krishiv_py.api.stages.order` says at which stage a step of a stream belongs.
"""

from __future__ import annotations

from typing import Final


def _by_name(ways: dict[str, str]) -> dict[str, str]:
    return {name: way for names, way in ways.items() for name in names.split()}


STEPS: Final = _by_name(
    {
        "where": "filter(...)",
        "query remove filterNot filter_not filter_value": 'filter("amount > 100")',
        "dropna drop_nulls drop_nans": 'filter("amount IS NOT NULL")',
        "sample randomSplit sampleBy": 'filter("xxhash64(id) % 10 = 0")',
        "withColumn withColumns": "with_column(...)",
        "with_columns with_columns_seq assign add_columns add_or_replace_columns eval": 'with_column("total", "price * n")',
        "fillna fill_null fill_nan fill replace": 'with_column("amount", "coalesce(amount, 0)")',
        "cast astype": 'with_column("amount", "cast(amount as double)")',
        "withColumnRenamed": "rename(...)",
        "withColumnsRenamed rename_columns set_axis": 'rename(old="new")',
        "drop_columns": 'drop("amount")',
        "selectExpr": "select(...)",
        "project select_seq": 'select("user", "amount")',
        "explode": "unnest(...)",
        "explode_outer": 'unnest("items")',
        "map flat_map flatMap mapInArrow mapInPandas": "map_batches(...)",
        "map_values mapValues flat_map_values flatMapValues map_value flat_map_value flat_map_batch filter_map": (
            "map_batches(function)"
        ),
        "filter_map_value map_rows map_elements applymap mapPartitions map_partitions transform_batch": "map_batches(function)",
        "par_do inspect inspect_debug peek tap do transform": "map_batches(function)",
    }
)
"""The step that is another's name for, as it is called here."""

_FIRST: Final = (
    "a stream has no end, so its rows have no order and no first ones; the rows of a finite input are .collect().slice(0, 10), "
    'the largest of a window .tumbling_window("1 minute").top_rows(3, "amount")'
)
_STATE: Final = (
    "there are no functions with a state of their own; what looks at earlier rows is a window: "
    '.lookback_window("1 hour").agg(...), .session_window("30 minutes").agg(...), and udaf(...) is an aggregate of your own'
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
    'write left.interval_join(right, on="user", lower="-10 minutes", upper="5 minutes") on streams with .watermark(...)'
)
_BOTH: Final = f"{_JOIN}; for the rows of both in one stream write session.union({{...}})"
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

ANYWHERE: Final = _by_name(
    {
        "join crossJoin merge intervalJoin coGroup cogroup join_interval join_where leftJoin": _JOIN,
        "outerJoin outer_join left_outer_join right_outer_join full_outer_join rightJoin innerJoin": _JOIN,
        "left_join right_join inner_join": _JOIN,
        "connect": _BOTH,
        "broadcast join_broadcast join_lookup lookup enrich lookupJoin join_lateral lateralJoin": _LOOKUP,
        "map_async mapAsync async_map apply_async unordered_wait ordered_wait enrich_cached async_io": _ASYNC,
        "map_with_state mapWithState flat_map_with_state flatMapWithState stateful_map stateful_flat_map": _STATE,
        "stateful_batch stateful mapGroupsWithState flatMapGroupsWithState applyInPandasWithState transformWithState": _STATE,
        "transformWithStateInPandas updateStateByKey update_state_by_key process_values processValues transformValues": _STATE,
        "process_function key_process scan stateful_reduce deduplicate_with_state": _STATE,
        "join_asof merge_asof asofJoin": 'write left.asof_join(right, on="user", tolerance="1 minute")',
        "join_window windowJoin": 'write left.window_join(right, on="user", window=windows.tumbling("1 minute"))',
        "orderBy order_by sort sort_by sort_values sort_index sortWithinPartitions reverse set_sorted": _SORT,
        "limit head take tail slice fetch offset first_row iloc loc at islice gather_every": _FIRST,
        "rolling expanding ewm shift lag lead diff cumsum cum_sum cumcount pct_change over over_window ffill bfill": _RANGE,
        "forward_fill backward_fill interpolate rolling_sum rolling_mean": _RANGE,
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
    }
)
"""The way for each name at any stage of a stream; ``*`` is any text."""

KEYS: Final = (
    *("groupBy", "group_by", "groupby", "keyBy", "partition_by", "partitionBy", "selectKey", "select_key", "key_on"),
    *("groupByKey", "group_by_key", "set_index", "group_by_dynamic_key", "partitioned_by"),
)
WINDOWINGS: Final = (
    *("window", "windowAll", "time_window", "timeWindow", "group_by_dynamic", "window_all", "windowby", "window_by", "tumble"),
    *("hop", "slide", "resample", "asfreq", "upsample", "groupby_dynamic", "window_into", "WindowInto", "timeWindowAll"),
)
COUNT_WINDOWS: Final = ("count_window_all", "countWindow", "countWindowAll", "tumbling_count_window", "hopping_count_window")
AGGREGATE: Final = (
    *(
        "aggregate",
        "aggregates",
        "reduce",
        "process",
        "apply",
        "fold",
        "fold_final",
        "fold_window",
        "reduce_final",
        "reduce_window",
    ),
    *(
        "collect_window",
        "flat_aggregate",
        "applyInPandas",
        "applyInArrow",
        "combine_per_key",
        "groupby_apply",
        "cube",
        "rollup",
    ),
)
MARKS: Final = (
    *("withWatermark", "with_watermarks", "assign_timestamps_and_watermarks", "assignTimestampsAndWatermarks"),
    *("set_timestamp", "with_timestamp", "assign_timestamps", "assignTimestamps", "with_timestamps", "event_time"),
)
TOP: Final = (
    *("top_n", "topn", "topN", "top_k", "topk", "bottom_k", "nlargest", "nsmallest", "rank", "row_number", "top"),
    *("with_row_index", "with_row_count", "top_rows"),
)
COUNTS: Final = {
    **{n: n for n in ("count", "sum", "min", "max", "avg", "median", "mode", "first", "last", "max_by", "min_by", "stddev")},
    **{n: n for n in ("variance", "count_if", "count_distinct", "collect_list", "collect_set", "percentile", "any_value")},
    **{n: n for n in ("approx_count_distinct", "bool_and", "bool_or", "histogram")},
    **dict.fromkeys(("mean", "describe", "summary"), "avg"),
    **dict.fromkeys(("count_window_by_key", "count_final", "size", "value_counts", "length", "height", "shape"), "count"),
    **dict.fromkeys(("std",), "stddev"),
    **dict.fromkeys(("var",), "variance"),
    **dict.fromkeys(("max_final", "max_window"), "max"),
    **dict.fromkeys(("min_final", "min_window"), "min"),
    **dict.fromkeys(("nunique", "n_unique"), "count_distinct"),
    **dict.fromkeys(("quantile", "approxQuantile"), "percentile"),
    **dict.fromkeys(("idxmax", "arg_max", "maxBy"), "max_by"),
    **dict.fromkeys(("idxmin", "arg_min", "minBy"), "min_by"),
    **dict.fromkeys(("implode", "agg_list"), "collect_list"),
}
"""Aggregates that other systems have as methods, each with its name here."""

_MEMORY: Final = "write stream, sender = session.memory_stream(schema), and sender.send(rows)"
_OWN: Final = (
    "such sources are not here; your own is a small class, a krishiv_py.connectors.Source: session.read_source(source); "
    "or a program reads it and sends rows: stream, sender = session.memory_stream(schema)"
)
_FILES: Final = (
    "files are read with session.read_parquet(path, schema, streaming=True), session.read_json(...) and session.read_csv(...)"
)

ON_SESSION: Final = {
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
    "read_table from_table": "write session.table(name, streaming=True) on Spark, session.read_delta or session.read_iceberg",
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
}
"""The way for each name on a session; ``*`` is any text."""
