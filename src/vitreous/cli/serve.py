"""`vitreous serve`: serve the playground, by default to this machine only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from vitreous.cli import options
from vitreous.core.errors import DataError, ModelError, SpecError
from vitreous.web.settings import DEMO, PORT, Settings

if TYPE_CHECKING:
    import uvicorn

MB = 1 << 20


@options.takes_model_options("black_box")
def serve(
    model: Annotated[
        list[str] | None,
        Option("--model", "-m", metavar="NAME[=FILE]", help="Offer a model beside the embedded ones; repeatable."),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    models_folder: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Offer every .safetensors file in it; names begin with the timm architecture."),
    ] = None,
    device: options.Device = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    precision: options.Precision = None,
    host: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 is open to other machines, which need the token in the printed address.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 for any free one.")] = PORT,
    allow_host: Annotated[
        list[str] | None, Option(metavar="NAME", help="Another host name of this server; repeatable.")
    ] = None,
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    queue: Annotated[int, Option(min=1, max=10_000, help="Requests that may wait.")] = 32,
    seconds: Annotated[float, Option(min=1, max=3600, help="Time limit of a request.")] = 60,
    upload: Annotated[int, Option(min=1, max=200, metavar="MB", help="Largest upload.")] = 20,
    megapixels: Annotated[int, Option(min=1, max=500, help="Largest image in an upload.")] = 40,
    cache: Annotated[int, Option(min=8, metavar="MB", help="Memory for images, and as much for results.")] = 256,
    demo_page: Annotated[Path, Option(metavar="FILE", help="Page of `vitreous demo` to link to.")] = DEMO,
) -> None:
    """Serve the playground, a local web page: drop an image, see which patches led to the prediction, remove them.

    Options of a model (--classes, --mean, --model-arg, …) are those of every model that --model and --models-folder name.
    """
    names = list(model or ())
    if checkpoint is not None:
        if len(names) != 1 or "=" in names[0]:
            raise SpecError("--checkpoint belongs to one --model NAME; for several, write --model NAME=FILE for each")
        names = [f"{names[0]}={checkpoint}"]
    if precision is not None:
        from vitreous.capture.precision import check_precision

        check_precision(precision)
    settings = Settings(
        models=tuple(names),
        pretrained=pretrained,
        arguments=check_arguments(arguments),
        folder=models_folder,
        device=device,
        precision=precision,
        host=host,
        port=port,
        names=tuple(allow_host or ()),
        queue=queue,
        seconds=seconds,
        upload=upload * MB,
        pixels=megapixels * 1_000_000,
        cache=cache * MB,
        demo=demo_page,
    )
    run(settings, open_page)


def check_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Raise `SpecError` or `DataError` for invalid model options before anything is served."""
    if arguments:
        from vitreous.bench.model_options import ModelOptions
        from vitreous.models.class_names import read_class_names

        options, _ = ModelOptions.split(arguments)
        if options.classes is not None:
            read_class_names(options.classes)
    return arguments


def run(settings: Settings, open_page: bool = False) -> None:
    """Serve until interrupted."""
    try:
        import uvicorn

        from vitreous.web.app import create_app
    except ModuleNotFoundError as problem:
        raise ModelError(f"the playground needs {problem.name!r}; pip install 'vitreous[web]'") from None
    if not settings.is_local:
        settings = replace(settings, token=settings.token or token_urlsafe(16))
    listening, settings = listen(settings)
    with listening:
        app = create_app(settings)
        typer.echo(f"Vitreous playground: {' or '.join(settings.entries)}  (Ctrl+C ends it)")
        if not settings.is_local:
            typer.echo(
                f"warning: other machines can reach {settings.host}:{settings.port}; who has the address above, with its token, "
                "can use it, and what is sent is not encrypted",
                err=True,
            )
        if open_page:
            typer.launch(settings.entries[0])
        uvicorn.Server(configure(app)).run(sockets=[listening])


def configure(app: Any, **options: Any) -> uvicorn.Config:
    """Configuration of the server of an application; `options` are further ones of uvicorn."""
    import uvicorn

    from vitreous.web.patience import PatientProtocol

    defaults = {"log_level": "warning", "server_header": False, "ws": "none", "timeout_graceful_shutdown": 2}
    return uvicorn.Config(app, http=PatientProtocol, **{**defaults, **options})


def listen(settings: Settings) -> tuple[Any, Settings]:
    """Bind the socket before models are loaded; return it, and the settings with its port."""
    import socket

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(128)  # from now on, clients can connect and wait until the models are ready
    except OSError as problem:
        listening.close()
        where = f"{settings.host}:{settings.port}"
        raise DataError(
            f"cannot listen at {where} ({problem.strerror or problem}); another --port may be free"
        ) from None
    return listening, replace(settings, port=listening.getsockname()[1])
