/** The same captions, drawn again and again while the model learns: one picture per epoch, chosen with a slider. */

import { byId, element, wantsStillness } from "./elements.js";
import { fileAddress } from "./hub_files.js";
import { asCount, asDate } from "./numbers.js";

const FOLDER = "progress_reel";
const FRAME_MILLISECONDS = 700;
const LARGEST_SIDE = 4096; // pixels of what may stand at the top

const reel = { hub: "", run: "", pictures: [], prompts: [], timer: 0 };

/** Connect the slider, the button and the picture's own events. */
export function prepareReel() {
  prepareHero();
  byId("reel-epoch").addEventListener("input", () => {
    stop();
    draw();
  });
  byId("reel-play").addEventListener("click", () => (reel.timer ? stop() : play()));
  byId("reel-picture").addEventListener("error", () => {
    byId("reel-problem").textContent = "This picture cannot be loaded from the Hub.";
  });
  byId("reel-picture").addEventListener("load", () => {
    byId("reel-problem").textContent = "";
    if (reel.timer) reel.timer = setTimeout(next, FRAME_MILLISECONDS);
  });
}

/** The drawn swarm stays until a picture of the run can be shown. */
function prepareHero() {
  const picture = byId("hero-drawn-picture");
  const isShown = (yes) => {
    byId("hero-drawn").hidden = !yes;
    byId("hero-picture").toggleAttribute("hidden", yes);
  };
  picture.addEventListener("load", () => isShown(Math.max(picture.naturalWidth, picture.naturalHeight) <= LARGEST_SIDE));
  picture.addEventListener("error", () => isShown(false));
}

/** Show a reel; one without pictures stays hidden. */
export function showReel(hub, run, { pictures, prompts }) {
  const isNew = pictures.at(-1)?.epoch !== reel.pictures.at(-1)?.epoch;
  Object.assign(reel, { hub, run, pictures, prompts });
  byId("reel").hidden = pictures.length === 0;
  if (!pictures.length || !isNew) return;
  const slider = byId("reel-epoch");
  slider.max = pictures.length - 1;
  slider.value = pictures.length - 1;
  slider.disabled = byId("reel-play").disabled = pictures.length === 1;
  for (const list of ["reel-prompts", "hero-drawn-prompts"]) {
    byId(list).replaceChildren(...prompts.map((prompt) => element("li", { textContent: prompt })));
  }
  show(byId("hero-drawn-picture"), pictures.at(-1));
  byId("hero-drawn-words").textContent = `Drawn by the model after epoch ${asCount(pictures.at(-1).epoch)}, a row for each caption:`;
  draw();
}

function draw() {
  const one = reel.pictures[Number(byId("reel-epoch").value)];
  show(byId("reel-picture"), one);
  const label = `epoch ${asCount(one.epoch)}`;
  byId("reel-epoch-value").textContent = one.time ? `${label} · ${asDate(one.time)}` : label;
  byId("reel-epoch").setAttribute("aria-valuetext", label);
}

function show(picture, one) {
  picture.src = fileAddress(reel.hub, reel.run, `${FOLDER}/${one.file}`);
  if (one.width && one.height) Object.assign(picture, { width: one.width, height: one.height });
  picture.alt = `What the model drew after epoch ${one.epoch} for: ${reel.prompts.join("; ")}`;
}

function play() {
  const slider = byId("reel-epoch");
  if (slider.value === slider.max) slider.value = 0;
  byId("reel-play").textContent = "Pause";
  reel.timer = setTimeout(next, wantsStillness() ? 2 * FRAME_MILLISECONDS : 0);
  draw();
}

function next() {
  const slider = byId("reel-epoch");
  if (slider.value === slider.max) return stop();
  slider.value = Number(slider.value) + 1;
  return draw();
}

function stop() {
  clearTimeout(reel.timer);
  reel.timer = 0;
  byId("reel-play").textContent = "Play";
}
