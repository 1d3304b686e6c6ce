// What every layer adds to a map, and the sum from a start layer on.

import { $, el, fill, written } from "./dom.js";
import { legend } from "./legend.js";
import { add } from "./maps.js";
import { fieldOf, scaleOf } from "./paint.js";
import { Pane } from "./pane.js";
import { className, emit, facts, on, state, world } from "./state.js";

const total = new Pane(280, "Sum of the layers");
const caption = el("figcaption"), bar = el("div");
let strip = [];

export function start() {
  $("film-sum").append(el("figure", { class: "card" }, total.node, bar, caption));
  $("film-method").onchange = () => { state.film = $("film-method").value; emit("ask"); };
  $("start").oninput = () => { state.start = Number($("start").value); draw(); emit("link"); };
  $("film-add").onclick = () => world.film?.frames && add(world.film.frames[state.start].start);
  on("subject methods", methods);
  on("film subject look", draw);
  on("cursor", cursor);
}

export const base = (spec) => spec.replace(/\+\w+(\([^)]*\))?$/, "");

function methods() {
  if (!world.about) return;
  const chosen = state.methods.map(base).filter((spec) => facts(spec)?.composes);
  const more = ["decompx", "genatt", "attnlrp", "ixg", "gradcam", "rawattention"].filter((name) => facts(name));
  const offered = [...new Set([...chosen, ...more, ...(state.film ? [state.film] : [])])];
  state.film ||= offered[0];
  fill($("film-method"), ...offered.map((name) => el("option", { value: name, selected: name === state.film }, name)));
}

function draw() {
  const film = world.film;
  if (!world.here) return;
  if (!film?.frames) {
    strip = [];
    return fill($("strip"), el("p", { class: "soft" }, film?.error ?? "computing the layers…"));
  }
  const depth = film.frames.length;
  state.start = Math.min(Math.max(state.start ?? Math.ceil(depth / 2), 0), depth - 1);
  $("start").max = depth - 1;
  $("start").value = state.start;
  $("start-says").textContent = `${state.start} of 0 to ${depth - 1}`;
  if (film.drawn !== world.image) {
    film.drawn = world.image;
    for (const frame of film.frames) {
      frame.own = piece(film, frame.scores);
      frame.sum = piece(film, frame.total);
    }
    strip = film.frames.map(one);
    fill($("strip"), ...strip.map(({ node }) => node));
  }
  for (const { node, pane, frame } of strip) {
    pane.over.style.opacity = state.opacity / 100;
    node.classList.toggle("out", frame.layer < state.start);
    node.setAttribute("aria-pressed", String(frame.layer === state.start));
  }
  const { sum, start: spec } = film.frames[state.start];
  total.show(world.image, film.grid, sum.scale.signed);
  total.map(sum.field, sum.scale);
  total.over.style.opacity = state.opacity / 100;
  total.mark();
  fill(bar, legend(sum.scale));
  fill(caption, el("b", {}, spec), el("span", { class: "remarks" }, `layers ${state.start} to ${depth - 1}, for ${className(film.target)}`));
}

function piece(film, scores) {
  const map = { scores, signed: film.signed };
  map.field = fieldOf(map, film.grid);
  return { field: map.field, scores, scale: scaleOf([map]) };
}

function one(frame) {
  const film = world.film, pane = new Pane(112, `Layer ${frame.layer}`), { field, scale } = frame.own;
  pane.show(world.image, film.grid, scale.signed);
  pane.map(field, scale);
  pane.mark();
  const reads = el("span", { class: "reads" });
  const node = el("button", { type: "button", class: "layer", "aria-label": `Start at layer ${frame.layer}`,
    onclick: () => { state.start = frame.layer; draw(); emit("link"); } }, pane.node, el("span", {}, `layer ${frame.layer}`), reads);
  return { node, pane, frame, reads };
}

function cursor() {
  for (const { pane, frame, reads } of strip) {
    pane.mark({ cursor: world.cursor });
    reads.textContent = world.cursor === null ? "" : written(frame.own.scores[world.cursor] ?? NaN, frame.own.scale);
  }
  if (world.film?.frames) total.mark({ cursor: world.cursor });
}
