/** How the run is doing now: a line of status, four figures, and the plots of the objective and of the participants. */

import { byId, element } from "./elements.js";
import { drawPeers } from "./hero_picture.js";
import { LinePlot, plotParts } from "./line_plot.js";
import { asCount, asDate, asDuration, asFigure, asLoss, asShort } from "./numbers.js";
import { conditionOf, usualSeconds } from "./run_state.js";

const plots = {};

/** Make the two empty plots. */
export function prepareLiveSection() {
  byId("objective-plot").append(...plotParts("Training objective", "loss in nats by epoch, lower is better; dots: on held-out records"));
  byId("participants-plot").append(...plotParts("Participants", "active peers by epoch"));
  const describe = (value) => (point) =>
    `epoch ${asCount(point.x)} · ${value(point.y)}${point.time ? ` · ${asDate(point.time)}` : ""}`;
  plots.objective = new LinePlot(byId("objective-plot"), { label: "Training objective", format: asShort, describe: describe(asLoss) });
  plots.participants = new LinePlot(byId("participants-plot"), {
    label: "Active participants",
    isCount: true,
    format: asShort,
    describe: describe(asPeers),
    fromZero: true,
  });
}

/** Show a summary of a run's metrics. */
export function showLiveSection(run, summary, condition) {
  const points = (rows, column) => rows.map((row) => ({ x: row.epoch, y: row[column], time: row.time }));
  plots.objective.show([
    { name: "training", points: points(summary.history, "loss"), look: "line" },
    { name: "held out", points: points(summary.evaluations, "loss"), look: "dots" },
  ]);
  plots.participants.show([{ name: "peers", points: points(summary.history, "num_peers"), look: "line" }]);
  byId("live-figures").replaceChildren(...figures(run, summary, condition));
  showPeers(condition.state === "alive" ? summary.peers : []);
  byId("live-plots").hidden = summary.history.length === 0;
  byId("live").setAttribute("aria-busy", "false");
}

/** Show who trained in the newest epoch, with their names as text, too; the picture is drawn anew if they are others. */
function showPeers(peers) {
  byId("live-peers").hidden = peers.length === 0;
  const seen = JSON.stringify(peers);
  if (!peers.length || seen === plots.peers) return;
  plots.peers = seen;
  const numDrawn = drawPeers(byId("live-peers-picture"), peers);
  const named = peers.slice(0, numDrawn).map(({ username, speed }) => `${username} (${asFigure(speed)})`);
  const more = peers.length > numDrawn ? `, and ${peers.length - numDrawn} more` : "";
  byId("live-peers-words").textContent = `Samples per second of each in the newest epoch: ${named.join(", ")}${more}.`;
}

/** Return a run's condition, see run_state.js, from its settings and its published metrics. */
export function publishedCondition(run, { newest, history, usualEpochSeconds }, now) {
  const usual = usualEpochSeconds ?? usualSeconds(history.map((point) => point.epoch_seconds));
  const [epoch, endedAt] = [newest?.epoch ?? 0, newest?.time ?? null];
  return conditionOf({ numEpochs: run.numEpochs ?? 0, epoch, endedAt, usualSeconds: usual, numPeers: null }, now);
}

function figures(run, { newest, numContributors }, condition) {
  if (!newest) return [];
  const isNow = condition.state === "alive";
  const end = condition.secondsLeft ? `, about ${asDuration(condition.secondsLeft)} to go` : "";
  const share = run.numEpochs ? `${asFigure(Math.min(100, (100 * newest.epoch) / run.numEpochs))}\u00a0% of the schedule` : "so far";
  return [
    figure(asCount(newest.epoch), "epochs", `${share}${end}`),
    figure(asLoss(newest.loss), "training loss (nats)", "mean over all peers"),
    figure(asCount(newest.num_peers), isNow ? "peers" : "peers in the last epoch", `${asCount(numContributors)} contributors in all`),
    figure(asShort(newest.samples_per_second), "samples per second", isNow ? "of all peers together" : "in the last epoch"),
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
