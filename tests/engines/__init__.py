"""The three engines next to each other: the same answer, or the same error of ours, over every type of column."""
