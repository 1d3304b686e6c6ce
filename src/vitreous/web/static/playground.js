// The page of one image: loading, and the requests for predictions, maps, curves and layers.

import { fillAlbum, isUpload, markChosen } from "./album.js";
import { $, create, fill } from "./elements.js";
import { showError, showErrorsOf } from "./errors.js";
import * as exports from "./exports.js";
import * as largeImage from "./large_image.js";
import * as layerViews from "./layer_views.js";
import * as mapCards from "./map_cards.js";
import { setColourTables } from "./map_colours.js";
import * as methodPicker from "./method_picker.js";
import { clampMethodIndices, countPatches, data, emit, findMethod, listen, restoreLink, state } from "./page_state.js";
import * as prediction from "./prediction.js";
import * as removalCurves from "./removal_curves.js";
import { abortPrevious, getJson, getModelInput, isAborted, listenToBusy, postJson, uploadImage } from "./requests.js";
import * as resultSummary from "./result_summary.js";

let albumPage = 0;
let upload = null; // name of the last uploaded image

// ── an image and a model ────────────────────────────────────────────────────────────────────────

const load = showErrorsOf(async () => {
  showError("");
  for (const kind of ["maps", "prediction", "curves", "layers"]) abortPrevious(kind);
  const signal = abortPrevious("load"), { model, image } = state;
  Object.assign(data, { isReady: false, prediction: null, reducedPrediction: null, layers: null, crop: null, cursorPatch: null, decisivePatches: new Set() });
  data.maps.clear();
  data.curves.clear();
  $("loading-message").textContent = data.model ? "Loading the image…" : "Loading the model…";
  $("large-image").classList.add("waiting");
  document.body.classList.add("loading"); // what is still shown belongs to the previous image
  markChoices();
  try {
    const [modelFacts, imageFacts] = await Promise.all([getJson("/api/model", { name: model }, signal), getJson("/api/image", { image, model }, signal)]);
    const [bitmap, initial] = await Promise.all([getModelInput(model, image, signal), postJson("/api/prediction", { model, image }, signal)]);
    Object.assign(data, { model: modelFacts, evidenceClasses: imageFacts.known, crop: imageFacts.crop, caution: imageFacts.caution, bitmap, prediction: initial, isReady: true });
  } catch (problem) {
    if (!isAborted(problem)) $("loading-message").textContent = problem.status === 404 && isUpload(image)
      ? "The image of this link is not here any more. Drop it again to restore everything else." : problem.message;
    throw problem;
  }
  state.classes = state.classes.filter((index) => index < data.model.classes.length);
  if (!state.classes.length) state.classes = [data.prediction.top[0].index];
  state.removed = new Set([...state.removed].filter((patch) => patch < countPatches()));
  fill($("class-names"), ...data.model.classes.map((name) => create("option", { value: name })));
  $("large-image").classList.remove("waiting");
  $("image-caution").textContent = data.caution;
  $("image-caution").hidden = !data.caution;
  document.body.classList.remove("loading");
  if (isUpload(image) && upload !== image) { upload = image; loadAlbum(); }
  emit("loaded");
  emit("cursor"); // remove a keyboard cursor of the previous image
  if (state.removed.size) requestPrediction();
  requestMaps();
});

const requestPrediction = showErrorsOf(async () => {
  const signal = abortPrevious("prediction"), { model, image, removed } = state;
  data.reducedPrediction = removed.size ? await postJson("/api/prediction", { model, image, removed: [...removed] }, signal) : null;
  emit("prediction");
});

// ── maps, then curves and layers ────────────────────────────────────────────────────────────────

