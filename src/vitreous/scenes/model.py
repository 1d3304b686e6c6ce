"""The small timm models that were trained on Scenes: two ViTs and a Swin transformer."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.core.errors import ModelError
from vitreous.scenes.scene_plan import CLASSES
from vitreous.scenes.scene_sets import PATCH
from vitreous.scenes.sprite import SIZE

if TYPE_CHECKING:
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.vision_transformer import VisionTransformer

MODELS = ("scenes", "scenes-biased", "scenes-swin")


def build_model(name: str = "scenes") -> VisionTransformer | SwinTransformer:
    """Build the architecture of a Scenes model with untrained weights.

    Parameters
    ----------
    name
        "scenes", "scenes-biased" or "scenes-swin".

    Returns
    -------
    VisionTransformer or SwinTransformer

    Raises
    ------
    ModelError
        If the name is unknown.

    Examples
    --------
    >>> from vitreous import scenes
    >>> len(scenes.build_model("scenes").blocks)
    12
    """
    if name not in MODELS:
        raise ModelError(f"no Scenes model {name!r}; there are {', '.join(MODELS)}")
    if name == "scenes-swin":  # 8 blocks: 28 x 28, then 14 x 14, then 7 x 7 tokens, in windows of 7 x 7
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(
            img_size=SIZE,
            patch_size=4,
            embed_dim=48,
            depths=(2, 2, 4),
            num_heads=(3, 6, 12),
            window_size=7,
            drop_path_rate=0.0,
            num_classes=len(CLASSES),
        )
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(  # 12 blocks on 14 x 14 patches
        img_size=SIZE, patch_size=PATCH, embed_dim=144, depth=12, num_heads=3, mlp_ratio=4, num_classes=len(CLASSES)
    )


def load_model(name: str = "scenes", folder: Path | None = None) -> VisionTransformer | SwinTransformer:
    """Load a trained model in evaluation mode and float32.

    Parameters
    ----------
    name
        "scenes", "scenes-biased" or "scenes-swin".
    folder
        Folder with the file `<name>.safetensors`; the weights of the package by default.

    Returns
    -------
    VisionTransformer or SwinTransformer

    Raises
    ------
    ModelError
        If the name is unknown.

    Examples
    --------
    >>> from vitreous import scenes
    >>> model = scenes.load_model("scenes")
    >>> model(scenes.tensor(scenes.draw("single", seed=0, index=0))[None]).shape
    torch.Size([1, 20])
    """
    from safetensors.torch import load_file

    model = build_model(name)
    with as_file(files("vitreous.scenes") / "weights") as shipped:
        weights = load_file((folder or shipped) / f"{name}.safetensors")
    model.load_state_dict({key: value.float() for key, value in weights.items()}, strict=True)
    return model.eval()
