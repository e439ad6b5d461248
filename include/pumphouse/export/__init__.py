"""Out of the archive, in formats that others read: `pumphouse archive export`.

- **Ordered**: the transactions of a range in commit order over all Pumps, and its DDLs between them.
- **By columns**: row changes are decoded and encoded as columns; no object is made for a row.
- **Once**: what a destination has says how far it is, and changes together with that. Of files, a note beside each says
  which range it holds and which bytes it has, before it appears; of a topic of Kafka, a header of the last message of
  each of its transactions. So an export that was killed goes on where it was, a later one goes on where it ended, and
  two at once cannot mix.
- **Refused by name**: what the archive cannot tell (a DDL of an unknown type, rows without binlogs, an old image that
  lacks its key). What Reparo refuses is written as the Drainer writes it, and named.
"""
