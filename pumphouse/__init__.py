"""Command line, demo and local stack of Pumphouse. Stands above all rooms and imports them lazily."""
