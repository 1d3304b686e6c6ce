// Maps side by side: a row per class, a column per method.

import { $, create, fill } from "./elements.js";
import { formatCount, formatFullScore, formatPercent } from "./formatting.js";
import { ImageView } from "./image_view.js";
import { createLegend } from "./legend.js";
import { fitScale, readField } from "./map_colours.js";
import { clampMethodIndices, data, emit, findMethod, getClassName, listen, setCursor, state } from "./page_state.js";
import { addQuery } from "./requests.js";

const MAX_METHODS = 6;
const cards = new Map(); // by method and class; reused while they are shown

export function start() {
  listen("loaded", () => { cards.clear(); draw(); });
  listen("maps classes appearance methods", draw);
  listen("cursor", drawCursor);
  for (const key of ["question", "scale"]) $(key).onchange = () => { state[key] = $(key).value; emit(key === "question" ? "request-maps" : "appearance"); };
  $("opacity").oninput = () => { state.opacity = Number($("opacity").value); emit("appearance"); };
  $("show-evidence").onchange = () => { state.showEvidence = $("show-evidence").checked; emit("appearance"); };
}

// Set fields, scales and outlines of all loaded maps.
export function prepareMaps() {
  const results = state.methods.map((method) => data.maps.get(method)).filter((result) => result?.maps);
  for (const { maps, grid, signed } of results) {
    for (const map of maps) {
      map.field ??= readField(map, grid);
      map.signed = signed;
      const hasOutline = state.showEvidence && data.evidenceClasses.includes(map.target);
      map.outline = hasOutline ? addQuery("/api/evidence", { model: state.model, image: state.image, target: map.target }) : null;
    }
  }
  const common = state.scale === "all" && results.length ? fitScale(results.flatMap(({ maps }) => maps)) : null;
  for (const { maps } of results) {
    const shared = state.scale === "method" ? fitScale(maps) : common;
    for (const map of maps) map.scale = shared ?? (map.ownScale ??= fitScale([map]));
  }
}

function draw() {
  drawMethodChips();
  for (const key of ["question", "scale", "opacity"]) $(key).value = state[key];
  $("show-evidence").checked = state.showEvidence;
  $("show-evidence-field").hidden = !data.evidenceClasses.length;
  if (!data.isReady) return;
  const rows = state.classes.map((target) => create("div", { class: "class-row" },
    create("h3", {}, "Why ", create("strong", {}, getClassName(target)), "? ", create("span", { class: "soft" }, formatPercent(data.prediction?.probabilities[target]))),
    create("div", { class: "cards" }, ...state.methods.map((method, index) => createCard(method, index, target)))));
  fill($("map-rows"), ...rows);
  drawCursor();
}

function createCard(method, index, target) {
  const result = data.maps.get(method), map = result?.maps?.find((candidate) => candidate.target === target), key = `${method}|${target}`;
  if (!map) {
    return create("figure", { class: result?.error ? "card failed" : "card waiting" },
      create("div", { class: "image-view empty" }, create("p", {}, result?.error ?? "computing…")), create("figcaption", {}, create("b", {}, method)));
  }
  const card = cards.get(key) ?? { view: new ImageView(280, `Map of ${method} for ${map.name}`), patchScore: create("span", { class: "patch-score" }) };
  cards.set(key, card);
  const { view } = card, scaleKey = [map.scale.low, map.scale.high, map.scale.signed].join();
  view.drawImage(data.bitmap, result.grid, map.scale.signed);
  if (card.scaleKey !== scaleKey || card.map !== map) view.drawMap(map.field, map.scale);
  Object.assign(card, { scaleKey, map });
  view.setOpacity(state.opacity / 100);
  view.showEvidence(map.outline);
  view.node.onpointermove = (event) => setCursor(view.findPatch(event));
  view.node.onpointerleave = () => setCursor(null);
  const isMain = index === state.mainMethod && target === state.classes[0];
  const enlarge = create("button", { type: "button", class: "enlarge", "aria-pressed": String(isMain), "aria-label": `Show ${method} for ${map.name} large`, onclick: () => showLarge(index, target) }, view.node);
  return create("figure", { class: `card${isMain ? " main" : ""}${result.partial && !result.stopped ? " partial" : ""}` }, enlarge, createLegend(map.scale, state.opacity / 100),
    create("figcaption", {}, create("b", {}, result.method), createSampleNote(result), create("span", { class: "remarks" }, listRemarks(result, map)), card.patchScore));
}

// The number of samples that a map is made of, if fewer than requested.
function createSampleNote({ partial, stopped, samples }) {
  const count = partial && `${partial.used.toLocaleString("en")} of ${partial.of.toLocaleString("en")} ${partial.option}`;
  const note = stopped ? `Partial result: ${count}. Stopped: ${stopped}` : partial ? `Partial result: ${count}; computing more…` : samples?.sentence;
  return note ? create("span", { class: "samples" }, note) : null;
}

function listRemarks(result, map) {
  const remarks = [];
  if (map.evidence) remarks.push(`${map.evidence.peak ? "peak on the evidence" : "peak off the evidence"} · AP ${map.evidence.precision?.toFixed(2) ?? "–"}`);
  if (!result.class_specific) remarks.push("the same for every class");
  if (map.scale.constant) remarks.push("constant map");
  const undefinedCount = map.scores.filter((score) => score === null).length;
  if (undefinedCount) remarks.push(`${formatCount(undefinedCount, "score")} undefined (hatched)`);
  if (result.caveat) remarks.push(result.caveat);
  return remarks.join(" · ");
}

function showLarge(index, target) {
  state.mainMethod = index;
  state.view = "map";
  if (state.classes[0] !== target) { state.classes = [target, ...state.classes.filter((other) => other !== target)]; emit("classes"); }
  emit("appearance");
  emit("request-maps");
}

function drawCursor() {
  for (const { view, patchScore, map } of cards.values()) {
    if (!view.node.isConnected) continue;
    view.drawMarks({ cursor: data.cursorPatch });
    patchScore.textContent = data.cursorPatch === null ? "" : formatFullScore(map.scores[data.cursorPatch] ?? NaN, map.scale);
  }
}

// ── the list of methods ─────────────────────────────────────────────────────────────────────────

function drawMethodChips() {
  if (!data.about) return;
  const isFull = state.methods.length >= MAX_METHODS;
  const createChip = (method, index) => create("span", { class: "chip", title: findMethod(method)?.title ?? "" }, create("code", {}, method),
    state.methods.length > 1 && create("button", { type: "button", "aria-label": `Remove ${method}`, onclick: () => removeMethod(index) }, "×"));
  fill($("method-chips"), ...state.methods.map(createChip),
    create("button", { type: "button", id: "add-method", disabled: isFull, onclick: () => emit("open-picker") }, isFull ? "Six at most" : "Add a method"));
}

function removeMethod(removed) {
  state.methods = state.methods.filter((_, index) => index !== removed);
  const shift = (index) => (index > removed ? index - 1 : index);
  state.mainMethod = shift(state.mainMethod);
  state.comparedMethods = state.comparedMethods.map(shift);
  clampMethodIndices();
  emit("methods");
  emit("request-maps");
}

export function addMethod(text) {
  const method = text.trim();
  if (!method || state.methods.includes(method) || state.methods.length >= MAX_METHODS) return;
  state.methods = [...state.methods, method];
  if (state.methods.length === 2) state.comparedMethods = [0, 1];
  emit("methods");
  emit("request-maps");
}
