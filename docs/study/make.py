"""Turn stores into tables, plots and pages: `python docs/study/make.py [--stores runs/study] [--check]`.

Stores that are there become results/*.csv; results become images/*.svg and what stands between the markers of the pages, so that
no number is typed by hand. With --check nothing is written: it says whether pages and results agree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from study import draw_skipplus, fill_beyond, fill_index, fill_newer, fill_scenes, fill_skipplus, fill_tis, fill_tokentm
from study.measure import measure
from study.pages import FILLS, PLOTS, Results, filled, pages, slots
from study.run import ORDER

FILLED_BY = (  # importing them registers what they fill
    draw_skipplus, fill_beyond, fill_index, fill_newer, fill_scenes, fill_skipplus, fill_tis, fill_tokentm,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--stores", type=Path, default=Path("runs/study"), help="what run.py wrote")
    given.add_argument("--check", action="store_true", help="say whether pages and results agree; write nothing")
    asked = given.parse_args(arguments)
    if asked.check:
        return check()
    done = measure(asked.stores, ORDER)
    print(f"measured: {', '.join(done) or f'nothing, {asked.stores} holds no store'}")
    results = Results()
    for name, draw in PLOTS.items():
        print(f"plot {name}: {draw(results) or 'nothing to draw yet'}")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, results, page.name), encoding="utf-8")
    return 0


def check() -> int:
    """Which pages do not say what the results say, and what is made but shown nowhere."""
    results, wrong = Results(), []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if filled(text, results, page.name) != text:
            wrong.append(f"{page.name} does not say what the results say; run docs/study/make.py")
    wrong += [f"{name} is on no page" for name in sorted((set(FILLS) | set(PLOTS)) - slots())]
    print("\n".join(wrong) or "pages and results agree")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
