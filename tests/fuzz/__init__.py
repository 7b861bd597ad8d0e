"""Wrong arguments, odd texts and broken batches: only errors of ours, no hang, and what is accepted runs."""
