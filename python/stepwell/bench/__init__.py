"""Benchmark of attention against its peers: ``stepwell bench``, or ``python -m stepwell.bench``.

docs/benchmarking.md says what is counted, how it is timed, and what the JSON holds.
"""
