"""CRC-32C in kernels gives what the library gives, with the processor's instruction and without."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from pumphouse.codec import crc
from pumphouse.codec.jit import frozen


@pytest.mark.row("P1")
@pytest.mark.parametrize("function", [crc.crc32c_of, crc.crc_by_table])
def test_the_sum_is_that_of_the_library_at_every_length_and_alignment(function) -> None:  # type: ignore[no-untyped-def]
    data = frozen(np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8))
    for start in range(9):
        for length in [*range(40), 1000, 4000]:
            stop = start + length
            expected = google_crc32c.value(data[start:stop].tobytes())
            assert function(data, start, stop, 0) == expected
            half = start + length // 2
            assert function(data, half, stop, function(data, start, half, 0)) == expected
