"""A model and an image as a game of shapiq, whose players are patches or groups of patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from vitreous.arguments import as_images
from vitreous.capture.argument_types import ArrayInput, ClassInput, ImageInput, ModelInput, QuestionInput
from vitreous.capture.probe import Probe
from vitreous.capture.targets import class_indices
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.vit import ViT
from vitreous.wrapping import as_model

if TYPE_CHECKING:
    from shapiq import Game


def patch_game(
    model: ModelInput,
    image: ImageInput,
    target: ClassInput | None = None,
    question: QuestionInput = "probability",
    players: ArrayInput | None = None,
    batch: int = 4096,
) -> Game:
    """A `shapiq.Game`: the score of an image when only some of its patches enter the model, by token removal.

    Parameters
    ----------
    model
        A `ViT`, a module with an adapter, or a name.
    image
        One image, as for `vitreous.explain`.
    target
        Class; None for the predicted one.
    question
        Score function.
    players
        Player of every patch, in the order of the grid, numbered from 0; by default every patch is a player.
    batch
        Number of coalitions that are evaluated at once.

    Returns
    -------
    shapiq.Game
        Normalised by the value of the empty coalition.

    Raises
    ------
    ModelError
        If the model is not a `ViT`.

    Examples
    --------
    >>> import vitreous
    >>> from vitreous.bridges.shapiq import patch_game
    >>> vit = vitreous.load("scenes")
    >>> image = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> halves = [index // 98 for index in range(196)]
    >>> patch_game(vit, image, players=halves).n_players
    2
    """
    import shapiq

    vit = as_model(model)
    if not isinstance(vit, ViT):
        raise ModelError(
            f"{vit.name!r} is not a ViT, so its patches cannot be removed; a ViT with an adapter would work"
        )
    _, tensor = as_images(vit, image)
    if len(tensor) != 1:
        raise ShapeError(f"a game is of one image, not {len(tensor)}")
    probe = Probe(vit, tensor, class_indices(vit, target, 1), question)
    owner = torch.arange(probe.layout.patches) if players is None else torch.as_tensor(players)
    if owner.shape != (probe.layout.patches,):
        raise ShapeError(
            f"players must name one player for each of {probe.layout.patches} patches, not {list(owner.shape)}"
        )

    class PatchGame(shapiq.Game):
        """Score of an image by the patches that enter the model."""

        def __init__(self) -> None:
            count = int(owner.max()) + 1
            empty = self.value_function(np.zeros((1, count), bool))[0]
            super().__init__(count, normalize=True, normalization_value=float(empty))

        def value_function(self, coalitions: np.ndarray) -> np.ndarray:
            present = torch.from_numpy(np.asarray(coalitions, bool))[:, owner].to(probe.images.device)
            scores = [probe.score(rows[None])[0] for rows in present.split(batch)]
            return torch.cat(scores).double().cpu().numpy()

    return PatchGame()
