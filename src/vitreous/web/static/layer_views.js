// What every layer adds to a map, and the sum from a start layer on.

import { $, create, fill } from "./elements.js";
import { formatFullScore } from "./formatting.js";
import { ImageView } from "./image_view.js";
import { createLegend } from "./legend.js";
import { addMethod } from "./map_cards.js";
import { fitScale, readField } from "./map_colours.js";
import { data, emit, findMethod, getClassName, listen, state } from "./page_state.js";

const MORE_METHODS = ["decompx", "genatt", "attnlrp", "ixg", "gradcam", "rawattention"];
const sumView = new ImageView(280, "Sum of the layers");
const sumLegend = create("div"), sumCaption = create("figcaption"), sumCard = create("figure", { class: "card" }, sumView.node, sumLegend, sumCaption);
let layerViews = []; // {node, view, frame, patchScore} per layer

export function start() {
  $("layer-sum").append(sumCard);
  $("layer-method").onchange = () => { state.layerMethod = $("layer-method").value; emit("request-maps"); };
  $("start-layer").oninput = () => setStartLayer(Number($("start-layer").value));
  $("add-layer-sum").onclick = () => data.layers?.frames && addMethod(data.layers.frames[state.startLayer].start);
  listen("loaded methods", drawMethods);
  listen("layers loaded appearance", draw);
  listen("cursor", drawCursor);
}

function setStartLayer(layer) {
  state.startLayer = layer;
  draw();
  emit("link");
}

const removeFold = (spec) => spec.replace(/\+\w+(\([^)]*\))?$/, "");

function drawMethods() {
  if (!data.about) return;
  const chosen = state.methods.map(removeFold).filter((spec) => findMethod(spec)?.composes);
  const offered = [...new Set([...chosen, ...MORE_METHODS.filter(findMethod), ...(state.layerMethod ? [state.layerMethod] : [])])];
  state.layerMethod ||= offered[0];
  fill($("layer-method"), ...offered.map((name) => create("option", { value: name, selected: name === state.layerMethod }, name)));
}

function draw() {
  const { layers } = data;
  if (!data.isReady) return;
  sumCard.hidden = !layers?.frames;
  if (!layers?.frames) {
    layerViews = [];
    return fill($("layer-list"), create("p", { class: "soft" }, layers?.error ?? "computing the layers…"));
  }
  const depth = layers.frames.length;
  state.startLayer = Math.min(Math.max(state.startLayer ?? Math.ceil(depth / 2), 0), depth - 1);
  $("start-layer").max = depth - 1;
  $("start-layer").value = state.startLayer;
  $("start-layer-value").textContent = `${state.startLayer} of 0 to ${depth - 1}`;
  if (layers.bitmap !== data.bitmap) {
    layers.bitmap = data.bitmap;
    for (const frame of layers.frames) {
      frame.map = prepareMap(layers, frame.scores);
      frame.sum = prepareMap(layers, frame.total);
    }
    layerViews = layers.frames.map(createLayerView);
    fill($("layer-list"), ...layerViews.map(({ node }) => node));
  }
  for (const { node, view, frame } of layerViews) {
    view.setOpacity(state.opacity / 100);
    node.classList.toggle("excluded", frame.layer < state.startLayer);
    node.setAttribute("aria-pressed", String(frame.layer === state.startLayer));
  }
  const { sum, start: spec } = layers.frames[state.startLayer];
  drawMap(sumView, sum);
  sumView.setOpacity(state.opacity / 100);
  fill(sumLegend, createLegend(sum.scale, state.opacity / 100));
  fill(sumCaption, create("b", {}, spec), create("span", { class: "remarks" }, `layers ${state.startLayer} to ${depth - 1}, for ${getClassName(layers.target)}`));
}

function prepareMap({ grid, signed }, scores) {
  const map = { scores, signed };
  map.field = readField(map, grid);
  map.scale = fitScale([map]);
  return map;
}

function drawMap(view, { field, scale }) {
  view.drawImage(data.bitmap, data.layers.grid, scale.signed);
  view.drawMap(field, scale);
  view.drawMarks();
}

function createLayerView(frame) {
  const view = new ImageView(112, `Layer ${frame.layer}`), patchScore = create("span", { class: "patch-score" });
  drawMap(view, frame.map);
  const node = create("button", { type: "button", class: "layer", "aria-label": `Start at layer ${frame.layer}`, onclick: () => setStartLayer(frame.layer) },
    view.node, create("span", {}, `layer ${frame.layer}`), patchScore);
  return { node, view, frame, patchScore };
}

function drawCursor() {
  for (const { view, frame, patchScore } of layerViews) {
    view.drawMarks({ cursor: data.cursorPatch });
    patchScore.textContent = data.cursorPatch === null ? "" : formatFullScore(frame.map.scores[data.cursorPatch] ?? NaN, frame.map.scale);
  }
  if (data.layers?.frames) sumView.drawMarks({ cursor: data.cursorPatch });
}
