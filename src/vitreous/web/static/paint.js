// The library's colours: which colour a score gets, and how much of the image it covers.

let colours;
export const useColours = (given) => { colours = given; };

const FLAT = 1e-6;
const flat = (least, most) => most - least <= FLAT * Math.max(Math.abs(most), Math.abs(least));

// One scale for all these maps; its ends are a high quantile of |score|.
export function scaleOf(maps) {
  const values = maps.flatMap((map) => Array.from(map.field.values)).filter((v) => Number.isFinite(v));
  const signed = maps.some((map) => map.signed) || values.some((v) => v < 0);
  if (!values.length) return { low: signed ? -1 : 0, high: 1, least: NaN, most: NaN, signed, constant: false };
  let least = Infinity, most = -Infinity;
  for (const v of values) { if (v < least) least = v; if (v > most) most = v; }
  const low = signed || flat(least, most) ? 0 : least;
  const sizes = Float64Array.from(signed ? values.map(Math.abs) : values).sort();
  let high = sizes[Math.ceil(colours.quantile * (sizes.length - 1) - 1e-9)];
  if (flat(low, high)) high = sizes[sizes.length - 1];
  if (flat(low, high)) high = low + 1;
  return { low: signed ? -high : low, high, least, most, signed, constant: flat(least, most) };
}

// A map's own values: pixels where the method has them, else patches.
export function fieldOf(map, grid) {
  if (!map.pixels) return { rows: grid[0], columns: grid[1], values: Float64Array.from(map.scores, (v) => v ?? NaN) };
  const bytes = Uint8Array.from(atob(map.pixels.data), (c) => c.charCodeAt(0));
  return { rows: map.pixels.size[0], columns: map.pixels.size[1], values: new Float32Array(bytes.buffer) };
}

const place = (at, length, cells) => Math.min(Math.max(((at + 0.5) / length) * cells - 0.5, 0), cells - 1);

// Score at every pixel; one that is missing takes no part in its neighbours' means.
function spread({ rows, columns, values }, width, height) {
  const out = new Float32Array(width * height);
  const across = Float64Array.from({ length: width }, (_, x) => place(x, width, columns));
  for (let y = 0; y < height; y++) {
    const down = place(y, height, rows), y0 = Math.floor(down), v = down - y0;
    const top = y0 * columns, bottom = Math.min(y0 + 1, rows - 1) * columns, near = Math.round(down) * columns;
    for (let x = 0; x < width; x++) {
      const x0 = Math.floor(across[x]), x1 = Math.min(x0 + 1, columns - 1), u = across[x] - x0;
      const a = values[top + x0], b = values[top + x1], c = values[bottom + x0], d = values[bottom + x1];
      let total = 0, weight = 0; // for every pixel of every map: nothing is allocated here; NaN differs from itself
      if (a === a) { const w = (1 - v) * (1 - u); total += a * w; weight += w; }
      if (b === b) { const w = (1 - v) * u; total += b * w; weight += w; }
      if (c === c) { const w = v * (1 - u); total += c * w; weight += w; }
      if (d === d) { const w = v * u; total += d * w; weight += w; }
      const nearest = values[near + Math.round(across[x])];
      out[y * width + x] = Number.isNaN(nearest) || weight <= 0 ? NaN : total / weight;
    }
  }
  return out;
}

// The colours alone, the more opaque the larger the score; CSS opacity does the rest.
export function overlay(canvas, field, scale, size) {
  canvas.width = size[0];
  canvas.height = size[1];
  const pen = canvas.getContext("2d"), image = pen.createImageData(...size), pixels = image.data;
  const table = scale.signed ? colours.signed : colours.unsigned, values = spread(field, ...size);
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i])) {
      const grey = ((i % size[0]) + Math.floor(i / size[0])) % 8 < 4 ? 90 : 165;
      pixels.set([grey, grey, grey, 255], 4 * i);
      continue;
    }
    const at = Math.min(Math.max((values[i] - scale.low) / (scale.high - scale.low), 0), 1);
    const colour = table[Math.round(255 * at)];
    const strength = scale.signed ? Math.abs(2 * at - 1) ** 0.8 : at;
    pixels[4 * i] = colour[0]; pixels[4 * i + 1] = colour[1]; pixels[4 * i + 2] = colour[2]; pixels[4 * i + 3] = Math.round(255 * strength);
  }
  pen.putImageData(image, 0, 0);
}

// The image, nearly grey, so that colours belong to the map: light under signed colours, dim under others.
export function toned(canvas, bitmap, signed, size) {
  canvas.width = size[0];
  canvas.height = size[1];
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0, ...size);
  const image = pen.getImageData(0, 0, ...size), pixels = image.data;
  for (let i = 0; i < pixels.length; i += 4) {
    const grey = 0.299 * pixels[i] + 0.587 * pixels[i + 1] + 0.114 * pixels[i + 2];
    for (let c = i; c < i + 3; c++) {
      const quiet = 0.2 * pixels[c] + 0.8 * grey;
      pixels[c] = signed ? 0.65 * quiet + 76.5 : 0.68 * quiet;
    }
  }
  pen.putImageData(image, 0, 0);
}

// The scale from end to end, as it looks over an average image.
export function ramp(scale, opacity) {
  const table = scale.signed ? colours.signed : colours.unsigned, base = scale.signed ? 159.4 : 86.7;
  return Array.from({ length: 17 }, (_, i) => {
    const at = i / 16, cover = opacity * (scale.signed ? Math.abs(2 * at - 1) ** 0.8 : at);
    return `rgb(${table[Math.round(255 * at)].map((c) => Math.round(base * (1 - cover) + c * cover)).join(" ")})`;
  });
}

export const sizeFor = (grid, side) => {
  const share = side / Math.max(...grid);
  return [Math.round(grid[1] * share), Math.round(grid[0] * share)];
};
