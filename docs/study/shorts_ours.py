"""What we conclude where no paper claims anything, in our own words; every number is looked up."""

from __future__ import annotations

from functools import partial

from study.effects import select_rows
from study.fill_beyond import EIGHTH, count_passes, format_percent
from study.names import PROBABLE, QUESTIONS
from study.quotes import Quotes, format_list, register_conclusion
from study.sentences import judge

LRP, SHARE, BIASES = PROBABLE["attnlrp"], PROBABLE["decompx"], "fullgrad(question='probability')@tempered+plus"


@register_conclusion("newer")
def conclude_newer(quotes: Quotes) -> str:
    over = partial(quotes.format_effects, against="decompx+skipplus", table="newer-pairs", metric="faithfulness")
    ask = partial(quotes.format_effects, table="newer-pairs", metric="faithfulness")
    grid = [row for row in quotes.results.effects("newer-grid-chosen") if "confirm" in row.dataset]
    tops = {row.model: row for row in reversed(grid)}
    quotes.require(
        {(row.method, row.against) for row in tops.values()} == {("fullgrad@tempered+plus", "fullgrad@libra+plus")},
        "fullgrad@tempered+plus is the cell that was chosen on both models",
    )
    question_effects = [
        row for row in quotes.results.effects("newer-pairs") if (row.method, row.against) in QUESTIONS.values()
    ]
    quotes.require(all(row.high >= 0 for row in question_effects), "no method loses when it is of the probability")
    best = partial(quotes.format_effects, table="newer-grid-chosen", metric="faithfulness", dataset="val, to confirm")
    mean_of = partial(quotes.format_means, table="newer-grid", metric="faithfulness", dataset="val, to confirm")
    return format_list(
        f"**Of what is published `fullgrad@libra+plus` is the best** with one backward, {over('better', 'fullgrad@libra+plus')} over DecompX∘SkipPLUS. AttnLRP as published, read at the first layer, is {over('worse/better', 'attnlrp')}, LeGrad {over('worse', 'legrad')}.",
        f"**AttnLRP summed over layers**, which nobody published, is {over('better', 'attnlrp+plus')} over DecompX∘SkipPLUS. Input × gradient summed over layers has {mean_of('ixg+plus')} of faithfulness with plain gradients and {mean_of('ixg@libra+plus')} with Libra's, as means and not in pairs.",
        f"**Ask about the probability, not the logit:** {ask('better', SHARE, 'decompx+plus')} for DecompX∘PLUS, {ask('better', LRP, 'attnlrp+plus')} for AttnLRP∘PLUS; no method loses by it.",
        f"**A cell that nobody published beats the best published one** on images that did not choose it: `fullgrad@tempered+plus`, {best('better', 'fullgrad@tempered+plus', 'fullgrad@libra+plus')}. [Beyond](beyond.md) goes on from there.",
    )


@register_conclusion("scenes")
def conclude_scenes(quotes: Quotes) -> str:
    agree = partial(quotes.format_order, truth="ap")
    over_share = partial(
        quotes.format_effect, method="tis(masks=256)", against=SHARE, table="scenes-pairs", metric="ap", model="Scenes"
    )
    apart = partial(quotes.format_effect, table="scenes-pair-pairs", model="Scenes")
    stamp = partial(quotes.format_mean, table="shortcut", metric="stamp_above_thing")
    less = {row.method: row.mean for row in select_rows(quotes.results.figures("shortcut"), metric="stamp_above_thing", model="biased − plain")}  # fmt: skip
    quotes.require(less.get("tis(masks=256)", 0) > 0.9 > less.get("temper", 1) > 0.3, "TIS tells the two models apart more clearly than temper")  # fmt: skip
    quotes.require(less.get("gradcam", 0) < -0.3, "Grad-CAM has the shortcut the wrong way round")
    return format_list(
        f"**Who finds the evidence?** Of a whole thing (`single`) methods that ask the model again with patches missing: TIS with 256 masks has {over_share('better', dataset='single')} of AP over DecompX∘PLUS of the probability. Of one small mark (`part`) it has no lead, {over_share('open|worse', dataset='part')}.",
        f"**Two classes in one frame** are distinguished by explaining the probability, {apart('better', SHARE, 'decompx+plus', metric='class_discrimination')} of class discrimination for DecompX∘PLUS. Attention alone and sums of vectors know no class.",
        f"**The shortcut is exposed most clearly by asking the model again.** The chance that a pixel of the stamp scores above one of the thing is {stamp('tis(masks=256)', model='scenes-biased')} in the model that uses it and {stamp('tis(masks=256)', model='scenes')} in the other for TIS with 256 masks. `temper` and its kin see the stamp where it is used as surely ({stamp('temper', model='scenes-biased')}), and where it is not they often see it too ({stamp('temper', model='scenes')}). Grad-CAM has it the wrong way round ({stamp('gradcam', model='scenes-biased')} and {stamp('gradcam', model='scenes')}).",
        f"**Do the metrics agree with the truth?** Where a thing is evidence, yes: faithfulness by removing tokens puts methods in the order of AP with τ {agree('together', 'scenes-orders', 'faithfulness', dataset='single')} on `single` and {agree('together', 'scenes-pair-orders', 'faithfulness', dataset='pair')} on `pair`, not far from how well the truth agrees with itself.",
        f"**Where the evidence is small they tell good from useless, and not good from better.** On `part`, among the better half of the methods, faithfulness has τ {agree('open|apart', 'scenes-orders', 'faithfulness', among='better half', dataset='part')} with the truth, insertion over blur {agree('together', 'scenes-orders', BLURRED, among='better half', dataset='part')}. Small differences in faithfulness between good methods should not be read as one being more right.",
        models=False,
    )


