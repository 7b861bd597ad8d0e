"""The three engines beside one another: the same answer, or the same error of ours, over every type of column."""
