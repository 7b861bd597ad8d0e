"""JSON texts as Arrow columns: whole blocks by Arrow, one by one where a block does not fit."""
