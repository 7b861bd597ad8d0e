"""Aggregates of bounded size: distinct counts, quantiles and histograms."""
