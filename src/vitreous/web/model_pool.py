"""The models on offer: the embedded ones and those named at start, each loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from vitreous.core.errors import DataError, ModelError, VitreousError
from vitreous.data.reader import expand_path
from vitreous.web.settings import Settings

if TYPE_CHECKING:
    from vitreous.models.image_input import Preprocess
    from vitreous.models.vit import ViT

EMBEDDED = {
    "scenes": "ships with the package; trained on the bundled scenes",
    "scenes-biased": "the same, trained on scenes where a domino in a corner reveals the class",
}
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
MAX_LOADED = 3  # models kept in memory


class NotAvailable(VitreousError, LookupError):  # noqa: N818 - answered with 404
    """An unknown model or image."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model as it is offered, and how to load it."""

    name: str
    load: str
    checkpoint: Path | None = None
    note: str = ""
    pretrained: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)  # model options and arguments of the builder

    @property
    def python(self) -> str:
        """The call of `vitreous.load`, or of `load_model` if options are given, that loads it; files are given by their names, without the server's folders."""
        extra = "" if self.checkpoint is None else f", checkpoint={self.checkpoint.name!r}"
        extra += "" if self.pretrained else ", pretrained=False"
        if not self.arguments:
            return f"vitreous.load({self.load!r}{extra})"
        arguments = dict(self.arguments)
        if "classes" in arguments:
            arguments["classes"] = Path(arguments["classes"]).name
        return f"load_model({self.load!r}{extra}, arguments={arguments!r})"


def list_entries(settings: Settings) -> dict[str, ModelEntry]:
    """Return every model on offer, by name.

    Raises
    ------
    DataError
        If a checkpoint or the folder of checkpoints does not exist.
    ModelError
        If two models have the same name.
    """
    embedded = [ModelEntry(name, name, note=note) for name, note in EMBEDDED.items()]
    named: list[ModelEntry] = []
    for option in settings.models:
        name, equals, file = option.partition("=")
        if not name or (equals and not expand_path(file).is_file()):
            raise DataError(f"no checkpoint at {file!r} for --model {option!r}; write NAME or NAME=FILE")
        if name not in EMBEDDED or equals:
            path = expand_path(file).resolve() if equals else None
            fetched = "weights are downloaded on first use" if settings.pretrained else "random weights"
            named.append(ModelEntry(name, name, path, path.name if path else fetched))
    named += [] if settings.folder is None else list_folder(settings.folder)
    if settings.arguments and not named:
        options = ", ".join(settings.arguments)
        raise ModelError(f"options of a model ({options}) need a model; name it by --model or --models-folder")
    named = [replace(entry, pretrained=settings.pretrained, arguments=settings.arguments) for entry in named]
    by_name: dict[str, ModelEntry] = {}
    for entry in [*embedded, *named]:
        if entry.name in by_name:
            raise ModelError(f"two models are called {entry.name!r}; offer one of them")
        by_name[entry.name] = entry
    return by_name


def list_folder(folder: Path) -> list[ModelEntry]:
    """Return the checkpoints whose names begin with their timm architecture: `deit_tiny_patch16_224.mine.safetensors`."""
    if not folder.is_dir():
        raise DataError(f"no folder {str(folder)!r} for --models-folder")
    home = folder.resolve()
    files = [path for path in sorted(home.iterdir()) if path.suffix in SUFFIXES and path.is_file()]
    inside = [path for path in files if path.resolve().parent == home]  # a symbolic link may leave the folder
    if not inside:
        raise DataError(f"folder {str(folder)!r} holds no checkpoints ({', '.join(SUFFIXES)})")
    return [
        ModelEntry(path.stem, f"timm:{path.name.split('.')[0]}", path, f"from the folder {home.name}")
        for path in inside
    ]


class ModelPool:
    """The models on offer; the last few used stay loaded. Used by the worker's thread only."""

    def __init__(self, settings: Settings) -> None:
        self.entries, self.device = list_entries(settings), settings.device
        self._loaded: LRUCache[str, ViT] = LRUCache(MAX_LOADED)

    def entry(self, name: str) -> ModelEntry:
        """Return the entry of this name, or raise `NotAvailable`."""
        if name not in self.entries:
            raise NotAvailable(f"no model {name!r} is offered here; there are {', '.join(self.entries)}")
        return self.entries[name]

    def vit(self, name: str) -> ViT:
        """Return the model, loading it if necessary.

        Raises
        ------
        ModelError
            If it cannot be loaded, or has no preprocessing.
        """
        from vitreous.bench.model_options import load_model
        from vitreous.models.vit import ViT

        entry = self.entry(name)
        if name in self._loaded:
            return self._loaded[name]
        try:
            vit = load_model(entry.load, entry.checkpoint, entry.pretrained, self.device, entry.arguments)
        except VitreousError as problem:
            reason = str(problem)
            if entry.checkpoint is not None:  # do not reveal the server's folders
                reason = reason.replace(str(entry.checkpoint), entry.checkpoint.name)
            raise ModelError(f"{name!r} cannot be loaded: {reason}") from None
        if not isinstance(vit, ViT):
            raise ModelError(
                f"{name!r} is not a vision transformer, and the playground removes patches; `vitreous explain --black-box` works"
            )
        if vit.preprocess is None:
            raise ModelError(f"{name!r} does not say how images are preprocessed, so it cannot be used here")
        if vit.scalar:
            raise ModelError(
                f"{name!r} answers with one number, and the playground shows probabilities of classes; vitreous.explain and "
                "`vitreous explain` show what the number is made of"
            )
        self._loaded[name] = vit
        return vit

    def preprocess(self, name: str) -> Preprocess:
        """Return the preprocessing of a model's images, loading the model if necessary."""
        preprocess = self.vit(name).preprocess
        assert preprocess is not None  # `vit` refuses models without it
        return preprocess
