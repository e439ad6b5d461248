"""What a command, a DAG's task and a Spark job run: parts opened, one view read, carried out, parts closed."""
