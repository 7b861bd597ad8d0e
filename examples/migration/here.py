"""The five jobs of ``by_hand.py`` with krishiv_py; the preset gives the results of Spark to the last row."""

from krishiv_py import Batches, ParquetSink, ResultStream, Session, Stream, TimedStream, count, max, sum


def read(session: Session, folder: str, schema: str) -> Stream:
    """Return a stream of files, one a micro-batch."""
    return session.read_parquet(folder, schema, streaming=True, max_files_per_batch=1)


def timed(stream: Stream, time: str = "at") -> TimedStream:
    """Return the stream with its lag, by the late rule of Spark."""
    return stream.watermark(time, "10 seconds").preset("spark")


def minutes(orders: Stream) -> ResultStream:
    """Return the orders and the amount of each shop and minute."""
    windows = timed(orders).key_by("shop").tumbling_window("1 minute")
    return windows.agg(count().alias("orders"), sum("amount").alias("amount"))


def sessions(orders: Stream) -> ResultStream:
    """Return the bursts of orders of each shop."""
    return timed(orders).key_by("shop").session_window("15 seconds").agg(count().alias("orders"))


def once(orders: Stream) -> ResultStream:
    """Return each order once."""
    return timed(orders).drop_duplicates("id", within="10 seconds").select("id", "shop", "at")


def paid(orders: Stream, payments: Stream) -> ResultStream:
    """Return orders with the payments of the half minute that follows."""
    return timed(orders).interval_join(timed(payments, "paid"), on="id", lower=0, upper="30 seconds").select("id", "at", "paid")


def busiest(orders: Stream) -> ResultStream:
    """Return the largest number of orders of a shop in each five minutes, counted by minute."""
    counts = timed(orders).key_by("shop").tumbling_window("1 minute").agg(count().alias("orders"))
    return counts.tumbling_window("5 minutes").agg(max("orders").alias("most"))


def run(results: ResultStream, folder: str, checkpoint: str) -> None:
    """Write what is final to files, and stop when all input is read."""
    results.start(ParquetSink(folder), checkpoint=checkpoint, batches=Batches.available_now()).await_termination()
