"""S3 as a checkpoint, a source and a place of outputs, against a moto server."""
