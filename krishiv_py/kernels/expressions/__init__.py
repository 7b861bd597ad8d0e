"""What expressions compute, by family of operations (docs/expressions.md); ``kernels/evaluate.py`` walks the tree."""
