"""Benchmarks: each prints one JSON object, compares in one run, and asserts nothing."""
