"""Base dumps of a source that is written to: chunks by key, made exact by the log (docs/concepts.md, "Base")."""
