"""What README and the page on choosing quote of the study: looked up as on its own pages."""

from __future__ import annotations

from functools import partial

from study.effects import select_rows
from study.fill_beyond import ONE_BACKWARD, classify_method, count_passes, find_closest_rival, format_percent
from study.names import MODELS, PROBABLE
from study.pages import Results, fill
from study.quotes import QUOTED_CONCLUSIONS, Quotes, register_conclusion
from study.sentences import format_effect, format_number
from study.tables import format_table

CHOICES = (
    "genatt", "tokentm", "decompx+skipplus", "decompx+plus", "fullgrad@libra+plus", "attnlrp", *PROBABLE.values(), "temper", "fuse",
    "anneal(of='temper', coalitions=32)", "anneal", "tis(masks=256)", "tis", "random",
)  # fmt: skip
COLUMNS = (  # heading, table, models, metric
    ("faithful", "beyond", MODELS, "faithfulness"),
    ("AP, pets", "beyond-pets", MODELS, "ap"),
    ("AP, Scenes", "beyond-scenes", ("Scenes",), "ap"),
    ("class discrimination, Scenes", "beyond-scenes", ("Scenes",), "class_discrimination"),
)


@fill("which-numbers")
def write_choices(results: Results) -> str:
    """What each choice costs, and how good it is by every measure."""
    figures_by_key = {
        (name, row.model, row.metric, row.method): row for _, name, *_ in COLUMNS for row in results.figures(name)
    }
    lines = []
    for method in CHOICES:
        means = (
            " / ".join(format_number(figures_by_key[name, model, metric, method].mean, 3) for model in models)
            for _, name, models, metric in COLUMNS
        )
        lines.append([f"`{method}`", f"{count_passes(method):g}", *means])
    counts = (str(figures_by_key[name, models[0], metric, CHOICES[0]].n) for _, name, models, metric in COLUMNS)
    return format_table(
        ["method", "passes", *(heading for heading, *_ in COLUMNS)], [*lines, ["*images*", "", *counts]]
    )


@register_conclusion("findings", QUOTED_CONCLUSIONS)
def conclude_findings(quotes: Quotes) -> str:
    faithful = partial(quotes.format_effects, table="beyond-pairs", metric="faithfulness")
    fitted = partial(quotes.format_effects, table="error-bars-photographs-pairs", metric="faithfulness", dataset="val")
    clip = partial(quotes.format_effect, table="error-bars-clip-pairs", metric="faithfulness", model="CLIP-B/16")
    counted = {row.dataset: row.n for row in quotes.results.figures("error-bars-clip") if row.metric == "faithfulness"}

    def over(says: str, method: str, against: str) -> str:
        """On pets / on val."""
        words = says.split("/") if "/" in says else [says, says]
        return " / ".join(
            clip(word, method, against, dataset=name) for word, name in zip(words, ("pets", "val"), strict=True)
        )

    rows = select_rows(quotes.results.effects("beyond-pairs"), metric="faithfulness")
    published = {
        row.against
        for row in rows
        if classify_method(row.against) == "published" and count_passes(row.against) <= ONE_BACKWARD
    }
    ahead = [find_closest_rival(rows, model, "temper", ("published",)) for model in MODELS]
    quotes.require(all(row and row.low > 0 for row in ahead), "temper beats every published method of one backward")
    rivals = dict.fromkeys(row.against for row in ahead if row)
    tau = partial(quotes.format_order, "together", metric="faithfulness", truth="ap")
    single, pair, part = tau("scenes-orders", dataset="single"), tau("scenes-pair-orders", dataset="pair"), tau("scenes-orders", dataset="part")  # fmt: skip
    return f"""\
- **Past the papers.** `temper`, one backward pass, is more faithful than each of {len(published)} published methods of that cost, {" / ".join(format_effect(row) for row in ahead if row)} over the best of them, {", ".join(f"`{method}`" for method in rivals)}
  (over AttnLRP under PLUS of the probability, which is no paper's, {faithful("open/better", "temper", PROBABLE["attnlrp"])}). `fuse`, two backward passes, is more faithful than TIS with 1024 masks at
  {format_percent(count_passes("fuse") / count_passes("tis"))} of its cost, {faithful("better", "fuse", "tis")} ({rows[0].n} images that chose nothing).
- **With error bars.** `bayes`, random token subsets with `fuse` as prior, is ahead of TIS at its cost by {fitted("better", "bayes(samples=1024)", "tis")}, at a quarter of it by {fitted("better", "bayes(samples=256)", "tis")}, and every patch has a [standard error](docs/study/error-bars.md). Its maps are no masks: AP on pets
  {fitted("worse", "bayes(samples=1024)", "tis", metric="ap", dataset="pets")}.
- **A larger model, CLIP ViT-B/16**, on {counted.get("pets", 0)} pets / {counted.get("val", 0)} animals of val: `bayes` is ahead of TIS at its cost, {over("better", "bayes(samples=1024)", "tis")}. `fuse` is ahead of TIS on pets and behind it on val, {over("better/worse", "fuse", "tis")},
  and `temper` is behind AttnLRP under PLUS of the probability, {over("worse", "temper", PROBABLE["attnlrp"])}.
- **PLUS lifts DecompX**, {quotes.format_effects("better", "decompx+plus", "decompx", "skipplus-pairs", "mean_aopc")} points of mean AOPC, but **TokenTM does not beat GenAtt** on masks of pets, {quotes.format_effects("worse", "tokentm", "genatt", "tokentm-pets-pairs", "miou")} of mIoU.
- **Faithfulness notices the truth.** Where the evidence is known, deletion and insertion by token removal put methods in the order of their AP: Kendall's τ {single} with one
  object, {pair} with two in the frame, and only {part} where a part of the object decides ([one small model](docs/study/scenes.md))."""
