"""What functions and operators compute: values, casts, comparison, arithmetic, texts, times, lists, maps."""
