"""FROM: tables, window functions over them, unions and joins."""
