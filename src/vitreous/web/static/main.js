// Beginning, and asking the server for what the screen needs.

import { $, el, fill } from "./dom.js";
import { ask, left, onBusy, only, query } from "./net.js";
import { useColours } from "./paint.js";
import { clamp, emit, on, patches, restore, state, world } from "./state.js";
import * as because from "./because.js";
import * as film from "./film.js";
import * as maps from "./maps.js";
import * as picker from "./picker.js";
import * as stage from "./stage.js";
import * as take from "./take.js";
import * as trust from "./trust.js";

let page = 0;
let own = null; // the picture that was dropped last

function trouble(sentence) {
  $("trouble").hidden = !sentence;
  $("trouble").textContent = sentence ? sentence[0].toUpperCase() + sentence.slice(1) : "";
}

const caught = (work) => async (...given) => {
  try {
    return await work(...given);
  } catch (problem) {
    if (!left(problem)) trouble(problem.message);
  }
};

// ── the subject: a picture in front of a model ──────────────────────────────────────────────────

const subject = caught(async () => {
  trouble("");
  for (const kind of ["maps", "said", "curves", "film"]) only(kind);
  const signal = only("subject"), { model, picture } = state;
  Object.assign(world, { here: false, base: null, said: null, film: null, cursor: null, decisive: new Set() });
  world.maps.clear();
  world.curves.clear();
  $("stage-wait").textContent = world.facts ? "Looking at the picture…" : "Waking the model…";
  $("stage").classList.add("waiting");
  document.body.classList.add("loading"); // what is still on the screen is of another picture
  mark();
  try {
    const [facts, known] = await Promise.all([ask(query("/api/model", { name: model }), undefined, signal), ask(query("/api/picture", { picture, model }), undefined, signal)]);
    const [image, base] = await Promise.all([load(query("/api/seen", { model, picture }), signal), ask("/api/says", { model, picture }, signal)]);
    Object.assign(world, { facts, known: known.known, image, base, here: true });
  } catch (problem) {
    if (!left(problem)) $("stage-wait").textContent = problem.status === 404 && picture.length === 64
      ? "The picture of this link is not here any more. Drop it again, and all else comes back." : problem.message;
    throw problem;
  }
  state.classes = state.classes.filter((index) => index < world.facts.classes.length);
  if (!state.classes.length) state.classes = [world.base.top[0].index];
  state.removed = new Set([...state.removed].filter((patch) => patch < patches()));
  fill($("classes"), ...world.facts.classes.map((name) => el("option", { value: name })));
  $("stage").classList.remove("waiting");
  document.body.classList.remove("loading");
  if (picture.length === 64 && own !== picture) { own = picture; album(); }
  emit("subject");
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
  else world.said = await ask("/api/says", { model: state.model, picture: state.picture, removed: [...state.removed] }, signal);
  emit("said");
});

// ── maps, then curves, then layers ──────────────────────────────────────────────────────────────

const wanted = () => [state.model, state.picture, state.question, state.classes.join()].join("|");

async function explain() {
  if (!world.here) return;
  const signal = only("maps"), key = wanted(), common = { model: state.model, picture: state.picture, question: state.question };
  for (const [method, known] of world.maps) if (known.key !== key || !state.methods.includes(method)) world.maps.delete(method);
  emit("maps");
  await Promise.all(state.methods.filter((method) => !world.maps.has(method)).map(async (method) => {
    let answer;
    try {
      answer = await ask("/api/explain", { ...common, method, targets: state.classes }, signal);
    } catch (problem) {
      if (left(problem)) return;
      answer = { error: problem.message };
    }
    if (signal.aborted) return;
    world.maps.set(method, { ...answer, key });
    maps.prepare();
    emit("maps");
  }));
  if (!signal.aborted) await Promise.all([curves(common), layers(common)]);
}

async function curves(common) {
  const signal = only("curves"), target = state.classes[0];
  const methods = [...new Set([state.lead, ...state.rivals].map((at) => state.methods[at]))];
  const key = [state.model, state.picture, state.question, target].join("|");
  for (const [method, known] of world.curves) if (known.key !== key) world.curves.delete(method);
  for (const method of methods) {
    if (world.curves.has(method) || world.maps.get(method)?.error) continue;
    try {
      const answer = await ask("/api/curve", { ...common, method, target }, signal);
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
  const signal = only("film"), target = state.classes[0], key = [state.model, state.picture, state.question, target, state.film].join("|");
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

function choose(picture, words = {}) {
  Object.assign(state, { picture, removed: new Set(), classes: [], step: 0, ...words });
  subject();
}

function mark() {
  for (const one of $("album").children) one.setAttribute("aria-pressed", String(one.dataset.picture === state.picture));
  $("model").value = state.model;
}

// The embedded model that a scene was drawn for; another model stays.
function reader(picture) {
  if (!state.model.startsWith("scenes") || picture.length === 64) return {};
  return { model: picture.startsWith("shortcut") ? "scenes-biased" : "scenes" };
}

const album = caught(async () => {
  const scenes = await ask(query("/api/album", { page }));
  const tile = (picture, words) => el("button", { type: "button", class: "tile", "data-picture": picture, "aria-label": words, title: words,
    onclick: () => choose(picture, reader(picture)) },
    el("img", { src: query("/api/thumbnail", { picture }), alt: "", width: 84, height: 84 }), el("span", {}, words));
  fill($("album"), own && tile(own, "your picture"), ...scenes.map((one) => tile(one.picture, one.words)));
  mark();
});

const receive = caught(async (file) => {
  if (!file) return;
  trouble("");
  const { upload } = world.about;
  if (file.size > upload) throw new Error(`that file has ${(file.size / 2 ** 20).toFixed(0)} MB; up to ${upload / 2 ** 20} MB would work`);
  const { picture } = await ask("/api/pictures", file, only("upload"));
  const expected = !world.here && state.picture === picture; // the picture that a link was waiting for
  own = picture;
  await album();
  if (expected) subject(); else choose(picture);
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
  $("status").textContent = `Asking the model…${share}${queue.waiting ? ` · ${queue.waiting} more waiting` : ""}`;
}

// ── begin ───────────────────────────────────────────────────────────────────────────────────────

caught(async () => {
  restore(location.hash);
  onBusy(busy);
  on("look classes", maps.prepare); // before anybody draws
  for (const room of [because, stage, maps, picker, trust, film]) room.start();
  take.start(trouble);
  on("ask", () => { clamp(); explain(); });
  on("removed", said);
  $("another").onchange = () => {
    const given = $("another").value.trim().toLowerCase(), names = world.facts?.classes ?? [];
    const index = /^\d+$/.test(given) ? Number(given) : names.findIndex((name) => name.toLowerCase() === given);
    if (index >= 0 && index < names.length && !state.classes.includes(index)) { stage.choose(index); $("another").value = ""; }
    else if (given) trouble(`the model has no class ${given}`);
  };
  $("model").onchange = () => choose(state.picture, { model: $("model").value });
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
