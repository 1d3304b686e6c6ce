// The large image: patches are removed by pointer or keyboard, and the probabilities change.

import { $, el, fill, percent, plural, press, segmented, written } from "./dom.js";
import { legend } from "./legend.js";
import { query } from "./net.js";
import { Pane } from "./pane.js";
import { className, emit, found, on, patches, state, world } from "./state.js";

const pane = new Pane(560, "The image as the model sees it");
const past = [];
let brush = null; // "take" or "put" while a pointer is down

export function start() {
  $("stage-layers").append(pane.node);
  segmented($("view"), { map: "Map", image: "Image" }, state.view, (view) => { state.view = view; emit("look"); });
  const stage = $("stage");
  stage.addEventListener("pointerdown", down);
  stage.addEventListener("pointermove", move);
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { brush = null; });
  stage.addEventListener("pointerleave", () => { if (!brush) point(null); });
  stage.addEventListener("keydown", key);
  stage.addEventListener("blur", () => point(null));
  $("undo").onclick = undo;
  $("restore").onclick = () => remove(new Set());
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
      event.preventDefault();
      undo();
    }
  });
  on("subject maps look classes", draw);
  on("removed curves", marks);
  on("cursor", () => world.here && pane.mark({ cursor: world.cursor }));
  on("subject", () => { past.length = 0; $("cursor-says").textContent = ""; marks(); crop(); });
  on("said classes subject", bars);
}

export const lead = () => {
  const maps = found(state.methods[state.lead]);
  return maps?.maps ? { ...maps, map: maps.maps.find((m) => m.target === state.classes[0]) ?? maps.maps[0] } : null;
};

function draw() {
  if (!world.here) return;
  const map = lead(), shown = state.view === "map" && map?.map;
  press($("view"), state.view);
  $("grid-says").textContent = world.facts.grid.join(" × ");
  pane.show(world.image, world.facts.grid, shown ? map.map.scale.signed : null);
  pane.map(shown ? map.map.field : null, shown ? map.map.scale : null);
  pane.over.style.opacity = state.opacity / 100;
  marks();
  const words = shown && map.map.scale.signed ? [`against ${map.map.name}`, `for ${map.map.name}`] : ["least", "most"];
  fill($("stage-legend"), shown && legend(map.map.scale, words));
}

// What preprocessing cut off.
function crop() {
  const { sentence } = world.crop;
  $("crop").hidden = !sentence;
  $("crop-says").textContent = sentence;
  if (sentence) $("crop-image").src = query("/api/crop", { model: state.model, image: state.image });
}

function marks() {
  if (!world.here) return;
  pane.mark({ removed: state.removed, contour: state.removed.size || state.view !== "map" ? new Set() : world.decisive ?? new Set() });
  $("undo").disabled = !past.length;
  $("restore").disabled = !state.removed.size;
}

// ── removing patches ────────────────────────────────────────────────────────────────────────────

export function remove(chosen, remember = true) {
  if (remember) past.push(state.removed);
  state.removed = chosen;
  emit("removed");
}

function undo() {
  if (past.length) remove(past.pop(), false);
}

function stroke(patch) {
  if (patch === null || (brush === "take") === state.removed.has(patch)) return;
  const next = new Set(state.removed);
  if (brush === "take") next.add(patch); else next.delete(patch);
  remove(next, false);
}

function down(event) {
  const patch = world.here ? pane.under(event) : null;
  if (patch === null || event.button) return;
  $("stage").setPointerCapture(event.pointerId);
  brush = state.removed.has(patch) ? "put" : "take";
  past.push(state.removed);
  stroke(patch);
  point(patch);
}

function move(event) {
  if (!world.here) return;
  const patch = pane.under(event);
  point(patch);
  if (brush) stroke(patch);
}

function point(patch) {
  if (patch === world.cursor) return;
  world.cursor = patch;
  emit("cursor");
}

