"""The endpoints. Each submits its work to the worker, waits while the client is connected, and returns a schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Response

from vitreous.core.errors import ShapeError
from vitreous.web import render, responses, schemas
from vitreous.web.await_job import ERRORS, Caller, Calling
from vitreous.web.class_search import find_classes
from vitreous.web.exports import write_program
from vitreous.web.image_store import ALBUM, CAPTIONS, SceneName
from vitreous.web.model_pool import EMBEDDED, NotAvailable
from vitreous.web.service import ExplainPayload

if TYPE_CHECKING:
    from PIL.Image import Image

api = APIRouter(prefix="/api", responses=ERRORS)
BINARY = {"schema": {"type": "string", "format": "binary"}}
PNG: dict[int | str, Any] = {200: {"content": {"image/png": BINARY}}}
JSON_OR_ZIP: dict[int | str, Any] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}, "application/zip": BINARY}}
}
IMAGE_BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}}
DECODERS = CapacityLimiter(2)  # images decoded or drawn at a time
CHEAP_SECONDS = 1.0
ImageQuery = Annotated[schemas.ImageName, Query()]


async def check_model(caller: Calling, model: Annotated[schemas.ModelName, Query()]) -> str:
    return caller.service.models.entry(model).name


OfferedModel = Annotated[str, Depends(check_model)]


# ── models and images ────────────────────────────────────────────────────────────────────────────


@api.get("/about")
async def about(caller: Calling) -> schemas.About:
    """Models, methods, colours and limits."""
    facts = await caller.compute(caller.service.about)
    return facts.model_copy(update={"demo": caller.service.settings.has_demo})  # the file may have been written since


@api.get("/model")
async def model(caller: Calling, name: Annotated[schemas.ModelName, Query()]) -> schemas.ModelFacts:
    """Depth, grid and class names of a model; loads it if necessary."""
    caller.service.models.entry(name)
    return await caller.compute(caller.service.facts, name)


@api.get("/classes")
async def classes(
    caller: Calling,
    model: OfferedModel,
    name: Annotated[str, Query(min_length=1, max_length=200, description="A class name, perhaps misspelt.")],
) -> list[schemas.ClassName]:
    """Up to six classes whose names match or resemble a name, the best first."""
    names = (await caller.compute(caller.service.facts, model)).classes
    return [schemas.ClassName(index=index, name=names[index]) for index in find_classes(names, name)]


@api.get("/album")
async def album(
    page: Annotated[int, Query(ge=0, le=999, description="0: a fixed selection; others have other seeds.")] = 0,
) -> list[schemas.Thumbnail]:
    """Bundled scenes to choose from."""
    names = [re.sub(r"-\d+-", f"-{page + 1}-", name, count=1) if page else name for name in ALBUM]
    return [schemas.Thumbnail(image=name, words=CAPTIONS[name.split("-")[0]]) for name in names]


@api.post("/images", openapi_extra=IMAGE_BODY)
async def upload(caller: Calling) -> schemas.Uploaded:
    """Keep an image, sent as the body itself, in memory; its name is the SHA-256 of its bytes."""
    data = await caller.read_body()
    name, width, height = await to_thread.run_sync(caller.service.images.add, data, limiter=DECODERS)
    return schemas.Uploaded(image=name, width=width, height=height)


@api.get("/image")
async def image_facts(caller: Calling, image: ImageQuery, model: OfferedModel) -> schemas.ImageFacts:
    """Size of an image, the part of it that a model sees, and the classes whose evidence is known."""
    caller.service.images.find(image)  # facts of a forgotten image may still be in the cache
    return await caller.compute(caller.service.describe_image, model, image)


async def draw_once(caller: Caller, key: tuple[Hashable, ...], draw: Callable[[], Image]) -> Response:
    """Return an image that equal keys share; drawn in a thread of its own, since it must not wait for the worker's queue."""
    cache = caller.service.cache
    data = cache.get(key)
    if data is None:
        data = await to_thread.run_sync(lambda: render.encode_png(draw()), limiter=DECODERS)
        cache.put(key, data)
    return Response(data, media_type="image/png")


@api.get("/thumbnail", response_class=Response, responses=PNG)
async def thumbnail(caller: Calling, image: ImageQuery) -> Response:
    """A small square of an image."""
    images = caller.service.images
    images.find(image)  # the thumbnail of a forgotten image may still be in the cache
    return await draw_once(caller, ("thumbnail", image), lambda: render.render_thumbnail(images.get(image)))


@api.get("/preprocessed", response_class=Response, responses=PNG)
async def preprocessed(caller: Calling, model: OfferedModel, image: ImageQuery) -> Response:
    """The part of an image that the model sees."""
    return Response(await caller.compute(caller.service.draw_input, model, image), media_type="image/png")


@api.get("/crop", response_class=Response, responses=PNG)
async def crop(caller: Calling, model: OfferedModel, image: ImageQuery) -> Response:
    """The whole image, small; what the model does not see is dimmed."""
    return Response(await caller.compute(caller.service.draw_crop, model, image), media_type="image/png")


@api.get("/evidence", response_class=Response, responses=PNG)
async def evidence(caller: Calling, model: OfferedModel, image: ImageQuery, target: schemas.Target) -> Response:
    """The outline of what makes a class, where it is known."""

    def draw() -> Image:
        masks = render.find_evidence(image, model)
        if target not in masks:
            raise NotAvailable(f"the evidence for class {target} is not known in that image")
        return render.render_outline(masks[target])

    return await draw_once(caller, ("evidence", model, image, target), draw)


