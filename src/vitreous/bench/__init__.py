"""Benchmarks of methods and metrics over models and datasets.

`read` parses a plan, `check` validates it, `cells` splits it into units of work, `pool` and `ray` run them, `store`
keeps the rows, and `summary` turns them into values with intervals and ranks.
"""
