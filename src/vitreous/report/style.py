"""The page's look, and the few lines of script that sort a table; without them it is all there as well."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --soft: #5c6770; --paper: #fbfaf7; --card: #fff; --line: #e2ded5; --grid: #d5d2ca;
  --best: #0b6e4f; --tie: #eaf4ef; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a2559c; --c4: #b8860b; --c5: #3fa0d8; --c6: #1d2327; --c7: #8a8f94 }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e9e6df; --soft: #a3a79f; --paper: #16191b; --card: #1f2427; --line: #343b3f;
  --grid: #3c4448; --best: #7fd1ae; --tie: #22332d; --c0: #58aee6; --c1: #f08a4b; --c2: #35c79a; --c3: #dd9bd6; --c4: #e2b64a; --c5: #9bd6f7; --c6: #e9e6df; --c7: #8f969b } }
* { box-sizing: border-box } html { -webkit-text-size-adjust: 100% }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main { max-width: 1280px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem }
h1 { font-size: 2.1rem; letter-spacing: -.02em; margin: 0; line-height: 1.2 } h2 { margin: 3.2rem 0 .25rem; letter-spacing: -.01em; overflow-wrap: anywhere }
h3 { margin: 2.2rem 0 .3rem } h4 { margin: 1.6rem 0 .2rem } p { max-width: 52rem; margin: .5rem 0 }
.soft { color: var(--soft) } code { font-size: .92em; overflow-wrap: anywhere } a { color: inherit }
nav ul { list-style: none; padding: 0; margin: 1rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem }
.table { overflow-x: auto; margin: .75rem 0 .25rem; max-width: 100% }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; vertical-align: top }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); max-width: 17rem; min-width: 6.5rem; white-space: normal; font-weight: 400; z-index: 1 }
th code { overflow-wrap: normal }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; vertical-align: bottom; white-space: normal; min-width: 4.6rem }
thead tr.groups th { border-bottom: 2px solid var(--line); text-align: center } tr.groups th:first-child { border-bottom: 0 }
thead th button { all: unset; cursor: pointer } thead th button:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px }
th[aria-sort=ascending] button::after { content: " ▴" } th[aria-sort=descending] button::after { content: " ▾" }
td small { display: block; color: var(--soft); font-size: .74rem; line-height: 1.35 } td b { color: var(--best) } td u { text-underline-offset: 3px }
td.tied { background: var(--tie) } .tie { margin-left: .25rem; color: var(--best); cursor: help } .arrow { color: var(--ink) }
td.better { color: var(--best) } td.worse { color: var(--c1) }
ul.notes { margin: .3rem 0 1rem; padding-left: 1.1rem; color: var(--soft); font-size: .85rem; max-width: 60rem }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); gap: 1rem; margin: .75rem 0 }
.cards.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)) } .wide svg.chart { font-size: 13px }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden }
figure.card { padding: .7rem .8rem .8rem; min-width: 0 } .card figcaption { padding: 0 0 .4rem; overflow-wrap: anywhere } .card p { font-size: .82rem; margin: .2rem 0 0 }
svg.chart { display: block; width: 100%; height: auto; font: 11.5px system-ui, sans-serif } svg.chart text { fill: var(--ink) } svg.chart text.faint { fill: var(--soft) }
.grid { stroke: var(--grid); fill: none } .grid.dotted { stroke-dasharray: 2 3; stroke: var(--soft) } .line { fill: none; stroke-width: 1.8 } .band { opacity: .13; stroke: none }
.mark { stroke-width: 1.6 }
.d1 { stroke-dasharray: 7 3 } .d2 { stroke-dasharray: 2 2.5 } .d3 { stroke-dasharray: 9 3 2 3 }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: .5rem 0; font-size: .82rem } .legend li { overflow-wrap: anywhere }
.strip { display: grid; grid-template-columns: repeat(var(--n), minmax(116px, 1fr)); gap: .6rem; overflow-x: auto; padding: .5rem 0; max-width: calc(var(--n) * 236px) }
.strip.small { grid-template-columns: repeat(var(--n), minmax(84px, 1fr)); max-width: calc(var(--n) * 150px) }
.strip img { display: block; width: 100%; height: auto } .strip figcaption { padding: .35rem .55rem .5rem; font-size: .78rem; line-height: 1.35 }
.strip figcaption > b { display: block; font-size: .8rem; overflow-wrap: anywhere } figcaption .score { display: flex; justify-content: space-between; gap: .4rem; font-variant-numeric: tabular-nums } .score b { color: var(--best) } .score span { color: var(--soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; min-width: 0 }
.ask { margin: 1.1rem 0 0; font-weight: 600; overflow-wrap: anywhere } .ask .soft { font-weight: 400 }
details { margin: .5rem 0 } summary { cursor: pointer; color: var(--soft) }
pre { overflow: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; font-size: .82rem; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 60rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .9rem } dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
footer { margin-top: 3.5rem; font-size: .85rem; color: var(--soft) }
@media (max-width: 600px) { main { padding: 1.5rem .9rem 3rem } h1 { font-size: 1.6rem } th, td { padding: .35rem .5rem } th:first-child { max-width: 8.5rem; font-size: .85rem } dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; --grid: #ccc; --tie: #eee; --best: #000 }
  @page { size: A4 landscape; margin: 12mm } main { max-width: none; padding: 0 } body { font-size: 10.5pt } nav { display: none }
  .table, .strip { overflow: visible } table { font-size: 7.5pt } th, td { padding: .15rem .3rem } td small { font-size: 6.5pt } thead th { font-size: 7pt; min-width: 0 } th:first-child { position: static; max-width: 9rem }
  .strip, .strip.small { grid-template-columns: repeat(var(--n), minmax(0, 1fr)); gap: .25rem } .strip figcaption { font-size: 6.5pt; padding: .2rem } .strip figcaption b { font-size: 6.5pt }
  .cards { grid-template-columns: repeat(3, 1fr) } .strip, .card, tr, .ask { break-inside: avoid } .ask, h2, h3, h4 { break-after: avoid } h2 { break-before: auto } }
"""

SCRIPT = """
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  [...heads].forEach((head, column) => {
    const button = document.createElement('button');
    button.append(...head.childNodes); head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const key = row => row.cells[column].dataset.v;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const gap = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -gap : gap;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
"""
STYLE += ".mark { fill: var(--card) }\n" + "".join(
    f".c{n} {{ stroke: var(--c{n}) }} .band.c{n} {{ fill: var(--c{n}) }}\n" for n in range(8)
)
