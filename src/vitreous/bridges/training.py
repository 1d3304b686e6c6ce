"""Maps of fixed images while a model is trained, for TensorBoard, Weights & Biases and Lightning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from vitreous.capture.argument_types import ImageInput, TargetInput
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.draw.overlay import overlay_image
from vitreous.front import explain

Write = Callable[[str, np.ndarray, int], object]  # name, image [height, width, 3] of 8-bit colours, step


class MapLogger:
    """Explains fixed images of a model and hands the overlays to a logger.

    Parameters
    ----------
    images
        The images, as for `vitreous.explain`.
    write
        Receives a name, an image array [height, width, 3] and the step; see `to_tensorboard` and `to_wandb`.
    target
        Classes; None for the predicted ones.
    method
        Method spec.
    name
        Prefix of the logged names.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> from vitreous.bridges.training import MapLogger
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2)
    >>> written = []
    >>> logger = MapLogger(torch.zeros(1, 3, 32, 32), lambda name, image, step: written.append((name, step)))
    >>> logger.log(model, step=5)
    >>> written
    [('maps/0', 5)]
    """

    def __init__(
        self,
        images: ImageInput,
        write: Write,
        *,
        target: TargetInput = None,
        method: str = DEFAULT_METHOD,
        name: str = "maps",
    ) -> None:
        self.images, self.write, self.target, self.method, self.name = images, write, target, method, name

    def log(self, model: nn.Module, step: int) -> None:
        """Explain the images with the model as it is now; its modes and gradients stay as they are.

        Parameters
        ----------
        model
            The model in its current state; its mode is restored.
        step
            Training step.
        """
        images = self.images
        if isinstance(images, torch.Tensor):
            images = images.to(next(model.parameters()).device)
        attribution = explain(model, images, self.target, self.method)
        for row in range(len(attribution)):
            self.write(f"{self.name}/{row}", np.asarray(overlay_image(attribution, row)), step)


def to_tensorboard(writer: Any) -> Write:
    """Write to a `torch.utils.tensorboard.SummaryWriter`.

    Parameters
    ----------
    writer
        The writer.

    Returns
    -------
    Callable
        For `MapLogger(write=...)`.

    Examples
    --------
    >>> import numpy as np
    >>> from vitreous.bridges.training import to_tensorboard
    >>> class Writer:  # a `torch.utils.tensorboard.SummaryWriter`
    ...     def add_image(self, name, image, step, dataformats):
    ...         print(name, image.shape, step)
    >>> to_tensorboard(Writer())("maps/0", np.zeros((8, 8, 3)), 5)
    maps/0 (8, 8, 3) 5
    """
    return lambda name, image, step: writer.add_image(name, image, step, dataformats="HWC")


def to_wandb(run: Any) -> Write:
    """Write to a run of Weights & Biases.

    Parameters
    ----------
    run
        The run.

    Returns
    -------
    Callable
        For `MapLogger(write=...)`.

    Examples
    --------
    >>> import wandb  # doctest: +SKIP
    >>> from vitreous.bridges.training import to_wandb
    >>> write = to_wandb(wandb.init(project="maps"))  # doctest: +SKIP
    """
    make_image = import_module("wandb").Image
    return lambda name, image, step: run.log({name: make_image(image)}, step=step)


def lightning_callback(logger: MapLogger, every_n_epochs: int = 1) -> Any:
    """A Lightning `Callback` that logs maps of `pl_module.model` (or of the module itself) at the end of epochs.

    Of several processes that train together, the first one logs.

    Parameters
    ----------
    logger
        Logger of the maps.
    every_n_epochs
        Log after every n-th epoch.

    Returns
    -------
    lightning.Callback
        For `Trainer(callbacks=[...])`.

    Raises
    ------
    ImportError
        If neither `lightning` nor `pytorch_lightning` is installed.

    Examples
    --------
    >>> from vitreous.bridges.training import lightning_callback
    >>> callback = lightning_callback(logger, every_n_epochs=2)  # doctest: +SKIP
    """
    callback: Any = _lightning_package().Callback

    class MapCallback(callback):
        """Logs maps at the end of training epochs."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero and (trainer.current_epoch + 1) % every_n_epochs == 0:
                logger.log(getattr(pl_module, "model", pl_module), trainer.global_step)

    return MapCallback()


def _lightning_package() -> Any:
    """Lightning under its name, or under its older one."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("a Lightning callback needs Lightning; pip install lightning")
