"""Published evaluations: metrics, explained classes, and the method spec of every row in a paper's tables.

    >>> from vitreous.metrics.protocols import protocol
    >>> protocol("tis").rows["Att. Rollout"]
    "rollout(preset='vit-explain')"

This module contains data only and does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vitreous.core.registry import Registry

CHOICES = ("predicted", "label", "mask")  # "mask": the class that covers most of the image


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a published table.

    Parameters
    ----------
    metric
        Spec of the metric.
    explained
        The class that is explained: "predicted", "label", or "mask", the class whose mask covers most of the image.
    data
        Name of the datasets.
    """

    metric: str
    explained: str
    data: str


@dataclass(frozen=True, slots=True)
class Protocol:
    """The evaluation of one paper.

    Parameters
    ----------
    name
        Name in the registry.
    paper
        Key in `docs/references.bib`.
    columns
        Columns of the tables by published title.
    rows
        Method specs by the paper's name of the method.
    models
        Names of the evaluated models.
    notes
        Differences from what a reader would expect.
    preprocess
        Name of the preprocessing for `Preprocess.published`.
    fine_tuned
        Models that the paper trained itself, by dataset; `training/finetune.py` makes such models.
    """

    name: str
    paper: str
    columns: Mapping[str, Column]
    rows: Mapping[str, str]
    models: tuple[str, ...]
    notes: tuple[str, ...]
    preprocess: str
    fine_tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Distinct metric specs."""
        return once(column.metric for column in self.columns.values())

    @property
    def methods(self) -> tuple[str, ...]:
        """Distinct method specs."""
        return once(self.rows.values())

    @property
    def explained(self) -> tuple[str, ...]:
        """Distinct choices of the explained class."""
        return once(column.explained for column in self.columns.values())

    @property
    def data(self) -> tuple[str, ...]:
        """Distinct datasets."""
        return once(column.data for column in self.columns.values())

    def metrics_of(self, explained: str) -> tuple[str, ...]:
        """Metric specs that measure maps of this choice of class."""
        return once(column.metric for column in self.columns.values() if column.explained == explained)


def once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


PROTOCOLS: Registry[Protocol] = Registry("protocol")


def protocol(name: str) -> Protocol:
    """Protocol by name: "skipplus", "released" (SkipPLUS's code), "tokentm", "tis" or "chefer"."""
    return PROTOCOLS[name.strip()]


def published(protocol: Protocol) -> None:
    PROTOCOLS.add(protocol.name, protocol, __name__)


def folded(name: str, spec: str) -> dict[str, str]:
    """Rows of a method, its ∘PLUS and its ∘SkipPLUS variant."""
    return {name: spec, f"{name}∘PLUS": f"{spec}+plus", f"{name}∘SkipPLUS": f"{spec}+skipplus"}


IMAGENET, SEGMENTATION = "ImageNet val", "ImageNet-Segmentation"

published(
    Protocol(
        name="skipplus",
        paper="mehri2024skipplus",
        columns={
            "Deletion Accuracy": Column("deletion_accuracy(preset='skipplus')", "label", "ImageNet val, MURA"),
            "Deletion AOPC": Column("deletion_aopc(preset='skipplus')", "label", "ImageNet val, MURA"),
            "Insertion Accuracy": Column("insertion_accuracy(preset='skipplus')", "label", "ImageNet val, MURA"),
            "Insertion AOPC": Column("insertion_aopc(preset='skipplus')", "label", "ImageNet val, MURA"),
            "AP": Column("ap(preset='skipplus')", "mask", "ImageNet-S-919 validation"),
        },
        rows={
            "Random": "random",
            **folded("DecompX", "decompx"),
            "Rollout": "rollout(row='cls')",
            "TransAtt": "transatt(row='cls')",
            "AttIN": "attin(row='cls', value_bias=False)+rollout(form='half')",
            "AttIN + residual": "attin(row='cls', part='res', value_bias=False)+rollout(form='none')",
            "GlobEnc": "globenc(row='cls')+rollout(form='half')",
            "GlobEnc, eq. 2": "globenc(row='cls')+rollout(form='half-normalised')",
            "GlobEnc, no residual": "globenc(row='cls')+rollout(form='none')",
            "GlobEnc∘PLUS": "globenc(row='cls')+plus",
            "GlobEnc∘SkipPLUS": "globenc(row='cls')+skipplus",
            "ALTI": "alti(preset='skipplus', row='cls')+rollout(form='half')",
            "ALTI, no residual": "alti(preset='skipplus', row='cls')+rollout(form='none')",
            "ALTI, undefined rows 0": "alti(preset='skipplus-paper', row='cls')+rollout(form='half')",
            "ALTI∘PLUS": "alti(preset='skipplus', row='cls')+plus",
            "ALTI∘SkipPLUS": "alti(preset='skipplus', row='cls')+skipplus",
            "GenAtt": "genatt(row='cls')+rollout(form='half')",
            "GenAtt, eq. 2": "genatt(row='cls')+rollout(form='half-normalised')",
            "GradSAM": "genatt(row='cls')+plus",
            "GenAtt∘SkipPLUS": "genatt(row='cls')+skipplus",
            **folded("AttnGrad", "attngrad(row='cls')"),
            **folded("VanillaGrad:Norm2", "vanillagrad_norm"),
            **folded("VanillaGrad", "vanillagrad"),
            "FullGrad": "fullgrad",
            "FullGrad∘PLUS": "fullgrad+plus(biases='repeat')",
            "FullGrad∘SkipPLUS": "fullgrad+skipplus(biases='repeat')",
            "FullGrad+∘PLUS": "fullgrad+plus",
            "FullGrad+∘SkipPLUS": "fullgrad+skipplus",
            "IxG": "ixg",
            "CAT": "ixg+plus",
            "IxG∘SkipPLUS": "ixg+skipplus",
            "AttIxG": "attixg",
            "AttCAT": "attcat",
            "AttIxG∘SkipPLUS": "attixg+skipplus",
            **folded("GradCAM", "gradcam(preset='skipplus')"),
            **folded("XGradCAM", "xgradcam(preset='skipplus')"),
            **folded("XGradCAM+", "xgradcamplus(preset='skipplus')"),
            **folded("GradCAM++", "gradcampp(preset='skipplus')"),
            "HiResCAM": "hirescam(preset='skipplus')",
            **folded("GradCAMElementWise", "elementwise(preset='skipplus')"),
            "LayerCAM": "elementwise(preset='skipplus')+plus(normalise='tanh')",
            **folded("AttCAM", "attcam(preset='skipplus', row='cls')"),
        },
        models=("timm:eva_large_patch14_336", "timm:vit_base_patch8_224"),
        notes=(
            "The paper gives figures, no tables; names are those of its sections 3, 5 and E.",
            "Deletion accuracy and insertion AOPC are shown as 100 − x, so that more is better everywhere.",
            "AOPC follows the predicted class in the paper and the label in the released code (`preset='released'`), whose area is also "
            "not divided by the width of the grid, 0.9.",
            "AP enlarges to the nearest patch in the paper, bicubically in the released code (`preset='skipplus-released'`); pixels that "
            "ImageNet-S ignores count as background.",
            "Equation 2 divides the rows of a layer's map by their sums and adds half of the identity; the released code divides nothing, "
            "and its `globenc_norm2_ro` and `ALTI_ro`, which its figures call GlobEnc and ALTI, leave out the identity.",
            "The released ALTI divides rows without a positive entry by 0, and roll-out spreads the NaN; the paper speaks of all-zero maps "
            "(`preset='skipplus-paper'`).",
            "LayerCAM is GradCAMElementWise per layer, rescaled by LayerCAM's own tanh(2 s / max s), then PLUS; the paper does not say how it "
            "normalises.",
            "Token-to-token maps are read at the class token, also for EVA-L, whose head reads the mean of patches; leave out `row='cls'` to read "
            "them where the head reads.",
            "5000 images of ImageNet, 2000 of MURA's training set on a model that was trained with tokens missing.",
        ),
        preprocess="skipplus",
        fine_tuned={"MURA": "timm:vit_base_patch16_224"},
    )
)

published(
    Protocol(
        name="released",
        paper="mehri2024skipplus",
        columns={
            "Deletion Accuracy": Column("deletion_accuracy(preset='released')", "label", "ImageNet val, MURA"),
            "Deletion AOPC": Column("deletion_aopc(preset='released')", "label", "ImageNet val, MURA"),
            "Insertion Accuracy": Column("insertion_accuracy(preset='released')", "label", "ImageNet val, MURA"),
            "Insertion AOPC": Column("insertion_aopc(preset='released')", "label", "ImageNet val, MURA"),
            "AP": Column("ap(preset='skipplus-released')", "mask", "ImageNet-S-919 validation"),
        },
        rows={
            **PROTOCOLS["skipplus"].rows,
            "AttIxG": "attixg(preset='skipplus')",
            "AttCAT": "attcat(preset='skipplus')",
            "AttIxG∘SkipPLUS": "attixg(preset='skipplus')+skipplus",
        },
        models=PROTOCOLS["skipplus"].models,
        notes=(
            "The evaluation of SkipPLUS as in the authors' code; the protocol `skipplus` follows the paper.",
            "AOPC follows the label, areas are not divided by the width of the grid, 0.9, and nothing is subtracted from 100.",
            "AP enlarges maps bicubically, and images in which no class covers 5 % of the crop are left out "
            "(`imagenet-s:PATH?cover=0.05`).",
            "AttIxG and AttCAT weigh the output of a block, not its input, and leave out the last block.",
        ),
        preprocess="skipplus",
        fine_tuned=PROTOCOLS["skipplus"].fine_tuned,
    )
)

published(
    Protocol(
        name="tokentm",
        paper="wu2024token",
        columns={
            "Pix. Acc.": Column("pixel_accuracy", "predicted", SEGMENTATION),
            "mAP": Column("map_two_channel", "predicted", SEGMENTATION),
            "mIoU": Column("miou", "predicted", SEGMENTATION),
            "Neg. (Pred.)": Column("negative_auc(preset='tokentm')", "predicted", "ImageNet val, CIFAR-10, CIFAR-100"),
            "Pos. (Pred.)": Column("positive_auc(preset='tokentm')", "predicted", "ImageNet val, CIFAR-10, CIFAR-100"),
            "Neg. (GT)": Column("negative_auc(preset='tokentm')", "label", "ImageNet val, CIFAR-10, CIFAR-100"),
            "Pos. (GT)": Column("positive_auc(preset='tokentm')", "label", "ImageNet val, CIFAR-10, CIFAR-100"),
            "AOPC": Column("aopc(preset='tokentm')", "predicted", IMAGENET),
            "LOdds": Column("lodds(preset='tokentm')", "predicted", IMAGENET),
        },
        rows={
            "Grad-CAM": "attcam(preset='chefer')",
            "LRP": "lrp",
            "Cons. LRP": "conservativelrp",
            "Trans. Attr.": "transatt(preset='experiments')",
            "Raw Att.": "rawattention",
            "Rollout": "rollout(preset='chefer')",
            "ATTCAT": "attcat",
            "Trans. MM": "genatt",
            "GAE": "genatt",
            "Ours": "tokentm",
            "TokenTM": "tokentm",
            "Baseline": "tokentm(preset='baseline')",
            "+ AF": "tokentm(preset='af')",
            "+ AF + L": "tokentm(preset='af+l')",
            "+ AF + L + NECC": "tokentm(preset='full')",
        },
        models=("timm:deit_base_patch16_224", "timm:vit_base_patch16_224", "timm:vit_large_patch16_224"),
        notes=(
            "“Grad-CAM” weights attention heads by their gradient; it is not Grad-CAM on tokens.",
            "Accuracy is against the label in both settings; “Pred.” and “GT” only say which class is explained.",
            "mAP counts the background too (see `map_two_channel`); the object's own is `ap`.",
            "Removed pixels are black before normalisation, as in Chefer's code; the paper does not say.",
            "The level and the γ of “Cons. LRP” are not stated; ours reads tokens, with γ = 0.",
            "Table 4 does not say which class its perturbation tests explain.",
            "The ablation's “+ AF” is GAE up to a factor.",
        ),
        preprocess="tokentm",
        fine_tuned={"CIFAR-10": "timm:deit_base_patch16_224", "CIFAR-100": "timm:deit_base_patch16_224"},
    )
)

BASELINES = {"Mean": "mean", "Blur": "blur", "Black": "black", "Rand": "random"}
CURVES = {"Insertion": "insertion", "Deletion": "deletion", "Insertion - Deletion": "insertion_minus_deletion"}

published(
    Protocol(
        name="tis",
        paper="englebert2023explaining",
        columns={
            **{
                f"{title} {shown}": Column(f"{metric}(preset='tis', baseline={baseline!r})", "label", IMAGENET)
                for title, metric in CURVES.items()
                for shown, baseline in BASELINES.items()
            },
            "Pointing Game": Column("pointing_game(preset='tis')", "label", IMAGENET),
            "Max Sensitivity": Column("max_sensitivity(preset='tis')", "label", IMAGENET),
            "Sparseness": Column("sparseness(preset='tis')", "label", IMAGENET),
        },
        rows={
            "TIS": "tis(preset='paper')",
            "ViT-CX": "vitcx",
            "TAM": "tam(preset='tis')",
            "Chefer1": "transatt(preset='tis')",
            "Chefer2": "genatt",
            "Att. Rollout": "rollout(preset='vit-explain')",
            "Attention Rollout": "rollout(preset='vit-explain')",
            "BT H": "bth(preset='tis')",
            "BT T": "btt(preset='tis')",
            "RISE": "rise(preset='tis')",
            "IntegratedGrad": "ig(preset='tis')",
            "Integrated Gradient": "ig(preset='tis')",
            "SmoothGrad": "smoothgrad(preset='tis')",
        },
        models=("timm:vit_base_patch16_224", "timm:deit_base_patch16_224"),
        notes=(
            "Baselines live in normalised space: “black” is the dataset's mean colour, “mean” one grey of the image, “random” U[0, 1) per value.",
            "Curves have no point for the untouched image; the mean over 224 steps is ours, the code stores the curve.",
            "The pointing game has no tolerance, leaves out images whose boxes cover half or more, and counts a box that the crop lost as a miss.",
            "“Att. Rollout” is vit-explain's, which discards nine tenths of the attention and divides columns by the sums of rows.",
            "RISE explains the logit; SmoothGrad's noise has deviation 1; TAM, BT-H and BT-T start at the first block.",
            "Both models see ImageNet's colours, also the ViT that was trained on others. DeiT is the one without distillation.",
            "In table 1 the row of ViT-CX does not agree with its own differences.",
            "TIS is equation 5 and sparseness shifts negative maps only; the released code rescales TIS to [0, 1] (`tis(preset='released')`) "
            "and shifts every map (`sparseness(preset='tis-released')`).",
            "5000 images of ImageNet; sparseness is reported, not ranked.",
        ),
        preprocess="tis",
    )
)

published(
    Protocol(
        name="chefer",
        paper="chefer2021transformer",
        columns={
            "positive, predicted": Column("positive_auc(preset='chefer')", "predicted", IMAGENET),
            "positive, target": Column("positive_auc(preset='chefer')", "label", IMAGENET),
            "negative, predicted": Column("negative_auc(preset='chefer')", "predicted", IMAGENET),
            "negative, target": Column("negative_auc(preset='chefer')", "label", IMAGENET),
            "pixel accuracy": Column("pixel_accuracy", "predicted", SEGMENTATION),
            "mAP": Column("map_two_channel", "predicted", SEGMENTATION),
            "mIoU": Column("miou", "predicted", SEGMENTATION),
            "mF1": Column("f1_rows", "predicted", SEGMENTATION),
        },
        rows={
            "rollout": "rollout(preset='chefer')",
            "raw attention": "rawattention",
            "GradCAM": "attcam(preset='chefer')",
            "LRP": "lrp",
            "partial LRP": "partiallrp",
            "Ours": "transatt(preset='experiments')",
        },
        models=("timm:vit_base_patch16_224",),
        notes=(
            "Accuracy is against the label, also where the predicted class is explained.",
            "The code stores hits at 10 to 90 % and computes no area; transformerinterp adds the clean image and takes accuracy 0 at 100 % "
            "(`preset='transformerinterp'`).",
            "“GradCAM” weights attention heads by their gradient.",
            "mF1 averages the F1 of pixel rows; the image's own is `f1`.",
            "TransAtt and rollout start at the second block in the experiments.",
        ),
        preprocess="chefer",
    )
)