async function requestMaps() {
  if (!data.isReady) return;
  const signal = abortPrevious("maps"), { model, image, question, classes } = state, common = { model, image, question };
  const key = [model, image, question, classes.join()].join("|");
  for (const [method, result] of data.maps) if (result.key !== key || !state.methods.includes(method)) data.maps.delete(method);
  emit("maps");
  await Promise.all(state.methods.filter((method) => !data.maps.has(method)).map(async (method) => {
    const show = (result) => {
      if (signal.aborted) return;
      data.maps.set(method, { ...result, key });
      mapCards.prepareMaps();
      emit("maps");
    };
    await requestMap(method, { ...common, targets: classes }, signal, show);
  }));
  if (!signal.aborted) await Promise.all([requestCurves(common), requestLayers(common)]);
}

// Show the result of a method; for one that samples, first with fewer samples, labelled with the spec that was computed.
async function requestMap(method, common, signal, show) {
  let preview = null;
  try {
    const plan = mayTakeSamples(method) ? await getJson("/api/plan", { model: common.model, method }, signal) : { previews: [] };
    for (const spec of plan.previews) {
      const result = await postJson("/api/explain", { ...common, method: spec }, signal);
      preview = { ...result, partial: { used: result.samples.used, of: plan.used, option: plan.option } };
      show(preview);
    }
    show(await postJson("/api/explain", { ...common, method }, signal));
  } catch (problem) {
    if (isAborted(problem)) return;
    show(preview ? { ...preview, stopped: problem.message } : { error: problem.message });
  }
}

function mayTakeSamples(spec) {
  const method = findMethod(spec);
  return !method || typeof method.forwards === "string" || typeof method.backwards === "string";
}

async function requestCurves(common) {
  const signal = abortPrevious("curves"), [target] = state.classes;
  const methods = [...new Set([state.mainMethod, ...state.comparedMethods].map((index) => state.methods[index]))];
  const key = [state.model, state.image, state.question, target].join("|");
  for (const [method, curve] of data.curves) if (curve.key !== key) data.curves.delete(method);
  for (const method of methods) {
    if (data.curves.has(method) || data.maps.get(method)?.error) continue;
    try {
      const curve = await postJson("/api/curve", { ...common, method: data.maps.get(method)?.method ?? method, target }, signal);
      data.curves.set(method, { ...curve, key });
    } catch (problem) {
      if (isAborted(problem)) return;
      showError(problem.message);
    }
    emit("curves");
  }
  emit("curves");
}

async function requestLayers(common) {
  const signal = abortPrevious("layers"), [target] = state.classes, key = [state.model, state.image, state.question, target, state.layerMethod].join("|");
  if (data.layers?.key === key || !state.layerMethod) return;
  try {
    data.layers = { ...(await postJson("/api/layers", { ...common, method: state.layerMethod, target }, signal)), key };
  } catch (problem) {
    if (isAborted(problem)) return;
    data.layers = { error: problem.message, key };
  }
  emit("layers");
}

// ── choosing an image ───────────────────────────────────────────────────────────────────────────

function choose(image, changes = {}) {
  Object.assign(state, { image, removed: new Set(), classes: [], curveStep: 0, ...changes });
  load();
}

function markChoices() {
  markChosen($("album"), state.image);
  $("model").value = state.model;
}

// The embedded model that a scene was drawn for; other models are not changed.
function chooseScene(image) {
  const hasOwnModel = state.model.startsWith("scenes") && !isUpload(image);
  choose(image, hasOwnModel ? { model: image.startsWith("shortcut") ? "scenes-biased" : "scenes" } : {});
}

const loadAlbum = showErrorsOf(async () => {
  const scenes = await getJson("/api/album", { page: albumPage });
  fillAlbum($("album"), scenes, upload, chooseScene);
  markChoices();
});

const receiveFile = showErrorsOf(async (file) => {
  if (!file) return;
  showError("");
  const limit = data.about.upload;
  if (file.size > limit) throw new Error(`that file has ${(file.size / 2 ** 20).toFixed(0)} MB; up to ${limit / 2 ** 20} MB would work`);
  const image = await uploadImage(file, abortPrevious("upload"));
  const isLinked = !data.isReady && state.image === image; // the link has been waiting for this image
  upload = image;
  await loadAlbum();
  if (isLinked) load(); else choose(image);
});

