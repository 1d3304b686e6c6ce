"""Explain a mask of MobileSAM and the similarity of two images by CLIP, with real weights, and measure the maps.

    python benchmarks/real_networks.py mask WEIGHTS PETS --out out/mask --record
    python benchmarks/real_networks.py similarity WEIGHTS PETS --out out/similarity --record

WEIGHTS is a folder with `mobile_sam.pt` (as published) and `clip-vit-base-patch16.vision.safetensors` (Hugging Face names);
PETS is Oxford-IIIT Pet with trimaps. Figures are written to the folder of `--out`; they show photographs and do not belong in
the repository. `--record` writes the numbers to benchmarks/results and the tables to the how-to pages.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vitreous
from vitreous.data import open_dataset
from vitreous.draw import sheet
from vitreous.models.image_input import Preprocess
from vitreous.models.model import Network

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "mask": ROOT / "docs" / "how-to" / "segmenter.md",
    "similarity": ROOT / "docs" / "how-to" / "similarity.md",
}
METHODS = ("temper", "decompx+plus", "ixg", "gradcam")
METRICS = ("ap", "energy_pointing", "pointing_game")
SIDE = 1024  # of MobileSAM's images
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# ── MobileSAM ────────────────────────────────────────────────────────────────────────────────────

DECODER_NAMES = (
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", "shared_image_embedding.positional_embedding"),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"mask_downscaling\.0\.", "mask_embed.conv1."),
    (r"mask_downscaling\.1\.", "mask_embed.layer_norm1."),
    (r"mask_downscaling\.3\.", "mask_embed.conv2."),
    (r"mask_downscaling\.4\.", "mask_embed.layer_norm2."),
    (r"mask_downscaling\.6\.", "mask_embed.conv3."),
    (r"(layers\.\d)\.norm(\d)\.", r"\1.layer_norm\2."),
    (r"norm_final_attn\.", "layer_norm_final_attn."),
    (r"output_upscaling\.0\.", "upscale_conv1."),
    (r"output_upscaling\.1\.", "upscale_layer_norm."),
    (r"output_upscaling\.3\.", "upscale_conv2."),
    (r"((?:mlps\.\d|prediction_head))\.layers\.0\.", r"\1.proj_in."),
    (r"((?:mlps\.\d|prediction_head))\.layers\.1\.", r"\1.layers.0."),
    (r"((?:mlps\.\d|prediction_head))\.layers\.2\.", r"\1.proj_out."),
)
NECK_NAMES = {"0": "conv1", "1": "layer_norm1", "2": "conv2", "3": "layer_norm2"}


class MobileSam(nn.Module):
    """TinyViT of timm, and the neck, prompt encoder and mask decoder of Hugging Face's SAM, for one point per image."""

    def __init__(self) -> None:
        super().__init__()
        import timm
        from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamVisionConfig
        from transformers.models.sam.modeling_sam import SamVisionNeck

        self.encoder = timm.create_model("tiny_vit_5m_224", pretrained=False, num_classes=0, window_sizes=(7, 7, 14, 7))
        self.encoder.stages[3].downsample.conv2.conv.stride = (1, 1)  # the last stage keeps 64 x 64
        vision = SamVisionConfig(hidden_size=320, num_hidden_layers=1, num_attention_heads=5, mlp_dim=32)
        decoder = SamMaskDecoderConfig(layer_norm_eps=1e-5)
        sam = SamModel(SamConfig(vision_config=vision.to_dict(), mask_decoder_config=decoder.to_dict()))
        self.neck = SamVisionNeck(vision)
        self.sam = sam
        del self.sam.vision_encoder.layers
        self.points = torch.full((1, 1, 1, 2), SIDE / 2)

    def forward(self, images: Tensor) -> Any:
        encoder = self.encoder
        features = encoder.stages(encoder.patch_embed(images))
        embeddings = self.neck(features.permute(0, 2, 3, 1))
        positions = self.sam.get_image_wide_positional_embeddings().to(images)
        points = self.points.to(images).expand(len(images), -1, -1, -1)
        labels = torch.ones(points.shape[:3], dtype=torch.long, device=images.device)
        sparse, dense = self.sam.prompt_encoder(points, labels, None, None)
        masks, quality = self.sam.mask_decoder(
            image_embeddings=embeddings,
            image_positional_embeddings=positions.expand(len(images), -1, -1, -1),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=True,
        )[:2]
        return {"masks": masks[:, 0], "quality": quality[:, 0]}


