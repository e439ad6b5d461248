"""Reads the schema of a MySQL or MariaDB server, and says by DDL jobs what of it the history does not have yet.

`read` describes what is there, `changes` compares it with the history and plans jobs (pure), `write` brings them into
the history and, once somebody reads the cluster's binlogs, into the stream; `run` is all of it.
"""
