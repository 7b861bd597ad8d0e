"""The windows over a Kafka topic of JSON events, next to hand-written Spark with its connector (``README.md``)."""
