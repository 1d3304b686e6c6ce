// An image with a map over it, and marks: removed patches, a contour, the patch under the cursor.

import { el } from "./dom.js";
import { overlay, sizeFor, toned } from "./paint.js";

const GAP = 0.06; // of a patch, around a removed one

export class Pane {
  constructor(side, alt) {
    this.side = side;
    this.base = el("canvas");
    this.over = el("canvas", { class: "over" });
    this.marks = el("canvas", { class: "marks" });
    this.truth = el("img", { class: "truth", alt: "", hidden: true });
    this.node = el("div", { class: "pane", role: "img", "aria-label": alt ?? "" }, this.base, this.over, this.truth, this.marks);
    this.removed = new Set();
    this.contour = new Set();
    this.cursor = null;
  }

  // `signed` null: the image in its own colours.
  show(image, grid, signed = null) {
    if (this.image === image && this.signed === signed) return;
    Object.assign(this, { image, grid, signed, size: sizeFor(grid, this.side) });
    if (signed === null) {
      [this.base.width, this.base.height] = this.size;
      this.base.getContext("2d", { willReadFrequently: true }).drawImage(image, 0, 0, ...this.size);
    } else toned(this.base, image, signed, this.size);
    this.node.style.aspectRatio = `${grid[1]} / ${grid[0]}`;
  }

  map(field, scale) {
    this.over.hidden = !field;
    if (field) overlay(this.over, field, scale, sizeFor(this.grid, Math.min(this.side, 320)));
  }

  outline(address) {
    this.truth.hidden = !address;
    if (address && this.truth.getAttribute("src") !== address) this.truth.src = address;
  }

  mark({ removed = this.removed, contour = this.contour, cursor = this.cursor } = {}) {
    Object.assign(this, { removed, contour, cursor });
    const scale = Math.min(window.devicePixelRatio || 1, 2), [width, height] = this.size.map((s) => Math.round(s * scale));
    if (this.marks.width !== width) [this.marks.width, this.marks.height] = [width, height];
    const pen = this.marks.getContext("2d"), [rows, columns] = this.grid, w = width / columns, h = height / rows;
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const box = (patch) => [(patch % columns) * w, Math.floor(patch / columns) * h];
    pen.fillStyle = style.getPropertyValue("--gone");
    for (const patch of removed) { const [x, y] = box(patch); pen.fillRect(x, y, w + 0.6, h + 0.6); }
    pen.strokeStyle = style.getPropertyValue("--gone-line");
    pen.lineWidth = Math.max(scale * 0.7, 0.7);
    for (const patch of removed) { const [x, y] = box(patch); pen.strokeRect(x + w * GAP, y + h * GAP, w * (1 - 2 * GAP), h * (1 - 2 * GAP)); }
    if (contour.size) this.edge(pen, contour, w, h, scale);
    if (cursor !== null) {
      const [x, y] = box(cursor);
      for (const [colour, thick] of [["#fff", 4], ["#111", 1.8]]) {
        pen.strokeStyle = colour;
        pen.lineWidth = thick * scale;
        pen.strokeRect(x, y, w, h);
      }
    }
  }

  // The line around a set of patches.
  edge(pen, chosen, w, h, scale) {
    const [rows, columns] = this.grid;
    const inside = (r, c) => r >= 0 && c >= 0 && r < rows && c < columns && chosen.has(r * columns + c);
    const path = new Path2D();
    for (const patch of chosen) {
      const r = Math.floor(patch / columns), c = patch % columns, x = c * w, y = r * h;
      for (const [free, x0, y0, x1, y1] of [[!inside(r - 1, c), x, y, x + w, y], [!inside(r + 1, c), x, y + h, x + w, y + h],
        [!inside(r, c - 1), x, y, x, y + h], [!inside(r, c + 1), x + w, y, x + w, y + h]]) {
        if (free) { path.moveTo(x0, y0); path.lineTo(x1, y1); }
      }
    }
    pen.lineCap = "round";
    for (const [colour, thick] of [["rgb(255 255 255 / .95)", 5], ["#111", 2.2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = thick * scale;
      pen.stroke(path);
    }
  }

  // Which patch lies under a pointer.
  under(event) {
    const box = this.node.getBoundingClientRect(), [rows, columns] = this.grid;
    const c = Math.floor(((event.clientX - box.left) / box.width) * columns), r = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return r < 0 || c < 0 || r >= rows || c >= columns ? null : r * columns + c;
  }
}
