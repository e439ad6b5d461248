"""Works from the archive, carried out on a target. The loader on a stream, as a library, is `pumphouse.replay`."""
