"""Which models may be asked: the embedded ones and those that were named at start. Each is loaded when it is first needed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.core.errors import DataError, ModelError, VitreousError
from vitreous.web.settings import Settings

if TYPE_CHECKING:
    from vitreous.models.vit import ViT

EMBEDDED = {
    "scenes": "ships with the package; reads the bundled scenes",
    "scenes-biased": "the same, trained where a domino in a corner gives the class away",
}
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
LOADED = 3  # models kept ready


class Unknown(VitreousError, LookupError):  # noqa: N818 - becomes 404
    """A model or picture that is not here."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Entry:
    """One model as it is offered, and how it is loaded."""

    name: str
    load: str
    checkpoint: Path | None = None
    note: str = ""

    @property
    def python(self) -> str:
        """The call that loads it; of a checkpoint's path only the name is anybody's business."""
        more = "" if self.checkpoint is None else f", checkpoint={self.checkpoint.name!r}"
        return f"vitreous.load({self.load!r}{more})"


def offered(settings: Settings) -> dict[str, Entry]:
    """Every model by the name under which it is offered."""
    entries = [Entry(name, name, note=note) for name, note in EMBEDDED.items()]
    for given in settings.models:
        name, equals, file = given.partition("=")
        if not name or (equals and not Path(file).is_file()):
            raise DataError(f"no checkpoint at {file!r} for --model {given!r}; write NAME or NAME=FILE")
        if name not in EMBEDDED or equals:
            path = Path(file).resolve() if equals else None
            entries.append(Entry(name, name, path, path.name if path else "weights are fetched when it is first asked"))
    entries += [] if settings.folder is None else from_folder(settings.folder)
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise ModelError(f"two models are called {entry.name!r}; offer one of them")
        found[entry.name] = entry
    return found


def from_folder(folder: Path) -> list[Entry]:
    """Checkpoints whose names begin with their timm architecture: `deit_tiny_patch16_224.mine.safetensors`."""
    if not folder.is_dir():
        raise DataError(f"no folder {str(folder)!r} for --models-folder")
    home = folder.resolve()
    files = [path for path in sorted(home.iterdir()) if path.suffix in SUFFIXES and path.is_file()]
    inside = [path for path in files if path.resolve().parent == home]  # a link may lead out of the folder
    if not inside:
        raise DataError(f"folder {str(folder)!r} holds no checkpoints ({', '.join(SUFFIXES)})")
    return [
        Entry(path.stem, f"timm:{path.name.split('.')[0]}", path, f"from the folder {home.name}") for path in inside
    ]


class Roster:
    """The models on offer; the last few that were asked are kept. Used by the worker's thread alone."""

    def __init__(self, settings: Settings) -> None:
        self.entries, self.device = offered(settings), settings.device
        self._loaded: OrderedDict[str, ViT] = OrderedDict()

    def entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise Unknown(f"no model {name!r} is offered here; there are {', '.join(self.entries)}")
        return self.entries[name]

    def vit(self, name: str) -> ViT:
        from vitreous.front import load

        entry = self.entry(name)
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name]
        try:
            vit = load(entry.load, checkpoint=entry.checkpoint, device=self.device)
        except VitreousError as problem:
            said = str(problem)
            said = said if entry.checkpoint is None else said.replace(str(entry.checkpoint), entry.checkpoint.name)
            raise ModelError(f"{name!r} cannot be loaded: {said}") from None
        if vit.preprocess is None:
            raise ModelError(f"{name!r} does not say how pictures are prepared, so it cannot be shown any here")
        if vit.scalar:
            raise ModelError(
                f"{name!r} answers with one number, and the playground shows probabilities of classes; vitreous.explain and "
                "`vitreous explain` show what the number is made of"
            )
        self._loaded[name] = vit
        while len(self._loaded) > LOADED:
            self._loaded.popitem(last=False)
        return vit
