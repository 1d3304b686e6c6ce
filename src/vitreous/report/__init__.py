"""The report of a run: one self-contained page with tables, charts and images, its tables as files, and what changed between runs.

`stored_run` reads a run; its rows and their statistics are those of `vitreous.bench.scores` and `vitreous.bench.summary`.
`main_table` and `paper_tables` make tables, `charts` and `chart_groups` draw charts, `map_loader`, `gallery` and `paper_figures` show maps
over their images, `page` puts them together with the templates of `templates/`, and `compare` pairs two runs.
"""

from __future__ import annotations

from vitreous.report.compare import Change, Comparison, compare_runs
from vitreous.report.page import WrittenReport, write_report

__all__ = ["Change", "Comparison", "WrittenReport", "compare_runs", "write_report"]
