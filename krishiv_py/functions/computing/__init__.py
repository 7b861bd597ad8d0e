"""The computation of functions and operators: values, casts, comparison, arithmetic, texts, times, lists, maps."""
