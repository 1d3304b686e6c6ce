// Start of the page, and requests for what it shows.

import { $, el, fill } from "./dom.js";
import { ask, left, onBusy, only, query } from "./net.js";
import { useColours } from "./paint.js";
import { clamp, emit, facts, on, patches, restore, state, world } from "./state.js";
import * as because from "./because.js";
import * as film from "./film.js";
import * as maps from "./maps.js";
import * as picker from "./picker.js";
import * as stage from "./stage.js";
import * as take from "./take.js";
import { caught, trouble } from "./trouble.js";
import * as trust from "./trust.js";

let page = 0;
let own = null; // name of the last upload

// ── an image and a model ────────────────────────────────────────────────────────────────────────

const subject = caught(async () => {
  trouble("");
  for (const kind of ["maps", "said", "curves", "film"]) only(kind);
  const signal = only("subject"), { model, image } = state;
  Object.assign(world, { here: false, base: null, said: null, film: null, crop: null, cursor: null, decisive: new Set() });
  world.maps.clear();
  world.curves.clear();
  $("stage-wait").textContent = world.facts ? "Loading the image…" : "Loading the model…";
  $("stage").classList.add("waiting");
  document.body.classList.add("loading"); // what is still shown belongs to the previous image
  mark();
  try {
    const [facts, known] = await Promise.all([ask(query("/api/model", { name: model }), undefined, signal), ask(query("/api/image", { image, model }), undefined, signal)]);
    const [pixels, base] = await Promise.all([load(query("/api/seen", { model, image }), signal), ask("/api/says", { model, image }, signal)]);
    Object.assign(world, { facts, known: known.known, crop: known.crop, image: pixels, base, here: true });
  } catch (problem) {
    if (!left(problem)) $("stage-wait").textContent = problem.status === 404 && image.length === 64
      ? "The image of this link is not here any more. Drop it again to restore everything else." : problem.message;
    throw problem;
  }
  state.classes = state.classes.filter((index) => index < world.facts.classes.length);
  if (!state.classes.length) state.classes = [world.base.top[0].index];
  state.removed = new Set([...state.removed].filter((patch) => patch < patches()));
  fill($("classes"), ...world.facts.classes.map((name) => el("option", { value: name })));
  $("stage").classList.remove("waiting");
  document.body.classList.remove("loading");
  if (image.length === 64 && own !== image) { own = image; album(); }
  emit("subject");
  emit("cursor"); // a keyboard cursor of the previous image must not stay
  if (state.removed.size) said();
  explain();
});

async function load(address, signal) {
  const blob = await (await ask(address, undefined, signal, true)).blob();
  return createImageBitmap(blob);
}

const said = caught(async () => {
  const signal = only("said");
  if (!state.removed.size) world.said = null;
  else world.said = await ask("/api/says", { model: state.model, image: state.image, removed: [...state.removed] }, signal);
  emit("said");
});

// ── maps, then curves, then layers ──────────────────────────────────────────────────────────────

const wanted = () => [state.model, state.image, state.question, state.classes.join()].join("|");

async function explain() {
  if (!world.here) return;
  const signal = only("maps"), key = wanted(), common = { model: state.model, image: state.image, question: state.question };
  for (const [method, known] of world.maps) if (known.key !== key || !state.methods.includes(method)) world.maps.delete(method);
  emit("maps");
  await Promise.all(state.methods.filter((method) => !world.maps.has(method)).map(async (method) => {
    const show = (answer) => {
      if (signal.aborted) return;
      world.maps.set(method, { ...answer, key });
      maps.prepare();
      emit("maps");
    };
    await explainMethod(method, { ...common, targets: state.classes }, signal, show);
  }));
  if (!signal.aborted) await Promise.all([curves(common), layers(common)]);
}

// A method that samples is shown with few samples first; each map is the library's result for the spec it is labelled with.
async function explainMethod(method, common, signal, show) {
  let preview = null;
  try {
    const plan = samples(method) ? await ask(query("/api/plan", { model: common.model, method }), undefined, signal) : { previews: [] };
    for (const spec of plan.previews) {
      const answer = await ask("/api/explain", { ...common, method: spec }, signal);
      preview = { ...answer, partial: { used: answer.samples.used, of: plan.used, option: plan.option } };
      show(preview);
    }
    show(await ask("/api/explain", { ...common, method }, signal));
  } catch (problem) {
    if (left(problem)) return;
    show(preview ? { ...preview, stopped: problem.message } : { error: problem.message });
  }
}

function samples(method) {
  const known = facts(method);
  return !known || typeof known.forwards === "string" || typeof known.backwards === "string";
}

async function curves(common) {
  const signal = only("curves"), target = state.classes[0];
  const methods = [...new Set([state.lead, ...state.rivals].map((at) => state.methods[at]))];
  const key = [state.model, state.image, state.question, target].join("|");
  for (const [method, known] of world.curves) if (known.key !== key) world.curves.delete(method);
  for (const method of methods) {
    if (world.curves.has(method) || world.maps.get(method)?.error) continue;
    try {
      const answer = await ask("/api/curve", { ...common, method: world.maps.get(method)?.method ?? method, target }, signal);
      world.curves.set(method, { ...answer, key });
    } catch (problem) {
      if (left(problem)) return;
      trouble(problem.message);
    }
    emit("curves");
  }
  emit("curves");
}

