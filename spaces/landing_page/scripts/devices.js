/** How one round's batch is shared among devices of unlike speed: by equal shares, and by what each manages. */

import { barRow, bindSlider, byId } from "./elements.js";
import { asCount, asDuration, asFigure } from "./numbers.js";

const NAMES = ["Laptop", "Free notebook GPU", "Gaming PC", "Workstation"];
const speeds = [1, 1, 1, 1];
let batch = 0;

/** Connect the sliders of the four devices. */
export function prepareDevices() {
  NAMES.forEach((_, index) => {
    bindSlider(`device-${index}`, (exponent) => `${asFigure(speedOf(exponent))}/s`, (exponent) => {
      speeds[index] = speedOf(exponent);
      draw();
    });
  });
}

/** Use a run's batch. */
export function showDevices(run) {
  byId("devices").hidden = !run.samplesPerEpoch;
  batch = run.samplesPerEpoch ?? 0;
  draw();
}

function draw() {
  if (!batch) return;
  const total = speeds.reduce((sum, speed) => sum + speed, 0);
  const equal = speeds.map((speed) => batch / speeds.length / speed);
  const slowest = Math.max(...equal);
  const together = batch / total;
  const isLonger = Math.max(slowest, together);
  byId("devices-equal").replaceChildren(
    ...speeds.map((_, index) => deviceRow(NAMES[index], batch / speeds.length, equal[index] / isLonger, slowest / isLonger)),
  );
  byId("devices-shared").replaceChildren(
    ...speeds.map((speed, index) => deviceRow(NAMES[index], (batch * speed) / total, together / isLonger, together / isLonger)),
  );
  byId("devices-equal-time").textContent = asDuration(slowest);
  byId("devices-shared-time").textContent = asDuration(together);
  byId("devices-verdict").textContent =
    `A round of ${asCount(batch)} samples takes ${asDuration(slowest)} when everybody gets the same share and waits for the ` +
    `slowest, and ${asDuration(together)} when everybody contributes what they can: ${asFigure(slowest / together)} times as fast.`;
}

function deviceRow(name, samples, working, ending) {
  const waiting = { share: 100 * Math.max(0, ending - working), kind: "idle" };
  return barRow(name, asCount(samples), { share: 100 * working }, waiting);
}

function speedOf(exponent) {
  return Number((10 ** exponent).toPrecision(2));
}
