"""Shared library of Pumphouse. It knows nothing of Airflow, Spark or the Pump server."""
