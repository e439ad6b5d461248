"""Makes any MySQL or MariaDB a source: its row binlog becomes the transactions of the Pumps."""
