"""Folders that every machine of a cluster must reach."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.folder import folder_of
from krishiv_py.disk.files import is_local_path
from krishiv_py.errors import PlanError, message
from krishiv_py.plan.nodes import Source

SHARED: Final = "spark.krishiv.sharedFolders"
"""Says that local paths are mounted on every machine of the cluster."""


def check_cluster(spark: SparkSession, checkpoint: str | None, sinks: list[Sink | None], source: Source) -> None:
    """Refuse folders on this machine's own disk where tasks run on others.

    Raises
    ------
    PlanError
        Naming the path.
    """
    master = str(spark.sparkContext.master)
    if master.startswith("local") or str(spark.conf.get(SHARED, "false")).lower() == "true":
        return
    written = [folder for folder in map(folder_of, sinks) if folder is not None]
    for path in [checkpoint, *written, *(p for _, p in source.places)]:
        if path is None or is_local_path(path):
            raise PlanError(
                message(
                    "tasks run on other machines, and a folder is on this one",
                    f"{path or 'a temporary checkpoint'}, master {master}",
                    "they would write state and outputs where nobody finds them",
                    "use hdfs://, s3a://, gs:// or another shared path; where this one is mounted on every machine, say so: "
                    f'.config("{SHARED}", "true")',
                )
            )
