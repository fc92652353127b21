/** How the run is doing now: a line of status, four figures, and the plots of the objective and of the participants. */

import { byId, element } from "./elements.js";
import { LinePlot, plotParts } from "./line_plot.js";
import { asAgo, asCount, asDate, asDuration, asFigure, asShort } from "./numbers.js";

const QUIET_SECONDS = 1800;
const plots = {};

/** Make the two empty plots. */
export function prepareLiveSection() {
  byId("objective-plot").append(...plotParts("Training objective", "loss by epoch, lower is better; dots: on held-out records"));
  byId("participants-plot").append(...plotParts("Participants", "active peers by epoch"));
  const describe = (value) => (point) =>
    `epoch ${asCount(point.x)} · ${value(point.y)}${point.time ? ` · ${asDate(point.time)}` : ""}`;
  plots.objective = new LinePlot(byId("objective-plot"), { label: "Training objective", format: asShort, describe: describe(asFigure) });
  plots.participants = new LinePlot(byId("participants-plot"), {
    label: "Active participants",
    format: asShort,
    describe: describe(asPeers),
    fromZero: true,
  });
}

/** Show a summary of a run's metrics. */
export function showLiveSection(run, summary) {
  const points = (rows, column) => rows.map((row) => ({ x: row.epoch, y: row[column], time: row.time }));
  plots.objective.show([
    { name: "training", points: points(summary.history, "loss"), look: "line" },
    { name: "held out", points: points(summary.evaluations, "loss"), look: "dots" },
  ]);
  plots.participants.show([{ name: "peers", points: points(summary.history, "num_peers"), look: "line" }]);
  byId("live-figures").replaceChildren(...figures(run, summary));
  byId("live-plots").hidden = summary.history.length === 0;
  byId("live").setAttribute("aria-busy", "false");
}

/** Return `{state, text}` of a run: "training", "quiet", "done", "waiting" or "problem". */
export function statusOf(run, summary, now) {
  const { newest } = summary;
  if (summary.isNonsense) return { state: "problem", text: "The run’s metrics/summary.json has only impossible values." };
  if (!newest) return { state: "waiting", text: "The run has been created and waits for its first epoch." };
  const goal = run.numEpochs ? ` of ${asCount(run.numEpochs)}` : "";
  const place = `Epoch ${asCount(newest.epoch)}${goal}`;
  if (run.numEpochs && newest.epoch >= run.numEpochs) return { state: "done", text: `${place}: the run is complete.` };
  const patience = Math.max(QUIET_SECONDS, 5 * (newest.epoch_seconds ?? 0));
  if (now - newest.time > patience) return { state: "quiet", text: `${place}. Last update ${asAgo(newest.time, now)}.` };
  return { state: "training", text: `${place} · ${asPeers(newest.num_peers)} training · ${asAgo(newest.time, now)}` };
}

function figures(run, { newest, numContributors }) {
  if (!newest) return [];
  const left = run.numEpochs ? Math.max(0, run.numEpochs - newest.epoch) : 0;
  const isOver = run.numEpochs > 0 && left === 0;
  const end = left && newest.epoch_seconds ? `, about ${asDuration(left * newest.epoch_seconds)} to go` : "";
  const share = run.numEpochs ? `${asFigure(Math.min(100, (100 * newest.epoch) / run.numEpochs))}\u00a0% of the schedule` : "so far";
  return [
    figure(asCount(newest.epoch), "epochs", `${share}${end}`),
    figure(asFigure(newest.loss), "training loss", "mean over all peers"),
    figure(asCount(newest.num_peers), isOver ? "peers at the end" : "peers now", `${asCount(numContributors)} contributors in all`),
    figure(asShort(newest.samples_per_second), "samples per second", "of all peers together"),
  ];
}

function asPeers(number) {
  return Math.round(number) === 1 ? "1 peer" : `${asCount(number)} peers`;
}

function figure(value, name, detail) {
  return element(
    "div",
    { className: "figure" },
    element("dt", { textContent: name }),
    element("dd", {}, element("b", { textContent: value }), element("small", { textContent: detail })),
  );
}
