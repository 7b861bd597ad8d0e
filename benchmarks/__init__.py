"""Benchmarks: the same event-time work on krishiv_py and on its peers, per CPU second of the whole process tree."""