# ── predictions and explanations ─────────────────────────────────────────────────────────────────


@api.post("/prediction")
async def predict(caller: Calling, body: schemas.PredictRequest) -> schemas.Prediction:
    """The prediction when some patches are removed; their tokens are removed from the input, nothing is painted over."""
    caller.service.models.entry(body.model)
    payload = (body.model, body.image, tuple(sorted(set(body.removed))))
    return await caller.compute_in_batch(caller.service.predict, payload, body.model)


@api.get("/plan")
async def plan(caller: Calling, model: OfferedModel, method: Annotated[schemas.Spec, Query()]) -> schemas.SamplingPlan:
    """How many samples of a method fit the time limit here, and smaller counts to show as previews.

    A method that has no samples and does not fit is refused with 422, as by `/api/explain`.
    """
    return await plan_method(caller, model, method)


async def plan_method(caller: Caller, model: str, method: str) -> schemas.SamplingPlan:
    service = caller.service
    return await caller.compute(service.plan, model, method, version=service.plan_version)


@api.post("/explain")
async def explain(caller: Calling, body: schemas.ExplainRequest) -> schemas.Explained:
    """Every patch's score for one or two classes, by one method.

    A method that samples uses as many samples as fit the time limit; `samples` says how many, and `/api/plan` beforehand.
    """
    await check_targets(caller, body.model, body.targets)
    plan = await plan_method(caller, body.model, body.method)
    payload = ExplainPayload.make(body, plan.spec, body.targets)
    # a batch of methods that take many passes would multiply the time of each
    alone = plan.option or plan.seconds is not None
    # a caveat on images that an embedded model cannot know is of a whole batch
    alone = alone or (body.model in EMBEDDED and SceneName.parse(body.image) is None)
    batch = () if alone else (body.model, plan.spec, body.question, len(payload.targets))
    explained = await caller.compute_in_batch(caller.service.explain, payload, *batch, expensive=is_expensive([plan]))
    caller.service.check_estimate(body.model, plan, explained.seconds)
    return explained.model_copy(update={"samples": responses.describe_samples(plan)})


async def plan_single(caller: Caller, body: schemas.SingleRequest) -> tuple[ExplainPayload, bool]:
    """The payload of a map, and whether it is expensive."""
    await check_targets(caller, body.model, [body.target])
    plan = await plan_method(caller, body.model, body.method)
    return ExplainPayload.make(body, plan.spec, [body.target]), is_expensive([plan])


def is_expensive(plans: Sequence[schemas.SamplingPlan]) -> bool:
    """Whether maps are estimated to take so long that others are computed first."""
    return sum((plan.seconds or 0) * plan.share for plan in plans) > CHEAP_SECONDS


@api.post("/curve")
async def curve(caller: Calling, body: schemas.SingleRequest) -> schemas.Curve:
    """Deletion and insertion: the prediction as a method's highest patches are removed, and with them alone."""
    payload, expensive = await plan_single(caller, body)
    return await caller.compute(caller.service.curve, payload, expensive=expensive)


@api.post("/layers")
async def layers(caller: Calling, body: schemas.SingleRequest) -> schemas.Layers:
    """What every layer adds to a method's map, and the SkipPLUS sum from every layer on."""
    payload, expensive = await plan_single(caller, body)
    return await caller.compute(caller.service.layers, payload, expensive=expensive)


# ── downloads ────────────────────────────────────────────────────────────────────────────────────


@api.post("/scores", response_class=Response, responses=JSON_OR_ZIP)
async def scores(
    caller: Calling, body: schemas.ScreenRequest, form: Annotated[Literal["json", "safetensors"], Query()] = "json"
) -> Response:
    """Scores of everything on the page: JSON, or a zip of safetensors."""
    plans, _ = await plan_screen(caller, body)
    payloads = [ExplainPayload.make(body, plan.spec, body.targets) for plan in plans]
    data = await caller.compute(caller.service.export, form, *payloads, expensive=is_expensive(plans))
    suffix = "json" if form == "json" else "zip"
    headers = {"content-disposition": f'attachment; filename="vitreous-scores.{suffix}"'}
    return Response(data, media_type=f"application/{suffix}", headers=headers)


@api.post("/python")
async def python(caller: Calling, body: schemas.ScreenRequest) -> schemas.PythonCode:
    """The Python program that reproduces what is on the page."""
    plans, facts = await plan_screen(caller, body)
    entry = caller.service.models.entry(body.model)
    return schemas.PythonCode(code=write_program(entry, body, plans, facts.classes))


async def plan_screen(
    caller: Caller, body: schemas.ScreenRequest
) -> tuple[list[schemas.SamplingPlan], schemas.ModelFacts]:
    facts = await check_targets(caller, body.model, body.targets)
    return [await plan_method(caller, body.model, method) for method in dict.fromkeys(body.methods)], facts


@api.get("/queue")
async def queue(caller: Calling) -> schemas.QueueState:
    """How busy the worker is, and the progress of its current computation."""
    worker = caller.service.worker
    return schemas.QueueState(working=worker.working, waiting=worker.waiting, done=worker.done, total=worker.total)


async def check_targets(caller: Caller, model: str, targets: Sequence[int]) -> schemas.ModelFacts:
    """Return a model's facts, or raise `ShapeError` for a class that it does not have."""
    caller.service.models.entry(model)
    facts = await caller.compute(caller.service.facts, model)
    count = len(facts.classes)
    if max(targets) >= count:
        raise ShapeError(f"class {max(targets)} does not exist: the model has classes 0 to {count - 1}")
    return facts
