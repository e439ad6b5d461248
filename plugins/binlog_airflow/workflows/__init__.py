"""The DAGs of an installation, a file each; `binlog_airflow.factory` makes them."""
