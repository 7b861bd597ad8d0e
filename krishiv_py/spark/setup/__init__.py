"""The Spark session: Java, settings, types, waiting for it so that Ctrl-C works."""
