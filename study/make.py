"""Turn stores into tables, plots and pages: `python study/make.py [--stores runs/study] [--check | --pages] [NAME …]`.

Stores are converted to results/*.csv; results are converted to images/*.svg and to the text between the markers of the pages, so
that no number is typed by hand. NAMEs are plans to measure again; with --pages none is. With --check nothing is written: it
reports whether pages and results agree, and whether the results support the conclusions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from study import (
    draw_skipplus,
    elsewhere,
    error_results,
    fill_beyond,
    fill_choose,
    fill_default,
    fill_errors,
    fill_index,
    fill_newer,
    fill_reproduction,
    fill_scenes,
    fill_skipplus,
    fill_tis,
    fill_tokentm,
    shorts,
)
from study.measure import RESULTS, measure
from study.pages import FILLS, PLOTS, QUOTING, Results, fill_page, list_pages, list_slots
from study.quotes import find_contradictions
from study.run import ORDER

FILLED_BY = (  # importing them registers their slots
    draw_skipplus, elsewhere, fill_beyond, fill_choose, fill_default, fill_errors, fill_index, fill_newer, fill_reproduction, fill_scenes, fill_skipplus, fill_tis,
    fill_tokentm, shorts,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}; all if there are none")
    parser.add_argument("--stores", type=Path, default=Path("runs/study"), help="folder that run.py wrote")
    parser.add_argument("--check", action="store_true", help="report whether pages and results agree; write nothing")
    parser.add_argument("--pages", action="store_true", help="fill pages from the existing results")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in ORDER]:
        parser.error(f"{unknown[0]!r} is no plan of the study; known: {', '.join(ORDER)}")
    if options.check:
        return check()
    if not options.pages:
        measured = measure(options.stores, options.names or ORDER)
        if not options.names:
            measured += [f"error-bars-{part}" for part in error_results.measure_errors(options.stores, RESULTS)]
        print(f"measured: {', '.join(measured) or f'nothing, {options.stores} has no store of these'}")
    results = Results()
    for name, draw in PLOTS.items():
        print(f"plot {name}: {draw(results) or 'nothing to draw yet'}")
    for page in (*list_pages(), *QUOTING):
        text = page.read_text(encoding="utf-8")
        page.write_text(fill_page(text, results, page.name), encoding="utf-8")
    errors = find_contradictions(results)
    print("\n".join(errors))
    return int(bool(errors))


def check() -> int:
    """Report pages that differ from the results, contradicted conclusions, and slots that no page has."""
    results, errors = Results(), []
    for page in (*list_pages(), *QUOTING):
        text = page.read_text(encoding="utf-8")
        if fill_page(text, results, page.name) != text:
            errors.append(f"{page.name} differs from the results; run study/make.py")
    errors += find_contradictions(results)
    errors += [f"{name} is on no page" for name in sorted((set(FILLS) | set(PLOTS)) - list_slots())]
    print("\n".join(errors) or "pages and results agree")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
