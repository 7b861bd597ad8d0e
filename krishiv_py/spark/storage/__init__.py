"""Define what tasks of Spark share: tables of lookup joins, large chunks between tasks of one machine."""
