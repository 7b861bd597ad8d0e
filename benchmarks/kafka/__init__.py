"""The windows over a Kafka topic of JSON events, beside hand-written Spark with its connector (``README.md``)."""
