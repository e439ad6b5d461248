"""Airflow's side of Pumphouse: hooks, assets, tasks. Importing it is cheap; heavy libraries load inside tasks."""
