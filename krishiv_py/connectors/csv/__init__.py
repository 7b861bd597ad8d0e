"""CSV without Spark, by the rules of Spark's reader: lines to fields, fields to values."""
