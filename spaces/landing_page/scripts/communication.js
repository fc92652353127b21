/** The thousandfold budget: what a larger batch, sharing, fewer bits and overlap multiply to, for this run's sizes. */

import { barRow, bindSlider, byId } from "./elements.js";
import { compressionBits, gradientBytes, numParameters } from "./model_sizes.js";
import { asBytes, asCount, asDuration, asFigure, asShort } from "./numbers.js";

const PLAIN_BATCH = 256; // the point of comparison: a batch that one server would choose
const PLAIN_BITS = 32;
const GOAL = 1000; // a cluster's 10 to 100 Gbit/s against a home's 10 to 100 Mbit/s
const LARGEST_POWER = 17;

const chosen = { power: 12, bits: 8, isShared: true, overlaps: true, megabits: 50, speed: 1, numPeers: 2 };
let run = null;
let updates = [];

/** Connect the dials. */
export function prepareCommunication() {
  const choose = (name) => (value) => {
    chosen[name] = value;
    draw();
  };
  updates = [
    bindSlider("budget-batch", (power) => asCount(samplesOf(power)), choose("power")),
    bindSlider("budget-link", (exponent) => `${asFigure(linkOf(exponent))} Mbit/s`, (exponent) => choose("megabits")(linkOf(exponent))),
    bindSlider("budget-speed", (exponent) => `${asFigure(speedOf(exponent))} samples/s`, (exponent) => choose("speed")(speedOf(exponent))),
  ];
  for (const choice of document.querySelectorAll("input[name=bits]")) {
    choice.addEventListener("change", () => choose("bits")(Number(choice.value)));
  }
  byId("budget-sharing").addEventListener("change", (event) => choose("isShared")(event.target.checked));
  byId("budget-overlap").addEventListener("change", (event) => choose("overlaps")(event.target.checked));
}

/** Set the dials to what a run does. */
export function showCommunication(trainingRun, newest) {
  byId("budget").hidden = !trainingRun.sizes || !trainingRun.samplesPerEpoch;
  if (byId("budget").hidden) return;
  const isFirst = run === null;
  run = trainingRun;
  if (isFirst) setDials(newest);
  draw();
}

function setDials(newest) {
  byId("budget-batch").value = Math.min(LARGEST_POWER, Math.max(5, Math.log2(run.samplesPerEpoch)));
  chosen.numPeers = Math.max(2, newest?.num_peers ?? 2);
  if (newest?.samples_per_second > 0) byId("budget-speed").value = Math.log10(newest.samples_per_second);
  byId("budget-speed-source").textContent = newest ? "as measured now" : "an assumption: nothing has been measured yet";
  chosen.bits = compressionBits(run.compression);
  for (const choice of document.querySelectorAll("input[name=bits]")) choice.checked = Number(choice.value) === chosen.bits;
  byId("budget-overlap").checked = chosen.overlaps = run.overlapsAveraging;
  for (const update of updates) update();
}

function draw() {
  if (!run) return;
  const samples = samplesOf(chosen.power);
  const bytes = gradientBytes(run.sizes, chosen.isShared, chosen.bits, run.min8BitElements);
  const perRound = sentBytes(bytes);
  const computing = samples / chosen.speed;
  const sending = (perRound * 8) / (chosen.megabits * 1e6);
  const hidden = chosen.overlaps ? (computing + sending) / Math.max(computing, sending) : 1;
  const factors = [
    ["larger batch", samples / PLAIN_BATCH],
    ["shared layers", chosen.isShared ? numParameters(run.sizes, false) / numParameters(run.sizes) : 1],
    ["fewer bits", gradientBytes(run.sizes, chosen.isShared, PLAIN_BITS, 1) / bytes],
    ["overlap", hidden],
  ];
  const product = factors.reduce((all, [, factor]) => all * factor, 1);
  byId("budget-factors").replaceChildren(...factorRows(factors));
  byId("budget-product").textContent = `${asFigure(product)}×`;
  byId("budget-verdict").textContent = verdict(product);
  const waiting = chosen.overlaps ? Math.max(0, sending - computing) : sending;
  byId("budget-round").textContent =
    `A model of ${asShort(numParameters(run.sizes, chosen.isShared))} parameters and ${asCount(chosen.numPeers)} peers: each ` +
    `sends ${asBytes(perRound)} a round, ${asBytes(perRound / samples)} per sample. That takes ${asDuration(sending)} at ` +
    `${asFigure(chosen.megabits)} Mbit/s; the swarm computes the batch in ${asDuration(computing)}. ` +
    (waiting > 0
      ? `Every round, peers wait ${asDuration(waiting)}: ${asFigure((100 * waiting) / (waiting + computing))}\u00a0% of their time.`
      : "Nobody waits: the exchange is hidden behind the next batch.");
}

/** In a ring or butterfly each of n peers sends all but its own part, twice: gradients out, averages back. */
function sentBytes(bytes) {
  return (2 * bytes * (chosen.numPeers - 1)) / chosen.numPeers;
}

function factorRows(factors) {
  let before = 1;
  return factors.map(([name, factor]) => {
    const after = before * factor;
    const [start, end] = [onTrack(Math.min(before, after)), onTrack(Math.max(before, after))];
    before = after;
    const bar = { start, share: Math.max(0.8, end - start), kind: factor < 0.999 ? "backwards" : "" };
    return barRow(name, `×${asFigure(factor)}`, bar);
  });
}

function onTrack(value) {
  return Math.min(100, Math.max(0, (100 * Math.log10(value)) / Math.log10(10 * GOAL)));
}

function verdict(product) {
  if (product >= GOAL) return "less to wait for per sample: enough to train over a thousandfold slower link.";
  return `less to wait for per sample; a link a thousand times slower than a cluster’s needs another factor of ${asFigure(GOAL / product)}.`;
}

function samplesOf(power) {
  return Math.abs(power - Math.round(power)) < 1e-9 ? 2 ** Math.round(power) : Math.round(2 ** power);
}

function linkOf(exponent) {
  return Number((10 ** exponent).toPrecision(2));
}

function speedOf(exponent) {
  return Number((10 ** exponent).toPrecision(3));
}
