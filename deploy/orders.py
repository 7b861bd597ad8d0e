"""A job for ``krishiv run``: orders of a folder to counts for each user and minute; put your own in its place."""

import os

from krishiv_py import Output, ParquetSink, Session, count
from krishiv_py import sum as total


def orders(session: Session) -> Output:
    """Count orders; JOB_FOLDER is where they come from and where the counts go."""
    folder = os.environ.get("JOB_FOLDER", "/data")
    found = session.read_parquet(f"{folder}/in", "user string, at bigint, amount bigint", streaming=True)
    per_minute = found.watermark("at", "10 seconds").key_by("user").tumbling_window("1 minute").agg(count(), total("amount"))
    return per_minute.to(ParquetSink(f"{folder}/out"))
