"""Benchmarks of methods and metrics over models and datasets.

`plan_parser` reads a plan, `plan_check` validates it, `work_cells` splits it into units of work, `pool` and `ray` run
them, `store` keeps the rows, and `summary` turns them into values with intervals and ranks.
"""
