"""Sources of users: ranges planned on the driver, noted in a log, and read in tasks. Imports the rest of the reading room."""
