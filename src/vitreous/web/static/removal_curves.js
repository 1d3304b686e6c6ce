// Two maps compared: the prediction while the patches that each ranks highest are removed, or alone are kept.

import { $, create, createSvg, fill, fillSwitch, setPressed } from "./elements.js";
import { formatPercent } from "./formatting.js";
import { ImageView } from "./image_view.js";
import { countPatches, data, emit, getClassName, listen, state } from "./page_state.js";

const MODES = { deletion: "Remove the highest", insertion: "Keep only the highest" };
const SHARES = [0, 0.25, 0.5, 0.75, 1]; // ticks of both axes
const HEIGHT = 250, LEFT = 46, RIGHT = 22, TOP = 12, BOTTOM = 34; // of the chart, and its margins
let chartWidth = 560;
let timer = null; // while the slider moves by itself
const panels = []; // {view, select, caption} of both methods

export function start() {
  fillSwitch($("curve-mode"), MODES, state.curveMode, (mode) => { state.curveMode = mode; state.curveStep = 0; stop(); emit("curves"); emit("link"); });
  $("patch-share").oninput = () => { stop(); state.curveStep = Number($("patch-share").value); drawStep(); emit("link"); };
  $("play").onclick = () => (timer ? stop() : play());
  for (const side of [0, 1]) {
    const view = new ImageView(280), select = create("select", { "aria-label": side ? "Second method" : "First method" });
    select.onchange = () => { state.comparedMethods[side] = Number(select.value); emit("request-maps"); emit("curves"); };
    const caption = create("p", { class: "compared-probability" });
    panels.push({ view, select, caption });
    $("compared-methods").append(create("div", { class: `side-${side}` }, create("div", { class: "compared-method" }, create("span", { class: "swatch" }), select), view.node, caption));
  }
  listen("loaded curves methods classes maps", draw);
  addEventListener("resize", () => data.isReady && draw());
}

// Curves of both methods for the first class; null while they are computed.
const listCurves = () => state.comparedMethods.map((index) => data.curves.get(state.methods[index])).map((curve) => (curve?.target === state.classes[0] ? curve : null));
const getPoints = (curve) => curve?.[state.curveMode] ?? [];

function draw() {
  setPressed($("curve-mode"), state.curveMode);
  panels.forEach(({ select }, side) => {
    fill(select, ...state.methods.map((method, index) => create("option", { value: index, selected: index === state.comparedMethods[side] }, method)));
    select.value = state.comparedMethods[side];
  });
  if (!data.isReady) return;
  const last = Math.max(...listCurves().map((curve) => getPoints(curve).length)) - 1;
  if (last >= 0) { // before curves are computed, the step of a link must stay
    $("patch-share").max = last;
    state.curveStep = Math.min(state.curveStep, last);
  }
  drawChart();
  drawStep();
}

// ── the chosen number of patches ────────────────────────────────────────────────────────────────

function drawStep() {
  const curves = listCurves(), { curveStep } = state;
  $("patch-share").value = curveStep;
  panels.forEach(({ view, caption }, side) => {
    const curve = curves[side], point = getPoints(curve)[curveStep];
    view.drawImage(data.bitmap, data.model.grid);
    view.drawMap(null);
    if (!point) {
      view.drawMarks({ removed: new Set() });
      const error = data.maps.get(state.methods[state.comparedMethods[side]])?.error;
      return fill(caption, create("span", { class: "soft" }, error ?? "computing…"));
    }
    const removed = state.curveMode === "deletion" ? curve.order.slice(0, point.count) : curve.order.slice(point.count);
    view.drawMarks({ removed: new Set(removed) });
    view.node.setAttribute("aria-label", `${MODES[state.curveMode]} by ${curve.method}: ${point.count} patches`);
    fill(caption, create("strong", {}, formatPercent(point.probability)), ` ${getClassName(state.classes[0])}`,
      create("span", { class: "soft" }, `predicted: ${point.top[0].name}`));
  });
  const count = getPoints(curves.find(Boolean))[curveStep]?.count ?? 0, total = countPatches();
  $("patch-share-value").textContent = `${formatPercent(count / total)} · ${count} of ${total} patches`;
  $("patch-share").setAttribute("aria-valuetext", `${count} of ${total} patches`);
  const line = $("chart").querySelector(".step");
  if (line) for (const end of ["x1", "x2"]) line.setAttribute(end, toX(count));
  curves.forEach((curve, side) => {
    const dot = $("chart").querySelector(`.dot-${side}`), point = getPoints(curve)[curveStep];
    if (dot && point) { dot.setAttribute("cx", toX(point.count)); dot.setAttribute("cy", toY(point.probability)); }
  });
}

