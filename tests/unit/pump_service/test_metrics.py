"""Histograms that take many observations at once show what the library's own would."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pump_service.metrics import GroupHistogram

BOUNDS = (0.5, 1.0, 2.0, 8.0)


@pytest.mark.row("P14")
def test_a_group_histogram_shows_what_the_librarys_own_would() -> None:
    shown = []
    for kind in (Histogram, GroupHistogram):
        chance = random.Random(3)
        registry = CollectorRegistry()
        histogram = kind("seconds", "Of calls", ("method",), buckets=BOUNDS, registry=registry)
        child = histogram.labels("Write")
        for _ in range(500):
            amount, count = chance.choice([*BOUNDS, 0.0, 100.0, chance.random() * 4]), chance.choice([1, 3])
            if isinstance(child, GroupHistogram):
                child.observe_many(amount, count)
            else:
                for _ in range(count):
                    child.observe(amount)
        for amount in BOUNDS:
            child.observe(amount)
        # Sums of the same numbers in another order differ in their last digits.
        lines = generate_latest(registry).decode().splitlines()
        shown.append([line for line in lines if "_sum" not in line])
        (total,) = (float(line.split()[1]) for line in lines if "_sum" in line)
        shown.append([f"{total:.6f}"])
    assert shown[:2] == shown[2:]
    assert len(shown[0]) > 5
