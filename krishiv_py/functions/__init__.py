"""Functions of expressions over Arrow values: what each computes. They know no expression, no column and no plan."""
