"""Reports of benchmark runs and of folders of maps: an HTML page with tables, charts and images, table files, and comparisons of two runs.

`stored_run` reads a run; `vitreous.bench.scores` and `vitreous.bench.summary` compute its statistics. `main_table` and
`paper_tables` make tables, `charts` and `chart_groups` draw charts, `map_loader`, `gallery` and `paper_figures` show
maps over their images, `page` renders everything with the templates in `templates/`, and `compare` pairs two runs.
`map_summary` and `map_page` make the page about a folder of maps.
"""

from __future__ import annotations

from vitreous.report.compare import Change, Comparison, compare_runs
from vitreous.report.map_page import write_map_report
from vitreous.report.page import WrittenReport, write_report

__all__ = [
    "Change",
    "Comparison",
    "WrittenReport",
    "compare_runs",
    "write_map_report",
    "write_report",
]
