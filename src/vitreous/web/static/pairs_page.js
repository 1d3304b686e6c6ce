// The page of pairs: two inputs, their similarity, both maps, and the partners of the part under the pointer.

import { fillAlbum, isUpload, markChosen } from "./album.js";
import { $, create, fill, fillSwitch, setPressed } from "./elements.js";
import { showError, showErrorsOf } from "./errors.js";
import { formatDigits, formatFullScore } from "./formatting.js";
import { ImageView, movePatch } from "./image_view.js";
import { createLegend } from "./legend.js";
import { fitScale, readField, setColourTables } from "./map_colours.js";
import { abortPrevious, getJson, getModelInput, postJson, uploadImage } from "./requests.js";

const SIDES = ["first", "second"];
const MENUS = ["model", "method", "similarity"];
const OPACITY = 0.85;
const NO_CURSOR = { first: null, second: null };
const choice = { model: "scenes", method: "decompx", similarity: "cosine", kind: "image", first: "pair-1-6", second: "pair-1-4", text: "" };
const views = { first: new ImageView(460, "The first image as the model sees it"), second: new ImageView(460, "The second image as the model sees it") };
const uploads = {};
let offer = null, pair = null, bitmaps = {};
let pinned = null; // [side, index, partner] selected by a click; the partner is null unless a pair was clicked
let cursor = NO_CURSOR; // index of the part under the pointer, by side

// ── the request ─────────────────────────────────────────────────────────────────────────────────

const isText = () => choice.kind === "text";

const explain = showErrorsOf(async () => {
  const signal = abortPrevious("pair"), { model, method, similarity, text } = choice;
  showError("");
  writeLink();
  markChoices();
  document.body.classList.add("loading"); // what is still shown belongs to other choices
  const lacksText = isText() && !text.trim();
  $("status").hidden = lacksText;
  if (lacksText) return;
  $("status").textContent = "Computing…";
  try {
    const body = { model, image: choice.first, method, similarity, ...(isText() ? { text } : { other: choice.second }) };
    const [result, first, second] = await Promise.all([postJson("/api/pairs/explain", body, signal),
      getModelInput(model, choice.first, signal), isText() ? null : getModelInput(model, choice.second, signal)]);
    pair = result;
    bitmaps = { first, second };
    pinned = null;
    cursor = NO_CURSOR;
    draw();
    showLinkedUploads();
    document.body.classList.remove("loading");
  } finally {
    if (!signal.aborted) $("status").hidden = true;
  }
});

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────

// Shares of the parts of one side: its map, or its shares with one part of the other side.
function getShares(side, partner = null) {
  if (partner === null) return pair[side].scores;
  return side === "second" ? pair.matrix[partner] : pair.matrix.map((row) => row[partner]);
}

function describePart(side, index) {
  const { words, grid } = pair[side];
  return words ? `“${words[index]}”` : `row ${Math.floor(index / grid[1]) + 1}, column ${(index % grid[1]) + 1}`;
}

function draw() {
  const { kind, similarity, second: { words } } = pair;
  $("result-kind").textContent = kind === "dot" ? "Dot product" : "Cosine";
  $("result-value").textContent = similarity === null ? "undefined" : formatDigits(similarity, 3);
  $("help-word").hidden = !words;
  $("second-image").hidden = Boolean(words);
  $("words").hidden = !words;
  if (words) fill($("words"), ...words.map((word, index) => create("button", { type: "button", class: "word", "data-index": index,
    onmouseenter: () => setCursor("second", index), onmouseleave: () => setCursor("second", null),
    onfocus: () => setCursor("second", index), onblur: () => setCursor("second", null), onclick: () => togglePin("second", index) }, word)));
  drawStrongestPairs();
  drawSides();
}

// Both maps, or the partners of the selected part on the other side.
function drawSides() {
  const [selectedSide, selected, partner = null] = pinned ?? SIDES.map((side) => [side, cursor[side]]).find(([, index]) => index !== null) ?? [null, null];
  for (const side of SIDES) {
    const { words, grid } = pair[side], shares = selectedSide === null ? getShares(side) : side === selectedSide ? null : getShares(side, selected);
    const field = shares && readField({ scores: shares }, grid), scale = field && fitScale([{ field, signed: true }]);
    const marked = side === selectedSide ? selected : cursor[side] ?? partner;
    if (words) drawWords(shares, scale, marked);
    else {
      views[side].drawImage(bitmaps[side], grid, true);
      views[side].drawMap(field, scale);
      views[side].setOpacity(OPACITY);
      views[side].drawMarks({ cursor: marked });
    }
    const labels = selectedSide === null ? ["less similar", "more similar"] : ["takes away", "adds"];
    fill($(`${side}-legend`), scale && createLegend(scale, OPACITY, labels));
  }
  $("partners").textContent = selectedSide === null ? "" : describePartners(selectedSide, selected);
}

function drawWords(shares, scale, marked) {
  for (const button of $("words").children) {
    const index = Number(button.dataset.index), share = shares ? shares[index] / scale.high : 0, strength = Math.min(1, Math.abs(share));
    const toColour = (alpha) => (share === 0 ? "" : `rgb(${share > 0 ? "200 40 50" : "40 90 210"} / ${alpha})`);
    button.style.borderColor = toColour(strength);
    button.style.backgroundColor = toColour(0.4 * strength);
    button.setAttribute("aria-pressed", String(index === marked));
    button.title = shares ? `share ${formatFullScore(shares[index], scale)}` : "";
  }
}

