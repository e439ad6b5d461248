"""A server's row binlog as transactions of the Pumps: `pumphouse capture`, one process a source (docs/capture.md)."""
