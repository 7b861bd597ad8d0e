"""The job of the container image: orders of a folder to counts for each user and minute; put your own in its place.

Folders and the name of the service that executors call come from the environment (deploy/kubernetes.yaml).
"""

import logging
import os
import sys

from krishiv_py import ParquetSink, Session, SessionBuilder, count, own_process
from krishiv_py import sum as total
from krishiv_py.logs import JsonFormatter
from krishiv_py.metrics import serve


def builder() -> SessionBuilder:
    """Spark in this process, or with executors of Kubernetes where the environment names their image."""
    image = os.environ.get("EXECUTOR_IMAGE")
    if image is None:
        return Session.builder().master("local[2]").profile("single-node-durable")
    found = Session.builder().master("k8s://https://kubernetes.default.svc").profile("distributed-durable")
    for name, value in {
        "spark.kubernetes.namespace": os.environ["POD_NAMESPACE"],
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.driver.pod.name": os.environ["POD_NAME"],
        "spark.kubernetes.authenticate.serviceAccountName": "krishiv-driver",
        "spark.kubernetes.executor.podTemplateFile": "/opt/job/config/executor.yaml",
        "spark.driver.host": os.environ["DRIVER_HOST"],
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": 7078,
        "spark.driver.blockManager.port": 7079,
        "spark.executor.instances": int(os.environ.get("EXECUTORS", "2")),
        "spark.krishiv.sharedFolders": True,
    }.items():
        found = found.config(name, value)
    return found


def main() -> None:
    """Run until the query ends; SIGTERM stops it and ends the process with 143."""
    own_process()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection to the JVM
    folder = os.environ.get("JOB_FOLDER", "/checkpoint")
    with builder().get_or_create() as session:
        orders = session.read_parquet(f"{folder}/in", "user string, at bigint, amount bigint", streaming=True)
        per_minute = (
            orders.watermark("at", "10 seconds").key_by("user").tumbling_window("1 minute").agg(count(), total("amount"))
        )
        query = per_minute.start(ParquetSink(f"{folder}/out"), checkpoint=f"{folder}/check", name="orders")
        with serve(int(os.environ.get("METRICS_PORT", "9000")), [query], host="0.0.0.0"):
            query.await_termination()


if __name__ == "__main__":
    main()
