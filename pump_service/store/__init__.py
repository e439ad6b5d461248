"""The store of a Pump: one data directory, one process. `store.Store` is its door; the files in order of reading.

A write, on its way into the value log:

    records      payloads in a buffer, and their columns (`parse` makes them); binlogs that the Pump writes by itself
    groups       requests that wait, the groups that they are written in, who is told what
    writer       who takes which group: the event loop, or the thread `pump-writer`; `writelock` is what both need
    appender     a group into the value log; what a failure means; `disk` guards the space and its two reserves
    framing      records -> bytes, by one kernel a group; `crc`, `frame` are the format in kernels and in Python
    valuelog     all files; `logfile` is one, `fs` the file system, `laid` the zeros ahead of the records

From the value log into the stream, on the thread `pump-indexer`:

    block        records as columns: what writer, indexer and recovery hand to each other
    chaser       hands over, or notes that the index lags; its thread `pump-chaser` then reads the value log instead
    index_queue  what waits for the indexer
    indexer      index, order, watermark; `order` does what is plain in kernels, `judge` the rest record by record
    index        LevelDB; `rows` are its entries, `users` who must not be closed under
    pending      late and orphan commits; `unwritten` outcomes that nothing could be written of

Reading, on any thread:

    stream       a pull, a record by its timestamp; `batch` is what a pull gives
    reader       ranges by kernels (`gather`), out of few reads (`regions`); `plain` one by one, where kernels do not do
    prewrites    those without an outcome; `settling` writes outcomes that nobody else writes
    gc           what goes: `gc_rules` decides, `summaries` and `summary` say what a file holds, `collected` what went

A start:

    opening      the steps; `identity` says who this is, `ahead` reads while the index is filled
    logfiles     each file of the value log; `recovery` judges and cuts the last, `scan` reads records
    damage       `pump verify` and `pump accept-damage`; `skips` are the stretches that were given up
    bookkeeping  small writes that must get through, on a full disk too

The write lock is held for a group and its hand-over, whichever thread that is on. Nothing is published that is not
indexed, nothing is answered that is not synced.
"""