def load_mobile_sam(path: Path) -> MobileSam:
    """MobileSAM with the published weights; all are loaded except TinyViT's own classifier."""
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = MobileSam()
    state: dict[str, Tensor] = {}
    for name, value in weights.items():
        part, _, rest = name.partition(".")
        if part != "image_encoder":
            for pattern, replacement in DECODER_NAMES:
                name = re.sub(pattern, replacement, name)
            state[f"sam.{name}"] = value
        elif rest.startswith("neck."):
            _, number, kind = rest.split(".")
            state[f"neck.{NECK_NAMES[number]}.{kind}"] = value
        elif not rest.startswith(("head.", "norm_head.")):
            state[f"encoder.{rename_weight(rest)}"] = value
    shared = "sam.shared_image_embedding.positional_embedding"
    state["sam.prompt_encoder.shared_embedding.positional_embedding"] = state[shared]
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.startswith(("encoder.head.", "sam.vision_encoder."))]
    if missing or unexpected:
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return model.eval().requires_grad_(False)


def rename_weight(name: str) -> str:
    """timm's name of a weight of TinyViT."""
    name = re.sub(r"^patch_embed\.seq\.0\.", "patch_embed.conv1.", name)
    name = re.sub(r"^patch_embed\.seq\.2\.", "patch_embed.conv2.", name)
    name = re.sub(r"^layers\.(\d)\.downsample\.", lambda m: f"stages.{int(m[1]) + 1}.downsample.", name)
    return re.sub(r"^layers\.", "stages.", name).replace(".c.", ".conv.")


def select_best_mask(output: dict[str, Tensor]) -> Tensor:
    """Logits [b H W] of the mask with the highest predicted quality."""
    best = output["quality"].argmax(-1)
    return output["masks"][torch.arange(len(best)), best]


def compute_mean_logit(output: dict[str, Tensor]) -> Tensor:
    """Mean logit inside the predicted mask, which is held fixed."""
    logits = select_best_mask(output)
    inside = (logits.detach() > 0).to(logits)
    return (logits * inside).sum((1, 2)) / inside.sum((1, 2)).clamp(min=1)


def find_innermost_point(mask: Tensor) -> tuple[int, int]:
    """Row and column of the pixel of a mask that is farthest from its outside."""
    from scipy.ndimage import distance_transform_edt

    distance = distance_transform_edt(np.pad(mask.numpy(), 1))[1:-1, 1:-1]
    row, column = np.unravel_index(int(distance.argmax()), distance.shape)
    return int(row), int(column)


def make_mask_network(module: MobileSam, blocks: list[str] | None) -> Network:
    start = time.perf_counter()
    network = vitreous.see_through(
        module,
        "MobileSAM",
        size=(SIDE, SIDE),
        blocks=blocks,
        preprocess=Preprocess.plain((SIDE, SIDE), PIXEL_MEAN, PIXEL_STD),
    )
    print(f"{network}: missing share {network.missing:.1e}, {time.perf_counter() - start:.0f} s", flush=True)
    return network


