"""Benchmarks: which work there is (plan, cells), where it runs (pool, ray), what is known (store), what it says (summary)."""
