"""What the generated histories leave out: what TiDB itself gets wrong (docs/interop.md), and what a MariaDB is refused by rule.

`python -m tests.tidb.chain` plays everything unless it is told otherwise. Changes of a column's type of which it is not
known what a MariaDB makes of the values stop a load by rule too (docs/types.md): `History(known_casts=True)`.
"""

# A read of a cached table shows NULL in columns that were added before, NOT NULL ones too; after DROP DEFAULT a later
# MODIFY COLUMN turns NULLs of that column into 0, with no binlog; a primary key under another name may be dropped, a
# clustered one too, and then nobody reads the table any more; after one RENAME of several tables across databases a
# tidb-server lists two tables by one name, and statements on either end in a panic; a change to TIMESTAMP keeps dates
# before 1970, which no INSERT takes; one to JSON NOT NULL in a sql_mode that is not strict makes NULLs of texts that are
# no JSON; a statement whose cascade fails (of an index that is invisible) leaves its own row
# changes in the binlog of its transaction.
DDL_INTO_TIDB = (
    r"` CACHE$|DROP DEFAULT|RENAME INDEX `PRIMARY`|^RENAME TABLE (?=.*,)(?=.*_a`\.)(?=.*_b`\.)"
    r"|(MODIFY|CHANGE) COLUMN .* (TIMESTAMP|JSON)|ON DELETE CASCADE$"
)
# TRUNCATE and EXCHANGE PARTITION of a table BY KEY, and BY HASH (docs/ddl.md, 23 and 42).
DDL = DDL_INTO_TIDB + r"|/\* BY KEY OR HASH \*/"
