"""Five jobs of Structured Streaming, as they are written by hand; ``here.py`` has the same ones with krishiv_py."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn


def read(spark: SparkSession, folder: str, schema: str) -> DataFrame:
    """Return a stream of files, one a micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)


def minutes(orders: DataFrame) -> DataFrame:
    """Return the orders and the amount of each shop and minute."""
    return (
        orders.withWatermark("at", "10 seconds")
        .groupBy("shop", fn.window("at", "1 minute").alias("w"))
        .agg(fn.count("*").alias("orders"), fn.sum("amount").alias("amount"))
        .select("shop", fn.col("w.start").alias("window_start"), "orders", "amount")
    )


def sessions(orders: DataFrame) -> DataFrame:
    """Return the bursts of orders of each shop."""
    return (
        orders.withWatermark("at", "10 seconds")
        .groupBy("shop", fn.session_window("at", "15 seconds").alias("w"))
        .agg(fn.count("*").alias("orders"))
        .select("shop", fn.col("w.start").alias("window_start"), "orders")
    )


def once(orders: DataFrame) -> DataFrame:
    """Return each order once."""
    return orders.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["id"]).select("id", "shop", "at")


def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Return orders with the payments of the half minute that follows."""
    left = orders.withWatermark("at", "10 seconds")
    right = payments.select(fn.col("id").alias("paid_id"), "paid").withWatermark("paid", "10 seconds")
    near = fn.expr("id = paid_id AND paid >= at AND paid <= at + INTERVAL 30 SECONDS")
    return left.join(right, near).select("id", "at", "paid")


def busiest(orders: DataFrame) -> DataFrame:
    """Return the largest number of orders of a shop in each five minutes, counted by minute."""
    counts = (
        orders.withWatermark("at", "10 seconds")
        .groupBy("shop", fn.window("at", "1 minute").alias("w"))
        .agg(fn.count("*").alias("orders"))
    )
    return (
        counts.groupBy(fn.window(fn.window_time("w"), "5 minutes").alias("five"))
        .agg(fn.max("orders").alias("most"))
        .select(fn.col("five.start").alias("window_start"), "most")
    )


def run(results: DataFrame, folder: str, checkpoint: str) -> None:
    """Write what is final to files, and stop when all input is read."""
    (
        results.writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(folder)
        .awaitTermination()
    )
