"""One self-contained page about a run, and its tables as files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from pathlib import Path

from vitreous import __version__
from vitreous.bench.parts import put_whole
from vitreous.core.errors import DataError, VitreousError
from vitreous.report import tables
from vitreous.report.block import Block, Run
from vitreous.report.easel import Easel, easel_of
from vitreous.report.figures import figures
from vitreous.report.gallery import gallery
from vitreous.report.main_table import main_table, tidy
from vitreous.report.papers import Told, paper_tables
from vitreous.report.plots import curves, radars, sweeps
from vitreous.report.read import of_role, read_run
from vitreous.report.stats import Standing, standings_of
from vitreous.report.style import SCRIPT, STYLE
from vitreous.report.words import code, plural

Step = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Written:
    """Where a report lies."""

    page: Path
    tables: tuple[Path, ...]
    unreached: tuple[str, ...] = ()  # why pictures are not shown


def write_report(
    folder: str | Path, out: str | Path, *, gallery: int = 6, run: str | None = None, step: Step = lambda _: None
) -> Written:
    """Read a run, write `out` (HTML) and `tables/` beside it; `gallery` bounds the pictures shown per model and data set."""
    step("reading")
    found, out = read_run(folder, run), Path(out)
    slugs = slugs_of(found.blocks)
    standings = [standings_of(block) for block in found.blocks]
    told = paper_tables(found.wholes, slugs_of(found.wholes))
    sections, unreached, main = [], [], []
    for block, slug, ranked in zip(found.blocks, slugs, standings, strict=True):
        step(block.title)
        easel, why = easel_for(found, block) if gallery > 0 else (None, "")
        patches = None if easel is None else easel.vit.layout(easel.vit.size).patches
        main.append(main_table(block, ranked, slug, patches))
        shown, problem = with_pictures(easel, ranked, gallery)
        unreached += [sentence for sentence in (why, problem) if sentence]
        sections.append(section(block, slug, ranked, main[-1], shown, why or problem, easel))
    text = page(found, slugs, sections, told)
    paths = write_tables(
        out.parent / "tables", [*main, *(one.table for one in told if one.table)], tidy_blocks(found, standings)
    )
    put(out, text)
    return Written(out, tuple(paths), tuple(dict.fromkeys(unreached)))


def tidy_blocks(run: Run, standings: Sequence[Sequence[Standing]]) -> str:
    return tidy(list(zip(run.blocks, standings, strict=True)))


def easel_for(run: Run, block: Block) -> tuple[Easel | None, str]:
    try:
        return easel_of(run, block), ""
    except (VitreousError, OSError) as problem:
        return None, " ".join(str(problem).split())


def with_pictures(easel: Easel | None, standings: Sequence[Standing], count: int) -> tuple[str, str]:
    """The parts of the page that need pictures, or the sentence that says why they are not there."""
    if easel is None:
        return "", ""
    try:
        shown = gallery(easel, standings, count) + figures(easel, standings)
    except (VitreousError, OSError) as problem:
        return "", " ".join(str(problem).split())
    if easel.remade:
        names = ", ".join(map(code, dict.fromkeys(re.sub(r"layer=\d+", "layer=…", name) for name in easel.remade)))
        shown += f'<p class="soft">Made again for these pictures, since the run keeps no such maps: {names}.</p>'
    return shown, ""


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def page(run: Run, slugs: Sequence[str], sections: Sequence[str], told: Sequence[Told]) -> str:
    first, last = run.blocks[0], datetime.fromtimestamp(run.made, UTC)
    count = len({question.picture for block in run.blocks for question in block.questions})
    scope = (
        f"{plural(len({b.model for b in run.blocks}), 'model')} × {plural(len({b.dataset for b in run.blocks}), 'data set')} × "
        f"{plural(len(first.methods), 'method')} × {plural(len(first.columns), 'metric')}, {plural(count, 'picture')}"
    )
    links = "".join(
        f'<li><a href="#{slug}">{escape(b.title)}</a></li>' for b, slug in zip(run.blocks, slugs, strict=True)
    )
    return document(
        "Vitreous: which explanation can be trusted",
        f"""<h1>Which explanation can be trusted?</h1>