function describePartners(side, index) {
  const otherSide = side === "first" ? "second" : "first", shares = getShares(otherSide, index), best = shares.reduce((top, share, i) => (share > shares[top] ? i : top), 0);
  const total = shares.reduce((sum, share) => sum + share, 0);
  return `${side === "first" ? "First" : "Second"}, ${describePart(side, index)}: its strongest partner is ${describePart(otherSide, best)} (${formatDigits(shares[best], 2)}); all partners together ${formatDigits(total, 2)} of ${formatDigits(pair.similarity, 2)}.`;
}

function drawStrongestPairs() {
  const strongest = pair.matrix.flatMap((row, i) => row.map((share, j) => [share, i, j])).sort((a, b) => b[0] - a[0]).slice(0, 6);
  fill($("strongest"), ...strongest.map(([share, i, j]) => create("button", { type: "button", "data-key": `${i}-${j}`, onclick: () => togglePin("first", i, j) },
    `${describePart("first", i)} ↔ ${describePart("second", j)}: ${formatDigits(share, 2)}`)));
}

// ── pointing ────────────────────────────────────────────────────────────────────────────────────

function setCursor(side, index) {
  if (!pair || cursor[side] === index) return;
  cursor = { ...NO_CURSOR, [side]: index };
  drawSides();
}

function togglePin(...part) {
  pinned = String(pinned) === String(part) ? null : part;
  drawSides();
}

function startSide(side) {
  const node = $(`${side}-image`);
  node.append(views[side].node);
  const findPatch = (event) => (pair && !pair[side].words ? views[side].findPatch(event) : null);
  node.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") setCursor(side, findPatch(event)); });
  node.addEventListener("pointerleave", () => setCursor(side, null));
  node.addEventListener("blur", () => setCursor(side, null));
  node.addEventListener("click", (event) => { const patch = findPatch(event); if (patch !== null) togglePin(side, patch); });
  node.addEventListener("keydown", (event) => {
    if (!pair || event.ctrlKey || event.metaKey) return;
    const patch = movePatch(event.key, cursor[side], pair[side].grid), toggles = event.key === "Enter" || event.key === " ";
    if (patch === null && !toggles) return;
    event.preventDefault();
    if (patch !== null) {
      pinned = null;
      setCursor(side, patch);
    } else if (cursor[side] !== null) togglePin(side, cursor[side]);
  });
  $(`${side}-file`).onchange = () => receiveFile(side, $(`${side}-file`).files[0]);
}

// ── choosing ────────────────────────────────────────────────────────────────────────────────────

function markChoices() {
  for (const side of SIDES) markChosen($(`${side}-album`), choice[side]);
  const hasText = offer?.models.find(({ name }) => name === choice.model)?.text ?? false;
  if (!hasText) choice.kind = "image";
  $("kind-field").hidden = !hasText;
  setPressed($("kind"), choice.kind);
  $("second-album").hidden = $("second-upload").hidden = isText();
  $("text-form").hidden = !isText();
  $("second-label").textContent = isText() ? "Text" : "Second image";
  for (const key of MENUS) $(key).value = choice[key];
}

function choose(key, value) {
  choice[key] = value;
  explain();
}

const loadAlbums = showErrorsOf(async () => {
  const scenes = await getJson("/api/album", { page: 0 });
  for (const side of SIDES) {
    fillAlbum($(`${side}-album`), scenes, uploads[side], (image) => choose(side, image), (image, caption) => `${caption}, ${isUpload(image) ? "uploaded" : image}`);
  }
  markChoices();
});

// Images of a link that were uploaded before the page was opened.
function showLinkedUploads() {
  const sides = SIDES.filter((side) => bitmaps[side] && isUpload(choice[side]) && uploads[side] !== choice[side]);
  for (const side of sides) uploads[side] = choice[side];
  if (sides.length) loadAlbums();
}

const receiveFile = showErrorsOf(async (side, file) => {
  if (!file) return;
  showError("");
  uploads[side] = choice[side] = await uploadImage(file, abortPrevious(`upload-${side}`));
  await loadAlbums();
  explain();
});

// The link that restores the page.
function writeLink() {
  history.replaceState(null, "", `#${new URLSearchParams(choice)}`);
}

function restoreLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(choice)) if (link.has(key)) choice[key] = link.get(key);
}

showErrorsOf(async () => {
  restoreLink();
  for (const side of SIDES) startSide(side);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pair) { pinned = null; cursor = NO_CURSOR; drawSides(); } });
  const about = await getJson("/api/about");
  setColourTables(about.colours);
  offer = await getJson("/api/pairs/about");
  const fillMenu = (key, names) => fill($(key), ...names.map((name) => create("option", { value: name }, name)));
  fillMenu("model", offer.models.map(({ name }) => name));
  fillMenu("method", [...new Set([...offer.methods, choice.method])]);
  fillSwitch($("kind"), { image: "Image", text: "Text" }, choice.kind, (kind) => choose("kind", kind));
  for (const key of MENUS) $(key).onchange = () => choose(key, $(key).value);
  $("text").value = choice.text;
  $("text-form").onsubmit = (event) => { event.preventDefault(); choose("text", $("text").value); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pair && drawSides());
  await loadAlbums();
  await explain();
})();
