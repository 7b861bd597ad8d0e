"""Define what people look at: plans and queries as text and HTML, plots, progress of long work. No Spark, no pandas."""
