"""The small timm ViT that was trained on Scenes."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.core.errors import ModelError
from vitreous.scenes.scene_plan import CLASSES
from vitreous.scenes.scene_sets import PATCH
from vitreous.scenes.sprite import SIZE

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

MODELS = ("scenes", "scenes-biased")


def build_model() -> VisionTransformer:
    """Build the architecture with untrained weights."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=SIZE, patch_size=PATCH, embed_dim=144, depth=12, num_heads=3, mlp_ratio=4, num_classes=len(CLASSES)
    )


def load_model(name: str = "scenes", folder: Path | None = None) -> VisionTransformer:
    """Load the trained model in evaluation mode and float32.

    Parameters
    ----------
    name
        "scenes" or "scenes-biased".
    folder
        Folder with the file `<name>.safetensors`; the weights of the package by default.

    Returns
    -------
    VisionTransformer

    Raises
    ------
    ModelError
        If the name is unknown.
    """
    from safetensors.torch import load_file

    if name not in MODELS:
        raise ModelError(f"no Scenes model {name!r}; there are {', '.join(MODELS)}")
    with as_file(files("vitreous.scenes") / "weights") as shipped:
        weights = load_file((folder or shipped) / f"{name}.safetensors")
    model = build_model()
    model.load_state_dict({key: value.float() for key, value in weights.items()}, strict=True)
    return model.eval()
