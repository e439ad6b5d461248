"""Take chosen changes back on a live server, where nobody changed the rows since (row R5, docs/flashback.md).

- **Folded**: of each key that chosen transactions changed count the first old image and the last new one. Where these
  are equal, nothing is left to do. An update that changes its key is a row that goes and a row that comes.
- **Linked**: keys under which one row was, or that are one to the server, go back together or stay together.
- **Judged**: a row that equals the old image is back already. It is a conflict where the archive has a later change of
  the key by a transaction that is not chosen, or where the row does not equal the last new image. Any other is put
  back. Columns that the server computes are not compared.
- **Guarded**: whatever was judged before, each statement finds its row by key and by all values of the new image, so it
  changes no row that is another one by then. A row to which rows of other tables refer is not deleted.
- **Whole or not**: a batch of rows is one transaction, and up to `BATCH_ROWS` rows are one batch. A run that was killed
  ends the same when it runs again: what is back already counts as that.
- **Reversible**: before a batch is committed, the statements that undo it are in the redo file, with the same guards.
- **Refused by name**: a table without a key, with triggers, that is another one on the server than in the history, or
  whose rows or columns a DDL since has changed so that the images do not fit.
"""
