// An image with a map over it, the outline of known evidence, and marks: removed patches, a contour, the patch under the cursor.

import { create } from "./elements.js";
import { drawColours, drawGreyImage, fitSize } from "./map_colours.js";

const MARGIN = 0.06; // of a patch, around a removed one
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// The patch that an arrow key moves to, the first one from no patch; null for other keys.
export function movePatch(key, patch, [rows, columns]) {
  if (!ARROWS[key]) return null;
  if (patch === null) return 0;
  const [down, across] = ARROWS[key], row = Math.floor(patch / columns) + down, column = (patch % columns) + across;
  return Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1);
}

export class ImageView {
  constructor(side, label) {
    this.side = side;
    this.baseCanvas = create("canvas");
    this.mapCanvas = create("canvas", { class: "map" });
    this.markCanvas = create("canvas", { class: "marks" });
    this.evidence = create("img", { class: "evidence", alt: "", hidden: true });
    this.node = create("div", { class: "image-view", role: "img", "aria-label": label ?? "" }, this.baseCanvas, this.mapCanvas, this.evidence, this.markCanvas);
    this.removed = new Set();
    this.contour = new Set();
    this.cursor = null;
  }

  // `signed`: whether the colours over the image are; null: show the image in its original colours.
  drawImage(bitmap, grid, signed = null) {
    if (this.bitmap === bitmap && this.signed === signed) return;
    Object.assign(this, { bitmap, grid, signed, size: fitSize(grid, this.side) });
    if (signed === null) {
      [this.baseCanvas.width, this.baseCanvas.height] = this.size;
      this.baseCanvas.getContext("2d", { willReadFrequently: true }).drawImage(bitmap, 0, 0, ...this.size);
    } else drawGreyImage(this.baseCanvas, bitmap, signed, this.size);
    this.node.style.aspectRatio = `${grid[1]} / ${grid[0]}`;
  }

  // No field: hide the map.
  drawMap(field, scale) {
    this.mapCanvas.hidden = !field;
    if (field) drawColours(this.mapCanvas, field, scale, fitSize(this.grid, Math.min(this.side, 320)));
  }

  setOpacity(opacity) {
    this.mapCanvas.style.opacity = opacity;
  }

  showEvidence(address) {
    this.evidence.hidden = !address;
    if (address && this.evidence.getAttribute("src") !== address) this.evidence.src = address;
  }

  drawMarks({ removed = this.removed, contour = this.contour, cursor = this.cursor } = {}) {
    Object.assign(this, { removed, contour, cursor });
    const ratio = Math.min(window.devicePixelRatio || 1, 2), [width, height] = this.size.map((length) => Math.round(length * ratio));
    if (this.markCanvas.width !== width) [this.markCanvas.width, this.markCanvas.height] = [width, height];
    const context = this.markCanvas.getContext("2d"), [rows, columns] = this.grid, w = width / columns, h = height / rows;
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const getCorner = (patch) => [(patch % columns) * w, Math.floor(patch / columns) * h];
    context.fillStyle = style.getPropertyValue("--removed");
    for (const patch of removed) context.fillRect(...getCorner(patch), w + 0.6, h + 0.6);
    context.strokeStyle = style.getPropertyValue("--removed-line");
    context.lineWidth = Math.max(ratio * 0.7, 0.7);
    for (const patch of removed) { const [x, y] = getCorner(patch); context.strokeRect(x + w * MARGIN, y + h * MARGIN, w * (1 - 2 * MARGIN), h * (1 - 2 * MARGIN)); }
    if (contour.size) this.drawContour(context, contour, w, h, ratio);
    if (cursor !== null) {
      for (const [colour, lineWidth] of [["#fff", 4], ["#111", 1.8]]) {
        context.strokeStyle = colour;
        context.lineWidth = lineWidth * ratio;
        context.strokeRect(...getCorner(cursor), w, h);
      }
    }
  }

  // The line around a set of patches.
  drawContour(context, patches, w, h, ratio) {
    const [rows, columns] = this.grid;
    const isInside = (row, column) => row >= 0 && column >= 0 && row < rows && column < columns && patches.has(row * columns + column);
    const path = new Path2D();
    for (const patch of patches) {
      const row = Math.floor(patch / columns), column = patch % columns, x = column * w, y = row * h;
      for (const [inside, x0, y0, x1, y1] of [[isInside(row - 1, column), x, y, x + w, y], [isInside(row + 1, column), x, y + h, x + w, y + h],
        [isInside(row, column - 1), x, y, x, y + h], [isInside(row, column + 1), x + w, y, x + w, y + h]]) {
        if (!inside) { path.moveTo(x0, y0); path.lineTo(x1, y1); }
      }
    }
    context.lineCap = "round";
    for (const [colour, lineWidth] of [["rgb(255 255 255 / .95)", 5], ["#111", 2.2]]) {
      context.strokeStyle = colour;
      context.lineWidth = lineWidth * ratio;
      context.stroke(path);
    }
  }

  // The patch under a pointer, or null outside the image.
  findPatch(event) {
    const box = this.node.getBoundingClientRect(), [rows, columns] = this.grid;
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns), row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return row < 0 || column < 0 || row >= rows || column >= columns ? null : row * columns + column;
  }
}
