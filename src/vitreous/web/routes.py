"""The typed endpoints. Each names its work, waits for it while the client does, and answers in the shapes of `shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response

from vitreous.web import shapes
from vitreous.web.pictures import ALBUM, WORDS, Named, missing
from vitreous.web.studio import Studio
from vitreous.web.waiting import ERRORS, answer, body_of

api = APIRouter(prefix="/api", responses=ERRORS)
PNG: dict[int | str, Any] = {200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}}
DECODERS = CapacityLimiter(2)  # uploads unpacked at a time
PictureQuery = Annotated[shapes.PictureName, Query()]
ModelQuery = Annotated[shapes.ModelName, Query()]


def studio_of(request: Request) -> Studio:
    return request.app.state.studio


@api.get("/about")
async def about(request: Request) -> shapes.About:
    """Models, methods, colours and limits."""
    from vitreous.web.about import describe

    studio = studio_of(request)
    found = await answer(request, ("about",), lambda asked: [describe(studio) for _ in asked], None)
    return found.model_copy(update={"demo": studio.settings.has_demo})  # it may have been written since


@api.get("/model")
async def model(request: Request, name: ModelQuery) -> shapes.ModelFacts:
    """Depth, grid and class names of a model; it is loaded for that."""
    return shapes.ModelFacts(model=name, **await facts(request, name))


async def facts(request: Request, name: str) -> dict[str, Any]:
    studio = studio_of(request)
    studio.roster.entry(name)
    return await answer(request, ("facts", name), studio.facts, name)


@api.get("/album")
async def album(
    page: Annotated[int, Query(ge=0, le=999, description="0: a chosen few; others are drawn anew.")] = 0,
) -> list[shapes.Thumbnail]:
    """Bundled scenes to choose from."""
    kinds = [one.split("-") for one in ALBUM]
    names = ALBUM if not page else ["-".join([kind[0], str(page + 1), kind[2], *kind[3:]]) for kind in kinds]
    return [shapes.Thumbnail(picture=name, words=WORDS[name.split("-")[0]]) for name in names]


@api.post(
    "/pictures",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def upload(request: Request) -> shapes.Uploaded:
    """Keep a picture, sent as the body itself, in memory; its name is the SHA-256 of its bytes."""
    studio = studio_of(request)
    data = await body_of(request, studio.settings.seconds)
    name, width, height = await to_thread.run_sync(studio.pictures.add, data, limiter=DECODERS)
    return shapes.Uploaded(picture=name, width=width, height=height)


@api.get("/picture")
async def picture(request: Request, picture: PictureQuery, model: ModelQuery) -> shapes.PictureFacts:
    """What is known of a picture, to a model."""
    from vitreous.web.views import evidence

    studio = studio_of(request)
    studio.roster.entry(model)
    if not studio.pictures.has(picture):
        raise missing()
    named = Named.read(picture)
    words = "your picture" if named is None else WORDS[named.kind]
    return shapes.PictureFacts(picture=picture, words=words, known=sorted(evidence(picture, model)))


@api.get("/thumbnail", response_class=Response, responses=PNG)
async def thumbnail(request: Request, picture: PictureQuery) -> Response:
    """A small square of a picture."""
    from vitreous.web.views import png, small

    studio = studio_of(request)
    data = await to_thread.run_sync(lambda: png(small(studio.pictures.get(picture))), limiter=DECODERS)
    return Response(data, media_type="image/png")


@api.get("/seen", response_class=Response, responses=PNG)
async def seen(request: Request, model: ModelQuery, picture: PictureQuery) -> Response:
    """The part of a picture that the model sees."""
    studio = studio_of(request)
    studio.roster.entry(model)

    def view(asked: Sequence[Any]) -> list[bytes]:
        from vitreous.web.views import png, seen

        preprocess = studio.roster.vit(model).preprocess
        assert preprocess is not None
        return [png(seen(studio.pictures.get(picture), preprocess)) for _ in asked]

    return Response(await answer(request, ("seen", model, picture), view, None), media_type="image/png")


@api.get("/evidence", response_class=Response, responses=PNG)
async def evidence(request: Request, model: ModelQuery, picture: PictureQuery, target: shapes.Target) -> Response:
    """The outline of what makes a class, where it is known."""
    from vitreous.web.roster import Unknown
    from vitreous.web.views import evidence, outline, png

    studio_of(request).roster.entry(model)
    known = evidence(picture, model)
    if target not in known:
        raise Unknown(f"the evidence for class {target} is not known in that picture")
    return Response(await to_thread.run_sync(lambda: png(outline(known[target]))), media_type="image/png")


@api.post("/says")
async def says(request: Request, asked: shapes.Saying) -> shapes.Said:
    """The most probable classes when some patches leave; their tokens truly leave the model."""
    from vitreous.web.answers import said

    studio, known = studio_of(request), await facts(request, asked.model)
    removed = tuple(sorted(set(asked.removed)))
    payload = (asked.model, asked.picture, removed)
    found = await answer(request, ("says", *payload), studio.says, payload, alike=("says", asked.model))
    return said(found, known["classes"], removed, known["grid"])


@api.post("/explain")
async def explain(request: Request, asked: shapes.Explaining) -> shapes.Explained:
    """Every patch's score for one or two classes, by one method."""
    from vitreous.web.answers import explained
    from vitreous.web.views import evidence

    studio = studio_of(request)
    await check_targets(request, asked.model, asked.targets)
    targets = tuple(dict.fromkeys(asked.targets))
    payload = (asked.model, asked.picture, asked.method, targets, asked.question)
    alike = ("explain", asked.model, asked.method, asked.question, len(targets))
    found = await answer(request, ("explain", *payload), studio.explain, payload, alike=alike)
    return await to_thread.run_sync(lambda: explained(found, evidence(asked.picture, asked.model)))