function acceptDrops() {
  let depth = 0; // of nested elements that are dragged over
  const setDepth = (value) => { depth = Math.max(value, 0); $("drop-overlay").classList.toggle("visible", depth > 0); };
  addEventListener("dragenter", (event) => { event.preventDefault(); setDepth(depth + 1); });
  addEventListener("dragleave", () => setDepth(depth - 1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    setDepth(0);
    receiveFile(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => receiveFile(event.clipboardData?.files[0]));
  $("file").onchange = () => receiveFile($("file").files[0]);
}

// ── another class ───────────────────────────────────────────────────────────────────────────────

const readClass = showErrorsOf(async () => {
  const text = $("class-input").value.trim(), names = data.model?.classes ?? [];
  if (!text) return suggestClasses();
  const isNumber = /^\d+$/.test(text), index = isNumber ? Number(text) : names.findIndex((name) => name.toLowerCase() === text.toLowerCase());
  if (index >= 0 && index < names.length) return explainClass(index);
  if (isNumber) return suggestClasses(`There is no class ${text}; the model has classes 0 to ${names.length - 1}.`);
  const matches = await getJson("/api/classes", { model: state.model, name: text.slice(0, 200) }, abortPrevious("classes"));
  suggestClasses(matches.length ? `There is no class “${text}”. Did you mean:` : `There is no class “${text}”, and none that resembles it.`, matches);
});

function explainClass(index) {
  $("class-input").value = "";
  suggestClasses();
  if (!state.classes.includes(index)) prediction.chooseClass(index);
}

function suggestClasses(sentence = "", matches = []) {
  fill($("class-suggestions"), sentence && create("span", {}, sentence), ...matches.map(({ index, name }) =>
    create("button", { type: "button", onclick: () => explainClass(index) }, name)));
}

// ── progress of the server ──────────────────────────────────────────────────────────────────────

let pollTimer = null, delayTimer = null;

// Poll the server's queue while requests take long.
function updatePolling(pending) {
  clearTimeout(delayTimer);
  if (pending && !pollTimer) delayTimer = setTimeout(() => { pollTimer ??= setInterval(showProgress, 500); showProgress(); }, 700);
  if (!pending) {
    clearInterval(pollTimer);
    pollTimer = null;
    $("status").hidden = true;
  }
}

async function showProgress() {
  const queue = await fetch("/api/queue").then((response) => response.json()).catch(() => null);
  if (!queue || !pollTimer) return;
  const share = queue.total > 1 ? ` ${Math.floor((100 * queue.done) / queue.total)} %` : "";
  $("status").hidden = false;
  $("status").textContent = `Computing…${share}${queue.waiting ? ` · ${queue.waiting} more waiting` : ""}`;
}

// ── start ───────────────────────────────────────────────────────────────────────────────────────

showErrorsOf(async () => {
  restoreLink(location.hash);
  listenToBusy(updatePolling);
  listen("appearance classes", mapCards.prepareMaps); // before the views draw
  for (const view of [resultSummary, largeImage, prediction, mapCards, methodPicker, removalCurves, layerViews, exports]) view.start();
  listen("request-maps", () => { clampMethodIndices(); requestMaps(); });
  listen("removed", requestPrediction);
  $("class-input").onchange = readClass;
  listen("loaded classes", () => suggestClasses());
  $("model").onchange = () => choose(state.image, { model: $("model").value });
  $("other-scenes").onclick = () => { albumPage += 1; loadAlbum(); };
  addEventListener("hashchange", () => { if (restoreLink(location.hash)) load(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("appearance"));
  acceptDrops();
  data.about = await getJson("/api/about");
  setColourTables(data.about.colours);
  fill($("model"), ...data.about.models.map(({ name, note }) => create("option", { value: name, title: note }, name)));
  $("demo-link").hidden = !data.about.demo;
  $("version").textContent = `vitreous ${data.about.version}`;
  emit("methods");
  await loadAlbum();
  await load();
})();
