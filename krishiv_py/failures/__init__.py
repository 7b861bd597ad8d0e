"""The common part of failures: a verdict whether they pass, pauses between attempts, and texts without secrets."""