BLURRED = "insertion(steps=28, baseline='blur')"


@register_conclusion("beyond")
def conclude_beyond(quotes: Quotes) -> str:
    val = partial(quotes.format_effects, table="beyond-pairs", metric="faithfulness")
    pets = partial(quotes.format_effects, table="beyond-pets-pairs", metric="faithfulness")
    drawn = partial(quotes.format_effect, table="beyond-scenes-pairs", metric="faithfulness", model="Scenes")
    mask = partial(quotes.format_means, table="beyond-pets", metric="ap")
    known = partial(quotes.format_effect, table="scenes-pairs", metric="ap", model="Scenes")
    alone = select_rows(quotes.results.effects("beyond-scenes-pairs"), metric="faithfulness", method="presence", against="random")  # fmt: skip
    beside = "worse than" if [judge(row) for row in alone] == ["worse"] else "no better than"
    share = count_passes("anneal") / count_passes("tis")
    quotes.require(share <= EIGHTH, "anneal costs at most an eighth of TIS")
    return format_list(
        f"**One backward:** `temper` beats every published method of that cost on both models, {val('better', 'temper', 'fullgrad@libra+plus')} of faithfulness over the best of them, `fullgrad@libra+plus`, on images that chose nothing.",
        f"**As faithful as TIS with 1024 masks at an eighth of its cost:** more than that. `fuse`, {count_passes('fuse'):g} forward passes' worth ({format_percent(count_passes('fuse') / count_passes('tis'))}), is ahead by {val('better', 'fuse', 'tis')}, `anneal` ({format_percent(share)}) by {val('better', 'anneal', 'tis')}.",
        f"**`anneal` buys little over `fuse`:** {val('better/open', 'anneal', 'fuse')}, at {count_passes('anneal') / count_passes('fuse'):g} times the cost.",
        f"**On pets** the same three: {pets('better', 'temper', 'fullgrad@libra+plus')}, {pets('better', 'fuse', 'tis')} and {pets('better', 'anneal', 'tis')}.",
        f"**The last step of `temper` is small.** AttnLRP summed over layers and of the probability, which is unpublished, is not significantly different from it on ViT-Tiny and is close on DeiT-Tiny: {val('open/better', 'temper', LRP)}.",
        f"**The maps are not masks.** AP on pets is {mask('temper')} for `temper` and {mask('anneal')} for `anneal`, where `decompx+skipplus` has {mask('decompx+skipplus')}.",
        f"**On Scenes the slope does not help.** `fuse` is behind `temper`, {drawn('worse', 'fuse', 'temper')} of faithfulness, and the slope alone, `presence`, is {beside} a random map, {drawn('worse|open', 'presence', 'random')}.",
        f"**They find less of the known evidence**, which is a limit: AP on `single` is {known('worse', 'anneal', 'tis(masks=256)', dataset='single')} for `anneal` less TIS with 256 masks and {known('worse', 'fuse', SHARE, dataset='single')} for `fuse` less DecompX∘PLUS of the probability, on `part` {known('worse', 'anneal', 'tis(masks=256)', dataset='part')} and {known('worse', 'fuse', SHARE, dataset='part')}.",
    )
