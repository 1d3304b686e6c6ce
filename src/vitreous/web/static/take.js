// Exports: an image, scores, a link, Python.

import { $, number, percent, save, unit } from "./dom.js";
import { ask, left, only } from "./net.js";
import { overlay, ramp, sizeFor, toned } from "./paint.js";
import { className, found, on, patches, state, world, written as fragment } from "./state.js";

const computed = (method) => found(method)?.maps && found(method).method; // what is shown, with its number of samples

const screen = () => ({ model: state.model, image: state.image, methods: [...new Set(state.methods.map(computed).filter(Boolean))],
  targets: state.classes, question: state.question, removed: [...state.removed] });

export function start(trouble) {
  const guarded = (work) => () => Promise.resolve(work()).catch((problem) => left(problem) || trouble(problem.message));
  $("save-png").onclick = guarded(async () => save(await new Promise((done) => sheet().toBlob(done, "image/png")), "vitreous.png"));
  for (const [id, form, name] of [["save-json", "json", "vitreous-scores.json"], ["save-tensors", "safetensors", "vitreous-scores.zip"]]) {
    $(id).onclick = guarded(async () => save(await (await ask(`/api/scores?form=${form}`, screen(), only(id), true)).blob(), name));
  }
  $("copy-link").onclick = guarded(() => copy("copy-link", location.href));
  $("copy-code").onclick = guarded(() => copy("copy-code", $("code").textContent));
  on("subject maps removed look methods classes link film", link);
  on("maps removed methods classes", code);
}

async function copy(id, text) {
  const words = $(id).textContent;
  try {
    await navigator.clipboard.writeText(text);
    $(id).textContent = "Copied";
  } catch {
    $(id).textContent = id === "copy-link" ? "Copy it from the address bar" : "Select it below";
  }
  setTimeout(() => { $(id).textContent = words; }, 1600);
}

let later;

function link() {
  if (!world.here) return;
  clearTimeout(later);
  later = setTimeout(() => world.here && history.replaceState(null, "", `#${fragment(patches())}`), 150);
  $("link-note").textContent = /^[0-9a-f]{64}$/.test(state.image)
    ? "The link does not contain your image: it works while this server runs and keeps it. Afterwards drop the same file again to restore everything else."
    : "The link restores everything on the page.";
}

let writing;

function code() {
  clearTimeout(writing);
  writing = setTimeout(async () => {
    if (!world.here || !state.classes.length || !screen().methods.length) return; // another image may have been chosen since
    try {
      $("code").textContent = (await ask("/api/python", screen(), only("python"))).code;
    } catch (problem) {
      if (!left(problem)) $("code").textContent = `# ${problem.message}`;
    }
  }, 200);
}

// ── the maps on one sheet ───────────────────────────────────────────────────────────────────────

const SIDE = 300, GAP = 22, FONT = "system-ui, sans-serif";

export function sheet() {
  const methods = state.methods.filter((m) => found(m)?.maps), rows = state.classes.length, grid = world.facts.grid;
  const [wide, high] = sizeFor(grid, SIDE), step = high + 92, canvas = document.createElement("canvas");
  canvas.width = 2 * Math.max(GAP + (methods.length + 1) * (wide + GAP), 640);
  canvas.height = 2 * (78 + rows * step + 34);
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const write = (words, x, y, size, colour = "#1d2327", weight = "400", width = undefined) => {
    pen.fillStyle = colour;
    pen.font = `${weight} ${size}px ${FONT}`;
    pen.fillText(words, x, y, width);
  };
  const best = world.base.top[0];
  write(`${state.model} predicts ${best.name}, ${percent(best.probability)}`, GAP, 34, 20, "#1d2327", "600");
  write(`explained: ${state.question} · red counts for the class, blue against it; unsigned maps go from dark to bright`, GAP, 56, 13, "#5c6770");
  state.classes.forEach((target, row) => {
    const top = 78 + row * step;
    pen.drawImage(world.image, GAP, top, wide, high);
    write(`Why ${className(target)}?`, GAP, top + high + 20, 15, "#1d2327", "600", wide);
    write(percent(world.base.probabilities[target]), GAP, top + high + 40, 13, "#5c6770");
    methods.forEach((method, column) => {
      const map = found(method).maps.find((one) => one.target === target);
      if (map) tile(pen, map, label(found(method)), GAP + (column + 1) * (wide + GAP), top, [wide, high], write);
    });
  });
  write(`vitreous ${world.about.version} · ${state.image.length === 64 ? "own image" : state.image}`, GAP, 78 + rows * step + 16, 12, "#5c6770");
  return canvas;
}

const label = ({ method, partial }) => (partial ? `${method} (partial)` : method);

function tile(pen, map, method, x, y, [wide, high], write) {
  const base = document.createElement("canvas"), over = document.createElement("canvas");
  toned(base, world.image, map.scale.signed, [2 * wide, 2 * high]);
  overlay(over, map.field, map.scale, [2 * wide, 2 * high]);
  pen.drawImage(base, x, y, wide, high);
  pen.globalAlpha = state.opacity / 100;
  pen.drawImage(over, x, y, wide, high);
  pen.globalAlpha = 1;
  const band = pen.createLinearGradient(x, 0, x + wide, 0), stops = ramp(map.scale, state.opacity / 100);
  stops.forEach((colour, i) => band.addColorStop(i / (stops.length - 1), colour));
  pen.fillStyle = band;
  pen.fillRect(x, y + high + 6, wide, 8);
  const { scale } = map, middle = scale.signed ? 0 : (scale.low + scale.high) / 2;
  [[scale.low, "left", x], [middle, "center", x + wide / 2], [scale.high, "right", x + wide]].forEach(([value, align, at]) => {
    pen.textAlign = align;
    write(number(value, scale), at, y + high + 29, 11, "#5c6770");
  });
  pen.textAlign = "left";
  if (unit(scale)) { pen.textAlign = "right"; write(unit(scale), x + wide, y + high + 43, 11, "#5c6770"); pen.textAlign = "left"; }
  write(method, x, y + high + 50, 14, "#1d2327", "600", wide);
}
