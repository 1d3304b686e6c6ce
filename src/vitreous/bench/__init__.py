"""Benchmarks of methods and metrics over models and datasets.

`plan_parser` reads a plan, whose entries `plan` declares, and `plan_check` validates it; `work_cells` splits it into
units of work, `pool` and `ray` run them, and `store` keeps the rows. `scores` sorts the rows by metric and gives
them as arrays, and `summary` turns them into values with intervals and ranks.
"""
