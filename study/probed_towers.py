"""CLIP ViT-B/16 and DINOv2 ViT-S/14 as further models: a tower with a linear classifier that is trained on the selection half.

The assets have one image of every ImageNet class, so no class of the confirmation half occurs in the other half. Classes that
occur in both are the 24 breeds of pets (ten images each) and groups of ImageNet classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import vitreous
from vitreous.data import open_dataset
from vitreous.data.batch import batches
from vitreous.data.reader import expand_path

CLIP, DINO = "CLIP-B/16", "DINOv2-S/14"
WEIGHTS = {
    CLIP: "assets:weights/clip-vit-base-patch16.vision.safetensors",
    DINO: "assets:weights/timm-vit_small_patch14_dinov2.safetensors",
}
GROUPS = {  # ImageNet's classes of animals, as ranges of numbers
    "fish": ((0, 6), (389, 397)), "birds": ((7, 24), (80, 100), (127, 146)), "amphibians": ((25, 32),), "reptiles": ((33, 68),),
    "arachnids": ((69, 79),), "sea invertebrates": ((107, 126),), "canines": ((151, 280),), "cats": ((281, 293),),
    "insects": ((300, 326),), "ungulates": ((339, 354),), "primates": ((365, 384),),
}  # fmt: skip
DECAYS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5


def find_group(label: int) -> int | None:
    """Number of the group that an ImageNet class belongs to, or None."""
    for number, ranges in enumerate(GROUPS.values()):
        if any(first <= label <= last for first, last in ranges):
            return number
    return None


def number_labels(dataset: str, labels: Sequence[int]) -> dict[int, int]:
    """Index in the classifier of every label that it has: groups of animals on val, breeds in order on pets."""
    distinct = sorted(set(labels))
    if "pets" in dataset:
        return {label: number for number, label in enumerate(distinct)}
    return {label: group for label in distinct if (group := find_group(label)) is not None}


def convert_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """State dict of timm's model from that of CLIPVisionModelWithProjection; the projection is the head."""
    renamed = {
        "vision_model.embeddings.class_embedding": "cls_token", "vision_model.embeddings.position_embedding.weight": "pos_embed",
        "vision_model.embeddings.patch_embedding.weight": "patch_embed.proj.weight", "visual_projection.weight": "head.weight",
        **{f"vision_model.pre_layrnorm.{kind}": f"norm_pre.{kind}" for kind in ("weight", "bias")},
        **{f"vision_model.post_layernorm.{kind}": f"norm.{kind}" for kind in ("weight", "bias")},
    }  # fmt: skip
    parts = {"layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2", "self_attn.out_proj": "attn.proj"}  # fmt: skip
    depth = 1 + max(int(key.split(".")[3]) for key in state if ".layers." in key)
    for block in range(depth):
        for part, own in parts.items():
            for kind in ("weight", "bias"):
                renamed[f"vision_model.encoder.layers.{block}.{part}.{kind}"] = f"blocks.{block}.{own}.{kind}"
    converted = {own: state[key] for key, own in renamed.items()}
    converted["cls_token"] = converted["cls_token"].view(1, 1, -1)
    converted["pos_embed"] = converted["pos_embed"][None]
    for block in range(depth):
        for kind in ("weight", "bias"):
            parts_of = [state[f"vision_model.encoder.layers.{block}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            converted[f"blocks.{block}.attn.qkv.{kind}"] = torch.cat(parts_of)
    return converted


def load_tower(name: str, device: str) -> Any:
    """timm's model whose outputs are an image vector: CLIP's before it is normalised, or DINOv2's class token."""
    import timm
    from safetensors.torch import load_file
    from timm.models.vision_transformer import checkpoint_filter_fn

    state = load_file(expand_path(WEIGHTS[name]))
    if name == CLIP:
        module: Any = timm.create_model("vit_base_patch16_clip_quickgelu_224", num_classes=512)
        module.load_state_dict({**convert_state(state), "head.bias": torch.zeros(512)})
    else:
        module = timm.create_model("vit_small_patch14_dinov2", num_classes=0, img_size=224)
        module.load_state_dict(checkpoint_filter_fn(state, module))  # positions for 224 pixels instead of 518
    return module.eval().to(device)


@torch.no_grad()
def compute_vectors(module: Any, spec: str, places: Sequence[int], device: str) -> tuple[Tensor, Tensor]:
    """Image vectors and labels of the images at `places`."""
    vit = vitreous.wrap(module)
    read = [
        (module(batch.images.to(device)).cpu(), batch.labels)
        for batch in batches(open_dataset(spec), vit.preprocess, places, 32)
    ]
    return torch.cat([image_vectors for image_vectors, _ in read]).double(), torch.cat([labels for _, labels in read])


def fit_logistic(inputs: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weights and biases of a multinomial logistic regression with a squared penalty."""
    weight = torch.zeros(classes, inputs.shape[1], dtype=inputs.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=inputs.dtype, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-8)

    def loss() -> Tensor:
        search.zero_grad()
        value = torch.nn.functional.cross_entropy(inputs @ weight.T + bias, labels) + decay / 2 * weight.square().sum()
        value.backward()
        return value

    search.step(loss)
    return weight.detach(), bias.detach()


def train_classifier(inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, float]:
    """The classifier with the penalty that is best in cross-validation on the same images, and that penalty."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    ends = [round(len(order) * fold / FOLDS) for fold in range(FOLDS + 1)]
    losses = {}
    for decay in DECAYS:
        total = 0.0
        for start, end in pairwise(ends):
            left_out, used = order[start:end], torch.cat([order[:start], order[end:]])
            weight, bias = fit_logistic(inputs[used], labels[used], classes, decay)
            total += float(torch.nn.functional.cross_entropy(inputs[left_out] @ weight.T + bias, labels[left_out], reduction="sum"))  # fmt: skip
        losses[decay] = total
    best = min(DECAYS, key=losses.__getitem__)
    return *fit_logistic(inputs, labels, classes, best), best


def load_classifier(name: str, dataset: str, device: str) -> tuple[Any, dict[int, int]]:
    """A tower with a classifier trained on a dataset's first half, and the index of every label that it has.

    Training images are those at even places (part 1/2); CLIP's head is affine, the product of projection and classifier.
    """
    module, spec = load_tower(name, device), f"assets:{dataset}"
    places = range(0, len(open_dataset(spec)), 2)
    inputs, labels = compute_vectors(module, spec, places, device)
    numbers = number_labels(dataset, labels.tolist())
    is_used = torch.tensor([int(label) in numbers for label in labels])
    inputs, targets = inputs[is_used], torch.tensor([numbers[int(label)] for label in labels[is_used]])
    scale = inputs.norm(dim=1).mean()
    classes = 1 + max(numbers.values())
    weight, bias, decay = train_classifier(inputs / scale, targets, classes)
    projection = getattr(module.head, "weight", torch.eye(module.num_features)).cpu().double()
    head = torch.nn.Linear(projection.shape[1], classes)
    with torch.no_grad():
        head.weight.copy_((weight / scale) @ projection)
        head.bias.copy_(bias)
    module.head, module.num_classes = head.to(device), classes
    print(f"{name} on {dataset}: {len(inputs)} training images, {classes} classes, penalty {decay:g}", flush=True)
    return vitreous.wrap(module), number_all_labels(dataset, numbers)


def number_all_labels(dataset: str, numbers: dict[int, int]) -> dict[int, int]:
    """Index of every label in both halves: on val, classes of the other half belong to the same groups."""
    return numbers if "pets" in dataset else number_labels(dataset, range(1000))
