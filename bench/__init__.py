"""Benchmarks: ratios within one run, printed, never asserted."""