def explain_masks(weights: Path, pets: str, out: Path, count: int, device: str) -> list[dict[str, Any]]:
    """Why this mask? A point on the animal; the score is the mean logit inside the predicted mask.

    Blocks are those of the last two stages, on 64 x 64 tokens: gradients at the 256 x 256 tokens before them are noise. The
    first image is explained with all blocks too, to show that.
    """
    module = load_mobile_sam(weights / "mobile_sam.pt").to(device)
    network = make_mask_network(module, ["encoder.stages.2.blocks.*", "encoder.stages.3.blocks.*"])
    rows: list[dict[str, Any]] = []
    for sample in list_samples(pets, count):
        images = make_network_input(network, sample.image)
        objects = resize_mask(sample.mask, SIDE)
        row, column = find_innermost_point(objects[0] > 0)
        module.points = torch.tensor([[[[float(column), float(row)]]]])
        with torch.no_grad():
            predicted = nn.functional.interpolate(
                select_best_mask(module(images))[None], size=(SIDE, SIDE), mode="bilinear"
            )
        annotated, animal = objects >= 0, objects > 0
        inside = (predicted[0].cpu() > 0) & annotated
        overlap = float((inside & animal).sum() / (inside | animal).sum())
        attributions = [
            vitreous.explain(network, images, method=method, score=compute_mean_logit) for method in METHODS
        ]
        for method, attribution in zip(METHODS, attributions, strict=True):
            rows.append(
                {"image": sample.key, "score": "mask", "method": method, "iou": overlap, "missing": network.missing}
                | measure(network, attribution, objects, compute_mean_logit)
            )
            print(json.dumps(rows[-1]), flush=True)
        sheet(attributions).savefig(out / f"{Path(sample.key).stem}.png", dpi=60)
        rows.append({"image": sample.key, "score": "mask", "method": "chance", **compute_chance(objects)})
        if not any(row["score"] == "mask, all stages" for row in rows):
            every_block = make_mask_network(module, None)
            attribution = vitreous.explain(every_block, images, method="temper", score=compute_mean_logit)
            rows.append(
                {"image": sample.key, "score": "mask, all stages", "method": "temper"}
                | measure(every_block, attribution, objects, compute_mean_logit)
            )
            print(json.dumps(rows[-1]), flush=True)
            sheet([attribution]).savefig(out / f"{Path(sample.key).stem}-all-stages.png", dpi=60)
    return rows


# ── similarity ───────────────────────────────────────────────────────────────────────────────────


def load_clip(path: Path) -> nn.Module:
    """CLIP ViT-B/16's vision tower with its projection."""
    from safetensors.torch import load_file
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(patch_size=16, image_size=224, projection_dim=512)
    model = CLIPVisionModelWithProjection(config)
    missing, unexpected = model.load_state_dict(load_file(path), strict=False)
    if missing or any(not name.endswith("position_ids") for name in unexpected):
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return model.eval().requires_grad_(False)


def explain_similarity(weights: Path, pets: str, out: Path, count: int, device: str) -> list[dict[str, Any]]:
    """Which patches make two images of one breed similar?

    Two scores: the cosine to the other image's embedding, and what it has beyond the mean of the images here. All
    embeddings of CLIP share a large part, which the plain cosine explains first.
    """
    module = load_clip(weights / "clip-vit-base-patch16.vision.safetensors").to(device)
    preprocess = Preprocess.plain((224, 224), CLIP_MEAN, CLIP_STD)
    network = vitreous.see_through(module, "CLIP ViT-B/16", size=(224, 224), preprocess=preprocess)
    print(f"{network}: missing share {network.missing:.1e}", flush=True)
    chosen = [list_samples(pets, count), list_samples(pets, count, second=True)]
    images = [torch.cat([make_network_input(network, sample.image) for sample in side]) for side in chosen]
    with torch.no_grad():
        first, second = (nn.functional.normalize(module(side).image_embeds, dim=-1) for side in images)
    mean = torch.cat([first, second]).mean(0)
    rows = []
    for index, (sample, other) in enumerate(zip(*chosen, strict=True)):
        objects = resize_mask(sample.mask, 224)
        for name, reference in (("cosine", second[index]), ("centred", second[index] - mean)):
            image, score = images[0][index : index + 1], vitreous.scores.cosine(reference)
            attributions = [vitreous.explain(network, image, method=method, score=score) for method in METHODS]
            for method, attribution in zip(METHODS, attributions, strict=True):
                assert attribution.score is not None
                about = {"image": sample.key, "other": other.key, "score": name, "value": float(attribution.score)}
                about["missing"] = network.missing
                rows.append(about | {"method": method} | measure(network, attribution, objects, score))
                print(json.dumps(rows[-1]), flush=True)
            sheet(attributions).savefig(out / f"{Path(sample.key).stem}-{name}.png", dpi=60)
            rows.append({"image": sample.key, "score": name, "method": "chance", **compute_chance(objects)})
    return rows


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