<p>{escape(scope)}. <span class="soft">Run {escape(run.name)} of {last:%Y-%m-%d %H:%M} UTC.</span></p>
<nav><ul>{links}<li><a href="#papers">Tables of the papers</a></li><li><a href="#protocol">Protocol and provenance</a></li></ul></nav>
{"".join(sections)}{papers(told)}{protocol(run)}""",
    )


def document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
{body}
<footer>vitreous {escape(__version__)} · nothing was fetched to make this page, and nothing is to show it</footer>
</main><script>{SCRIPT}</script></body></html>
"""


def section(
    block: Block,
    slug: str,
    standings: Sequence[Standing],
    table: tables.Table,
    shown: str,
    why: str,
    easel: Easel | None,
) -> str:
    depth = None if easel is None else easel.vit.depth
    parts = [
        f'<section id="{slug}"><h2>{escape(block.title)}</h2>',
        tables.html(table),
        roles(block, slug),
        radars(block, standings),
        curves(block, standings),
        sweeps(block, standings, depth),
        shown,
        f'<p class="soft"><b>Pictures</b> are left out: {escape(why)}.</p>' if why else "",
        "</section>",
    ]
    return "".join(parts)


def roles(block: Block, slug: str) -> str:
    """The same table, for every reason why a class was asked about."""
    if len(block.roles) < 2:
        return ""
    inside = ""
    for role in block.roles:
        own = of_role(block, role)
        inside += f"<h4>{escape(role)}</h4>{tables.html(main_table(own, standings_of(own), slug))}"
    return f"<details><summary>Each kind of question by itself: {escape(', '.join(block.roles))}</summary>{inside}</details>"


def papers(told: Sequence[Told]) -> str:
    """Tables that the run fills, then one line for each that it does not."""
    filled = "".join(
        f"<h3>{escape(one.paper)}</h3><p>{escape(one.table.title)}</p>{tables.html(one.table)}"
        for one in told
        if one.table
    )
    missing = "".join(f"<li><b>{escape(one.paper)}</b>: {escape(one.missing)}.</li>" for one in told if not one.table)
    left = f'<p class="soft">Left out, for want of numbers:</p><ul class="notes">{missing}</ul>' if missing else ""
    words = (
        "<p>In the layouts in which they were published; best bold, second underlined, as printed.</p>"
        if filled
        else ""
    )
    return f'<section id="papers"><h2>Tables of the papers</h2>{words}{filled}{left}</section>'


def protocol(run: Run) -> str:
    """All that decides the numbers."""
    metrics: dict[str, Mapping[str, object]] = {}
    for block in run.blocks:
        for column in block.columns:
            metrics.setdefault(column.metric, column.protocol)
    listed = "".join(
        f"<dt>{code(name)}</dt><dd><code>{escape(json.dumps(dict(said), ensure_ascii=False))}</code></dd>"
        for name, said in metrics.items()
    )
    origin = "".join(
        f"<h4>{escape(block.title)}</h4><dl>"
        + "".join(
            f"<dt>{escape(key)}</dt><dd>{escape(', '.join(values) or '–')}</dd>"
            for key, values in block.provenance.items()
        )
        + "</dl>"
        for block in run.blocks
    )
    facts = "".join(
        f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>"
        for key, value in {"folder": run.folder, "run": run.name, **run.about}.items()
        if value is not None
    )
    return (
        f'<section id="protocol"><h2>Protocol and provenance</h2><h3>Run</h3><dl>{facts}</dl><h3>Plan</h3><pre>{escape(run.plan)}</pre>'
        f"<h3>Metrics</h3><dl>{listed}</dl><h3>Models and data</h3>{origin}</section>"
    )


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def slugs_of(blocks: Sequence[Block]) -> list[str]:
    """A name for every block that is safe in files and links, each once."""
    found: list[str] = []
    for block in blocks:
        text = f"{block.model}-{block.dataset}-{block.explained}"
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "block"
        found.append(slug if slug not in found else f"{slug}-{sha256(text.encode()).hexdigest()[:8]}")
    return found


def write_tables(folder: Path, made: Sequence[tables.Table], everything: str) -> list[Path]:
    paths = [put(folder / "all.csv", everything)]
    for table in made:
        for suffix, write in (("md", tables.markdown), ("tex", tables.latex), ("csv", tables.table_csv)):
            paths.append(put(folder / f"{table.slug}.{suffix}", write(table)))
    return paths


def put(path: Path, text: str) -> Path:
    """A file that is there as a whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DataError(f"'{path}' cannot be written: {problem.strerror}") from None
    put_whole(path, text.encode())
    return path