function play() {
  const last = Number($("patch-share").max), reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (state.curveStep >= last || reducedMotion) state.curveStep = reducedMotion ? last : 0;
  if (reducedMotion) return drawStep();
  $("play").textContent = "Pause";
  timer = setInterval(() => {
    if (!data.isReady) return stop(); // another image was chosen
    state.curveStep += 1;
    drawStep();
    if (state.curveStep >= last) stop();
  }, 110);
}

function stop() {
  clearInterval(timer);
  timer = null;
  $("play").textContent = "Play";
}

// ── the chart ───────────────────────────────────────────────────────────────────────────────────

const toX = (count) => LEFT + (count / Math.max(countPatches(), 1)) * (chartWidth - LEFT - RIGHT);
const toY = (probability) => TOP + (1 - (probability ?? 0)) * (HEIGHT - TOP - BOTTOM);
const createText = (x, y, anchor, text) => createSvg("text", { x, y, "text-anchor": anchor }, text);

function drawChart() {
  chartWidth = Math.min(Math.max($("chart").clientWidth || 560, 280), 720);
  const curves = listCurves(), isSameMethod = state.comparedMethods[0] === state.comparedMethods[1];
  const chart = createSvg("svg", { viewBox: `0 0 ${chartWidth} ${HEIGHT}`, role: "img", "aria-label": `Probability of ${getClassName(state.classes[0])} against the share of patches` });
  for (const share of SHARES) {
    chart.append(createSvg("line", { class: "grid-line", x1: LEFT, x2: chartWidth - RIGHT, y1: toY(share), y2: toY(share) }), createText(LEFT - 7, toY(share) + 4, "end", `${100 * share} %`));
  }
  for (const share of SHARES) chart.append(createText(toX(share * countPatches()), HEIGHT - BOTTOM + 17, "middle", `${100 * share} %`));
  chart.append(createText((LEFT + chartWidth - RIGHT) / 2, HEIGHT - 3, "middle", state.curveMode === "deletion" ? "patches removed, highest first" : "patches kept, highest first"));
  chart.append(createSvg("line", { class: "step", x1: LEFT, x2: LEFT, y1: TOP, y2: HEIGHT - BOTTOM }));
  curves.forEach((curve, side) => {
    if (!curve || (isSameMethod && side)) return;
    const points = getPoints(curve).map(({ count, probability }) => `${toX(count).toFixed(1)},${toY(probability).toFixed(1)}`).join(" ");
    chart.append(createSvg("polyline", { class: `line-${side}`, points }), createSvg("circle", { class: `dot-${side}`, r: 5, cx: LEFT, cy: TOP }));
  });
  fill($("chart"), chart);
  fill($("comparison"), isSameMethod || curves.some((curve) => !curve) ? null : createComparison(curves));
}

function createComparison(curves) {
  const areas = curves.map((curve) => curve[`${state.curveMode}_area`]), isLowerBetter = state.curveMode === "deletion", names = curves.map((curve) => curve.method);
  const better = (areas[0] < areas[1]) === isLowerBetter ? 0 : 1, difference = Math.abs(areas[0] - areas[1]);
  const numbers = create("span", { class: "soft" }, ` Area under the curve: ${names[0]} ${areas[0].toFixed(3)}, ${names[1]} ${areas[1].toFixed(3)}; ${isLowerBetter ? "lower" : "higher"} is better.`);
  if (difference < 0.01) return create("span", {}, "On this image neither is better.", numbers);
  return create("span", {}, create("code", {}, names[better]), isLowerBetter ? " lowers the probability sooner: " : " raises the probability sooner: ", "on this image it is the more faithful map.", numbers);
}
