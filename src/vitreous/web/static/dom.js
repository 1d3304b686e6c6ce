// Small helpers: elements, numbers, words.

export const $ = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && !key.includes("-") && key !== "list") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const label = (node) => node.dataset.key ?? node.dataset.index ?? node.getAttribute("aria-label") ?? node.textContent;

// Replace the content; an element that had the focus keeps it when it is drawn again.
export function fill(node, ...children) {
  const active = document.activeElement, held = active !== node && node.contains(active) ? label(active) : null;
  node.replaceChildren(...children.filter(Boolean));
  if (held === null) return;
  [...node.querySelectorAll("button, input, select")].find((one) => label(one) === held)?.focus({ preventScroll: true });
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.001) return "<\u00a00.1\u00a0%";
  if (share < 1 && share > 0.9995) return ">\u00a099.9\u00a0%";
  return `${(100 * share).toFixed(share >= 0.0995 || !share ? 0 : 1)}\u00a0%`;
}

function exponent(scale) {
  const size = Math.max(Math.abs(scale.low), Math.abs(scale.high));
  return size >= 0.01 && size < 10000 ? 0 : Math.floor(Math.log10(size || 1));
}

// The power of ten that a scale's numbers are written in.
export function unit(scale) {
  const raised = [...String(exponent(scale))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return exponent(scale) ? ` × 10${raised}` : "";
}

// A score in units of its scale's exponent, as fine as the scale is.
export function number(value, scale) {
  if (value === null || Number.isNaN(value)) return "undefined";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const unit = 10 ** exponent(scale);
  const digits = Math.max(2 - Math.floor(Math.log10((scale.high - scale.low) / unit)), 0);
  let text = (value / unit).toFixed(Math.min(digits, 8));
  if (text.includes(".")) text = text.replace(/0+$/, "").replace(/\.$/, "");
  if (text === "-0") text = "0";
  return text.replace("-", "−");
}

export const written = (value, scale) => number(value, scale) + (Number.isFinite(value) && value ? unit(scale) : "");

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

export function segmented(node, options, value, choose) {
  fill(node, ...Object.entries(options).map(([key, words]) =>
    el("button", { type: "button", "aria-pressed": String(key === value), "data-value": key, onclick: () => choose(key) }, words)));
}

export function press(node, value) {
  for (const button of node.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

export function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
