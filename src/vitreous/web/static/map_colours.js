// Colours of scores, as the library chooses them, and how opaque they are over the image.

let tables;
export const setColourTables = (colours) => { tables = colours; };

const FLAT_TOLERANCE = 1e-6;
const isFlat = (least, most) => most - least <= FLAT_TOLERANCE * Math.max(Math.abs(most), Math.abs(least));

// One scale for all these maps; its ends are a high quantile of |score|.
export function fitScale(maps) {
  const values = maps.flatMap((map) => Array.from(map.field.values)).filter((value) => Number.isFinite(value));
  const signed = maps.some((map) => map.signed) || values.some((value) => value < 0);
  if (!values.length) return { low: signed ? -1 : 0, high: 1, signed, constant: false };
  let least = Infinity, most = -Infinity;
  for (const value of values) { if (value < least) least = value; if (value > most) most = value; }
  const low = signed || isFlat(least, most) ? 0 : least;
  const sizes = Float64Array.from(signed ? values.map(Math.abs) : values).sort();
  let high = sizes[Math.ceil(tables.quantile * (sizes.length - 1) - 1e-9)];
  if (isFlat(low, high)) high = sizes[sizes.length - 1];
  if (isFlat(low, high)) high = low + 1;
  return { low: signed ? -high : low, high, signed, constant: isFlat(least, most) };
}

// A map's native values: pixels if the method has them, else patches.
export function readField(map, grid) {
  if (!map.pixels) return { rows: grid[0], columns: grid[1], values: Float64Array.from(map.scores, (score) => score ?? NaN) };
  const bytes = Uint8Array.from(atob(map.pixels.data), (character) => character.charCodeAt(0));
  return { rows: map.pixels.size[0], columns: map.pixels.size[1], values: new Float32Array(bytes.buffer) };
}

const toCell = (pixel, length, cells) => Math.min(Math.max(((pixel + 0.5) / length) * cells - 0.5, 0), cells - 1);

// Bilinear interpolation to pixels; undefined values are left out of the means of their neighbours.
function interpolate({ rows, columns, values }, width, height) {
  const pixels = new Float32Array(width * height);
  const across = Float64Array.from({ length: width }, (_, x) => toCell(x, width, columns));
  for (let y = 0; y < height; y++) {
    const down = toCell(y, height, rows), y0 = Math.floor(down), v = down - y0;
    const top = y0 * columns, bottom = Math.min(y0 + 1, rows - 1) * columns, nearestRow = Math.round(down) * columns;
    for (let x = 0; x < width; x++) {
      const x0 = Math.floor(across[x]), x1 = Math.min(x0 + 1, columns - 1), u = across[x] - x0;
      const a = values[top + x0], b = values[top + x1], c = values[bottom + x0], d = values[bottom + x1];
      let total = 0, weight = 0; // runs for every pixel of every map, so nothing is allocated; NaN differs from itself
      if (a === a) { const w = (1 - v) * (1 - u); total += a * w; weight += w; }
      if (b === b) { const w = (1 - v) * u; total += b * w; weight += w; }
      if (c === c) { const w = v * (1 - u); total += c * w; weight += w; }
      if (d === d) { const w = v * u; total += d * w; weight += w; }
      const nearest = values[nearestRow + Math.round(across[x])];
      pixels[y * width + x] = Number.isNaN(nearest) || weight <= 0 ? NaN : total / weight;
    }
  }
  return pixels;
}

const getTable = (scale) => (scale.signed ? tables.signed : tables.unsigned);
const getStrength = (scale, position) => (scale.signed ? Math.abs(2 * position - 1) ** 0.8 : position);

// The colours, the more opaque the larger the score; the canvas itself gets the chosen opacity by CSS.
export function drawColours(canvas, field, scale, size) {
  [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d"), image = context.createImageData(...size), pixels = image.data;
  const table = getTable(scale), values = interpolate(field, ...size);
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i])) {
      const grey = ((i % size[0]) + Math.floor(i / size[0])) % 8 < 4 ? 90 : 165;
      pixels.set([grey, grey, grey, 255], 4 * i);
      continue;
    }
    const position = Math.min(Math.max((values[i] - scale.low) / (scale.high - scale.low), 0), 1);
    const colour = table[Math.round(255 * position)];
    pixels[4 * i] = colour[0]; pixels[4 * i + 1] = colour[1]; pixels[4 * i + 2] = colour[2]; pixels[4 * i + 3] = Math.round(255 * getStrength(scale, position));
  }
  context.putImageData(image, 0, 0);
}

// The image, nearly grey so that colours belong to the map: light under signed colours, dark under others.
export function drawGreyImage(canvas, bitmap, signed, size) {
  [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0, ...size);
  const image = context.getImageData(0, 0, ...size), pixels = image.data;
  for (let i = 0; i < pixels.length; i += 4) {
    const grey = 0.299 * pixels[i] + 0.587 * pixels[i + 1] + 0.114 * pixels[i + 2];
    for (let c = i; c < i + 3; c++) {
      const muted = 0.2 * pixels[c] + 0.8 * grey;
      pixels[c] = signed ? 0.65 * muted + 76.5 : 0.68 * muted;
    }
  }
  context.putImageData(image, 0, 0);
}

// Colours from the low to the high end of a scale, over an average image.
export function listRampColours(scale, opacity) {
  const table = getTable(scale), background = scale.signed ? 159.4 : 86.7;
  return Array.from({ length: 17 }, (_, i) => {
    const position = i / 16, strength = opacity * getStrength(scale, position);
    return `rgb(${table[Math.round(255 * position)].map((channel) => Math.round(background * (1 - strength) + channel * strength)).join(" ")})`;
  });
}

// Width and height of a canvas for a grid whose longer side has this many pixels.
export const fitSize = (grid, side) => {
  const share = side / Math.max(...grid);
  return [Math.round(grid[1] * share), Math.round(grid[0] * share)];
};