def list_samples(pets: str, count: int, second: bool = False) -> list[Any]:
    """The first image of each breed, or the second."""
    return [pair[int(second)] for pair in list_pairs(open_dataset(f"pets:{pets}"), count, 0)]


def list_pairs(dataset: Any, count: int, first: int) -> list[tuple[Any, Any]]:
    """Two images of each of the first breeds."""
    breeds: dict[Any, list[Any]] = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        breeds.setdefault(sample.label, []).append(sample)
        if len(breeds) > count:
            break
    return [(samples[first], samples[first + 1]) for samples in list(breeds.values())[:count]]


def make_network_input(network: Network, image: Any) -> Tensor:
    assert network.preprocess is not None
    return network.preprocess.batch([image]).to(network.device)


def resize_mask(mask: Any, side: int) -> Tensor:
    """Mask [1 side side] of an image that is square: 1 object, 0 background, -1 border."""
    values = torch.as_tensor(np.asarray(mask), dtype=torch.float32)[None, None]
    return nn.functional.interpolate(values, size=(side, side), mode="nearest")[0].to(torch.int8)


def measure(network: Network, attribution: Any, objects: Tensor, score: Any) -> dict[str, float]:
    results = vitreous.evaluate(network, None, attribution, list(METRICS), objects=objects, score=score)
    return {metric: float(result.scores[0]) for metric, result in zip(METRICS, results, strict=True)}


def compute_chance(objects: Tensor) -> dict[str, float]:
    """Expected value of a random map: the share of the animal."""
    return dict.fromkeys(METRICS, float((objects > 0).sum() / (objects >= 0).sum()))


def summarise(rows: list[dict[str, Any]]) -> str:
    """Means over images as a Markdown table; a mean of values of which one is undefined is undefined."""
    lines = ["| score | method | images | AP | mass on the animal | peak on the animal |", "|---|---|---|---|---|---|"]
    for score, method in dict.fromkeys((row["score"], row["method"]) for row in rows):
        own = [row for row in rows if (row["score"], row["method"]) == (score, method)]
        means = [np.mean([row[metric] for row in own]) for metric in METRICS]
        cells = ["–" if np.isnan(mean) else f"{mean:.2f}" for mean in means]
        label = "chance" if method == "chance" else f"`{method}`"
        lines.append(f"| {score} | {label} | {len(own)} | {' | '.join(cells)} |")
    facts = {
        "IoU of the predicted masks with the animals": [row["iou"] for row in rows if "iou" in row],
        "Cosine of the pairs": [row["value"] for row in rows if row["score"] == "cosine" and "value" in row],
        "Largest share of a score that is missing in the check at load": [
            row["missing"] for row in rows if "missing" in row
        ],
    }
    sentences = [f"{name}: {format_range(values)}." for name, values in facts.items() if values]
    return "\n".join([*lines, "", " ".join(sentences)])


def format_range(values: list[float]) -> str:
    """Mean and range of several numbers."""
    low, mean, high = min(values), float(np.mean(values)), max(values)
    return f"{mean:.2g}" if low == high else f"{mean:.2f} on average ({low:.2f} to {high:.2f})"


def fill_page(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with the table between its marks."""
    return re.sub(r"(<!-- measured -->\n).*?(\n<!-- end -->)", rf"\g<1>{summarise(rows)}\g<2>", page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mask", "similarity"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("pets")
    parser.add_argument("--count", type=int, default=10, help="images, one of each breed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    parser.add_argument("--record", action="store_true", help="write the numbers to benchmarks/results and the pages")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    explain = explain_masks if chosen.what == "mask" else explain_similarity
    rows = explain(chosen.weights, chosen.pets, chosen.out, chosen.count, chosen.device)
    if chosen.record:
        (RESULTS / f"real-{chosen.what}.json").write_text(json.dumps(rows, indent=1) + "\n")
        page = PAGES[chosen.what]
        page.write_text(fill_page(page.read_text(), rows))
    print(summarise(rows))


if __name__ == "__main__":
    main()