@api.post("/curve")
async def curve(request: Request, asked: shapes.Single) -> shapes.Curve:
    """Deletion and insertion: what the model says as a method's highest patches leave, and as they alone enter."""
    from vitreous.web import answers

    studio = studio_of(request)
    known = await check_targets(request, asked.model, [asked.target])
    payload = (asked.model, asked.picture, asked.method, asked.target, asked.question)
    found = await answer(request, ("curve", *payload), studio.curve, payload)
    return answers.curve(found, asked.target, known["classes"])


@api.post("/film")
async def film(request: Request, asked: shapes.Single) -> shapes.Film:
    """A method's map at every layer, and the SkipPLUS sum from every layer on."""
    from vitreous.web import answers

    studio = studio_of(request)
    known = await check_targets(request, asked.model, [asked.target])
    payload = (asked.model, asked.picture, asked.method, asked.target, asked.question)
    found = await answer(request, ("film", *payload), studio.film, payload)
    return answers.film(found, asked.target, known["grid"])


@api.post(
    "/scores",
    response_class=Response,
    responses={
        200: {
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "application/zip": {"schema": {"type": "string", "format": "binary"}},
            }
        }
    },
)
async def scores(
    request: Request, asked: shapes.Screen, form: Annotated[Literal["json", "safetensors"], Query()] = "json"
) -> Response:
    """Raw scores of all that is on the screen: JSON, or a zip of safetensors."""
    studio = studio_of(request)
    await check_targets(request, asked.model, asked.targets)

    def gather(wanted: Sequence[Any]) -> list[bytes]:
        from vitreous.web.scores import as_archive, as_json, joined

        targets = tuple(dict.fromkeys(asked.targets))
        found = [
            joined(studio.maps(asked.model, asked.picture, method, targets, asked.question))
            for method in dict.fromkeys(asked.methods)
        ]
        return [as_json(found) if form == "json" else as_archive(found) for _ in wanted]

    key = ("scores", form, asked.model_dump_json(exclude={"removed"}))
    media, suffix = ("application/json", "json") if form == "json" else ("application/zip", "zip")
    headers = {"content-disposition": f'attachment; filename="vitreous-scores.{suffix}"'}
    return Response(await answer(request, key, gather, None), media_type=media, headers=headers)


@api.post("/python")
async def python(request: Request, asked: shapes.Screen) -> shapes.Python:
    """The Python lines that reproduce what is on the screen."""
    from vitreous.web.script import lines

    entry = studio_of(request).roster.entry(asked.model)
    known = await check_targets(request, asked.model, asked.targets)
    removed = sorted(set(asked.removed))
    more = (asked.picture, asked.targets, asked.methods, asked.question, removed, known["classes"])
    return shapes.Python(code=lines(entry, *more))


@api.get("/queue")
async def queue(request: Request) -> shapes.Queue:
    """How busy the one worker is."""
    worker = studio_of(request).worker
    return shapes.Queue(working=worker.working, waiting=worker.waiting, done=worker.done, total=worker.total)


async def check_targets(request: Request, model: str, targets: Sequence[int]) -> dict[str, Any]:
    """A model's facts; a class that it does not have is refused."""
    from vitreous.core.errors import ShapeError

    known = await facts(request, model)
    if max(targets) >= len(known["classes"]):
        raise ShapeError(f"class {max(targets)} does not exist: the model has classes 0 to {len(known['classes']) - 1}")
    return known
