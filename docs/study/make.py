"""Turn stores into tables, plots and pages: `python docs/study/make.py [--stores runs/study] [--check | --pages] [NAME …]`.

Stores that are there become results/*.csv; results become images/*.svg and what stands between the markers of the pages, so that
no number is typed by hand. NAMEs are plans to measure again; with --pages none is. With --check nothing is written: it says
whether pages and results agree, and whether what was concluded by hand still follows.
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

FILLED_BY = (  # importing them registers what they fill
    draw_skipplus, elsewhere, fill_beyond, fill_choose, fill_default, fill_errors, fill_index, fill_newer, fill_reproduction, fill_scenes, fill_skipplus, fill_tis,
    fill_tokentm, shorts,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}; all if there are none")
    parser.add_argument("--stores", type=Path, default=Path("runs/study"), help="what run.py wrote")
    parser.add_argument("--check", action="store_true", help="say whether pages and results agree; write nothing")
    parser.add_argument("--pages", action="store_true", help="fill pages from the results that are there")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in ORDER]:
        parser.error(f"{unknown[0]!r} is no plan of the study; known: {', '.join(ORDER)}")
    if options.check:
        return check()
    if not options.pages:
        measured = measure(options.stores, options.names or ORDER)
        if not options.names:
            measured += [f"error-bars-{part}" for part in error_results.measure_errors(options.stores, RESULTS)]
        print(f"measured: {', '.join(measured) or f'nothing, {options.stores} holds no store of these'}")
    results = Results()
    for name, draw in PLOTS.items():
        print(f"plot {name}: {draw(results) or 'nothing to draw yet'}")
    for page in (*list_pages(), *QUOTING):
        text = page.read_text(encoding="utf-8")
        page.write_text(fill_page(text, results, page.name), encoding="utf-8")
    wrong = find_contradictions(results)
    print("\n".join(wrong))
    return int(bool(wrong))


def check() -> int:
    """Which pages do not say what the results say, and what is made but shown nowhere."""
    results, wrong = Results(), []
    for page in (*list_pages(), *QUOTING):
        text = page.read_text(encoding="utf-8")
        if fill_page(text, results, page.name) != text:
            wrong.append(f"{page.name} does not say what the results say; run docs/study/make.py")
    wrong += find_contradictions(results)
    wrong += [f"{name} is on no page" for name in sorted((set(FILLS) | set(PLOTS)) - list_slots())]
    print("\n".join(wrong) or "pages and results agree")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
