"""Benchmarks, run by `make bench`: `bench/__main__.py` lists them. Goals are ratios between contenders of one run."""
