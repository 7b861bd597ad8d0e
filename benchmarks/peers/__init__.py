"""One script per peer, as a competent user writes it: ``python -m benchmarks.peers.NAME --job J1 --data DIR --out DIR``."""
