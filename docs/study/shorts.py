"""What we conclude about the papers, in our own words; every number is looked up."""

from __future__ import annotations

from functools import partial

from study import shorts_ours  # noqa: F401 - registers what it concludes
from study.fill_index import BLACK
from study.fill_tokentm import read_orders
from study.names import (
    ABLATION,
    ALTI,
    ATTCAM,
    FAMILIES,
    MODELS,
    TIS,
    TIS_LOGIT,
    TIS_PROBABILITY,
    VARIANT_STEPS,
    VARIANTS,
)
from study.quotes import Quotes, format_list, register_conclusion
from study.sentences import format_number

CALM = "max_sensitivity(preset='tis')"
RISE, TAM, TRANSATT = "rise(preset='tis', masks=1000)", "tam(preset='tis')", "transatt(preset='tis')"
SEGMENTED, DELETED, INSERTED = (f"{name}(preset='skipplus')" for name in ("ap", "deletion_aopc", "insertion_aopc"))
ROLLED = "+rollout(form='half')"
PAINTED, IG = "tis(ablate='pixels')", "ig(preset='tis')"


@register_conclusion("skipplus")
def conclude_skipplus(quotes: Quotes) -> str:
    gain = partial(quotes.format_effects, table="skipplus-pairs", metric="mean_aopc")
    harm = partial(quotes.format_effect, "worse", table="skipplus-pairs", metric="mean_aopc", model="DeiT-Tiny")
    beside = partial(quotes.format_effects, against="random", table="skipplus-pairs")
    start = partial(quotes.format_effects, against="best start", table="skipplus-start-regret", metric="mean_aopc")
    pets = partial(quotes.format_effect, table="skipplus-pets-pairs", metric=SEGMENTED, model="DeiT-Tiny")
    folded = [(plus, alone) for alone, plus, _ in FAMILIES.values()]
    skipped = [(skip, alone) for alone, _, skip in FAMILIES.values()]
    lifts, harms, raised = (
        quotes.count_verdicts(group, "skipplus-pairs", "mean_aopc", kind)
        for group, kind in ((folded, "better"), (folded, "worse"), (skipped, "better"))
    )
    rows = [row for row in quotes.results.figures("skipplus") if row.metric == DELETED]
    lost = [max((row.undefined for row in rows if row.model == model), default=0) for model in MODELS]
    return format_list(
        f"**Summing layers holds.** PLUS lifts DecompX by {gain('better', 'decompx+plus', 'decompx')} points of mean AOPC, GlobEnc by {gain('better', 'globenc+plus', f'globenc{ROLLED}')} and ALTI by {gain('better', f'{ALTI}+plus', f'{ALTI}{ROLLED}')}, as the paper says; "
        f"of {len(FAMILIES)} methods it lifts {lifts} and harms {harms}.",
        f"**SkipPLUS is not better than PLUS for DecompX**, {gain('worse', 'decompx+skipplus', 'decompx+plus')}; of the {len(FAMILIES)} methods it lifts {raised}. The middle start loses {start('worse', 'decompx+skipplus(start=6)')} to the best start, PLUS {start('open', 'decompx+skipplus(start=0)')}, "
        f'so that "either PLUS or SkipPLUS is near the best" holds for DecompX because PLUS is. What speaks for SkipPLUS is its price, half a backward pass, and AP on pets for DeiT-Tiny ({pets("better", "decompx+skipplus", "decompx+plus")} over PLUS).',
        f"**Where it does not help it mostly does no harm**, as the paper says, with exceptions: PLUS costs GradCAM++ {gain('worse', 'gradcampp+plus', 'gradcampp')}, and on DeiT-Tiny AttCAM {harm(f'{ATTCAM}+plus', ATTCAM)} and AttnGrad {harm('attngrad+plus', 'attngrad')}. GenAtt is harmed a little on ViT-Tiny: PLUS {gain('worse/open', 'genatt+plus', 'genatt')}, SkipPLUS {gain('worse/open', 'genatt+skipplus', 'genatt')}.",
        f"**No trade-off.** Across methods insertion and deletion go together (Kendall's τ {quotes.format_orders('together', 'skipplus-trades', DELETED, INSERTED, dataset='val')}). That deletion goes with AP holds ({quotes.format_orders('together', 'skipplus-pets-trades', DELETED, SEGMENTED, dataset='pets')}).",
        f"**ALTI under Rollout** divides by zero here: as published {' / '.join(map(str, lost))} of 250 maps are undefined. With 10⁻¹² added no map vanishes, but the form of the authors' code, without the identity (`ALTI_ro`), "
        f"is below a random map by insertion ({beside('worse', ALTI, metric=INSERTED)} of insertion AOPC) and above it by deletion ({beside('better', ALTI, metric=DELETED)}); with ½(I + T) it is above by both ({beside('better', f'{ALTI}{ROLLED}', metric=INSERTED)} and {beside('better', f'{ALTI}{ROLLED}', metric=DELETED)}). "
        f"GlobEnc is below by insertion on ViT-Tiny in both forms (`globenc_norm2_ro` {beside('worse/open', 'globenc', metric=INSERTED)}, ½(I + T) {beside('worse/open', f'globenc{ROLLED}', metric=INSERTED)}).",
    )


