"""What a run came to: one self-contained page with tables, charts and pictures, its tables as files, and what changed between runs.

`read` makes arrays of a run, `stats` says who is ahead, `main_table`, `papers`, `plots`, `gallery` and `figures` are the parts of the
page, `page` puts them together, `compare` pairs two runs.
"""

from __future__ import annotations

from vitreous.report.compare import Change, Comparison, compare_runs
from vitreous.report.page import Written, write_report

__all__ = ["Change", "Comparison", "Written", "compare_runs", "write_report"]
