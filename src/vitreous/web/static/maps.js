// Maps side by side: a row per class, a column per method.

import { $, el, fill, percent, plural, written } from "./dom.js";
import { legend } from "./legend.js";
import { query } from "./net.js";
import { fieldOf, scaleOf } from "./paint.js";
import { Pane } from "./pane.js";
import { clamp, className, emit, facts, found, on, state, world } from "./state.js";

const panes = new Map(); // method and class → a card, reused while it is shown

export function start() {
  on("subject", () => { panes.clear(); draw(); });
  on("maps classes look methods", draw);
  on("cursor", cursor);
  for (const key of ["question", "scale"]) $(key).onchange = () => { state[key] = $(key).value; emit(key === "question" ? "ask" : "look"); };
  $("opacity").oninput = () => { state.opacity = Number($("opacity").value); emit("look"); };
  $("truth").onchange = () => { state.truth = $("truth").checked; emit("look"); };
}

// Fields, scales and outlines of all loaded maps.
export function prepare() {
  const shown = state.methods.map(found).filter((one) => one?.maps);
  for (const one of shown) {
    for (const map of one.maps) {
      map.field ??= fieldOf(map, one.grid);
      map.signed = one.signed;
      const known = state.truth && world.known.includes(map.target);
      map.outline = known ? query("/api/evidence", { model: state.model, image: state.image, target: map.target }) : null;
    }
  }
  const all = state.scale === "all" && shown.length ? scaleOf(shown.flatMap((one) => one.maps)) : null;
  for (const one of shown) {
    const joint = state.scale === "method" ? scaleOf(one.maps) : all;
    for (const map of one.maps) map.scale = joint ?? (map.own ??= scaleOf([map]));
  }
}

function draw() {
  chips();
  for (const key of ["question", "scale", "opacity"]) $(key).value = state[key];
  $("truth").checked = state.truth;
  $("truth-field").hidden = !world.known.length;
  if (!world.here) return;
  const rows = state.classes.map((target) => el("div", { class: "class-row" },
    el("h3", {}, "Why ", el("strong", {}, className(target)), "? ", el("span", { class: "soft" }, percent(world.base?.probabilities[target]))),
    el("div", { class: "cards" }, ...state.methods.map((method, at) => card(method, at, target)))));
  fill($("rows"), ...rows);
  cursor();
}

function card(method, at, target) {
  const maps = found(method), map = maps?.maps?.find((one) => one.target === target), key = `${method}|${target}`;
  if (!map) {
    const words = maps?.error ?? "computing…";
    return el("figure", { class: maps?.error ? "card failed" : "card waiting" }, el("div", { class: "pane empty" }, el("p", {}, words)),
      el("figcaption", {}, el("b", {}, method)));
  }
  const kept = panes.get(key) ?? { pane: new Pane(280, `Map of ${method} for ${map.name}`), reads: el("span", { class: "reads" }) };
  panes.set(key, kept);
  kept.map = map;
  const { pane } = kept, stamp = [map.scale.low, map.scale.high, map.scale.signed].join();
  pane.show(world.image, maps.grid, map.scale.signed);
  if (kept.stamp !== stamp || kept.drawn !== map) pane.map(map.field, map.scale);
  Object.assign(kept, { stamp, drawn: map });
  pane.over.style.opacity = state.opacity / 100;
  pane.outline(map.outline);
  pane.node.onpointermove = (event) => point(pane.under(event));
  pane.node.onpointerleave = () => point(null);
  const leads = at === state.lead && target === state.classes[0];
  const show = el("button", { type: "button", class: "show", "aria-pressed": String(leads), "aria-label": `Show ${method} for ${map.name} large`, onclick: () => large(at, target) }, pane.node);
  return el("figure", { class: `card${leads ? " leads" : ""}${maps.partial && !maps.stopped ? " partial" : ""}` }, show, legend(map.scale),
    el("figcaption", {}, el("b", {}, maps.method), sampled(maps), el("span", { class: "remarks" }, remarks(maps, map)), kept.reads));
}

// How many samples a map is made of, where that is not all that were asked for.
function sampled({ partial, stopped, samples }) {
  const count = partial && `${partial.used.toLocaleString("en")} of ${partial.of.toLocaleString("en")} ${partial.option}`;
  const words = stopped ? `Partial result: ${count}. Stopped: ${stopped}` : partial ? `Partial result: ${count}; computing more…` : samples?.sentence;
  return words ? el("span", { class: "samples" }, words) : null;
}

function remarks(maps, map) {
  const notes = [];
  if (map.evidence) notes.push(`${map.evidence.peak ? "peak on the evidence" : "peak off the evidence"} · AP ${map.evidence.precision?.toFixed(2) ?? "–"}`);
  if (!maps.class_specific) notes.push("the same for every class");
  if (map.scale.constant) notes.push("constant map");
  const missing = map.scores.filter((v) => v === null).length;
  if (missing) notes.push(`${plural(missing, "score")} undefined (hatched)`);
  if (maps.caveat) notes.push(maps.caveat);
  return notes.join(" · ");
}

function large(at, target) {
  state.lead = at;
  state.view = "map";
  if (state.classes[0] !== target) { state.classes = [target, ...state.classes.filter((one) => one !== target)]; emit("classes"); }
  emit("look");
  emit("ask");
}

function point(patch) {
  if (patch === world.cursor) return;
  world.cursor = patch;
  emit("cursor");
}

function cursor() {
  for (const { pane, reads, map } of panes.values()) {
    if (!pane.node.isConnected) continue;
    pane.mark({ cursor: world.cursor });
    reads.textContent = world.cursor === null ? "" : written(map.scores[world.cursor] ?? NaN, map.scale);
  }
}

// ── which methods ───────────────────────────────────────────────────────────────────────────────

function chips() {
  if (!world.about) return;
  const chip = (method, at) => el("span", { class: "chip", title: facts(method)?.title ?? "" }, el("code", {}, method),
    state.methods.length > 1 && el("button", { type: "button", "aria-label": `Remove ${method}`, onclick: () => drop(at) }, "×"));
  const add = el("button", { type: "button", id: "add", disabled: state.methods.length >= 6, onclick: () => emit("pick") },
    state.methods.length >= 6 ? "Six at most" : "Add a method");
  fill($("chips"), ...state.methods.map(chip), add);
}

function drop(at) {
  state.methods = state.methods.filter((_, other) => other !== at);
  const moved = (one) => (one > at ? one - 1 : one);
  state.lead = moved(state.lead);
  state.rivals = state.rivals.map(moved);
  clamp();
  emit("methods");
  emit("ask");
}

export function add(method) {
  const spec = method.trim();
  if (!spec || state.methods.includes(spec) || state.methods.length >= 6) return;
  state.methods = [...state.methods, spec];
  if (state.methods.length === 2) state.rivals = [0, 1];
  emit("methods");
  emit("ask");
}
