"""What the generated histories leave out for now: each is a difference that is known and not mended yet.

Taken out of here with the mend; `python -m tests.tidb.chain` plays everything unless it is told otherwise.
"""

DDL = "|".join(
    (
        r"RENAME TABLE .*,.*,",  # a table that is named twice in one job
        r"PARTITION BY KEY",  # MariaDB's KEY() has another hash: TRUNCATE PARTITION takes other rows
        r"` CACHE$",  # TiDB: a read of a cached table shows NULL in columns that were added before, NOT NULL ones too
        r"DROP DEFAULT",  # TiDB: a later MODIFY COLUMN turns NULLs of that column into 0, with no binlog
    )
)
# Changes of a column's type: those whose values are not known stop the load, by rule (docs/types.md).
CONVERSIONS = False
# Into another TiDB: all conversions are played, and of the above only what TiDB itself gets wrong is left out.
DDL_INTO_TIDB = r"DROP DEFAULT|` CACHE$"
