// Numbers as text.

export function formatPercent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.001) return "<\u00a00.1\u00a0%";
  if (share < 1 && share > 0.9995) return ">\u00a099.9\u00a0%";
  return `${(100 * share).toFixed(share >= 0.0995 || !share ? 0 : 1)}\u00a0%`;
}

function getExponent(scale) {
  const size = Math.max(Math.abs(scale.low), Math.abs(scale.high));
  return size >= 0.01 && size < 10000 ? 0 : Math.floor(Math.log10(size || 1));
}

// The power of ten by which scores of a scale are divided; empty if it is 1.
export function formatExponent(scale) {
  const exponent = getExponent(scale);
  const raised = [...String(exponent)].map((character) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(character)]).join("");
  return exponent ? ` × 10${raised}` : "";
}

// A score divided by the scale's power of ten, with as many digits as the scale resolves.
export function formatScore(value, scale) {
  if (value === null || Number.isNaN(value)) return "undefined";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const power = 10 ** getExponent(scale);
  const digits = Math.max(2 - Math.floor(Math.log10((scale.high - scale.low) / power)), 0);
  let text = (value / power).toFixed(Math.min(digits, 8));
  if (text.includes(".")) text = text.replace(/0+$/, "").replace(/\.$/, "");
  if (text === "-0") text = "0";
  return text.replace("-", "−");
}

export function formatFullScore(value, scale) {
  const text = formatScore(value, scale);
  return Number.isFinite(value) && text !== "0" ? text + formatExponent(scale) : text;
}

export const formatDigits = (value, digits) => value.toPrecision(digits).replace("-", "−");

export const formatCount = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
