"""Benchmarks: one module a question. Each prints ratios beside its goals and gives them back as plain values.

    python -m bench [NAME ...] [--quick] [--json FILE] [--write-docs]

Absolute times belong to one machine on one day; a ratio between things that ran in turns does not, so ratios are what
goals speak of.
"""
