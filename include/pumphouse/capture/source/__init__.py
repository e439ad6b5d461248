"""A source's binlog, read as a replica reads it, and its rows as TiDB Binlog has them.

- `stream.open_stream(server, start, flavor=…, server_id=…, heartbeat_s=…, semi_sync=…, stop=…)`: a context whose
  iterator gives `model.Group` and `model.Heartbeat`, and whose ``acknowledge(group)`` answers a semi-sync source.
- `target.Target.of(table_map, table_info, table_id, charsets)`: holds a TABLE_MAP against a table of the history.
- `encode.encode(group, targets, first, last)`: the rows of those events; targets are parallel to ``group.tables``, None
  leaves a table out. Its ``prewrite_value(first, last, schema_version)`` is bytes for the P of a transaction.
- `fit.unfit(row)`: why a column of information_schema cannot be captured, '' = it can.
"""
