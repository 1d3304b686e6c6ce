// Thumbnails of images to choose from.

import { create, fill } from "./elements.js";
import { addQuery } from "./requests.js";

export const isUpload = (image) => /^[0-9a-f]{64}$/.test(image); // else the name of a scene

// `upload`: name of an image that is shown first, if any.
export function fillAlbum(album, scenes, upload, choose, createLabel = (image, caption) => caption) {
  const entries = upload ? [{ image: upload, words: "your image" }, ...scenes] : scenes;
  fill(album, ...entries.map(({ image, words: caption }) => create("button", { type: "button", class: "tile", "data-image": image,
    "aria-label": createLabel(image, caption), title: caption, onclick: () => choose(image) },
    create("img", { src: addQuery("/api/thumbnail", { image }), alt: "", width: 84, height: 84 }), create("span", {}, caption))));
}

export function markChosen(album, image) {
  for (const tile of album.children) tile.setAttribute("aria-pressed", String(tile.dataset.image === image));
}
