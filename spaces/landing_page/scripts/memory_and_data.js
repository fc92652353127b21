/** What a peer has to hold and to download: bytes of parameters and statistics, and bytes of a streamed sample. */

import { barRow, bindSlider, byId } from "./elements.js";
import { codeBytes, numParameters } from "./model_sizes.js";
import { asBytes, asCount, asFigure, asMemory, asShort } from "./numbers.js";

const WEIGHT_AND_GRADIENT = 8; // bytes a parameter, in float32
const STATISTICS = { 32: 8, 8: 2 }; // two moments a parameter
const SECONDS_OF_A_DAY = 86400;

let pictureKilobytes = 0;
let data = null;

/** Connect the slider of the pictures' size. */
export function prepareMemoryAndData() {
  bindSlider("picture-size", (kilobytes) => `${asFigure(kilobytes)} kB`, (kilobytes) => {
    pictureKilobytes = kilobytes;
    drawData();
  });
}

/** Show what this run's parameters take on the GPU, step by step. */
export function showMemory(run) {
  byId("memory-bars").hidden = !run.sizes;
  if (!run.sizes) return;
  const [own, shared] = [numParameters(run.sizes, false), numParameters(run.sizes)];
  const steps = [
    [`every layer its own weights (${asShort(own)})`, own * (WEIGHT_AND_GRADIENT + STATISTICS[32])],
    [`layers share weights (${asShort(shared)})`, shared * (WEIGHT_AND_GRADIENT + STATISTICS[32])],
    ["optimizer statistics in 8 bits", shared * (WEIGHT_AND_GRADIENT + STATISTICS[8])],
    ["statistics offloaded to the CPU", shared * WEIGHT_AND_GRADIENT],
  ];
  byId("memory-bars").replaceChildren(...steps.map(([name, bytes]) => barOf(name, asMemory(bytes), bytes, steps[0][1])));
}

/** Show what a sample of this run's dataset takes; `card` is null where the dataset's card does not say. */
export function showData(run, card, newest) {
  const measured = card && card.numBytes / card.numRecords;
  const perSample = measured ?? (run.sizes && codeBytes(run.sizes));
  data = perSample && { perSample, measured, card, speed: newest?.samples_per_second ?? 0 };
  byId("data-figures").hidden = !data;
  drawData();
}

function drawData() {
  if (!data) return;
  const picture = pictureKilobytes * 1000;
  const most = Math.max(picture, data.perSample);
  byId("data-bars").replaceChildren(
    barOf("a picture file", asBytes(picture), picture, most),
    barOf("its image codes and caption", asBytes(data.perSample), data.perSample, most),
  );
  const source = data.measured
    ? `${asCount(data.card.numRecords)} samples in ${asBytes(data.card.numBytes)} on the Hub: ${asBytes(data.perSample)} each.`
    : `The dataset’s card does not say how large it is; the codes alone need ${asBytes(data.perSample)} a sample.`;
  const factor = picture / data.perSample;
  const flow = data.speed
    ? ` At ${asFigure(data.speed)} samples a second, all peers together stream ${asBytes(data.perSample * data.speed * SECONDS_OF_A_DAY)} a day.`
    : "";
  byId("data-verdict").textContent =
    `${source} That is ${asFigure(factor)} times less than pictures of ${asFigure(pictureKilobytes)} kB.${flow}`;
}

function barOf(name, shown, bytes, most) {
  return barRow(name, shown, { share: Math.max(0.5, (100 * bytes) / most) });
}
