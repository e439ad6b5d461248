"""The archive's history, readable: changes of a table in commit order, its rows at a moment, versions of a row."""