function key(event) {
  const [rows, columns] = world.facts?.grid ?? [0, 0], steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!rows || !world.here || event.ctrlKey || event.metaKey) return;
  if (steps[event.key]) {
    event.preventDefault();
    const at = world.cursor ?? -1, r = Math.max(0, Math.floor(at / columns)), c = Math.max(0, at % columns), [down, across] = at < 0 ? [0, 0] : steps[event.key];
    point(Math.min(Math.max(r + down, 0), rows - 1) * columns + Math.min(Math.max(c + across, 0), columns - 1));
    if (event.shiftKey) toggle(true);
    tell();
  } else if (event.key === " " || event.key === "Enter") {
    event.preventDefault();
    if (world.cursor === null) point(0);
    toggle(false);
    tell();
  }
}

function toggle(always) {
  const next = new Set(state.removed);
  if (next.has(world.cursor) && !always) next.delete(world.cursor); else next.add(world.cursor);
  if (next.size !== state.removed.size) remove(next);
}

function tell() {
  const columns = world.facts.grid[1], map = lead()?.map, at = world.cursor;
  const score = map ? `, score ${written(map.scores[at] ?? NaN, map.scale)}` : "";
  $("cursor-says").textContent = `Row ${Math.floor(at / columns) + 1}, column ${(at % columns) + 1}${score}${state.removed.has(at) ? ", removed" : ""}`;
}

// ── the prediction ──────────────────────────────────────────────────────────────────────────────

let quiet;

function bars() {
  if (!world.base) return;
  const now = world.said ?? world.base, best = now.top[0], gone = state.removed.size;
  const shown = [...new Set([...state.classes, ...world.base.top.map((one) => one.index), best.index])];
  shown.sort((a, b) => world.base.probabilities[b] - world.base.probabilities[a]);
  const changed = best.index !== world.base.top[0].index;
  $("says-lead").textContent = gone ? `Without ${plural(gone, "patch")} it ${changed ? "now" : "still"} predicts` : "The model predicts";
  $("says-name").textContent = best.name;
  $("says-share").textContent = percent(best.probability);
  const rows = new Map([...$("bars").children].map((row) => [Number(row.dataset.index), row]));
  fill($("bars"), ...shown.map((index) => row(rows.get(index), index, now, best.index)));
  clearTimeout(quiet);
  quiet = setTimeout(() => {
    const chosen = state.classes.map((index) => `${className(index)} ${percent(now.probabilities[index])}`).join(", ");
    $("says-live").textContent = `${gone ? `Without ${gone} of ${patches()} patches: ` : ""}it predicts ${best.name}, ${percent(best.probability)}. ${chosen}.`;
  }, 500);
}

function row(node, index, now, best) {
  const chosen = state.classes.indexOf(index), share = now.probabilities[index] ?? 0, before = world.base.probabilities[index] ?? 0;
  if (!node) {
    node = el("button", { type: "button", class: "row", "data-index": index, onclick: () => choose(index) },
      el("span", { class: "tick" }), el("span", { class: "name" }, className(index)),
      el("span", { class: "track" }, el("span", { class: "ghost" }), el("span", { class: "full" })), el("span", { class: "share" }));
  }
  node.setAttribute("aria-pressed", String(chosen >= 0));
  node.title = chosen >= 0 ? "this class is explained" : "explain this class";
  node.classList.toggle("best", index === best);
  node.querySelector(".full").style.width = `${100 * share}%`;
  node.querySelector(".ghost").style.width = `${100 * before}%`;
  node.querySelector(".share").textContent = percent(now.probabilities[index]);
  return node;
}

// One or two classes; a third replaces the second.
export function choose(index) {
  const { classes } = state;
  if (classes.includes(index)) {
    if (classes.length === 1) return;
    state.classes = classes.filter((one) => one !== index);
  } else state.classes = [classes[0], index].slice(0, 2);
  emit("classes");
  emit("ask");
}
