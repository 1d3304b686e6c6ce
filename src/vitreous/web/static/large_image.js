// The large image, in which patches are removed by pointer or keyboard.

import { $, fill, fillSwitch, setPressed } from "./elements.js";
import { formatFullScore } from "./formatting.js";
import { ImageView, movePatch } from "./image_view.js";
import { createLegend } from "./legend.js";
import { data, emit, listen, setCursor, state } from "./page_state.js";
import { addQuery } from "./requests.js";

const view = new ImageView(560, "The image as the model sees it");
const undoStack = []; // earlier sets of removed patches
let brush = null; // "remove" or "restore" while a pointer is down

export function start() {
  $("large-image-view").append(view.node);
  fillSwitch($("view"), { map: "Map", image: "Image" }, state.view, (value) => { state.view = value; emit("appearance"); });
  const node = $("large-image");
  node.addEventListener("pointerdown", startStroke);
  node.addEventListener("pointermove", continueStroke);
  for (const event of ["pointerup", "pointercancel"]) node.addEventListener(event, () => { brush = null; });
  node.addEventListener("pointerleave", () => { if (!brush) setCursor(null); });
  node.addEventListener("keydown", handleKey);
  node.addEventListener("blur", () => setCursor(null));
  $("undo").onclick = undo;
  $("restore").onclick = () => setRemoved(new Set());
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
      event.preventDefault();
      undo();
    }
  });
  listen("loaded maps appearance classes", draw);
  listen("removed curves", drawMarks);
  listen("cursor", () => data.isReady && view.drawMarks({ cursor: data.cursorPatch }));
  listen("loaded", () => { undoStack.length = 0; $("cursor-description").textContent = ""; drawMarks(); showCrop(); });
}

function getMainMap() {
  const maps = data.maps.get(state.methods[state.mainMethod])?.maps;
  return maps && (maps.find((map) => map.target === state.classes[0]) ?? maps[0]);
}

function draw() {
  if (!data.isReady) return;
  const map = state.view === "map" ? getMainMap() : null;
  setPressed($("view"), state.view);
  $("grid-size").textContent = data.model.grid.join(" × ");
  view.drawImage(data.bitmap, data.model.grid, map ? map.scale.signed : null);
  view.drawMap(map?.field, map?.scale);
  view.setOpacity(state.opacity / 100);
  drawMarks();
  const labels = map?.scale.signed ? [`against ${map.name}`, `for ${map.name}`] : ["least", "most"];
  fill($("large-image-legend"), map && createLegend(map.scale, state.opacity / 100, labels));
}

function showCrop() {
  const { sentence } = data.crop;
  $("crop").hidden = !sentence;
  $("crop-caption").textContent = sentence;
  if (sentence) $("crop-image").src = addQuery("/api/crop", { model: state.model, image: state.image });
}

function drawMarks() {
  if (!data.isReady) return;
  view.drawMarks({ removed: state.removed, contour: state.removed.size || state.view !== "map" ? new Set() : data.decisivePatches });
  $("undo").disabled = !undoStack.length;
  $("restore").disabled = !state.removed.size;
}

// ── removing patches ────────────────────────────────────────────────────────────────────────────

export function setRemoved(patches, remember = true) {
  if (remember) undoStack.push(state.removed);
  state.removed = patches;
  emit("removed");
}

function undo() {
  if (undoStack.length) setRemoved(undoStack.pop(), false);
}

function brushPatch(patch) {
  if (patch === null || (brush === "remove") === state.removed.has(patch)) return;
  const patches = new Set(state.removed);
  if (brush === "remove") patches.add(patch); else patches.delete(patch);
  setRemoved(patches, false);
}

function startStroke(event) {
  const patch = data.isReady ? view.findPatch(event) : null;
  if (patch === null || event.button) return;
  $("large-image").setPointerCapture(event.pointerId);
  brush = state.removed.has(patch) ? "restore" : "remove";
  undoStack.push(state.removed);
  brushPatch(patch);
  setCursor(patch);
}

function continueStroke(event) {
  if (!data.isReady) return;
  const patch = view.findPatch(event);
  setCursor(patch);
  if (brush) brushPatch(patch);
}

function handleKey(event) {
  if (!data.isReady || event.ctrlKey || event.metaKey) return;
  const patch = movePatch(event.key, data.cursorPatch, data.model.grid), toggles = event.key === " " || event.key === "Enter";
  if (patch === null && !toggles) return;
  event.preventDefault();
  setCursor(patch ?? data.cursorPatch ?? 0);
  if (toggles || event.shiftKey) togglePatch(!toggles);
  describeCursor();
}

// Remove the patch under the cursor; restore a removed one unless `onlyRemove`.
function togglePatch(onlyRemove) {
  const patches = new Set(state.removed);
  if (patches.has(data.cursorPatch) && !onlyRemove) patches.delete(data.cursorPatch); else patches.add(data.cursorPatch);
  if (patches.size !== state.removed.size) setRemoved(patches);
}

function describeCursor() {
  const columns = data.model.grid[1], map = getMainMap(), patch = data.cursorPatch;
  const score = map ? `, score ${formatFullScore(map.scores[patch] ?? NaN, map.scale)}` : "";
  $("cursor-description").textContent = `Row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}${score}${state.removed.has(patch) ? ", removed" : ""}`;
}
