"""Damages every kind of file a query leaves on disk and goes on: the right answer or an error of ours, never another."""
