"""The endpoints. Each submits its work to the worker, waits while the client is connected, and returns a schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response

from vitreous.core.errors import ShapeError
from vitreous.web import render, responses, schemas
from vitreous.web.about import describe_playground
from vitreous.web.await_job import ERRORS, await_result, read_body
from vitreous.web.budget import SampleBudget
from vitreous.web.class_search import find_classes
from vitreous.web.export_python import write_program
from vitreous.web.export_scores import export_archive, export_json, join_classes
from vitreous.web.image_store import ALBUM, CAPTIONS, SceneName, make_missing_error
from vitreous.web.model_pool import NotAvailable
from vitreous.web.service import ExplainPayload, Service
from vitreous.web.worker import compute_once

api = APIRouter(prefix="/api", responses=ERRORS)
PNG: dict[int | str, Any] = {200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}}
DECODERS = CapacityLimiter(2)  # uploads decoded at a time
ImageQuery = Annotated[schemas.ImageName, Query()]
ModelQuery = Annotated[schemas.ModelName, Query()]


def get_service(request: Request) -> Service:
    return request.app.state.service


# ── models and images ────────────────────────────────────────────────────────────────────────────


@api.get("/about")
async def about(request: Request) -> schemas.About:
    """Models, methods, colours and limits."""
    service = get_service(request)
    facts = await await_result(request, ("about",), compute_once(partial(describe_playground, service)), None)
    return facts.model_copy(update={"demo": service.settings.has_demo})  # the file may have been written since


@api.get("/model")
async def model(request: Request, name: ModelQuery) -> schemas.ModelFacts:
    """Depth, grid and class names of a model; loads it if necessary."""
    return schemas.ModelFacts(model=name, **await read_model_facts(request, name))


async def read_model_facts(request: Request, name: str) -> dict[str, Any]:
    service = get_service(request)
    service.models.entry(name)
    return await await_result(request, ("facts", name), service.facts, name)


@api.get("/classes")
async def classes(
    request: Request,
    model: ModelQuery,
    name: Annotated[str, Query(min_length=1, max_length=200, description="A class name, perhaps misspelt.")],
) -> list[schemas.ClassName]:
    """Up to six classes whose names match or resemble a name, the best first."""
    names = (await read_model_facts(request, model))["classes"]
    return [schemas.ClassName(index=index, name=names[index]) for index in find_classes(names, name)]


@api.get("/album")
async def album(
    page: Annotated[int, Query(ge=0, le=999, description="0: a fixed selection; others have other seeds.")] = 0,
) -> list[schemas.Thumbnail]:
    """Bundled scenes to choose from."""
    kinds = [name.split("-") for name in ALBUM]
    names = ALBUM if not page else ["-".join([kind[0], str(page + 1), kind[2], *kind[3:]]) for kind in kinds]
    return [schemas.Thumbnail(image=name, words=CAPTIONS[name.split("-")[0]]) for name in names]


@api.post(
    "/images",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def upload(request: Request) -> schemas.Uploaded:
    """Keep an image, sent as the body itself, in memory; its name is the SHA-256 of its bytes."""
    service = get_service(request)
    data = await read_body(request, service.settings.seconds)
    name, width, height = await to_thread.run_sync(service.images.add, data, limiter=DECODERS)
    return schemas.Uploaded(image=name, width=width, height=height)


@api.get("/image")
async def image_facts(request: Request, image: ImageQuery, model: ModelQuery) -> schemas.ImageFacts:
    """Size of an image, the part of it that a model sees, and the classes whose evidence is known."""
    service = get_service(request)
    service.models.entry(model)
    if not service.images.has(image):
        raise make_missing_error()

    def measure() -> tuple[list[int], schemas.Crop]:
        preprocess = service.models.vit(model).preprocess
        assert preprocess is not None
        original = service.images.get(image)
        return [original.height, original.width], render.describe_crop((original.height, original.width), preprocess)

    size, crop = await await_result(request, ("crop facts", model, image), compute_once(measure), None)
    scene = SceneName.parse(image)
    return schemas.ImageFacts(
        image=image,
        words="your image" if scene is None else CAPTIONS[scene.kind],
        known=sorted(render.find_evidence(image, model)),
        size=size,
        crop=crop,
    )


@api.get("/thumbnail", response_class=Response, responses=PNG)
async def thumbnail(request: Request, image: ImageQuery) -> Response:
    """A small square of an image."""
    images = get_service(request).images
    data = await to_thread.run_sync(
        lambda: render.encode_png(render.render_thumbnail(images.get(image))), limiter=DECODERS
    )
    return Response(data, media_type="image/png")


@api.get("/seen", response_class=Response, responses=PNG)
async def seen(request: Request, model: ModelQuery, image: ImageQuery) -> Response:
    """The part of an image that the model sees."""
    return await render_preprocessed(request, "seen", render.render_input, model, image)


@api.get("/crop", response_class=Response, responses=PNG)
async def crop(request: Request, model: ModelQuery, image: ImageQuery) -> Response:
    """The whole image, small; what the model does not see is dimmed."""
    return await render_preprocessed(request, "crop", render.render_crop, model, image)


async def render_preprocessed(request: Request, kind: str, draw: Any, model: str, image: str) -> Response:
    service = get_service(request)
    service.models.entry(model)

    def draw_png() -> bytes:
        return render.encode_png(draw(service.images.get(image), service.models.vit(model).preprocess))

    data = await await_result(request, (kind, model, image), compute_once(draw_png), None)
    return Response(data, media_type="image/png")


@api.get("/evidence", response_class=Response, responses=PNG)
async def evidence(request: Request, model: ModelQuery, image: ImageQuery, target: schemas.Target) -> Response:
    """The outline of what makes a class, where it is known."""
    get_service(request).models.entry(model)
    masks = render.find_evidence(image, model)
    if target not in masks:
        raise NotAvailable(f"the evidence for class {target} is not known in that image")
    data = await to_thread.run_sync(lambda: render.encode_png(render.render_outline(masks[target])))
    return Response(data, media_type="image/png")


# ── predictions and explanations ─────────────────────────────────────────────────────────────────


@api.post("/says")
async def predict(request: Request, body: schemas.PredictRequest) -> schemas.Prediction:
    """The prediction when some patches are removed; their tokens are removed from the input, nothing is painted over."""
    service, facts = get_service(request), await read_model_facts(request, body.model)
    removed = tuple(sorted(set(body.removed)))
    payload = (body.model, body.image, removed)
    key, batch_key = ("predict", *payload), ("predict", body.model)
    probabilities = await await_result(request, key, service.predict, payload, batch_key)
    return responses.describe_prediction(probabilities, facts["classes"], removed, facts["grid"])


@api.get("/plan")
async def plan(request: Request, model: ModelQuery, method: Annotated[schemas.Spec, Query()]) -> schemas.SamplingPlan:
    """How many samples of a method fit the time limit here, and smaller counts to show as previews.

    A method that has no samples and does not fit is refused with 422, as by `/api/explain`.
    """
    return responses.describe_plan(await plan_method(request, model, method))


async def plan_method(request: Request, model: str, method: str) -> SampleBudget:
    service = get_service(request)
    service.models.entry(model)
    return await await_result(request, ("plan", service.plan_version, model, method), service.plan, (model, method))


@api.post("/explain")
async def explain(request: Request, body: schemas.ExplainRequest) -> schemas.Explained:
    """Every patch's score for one or two classes, by one method.

    A method that samples uses as many samples as fit the time limit; `samples` says how many, and `/api/plan` beforehand.
    """
    service = get_service(request)
    await check_targets(request, body.model, body.targets)
    plan = await plan_method(request, body.model, body.method)
    payload = ExplainPayload(body.model, body.image, plan.spec, tuple(dict.fromkeys(body.targets)), body.question)
    # a batch of methods that take many passes would multiply the time of each
    batch_key = (
        None
        if plan.option or plan.seconds is not None
        else ("explain", body.model, plan.spec, body.question, len(payload.targets))
    )
    explanation = await await_result(request, ("explain", payload), service.explain, payload, batch_key)
    service.check_estimate(body.model, plan, explanation.seconds)
    return await to_thread.run_sync(
        lambda: responses.describe_explanation(explanation, render.find_evidence(body.image, body.model), plan)
    )


async def plan_single(request: Request, body: schemas.SingleRequest) -> tuple[ExplainPayload, dict[str, Any]]:
    facts = await check_targets(request, body.model, [body.target])
    plan = await plan_method(request, body.model, body.method)
    return ExplainPayload(body.model, body.image, plan.spec, (body.target,), body.question), facts


@api.post("/curve")
async def curve(request: Request, body: schemas.SingleRequest) -> schemas.Curve:
    """Deletion and insertion: the prediction as a method's highest patches are removed, and with them alone."""
    payload, facts = await plan_single(request, body)
    perturbation = await await_result(request, ("curve", payload), get_service(request).curve, payload)
    return responses.describe_curve(perturbation, body.target, facts["classes"])


