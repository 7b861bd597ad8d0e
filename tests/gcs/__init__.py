"""Google Cloud Storage, on a server that answers as it does."""
