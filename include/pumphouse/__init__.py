"""Pumphouse: a library that knows nothing of Airflow, Spark or the Pump server; above it, the command line."""
