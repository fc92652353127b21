/** Honest and hostile gradients in a plane, their mean, and their aggregate by CenteredClip. */

import { bindSlider, byId, drawing } from "./elements.js";
import { asFigure } from "./numbers.js";
import { aggregate, distance, mean } from "./robust_aggregation.js";

const NUM_HONEST = 12;
const TRUE_GRADIENT = [3, 1.4]; // in units of an honest peer's noise
const VIEW = { width: 560, height: 404, unit: 26, origin: [202, 238] };
const FARTHEST = 7.5;
const PAPERS_RULE = { tauRatio: 2, maxNormRatio: 4, numClippingIterations: 100 };

const hostile = { number: 3, strength: 7, degrees: 140 };
let rule = PAPERS_RULE;

/** Connect the sliders, and let the hostile peers be dragged. */
export function prepareOutlierPlot() {
  const choose = (name) => (value) => {
    hostile[name] = value;
    draw();
  };
  bindSlider("hostile-number", (value) => `${value} of ${NUM_HONEST + value}`, choose("number"));
  const strength = bindSlider("hostile-strength", (value) => `${asFigure(value)}× one peer’s noise`, choose("strength"));
  const direction = bindSlider("hostile-direction", (value) => `${value}°`, choose("degrees"));
  const picture = byId("outlier-plot");
  picture.setAttribute("viewBox", `0 0 ${VIEW.width} ${VIEW.height}`);
  const drag = (event) => {
    if (event.buttons !== 1) return;
    const box = picture.getBoundingClientRect();
    const scale = VIEW.width / box.width;
    const [x, y] = offsetAt((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    byId("hostile-strength").value = Math.min(FARTHEST, Math.hypot(x, y));
    byId("hostile-direction").value = Math.round(((Math.atan2(y, x) * 180) / Math.PI + 360) % 360);
    strength();
    direction();
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);
}

/** Use the settings of a run. */
export function showOutlierPlot(run) {
  rule = {
    tauRatio: run.tauRatio ?? PAPERS_RULE.tauRatio,
    maxNormRatio: run.maxNormRatio ?? PAPERS_RULE.maxNormRatio,
    numClippingIterations: run.numClippingIterations ?? PAPERS_RULE.numClippingIterations,
  };
  const names = { centered_clip: "CenteredClip", mean: "the mean of vectors with bounded norms", coordinate_median: "the coordinate median" };
  byId("aggregation-rule").textContent = names[run.aggregationRule] ? `This run uses ${names[run.aggregationRule]}.` : "";
  draw();
}

function draw() {
  const honest = cloud(NUM_HONEST, TRUE_GRADIENT, 1, 7);
  const angle = (hostile.degrees * Math.PI) / 180;
  const aim = [Math.cos(angle), Math.sin(angle)].map((part, axis) => TRUE_GRADIENT[axis] + hostile.strength * part);
  const enemies = cloud(hostile.number, aim, 0.2, 3);
  const all = [...honest, ...enemies];
  const goal = mean(honest);
  const plain = mean(all);
  const { values: robust, excess } = aggregate(all, rule);
  byId("outlier-plot").replaceChildren(
    ...axes(),
    ...honest.map((point) => dot(point, "honest")),
    ...enemies.map((point, index) => dot(point, excess[NUM_HONEST + index] > 2 ? "hostile left-out" : "hostile")),
    arrow(goal, "goal"),
    arrow(plain, "mean"),
    arrow(robust, "robust"),
  );
  const [off, mended] = [distance(plain, goal), distance(robust, goal)];
  byId("outlier-mean").textContent = `${asFigure(Number(off.toFixed(2)))}× one peer’s noise`;
  byId("outlier-robust").textContent = `${asFigure(Number(mended.toFixed(2)))}× one peer’s noise`;
  byId("outlier-verdict").textContent = verdict(excess.slice(NUM_HONEST));
}

function verdict(excess) {
  if (!excess.length) return "Without hostile peers nobody stands out, and the result is exactly the mean.";
  if (excess.length >= NUM_HONEST) return "Half of the peers are hostile: no rule can tell which half is right.";
  const numOut = excess.filter((value) => value > 2).length;
  const numClipped = excess.filter((value) => value > 1 && value <= 2).length;
  if (numOut) return `${numOut} of ${excess.length} hostile peers are so far off that they are left out and named as suspects.`;
  if (numClipped) return `${numClipped} of ${excess.length} hostile peers are clipped: their pull is bounded, however they choose.`;
  return "The hostile peers stay within the usual noise: they are not noticed, and do little harm.";
}

function axes() {
  const [x, y] = at([0, 0]);
  const rings = [3, 6, 9, 12].map((radius) => drawing("circle", { class: "ring", cx: x, cy: y, r: radius * VIEW.unit }));
  return [...rings, drawing("circle", { class: "origin", cx: x, cy: y, r: 3 })];
}

function arrow(to, kind) {
  const [[fromX, fromY], [x, y]] = [at([0, 0]), at(to)];
  const angle = Math.atan2(y - fromY, x - fromX);
  const side = (turn) => `${(x - 11 * Math.cos(angle + turn)).toFixed(1)} ${(y - 11 * Math.sin(angle + turn)).toFixed(1)}`;
  const d = `M${fromX} ${fromY}L${x} ${y}M${side(0.42)}L${x} ${y}L${side(-0.42)}`;
  return drawing("path", { class: `arrow ${kind}`, d });
}

function dot(point, kind) {
  const [cx, cy] = at(point);
  return drawing("circle", { class: `peer ${kind}`, cx, cy, r: 5.5 });
}

function at([x, y]) {
  return [VIEW.origin[0] + x * VIEW.unit, VIEW.origin[1] - y * VIEW.unit];
}

function offsetAt(x, y) {
  return [(x - VIEW.origin[0]) / VIEW.unit - TRUE_GRADIENT[0], (VIEW.origin[1] - y) / VIEW.unit - TRUE_GRADIENT[1]];
}

/** Return points around a centre, the same ones each time: normal noise from a small generator. */
function cloud(number, centre, noise, seed) {
  let state = seed;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 4294967296;
  };
  return Array.from({ length: number }, () => {
    const radius = noise * Math.sqrt(-2 * Math.log(uniform()));
    const turn = 2 * Math.PI * uniform();
    return [centre[0] + radius * Math.cos(turn), centre[1] + radius * Math.sin(turn)];
  });
}
