"""The table as Markdown and JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from suite.row import Row, format_number
from suite.workload import WORDS

HEAD = (
    "",
    "against",
    "ratio",
    "spread",
    "target",
    "verdict",
    "seconds, ours / theirs",
    "memory, ours / theirs",
    "agreement",
)
GROUPS = (
    "one backward",
    "attention",
    "relevance",
    "paths",
    "sampling",
    "metrics",
    "stand-ins",
    "peers",
    "memory",
    "start-up",
)


def describe_machine(device: str) -> dict[str, Any]:
    """Description of the machine and versions."""
    cuda = device.startswith("cuda")
    facts = {
        "device": torch.cuda.get_device_name(device) if cuda else describe_cpu(),
        "clock": "wall time with synchronisation" if cuda else "process time of all threads",
        "memory": "torch.cuda.max_memory_allocated" if cuda else "torch's CPU allocator, as measured by its profiler",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: find_version(name) for name in ("torch", "timm", "vitreous", "captum", "grad-cam", "quantus", "lxt")},
    }
    return {key: value for key, value in facts.items() if value is not None}


def describe_cpu() -> str:
    """Name of the CPU, if the system provides it."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()


def find_version(name: str) -> str | None:
    if name == "vitreous":
        import vitreous

        return vitreous.__version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def format_markdown(rows: Iterable[Row]) -> str:
    """A table for each size, group and batch, in the order of `GROUPS` and of measurement."""
    rows, parts = list(rows), []
    for size in dict.fromkeys(row.size for row in rows):
        here = [row for row in rows if row.size == size]
        groups = dict.fromkeys(row.group for row in here)
        for group in sorted(groups, key=lambda group: GROUPS.index(group) if group in GROUPS else len(GROUPS)):
            parts += format_tables(size, group, [row for row in here if row.group == group])
    return "\n".join(parts).rstrip()


def format_tables(size: str, group: str, rows: list[Row]) -> list[str]:
    """A table for each batch size of ratios; other rows are in the first table."""
    batches = list(dict.fromkeys(row.batch for row in rows if not row.unit and row.error is None)) or [rows[0].batch]
    title, parts = f"{WORDS.get(size, size)} · {group}" if size else group.capitalize(), []
    for batch in batches:
        these = [r for r in rows if (r.batch if not r.unit and r.batch in batches else batches[0]) == batch]
        cells = [format_cells(row) for row in these]
        shared = {line[1] for line in cells}
        facts = list(dict.fromkeys(f"batch {row.batch}, {row.dtype}" for row in these if size and row.error is None))
        facts += [f"against {shared.pop()}"] if len(shared) == 1 and shared != {""} else []
        parts += [f"**{title}**" + (f" ({', '.join(facts)})" if facts else ""), "", format_grid(cells), ""]
    return parts


def format_grid(cells: list[tuple[str, ...]]) -> str:
    """A table without columns that are empty or the same for all rows."""
    used = [0, *(c for c in range(1, len(HEAD)) if any(line[c] for line in cells))]
    used = [c for c in used if c != 1 or len({line[1] for line in cells}) > 1]
    drawn = ["| " + " | ".join(line[c] for c in used) + " |" for line in (HEAD, *cells)]
    return "\n".join([drawn[0], "|" + "---|" * len(used), *drawn[1:]])


def format_cells(row: Row) -> tuple[str, ...]:
    what = f"`{row.what}`"
    against = row.against + (f" ({row.note})" if row.note else "")
    if row.error is not None:
        return (what, against, "–", "", format_targets(row), f"failed: {row.error}", "", "", "")
    unit = f" {row.unit}" if row.unit else ""
    ratio = "–" if row.ratio is None else format_gain(row) if is_gain(row) else format_value(row.ratio) + unit
    spread = ""
    if row.spread is not None and row.spread[0] != row.spread[1]:
        ends = (1 / row.spread[1], 1 / row.spread[0]) if is_gain(row) else row.spread
        spread = f"{format_number(ends[0])}–{format_number(ends[1])}"
    times = [statistics.median(row.seconds[side]) for side in ("ours", "theirs") if row.seconds.get(side)]
    agreement = "" if row.agreement is None else f"{row.agreement:.4f}"
    verdict = {"missed": f"**missed**: {'; '.join(row.list_missed())}", "no target": ""}.get(row.verdict, row.verdict)
    return (
        what,
        against,
        ratio,
        spread,
        format_targets(row),
        verdict,
        "\u00a0/\u00a0".join(f"{t:.3g}" for t in times),
        format_memory(row),
        agreement,
    )


def format_value(value: float) -> str:
    return f"{value:.0f}" if value > 1 and value == int(value) else format_number(value)


def is_gain(row: Row) -> bool:
    """Whether a ratio is shown as a gain: if a gain is the target, or if the ratio would be rounded to 0."""
    small = row.ratio is not None and row.ratio < 0.02 and not row.unit and "at_most" not in row.targets
    return "at_least" in row.targets or small


def format_gain(row: Row) -> str:
    assert row.ratio
    return f"{format_number(1 / row.ratio)}× faster"


def format_targets(row: Row) -> str:
    signs = {
        "at_most": "≤ {:g}",
        "at_least": "≥ {:g}× faster",
        "smaller": "memory ≥ {:.3g}× smaller",
        "agreement": "ρ ≥ {:g}",
    }
    return ", ".join(signs[key].format(value) for key, value in row.targets.items())


def format_memory(row: Row) -> str:
    """Peak memory of a call of each side, and their ratio per image if it has a target."""
    if "ours" not in row.peaks:
        return ""
    both = "\u00a0/\u00a0".join(f"{row.peaks[side] / 2**20:.3g}" for side in ("ours", "theirs") if side in row.peaks)
    times = "" if row.smaller is None or "smaller" not in row.targets else f" ({format_number(row.smaller)}×)"
    return f"{both}\u00a0MiB{times}"


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def make_document(
    facts: dict[str, Any], commands: list[str], rows: list[Row], growth: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"machine": facts, "commands": commands, "rows": [row.to_record() for row in rows], "growth": growth}


def write_json(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".part")  # written completely before it replaces the old file
    whole.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    whole.replace(path)


def merge_documents(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Replace old rows by new ones; both must come from the same machine and versions."""
    own, other = new["machine"], old["machine"]
    changed = [key for key in own.keys() & other.keys() if own[key] != other[key]]
    if changed:
        raise SystemExit(
            f"these figures and those in the file differ in {', '.join(sorted(changed))}; write them to another file"
        )
    rows = {Row.from_record(record).key: record for record in (*old["rows"], *new["rows"])}
    commands = list(dict.fromkeys((*old["commands"], *new["commands"])))
    return {
        "machine": other | own,
        "commands": commands,
        "rows": list(rows.values()),
        "growth": new["growth"] or old["growth"],
    }
