"""Sessions with a longest duration: a row out of order can divide later ones again."""