async function layers(common) {
  const signal = only("film"), target = state.classes[0], key = [state.model, state.image, state.question, target, state.film].join("|");
  if (world.film?.key === key || !state.film) return;
  try {
    world.film = { ...(await ask("/api/film", { ...common, method: state.film, target }, signal)), key };
  } catch (problem) {
    if (left(problem)) return;
    world.film = { error: problem.message, key };
  }
  emit("film");
}

// ── choosing ────────────────────────────────────────────────────────────────────────────────────

function choose(image, words = {}) {
  Object.assign(state, { image, removed: new Set(), classes: [], step: 0, ...words });
  subject();
}

function mark() {
  for (const one of $("album").children) one.setAttribute("aria-pressed", String(one.dataset.image === state.image));
  $("model").value = state.model;
}

// The embedded model that a scene was drawn for; another model is kept.
function reader(image) {
  if (!state.model.startsWith("scenes") || image.length === 64) return {};
  return { model: image.startsWith("shortcut") ? "scenes-biased" : "scenes" };
}

const album = caught(async () => {
  const scenes = await ask(query("/api/album", { page }));
  const tile = (image, words) => el("button", { type: "button", class: "tile", "data-image": image, "aria-label": words, title: words,
    onclick: () => choose(image, reader(image)) },
    el("img", { src: query("/api/thumbnail", { image }), alt: "", width: 84, height: 84 }), el("span", {}, words));
  fill($("album"), own && tile(own, "your image"), ...scenes.map((one) => tile(one.image, one.words)));
  mark();
});

const receive = caught(async (file) => {
  if (!file) return;
  trouble("");
  const { upload } = world.about;
  if (file.size > upload) throw new Error(`that file has ${(file.size / 2 ** 20).toFixed(0)} MB; up to ${upload / 2 ** 20} MB would work`);
  const { image } = await ask("/api/images", file, only("upload"));
  const expected = !world.here && state.image === image; // the image that a link was waiting for
  own = image;
  await album();
  if (expected) subject(); else choose(image);
});

function dropping() {
  let depth = 0;
  const show = (step) => { depth = Math.max(depth + step, 0); $("dropping").classList.toggle("on", depth > 0); };
  addEventListener("dragenter", (event) => { event.preventDefault(); show(1); });
  addEventListener("dragleave", () => show(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    show(0);
    receive(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => receive(event.clipboardData?.files[0]));
  $("file").onchange = () => receive($("file").files[0]);
}

// ── another class ───────────────────────────────────────────────────────────────────────────────

const chooseClass = caught(async () => {
  const text = $("another").value.trim(), names = world.facts?.classes ?? [];
  if (!text) return suggest();
  const index = /^\d+$/.test(text) ? Number(text) : names.findIndex((name) => name.toLowerCase() === text.toLowerCase());
  if (index >= 0 && index < names.length) return explainClass(index);
  if (/^\d+$/.test(text)) return suggest(`There is no class ${text}; the model has classes 0 to ${names.length - 1}.`);
  const matches = await ask(query("/api/classes", { model: state.model, name: text.slice(0, 200) }), undefined, only("classes"));
  suggest(matches.length ? `There is no class “${text}”. Did you mean:` : `There is no class “${text}”, and none that resembles it.`, matches);
});

function explainClass(index) {
  $("another").value = "";
  suggest();
  if (!state.classes.includes(index)) stage.choose(index);
}

function suggest(sentence = "", matches = []) {
  fill($("suggestions"), sentence && el("span", {}, sentence), ...matches.map(({ index, name }) =>
    el("button", { type: "button", onclick: () => explainClass(index) }, name)));
}

// ── how busy the server is ──────────────────────────────────────────────────────────────────────

let polling = null, slow = null;

function busy(count) {
  clearTimeout(slow);
  if (count && !polling) slow = setTimeout(() => { polling ??= setInterval(look, 500); look(); }, 700);
  if (!count) {
    clearInterval(polling);
    polling = null;
    $("status").hidden = true;
  }
}

async function look() {
  const queue = await fetch("/api/queue").then((answer) => answer.json()).catch(() => null);
  if (!queue || !polling) return;
  const share = queue.total > 1 ? ` ${Math.floor((100 * queue.done) / queue.total)} %` : "";
  $("status").hidden = false;
  $("status").textContent = `Computing…${share}${queue.waiting ? ` · ${queue.waiting} more waiting` : ""}`;
}

// ── begin ───────────────────────────────────────────────────────────────────────────────────────

caught(async () => {
  restore(location.hash);
  onBusy(busy);
  on("look classes", maps.prepare); // before the others draw
  for (const view of [because, stage, maps, picker, trust, film]) view.start();
  take.start(trouble);
  on("ask", () => { clamp(); explain(); });
  on("removed", said);
  $("another").onchange = chooseClass;
  on("subject classes", () => suggest());
  $("model").onchange = () => choose(state.image, { model: $("model").value });
  $("others").onclick = () => { page += 1; album(); };
  addEventListener("hashchange", () => { if (restore(location.hash)) subject(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("look"));
  dropping();
  world.about = await ask("/api/about");
  useColours(world.about.colours);
  fill($("model"), ...world.about.models.map((one) => el("option", { value: one.name, title: one.note }, one.name)));
  $("demo-link").hidden = !world.about.demo;
  $("version").textContent = `vitreous ${world.about.version}`;
  emit("methods");
  await album();
  await subject();
})();
