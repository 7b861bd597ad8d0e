"""Nexmark: the auction benchmark, its seeded events, and q0 to q22 in krishiv_py."""
