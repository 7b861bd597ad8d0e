"""Each of the five reference texts: its worked numbers, and its example as a whole pipeline."""