@register_conclusion("tokentm")
def conclude_tokentm(quotes: Quotes) -> str:
    area = partial(quotes.format_effects, table="tokentm-pets-pairs", metric="miou")
    curve = partial(quotes.format_effects, table="tokentm-pairs", explained="predicted")
    negative, positive = (f"{word}_auc(preset='tokentm')" for word in ("negative", "positive"))
    both = [*quotes.results.effects("tokentm-pets-pairs"), *quotes.results.effects("tokentm-pairs")]
    ahead = [row for row in both if (row.method, row.against) == ("tokentm", "genatt") and row.low > 0]
    quotes.require(not ahead, "TokenTM is ahead of GenAtt in no measure")
    base, fused, long, whole = ABLATION
    readings = {reading: compute_mean_tau(quotes, reading) for reading in (*VARIANTS, *VARIANT_STEPS)}
    ours, steps = ([readings[reading] for reading in group] for group in (VARIANTS, VARIANT_STEPS))
    before, after = ([value for reading, value in readings.items() if f"{word} LayerNorm" in reading] for word in ("before", "after"))  # fmt: skip
    quotes.require(max(ours) - min(ours) < 0.05, "the order of nine methods tells no reading from another")
    quotes.require(min(after) > max(before), "lengths after LayerNorm come nearer to the order of the steps")
    assert len(steps) == len(before) + len(after)
    quotes.require(
        find_disjoint(quotes) == {("ViT-Tiny", "pets")}, "intervals of the readings overlap but for masks on ViT-Tiny"
    )
    return format_list(
        f"**TokenTM is not better than GenAtt here.** Of nine measures it is ahead in none on either model, and behind on masks: mIoU {area('worse', 'tokentm', 'genatt')}. By negative AUC it is {curve('worse/open', 'tokentm', 'genatt', metric=negative)}, by positive AUC {curve('open', 'tokentm', 'genatt', metric=positive)}. "
        "The margins of the paper are as small, so that models or masks may decide; an improvement in general it is not.",
        f"**Of its parts, aggregation over layers (AF) is what counts**, as in the paper: {area('better', fused, base)} of mIoU. Lengths (L) bring {area('open', long, fused)}, directions (NECC) cost a little, {area('worse', whole, long)}.",
        f"**The open points stay open.** The order of nine methods tells no reading from another (mean τ {format_number(min(ours), 2)} to {format_number(max(ours), 2)}). The order of the four steps at most hints at measuring after LayerNorm (mean τ {format_number(min(after), 2)} against {format_number(max(before), 2)} at best; four items, and intervals that overlap but for masks on ViT-Tiny), and says nothing of probability or logit.",
    )


def compute_mean_tau(quotes: Quotes, reading: str) -> float:
    own = [row.tau for row in read_orders(quotes.results) if row.metric == reading and row.tau == row.tau]
    return sum(own) / len(own) if own else 0.0


