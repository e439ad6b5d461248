"""Folds a base and the windows behind it into the next base."""
