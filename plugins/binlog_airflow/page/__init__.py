"""The page in Airflow's UI: one look at every installation whose DAGs the user may read.

`app` has the routes behind Airflow's log-in, `known` finds the installations, `looks` asks them, `shown` words it.
"""
