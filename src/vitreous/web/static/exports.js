// Exports: an image of all maps, scores, a link, Python.

import { isUpload } from "./album.js";
import { $, create, saveFile } from "./elements.js";
import { showErrorsOf } from "./errors.js";
import { formatExponent, formatPercent, formatScore } from "./formatting.js";
import { drawColours, drawGreyImage, fitSize, listRampColours } from "./map_colours.js";
import { data, getClassName, listen, state, writeLink } from "./page_state.js";
import { abortPrevious, downloadFile, isAborted, postJson } from "./requests.js";

const SCORE_FILES = [["save-json", "json", "vitreous-scores.json"], ["save-tensors", "safetensors", "vitreous-scores.zip"]];
let linkTimer, codeTimer;

// Results that have maps, with the methods that were requested and are shown.
const listResults = () => state.methods.map((method) => data.maps.get(method)).filter((result) => result?.maps);

// Methods are those that were computed, with their number of samples.
const createRequest = () => ({ model: state.model, image: state.image, methods: [...new Set(listResults().map(({ method }) => method))],
  targets: state.classes, question: state.question, removed: [...state.removed] });

export function start() {
  $("save-png").onclick = showErrorsOf(async () => saveFile(await new Promise((resolve) => drawSheet().toBlob(resolve, "image/png")), "vitreous.png"));
  for (const [id, form, name] of SCORE_FILES) {
    $(id).onclick = showErrorsOf(async () => saveFile(await downloadFile(`/api/scores?form=${form}`, createRequest(), abortPrevious(id)), name));
  }
  $("copy-link").onclick = () => copyText("copy-link", location.href, "Copy it from the address bar");
  $("copy-code").onclick = () => copyText("copy-code", $("code").textContent, "Select it below");
  listen("loaded maps removed appearance methods classes link layers", updateLink);
  listen("maps removed methods classes", updateCode);
}

async function copyText(id, text, failure) {
  const label = $(id).textContent;
  try {
    await navigator.clipboard.writeText(text);
    $(id).textContent = "Copied";
  } catch { // no permission, or no HTTPS
    $(id).textContent = failure;
  }
  setTimeout(() => { $(id).textContent = label; }, 1600);
}

function updateLink() {
  if (!data.isReady) return;
  clearTimeout(linkTimer);
  linkTimer = setTimeout(() => data.isReady && history.replaceState(null, "", `#${writeLink()}`), 150);
  $("link-note").textContent = isUpload(state.image)
    ? "The link does not contain your image: it works while this server runs and keeps it. Afterwards drop the same file again to restore everything else."
    : "The link restores everything on the page.";
}

function updateCode() {
  clearTimeout(codeTimer);
  codeTimer = setTimeout(async () => {
    const request = createRequest();
    if (!data.isReady || !state.classes.length || !request.methods.length) return; // another image may have been chosen since
    try {
      $("code").textContent = (await postJson("/api/python", request, abortPrevious("python"))).code;
    } catch (problem) {
      if (!isAborted(problem)) $("code").textContent = `# ${problem.message}`;
    }
  }, 200);
}

// ── all maps in one image ───────────────────────────────────────────────────────────────────────

const SIDE = 300, GAP = 22, HEAD = 78, FOOT = 34, FONT = "system-ui, sans-serif", INK = "#1d2327", SOFT = "#5c6770";

function drawSheet() {
  const results = listResults(), [width, height] = fitSize(data.model.grid, SIDE), rowHeight = height + 92, foot = HEAD + state.classes.length * rowHeight;
  const canvas = create("canvas", { width: 2 * Math.max(GAP + (results.length + 1) * (width + GAP), 640), height: 2 * (foot + FOOT) });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  const [best] = data.prediction.top;
  drawText(context, `${state.model} predicts ${best.name}, ${formatPercent(best.probability)}`, GAP, 34, 20, { bold: true });
  drawText(context, `explained: ${state.question} · red counts for the class, blue against it; unsigned maps go from dark to bright`, GAP, 56, 13);
  state.classes.forEach((target, row) => {
    const top = HEAD + row * rowHeight;
    context.drawImage(data.bitmap, GAP, top, width, height);
    drawText(context, `Why ${getClassName(target)}?`, GAP, top + height + 20, 15, { bold: true, width });
    drawText(context, formatPercent(data.prediction.probabilities[target]), GAP, top + height + 40, 13);
    results.forEach(({ method, partial, maps }, column) => {
      const map = maps.find((candidate) => candidate.target === target);
      if (map) drawSheetMap(context, map, partial ? `${method} (partial)` : method, GAP + (column + 1) * (width + GAP), top, [width, height]);
    });
  });
  drawText(context, `vitreous ${data.about.version} · ${isUpload(state.image) ? "own image" : state.image}`, GAP, foot + 16, 12);
  return canvas;
}

function drawText(context, text, x, y, size, { bold = false, width, align = "left" } = {}) {
  context.fillStyle = bold ? INK : SOFT;
  context.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
  context.textAlign = align;
  context.fillText(text, x, y, width);
}

function drawSheetMap(context, { field, scale }, label, x, y, [width, height]) {
  const image = create("canvas"), colours = create("canvas"), opacity = state.opacity / 100;
  drawGreyImage(image, data.bitmap, scale.signed, [2 * width, 2 * height]);
  drawColours(colours, field, scale, [2 * width, 2 * height]);
  context.drawImage(image, x, y, width, height);
  context.globalAlpha = opacity;
  context.drawImage(colours, x, y, width, height);
  context.globalAlpha = 1;
  const bar = context.createLinearGradient(x, 0, x + width, 0), ramp = listRampColours(scale, opacity);
  ramp.forEach((colour, i) => bar.addColorStop(i / (ramp.length - 1), colour));
  context.fillStyle = bar;
  context.fillRect(x, y + height + 6, width, 8);
  drawText(context, formatScore(scale.low, scale), x, y + height + 29, 11);
  drawText(context, formatScore(scale.signed ? 0 : (scale.low + scale.high) / 2, scale), x + width / 2, y + height + 29, 11, { align: "center" });
  drawText(context, formatScore(scale.high, scale), x + width, y + height + 29, 11, { align: "right" });
  drawText(context, formatExponent(scale), x + width, y + height + 43, 11, { align: "right" });
  drawText(context, label, x, y + height + 50, 14, { bold: true, width });
}