def find_disjoint(quotes: Quotes) -> set[tuple[str, str]]:
    """Models and images on which the intervals of all readings of the steps share no point."""
    rows = [row for row in read_orders(quotes.results) if row.metric in VARIANT_STEPS and row.tau == row.tau]
    sets = {key: [row for row in rows if (row.model, row.dataset) == key] for key in {(row.model, row.dataset) for row in rows}}  # fmt: skip
    return {key for key, own in sets.items() if max(row.tau_low for row in own) > min(row.tau_high for row in own)}


@register_conclusion("tis")
def conclude_tis(quotes: Quotes) -> str:
    mean, blur, noise = (BLACK.replace("black", word) for word in ("mean", "blur", "random"))
    first = partial(quotes.format_effects, method=TIS, table="tis-pairs")
    options = partial(quotes.format_effects, method="tis", table="tis-options-pairs")
    counted = max((row.n for row in quotes.results.effects("tis-pairs")), default=0)
    sure = quotes.format_effect("open|worse", TIS_LOGIT, TIS_PROBABILITY, "tis-disagreement-gap-pairs", "energy_pointing", "ViT-Tiny", dataset="val, gap 0.75–1")  # fmt: skip
    peak = partial(quotes.format_effects, method="tis(masks=256)", table="tis-pointing-pairs", metric="pointing_game(preset='tis')")  # fmt: skip
    calm = partial(quotes.format_effects, method=TIS, table="tis-sensitivity-pairs", metric=CALM)
    changed = partial(quotes.format_means, table="tis-sensitivity", metric=CALM)
    noisy = max((row.n for row in quotes.results.effects("tis-sensitivity-pairs")), default=0)
    return format_list(
        f"**TIS is first among the paper's methods** on three of four baselines on both models (black: {first('better', against='genatt', metric=BLACK)} over GenAtt), and behind Integrated Gradients on blur ({first('worse', against=IG, metric=blur)}), both as published.",
        f"**AttnLRP summed over layers, which it did not meet, is not significantly behind it** on any of the four baselines, on {counted} images and at less than a hundredth of the cost, and on DeiT-Tiny ahead of it on blur: TIS less AttnLRP∘PLUS is {first('open', against='attnlrp+plus', metric=BLACK)} on black, {first('open', against='attnlrp+plus', metric=mean)} on mean, {first('open', against='attnlrp+plus', metric=noise)} on random and {first('open/worse', against='attnlrp+plus', metric=blur)} on blur.",
        f"**Pointing game:** no significant difference to GenAtt ({peak('open', against='genatt')}); the paper has TIS well ahead of GenAtt, and on ViT-B behind BT-H and BT-T (0.823 against 0.855 and 0.846).",
        f"**Max-sensitivity goes mostly as published**, on {noisy} images: TIS has {changed(TIS)} (the paper's ViT-B / DeiT-B: 0.156 / 0.162), TAM is calmer ({calm('worse', against=TAM)}), RISE is on DeiT-Tiny alone ({calm('open/worse', against=RISE)}), Integrated Gradients and TransAtt are far less calm ({calm('better', against=IG)} and {calm('better', against=TRANSATT)}). GenAtt, calmer than TIS in the paper, is less calm on ViT-Tiny ({calm('better/worse', against='genatt')}).",
        f"**Masks:** 1024 less 128 is {options('better', against='tis(masks=128)', metric='faithfulness')} of faithfulness, 1024 less 512 {options('better', against='tis(masks=512)', metric='faithfulness')} and 1024 less 2048 {options('worse', against='tis(masks=2048)', metric='faithfulness')}: the gain is small from 512 on, not from 128, and it does not end at 1024.",
        f"**Removing tokens instead of painting pixels over**, the paper's point, brings {options('better', against=PAINTED, metric='faithfulness')} where the metric removes tokens too, and {options('open', against=PAINTED, metric=BLACK)} where it paints pixels over as the paper's does: some of the gain is in the metric.",
        f"**Where the model is sure of another class** there are too few images to say whether the logit moves the peak; by energy pointing it does not help on ViT-Tiny ({sure}).",
    )