@api.post("/film")
async def film(request: Request, body: schemas.SingleRequest) -> schemas.Layers:
    """What every layer adds to a method's map, and the SkipPLUS sum from every layer on."""
    payload, facts = await plan_single(request, body)
    views = await await_result(request, ("layers", payload), get_service(request).layers, payload)
    return responses.describe_layers(views, body.target, facts["grid"])


# ── downloads ────────────────────────────────────────────────────────────────────────────────────


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
    request: Request, body: schemas.ScreenRequest, form: Annotated[Literal["json", "safetensors"], Query()] = "json"
) -> Response:
    """Scores of everything on the page: JSON, or a zip of safetensors."""
    service = get_service(request)
    await check_targets(request, body.model, body.targets)
    targets = tuple(dict.fromkeys(body.targets))
    plans = [await plan_method(request, body.model, method) for method in dict.fromkeys(body.methods)]
    payloads = [ExplainPayload(body.model, body.image, plan.spec, targets, body.question) for plan in plans]

    def gather() -> bytes:
        attributions = [join_classes(service.maps(payload)) for payload in payloads]
        return export_json(attributions) if form == "json" else export_archive(attributions)

    media, suffix = ("application/json", "json") if form == "json" else ("application/zip", "zip")
    headers = {"content-disposition": f'attachment; filename="vitreous-scores.{suffix}"'}
    data = await await_result(request, ("scores", form, *payloads), compute_once(gather), None)
    return Response(data, media_type=media, headers=headers)


@api.post("/python")
async def python(request: Request, body: schemas.ScreenRequest) -> schemas.PythonCode:
    """The Python program that reproduces what is on the page."""
    entry = get_service(request).models.entry(body.model)
    facts = await check_targets(request, body.model, body.targets)
    plans = [await plan_method(request, body.model, method) for method in dict.fromkeys(body.methods)]
    removed = sorted(set(body.removed))
    code = write_program(entry, body.image, body.targets, plans, body.question, removed, facts["classes"])
    return schemas.PythonCode(code=code)


@api.get("/queue")
async def queue(request: Request) -> schemas.QueueState:
    """How busy the worker is, and the progress of its current computation."""
    worker = get_service(request).worker
    return schemas.QueueState(working=worker.working, waiting=worker.waiting, done=worker.done, total=worker.total)


async def check_targets(request: Request, model: str, targets: Sequence[int]) -> dict[str, Any]:
    """Return a model's facts, or raise `ShapeError` for a class that it does not have."""
    facts = await read_model_facts(request, model)
    count = len(facts["classes"])
    if max(targets) >= count:
        raise ShapeError(f"class {max(targets)} does not exist: the model has classes 0 to {count - 1}")
    return facts
