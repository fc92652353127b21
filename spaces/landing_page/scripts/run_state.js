/** The state of a run, as pipelines/features/publishing/metrics/run_state.py decides it: a test gives both the same facts. */

import { asCount, asDuration } from "./numbers.js";

const PUBLISHED_SECONDS = 1800;
const SHORTEST_STALL_SECONDS = 120;
const STALL_FACTOR = 5;
const NUM_EPOCHS = 50;

/** Return what an epoch usually takes, from those of the past, newest last; 0 while unknown. */
export function usualSeconds(epochSeconds) {
  const known = epochSeconds.slice(-NUM_EPOCHS).filter((seconds) => seconds > 0).sort((a, b) => a - b);
  const middle = Math.floor(known.length / 2);
  if (known.length === 0) return 0;
  return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
}

/**
 * Return `{state, sentence, advice, secondsLeft}` of `{numEpochs, epoch, endedAt, usualSeconds, numPeers}`.
 *
 * `numEpochs` is null where the settings cannot be read, `endedAt` where no end is known, `numPeers` where nobody looked.
 */
export function conditionOf(facts, now) {
  const state = stateOf(facts, now);
  const advice = { over: "Draw with it", stalled: "See why", unreachable: "Examine the connection" }[state] ?? "Join the run";
  const left = ((facts.numEpochs ?? 0) - facts.epoch) * facts.usualSeconds;
  return { state, sentence: sentenceOf(state, facts, now), advice, secondsLeft: state === "alive" && left > 0 ? left : null };
}

function stateOf({ numEpochs, epoch, endedAt, usualSeconds: usual, numPeers }, now) {
  if (numEpochs === null) return "unreachable";
  if (epoch >= numEpochs) return "over";
  if (epoch === 0 && !numPeers) return "not begun";
  if (numPeers === 0) return "nobody here";
  const waited = endedAt === null ? 0 : now - endedAt;
  if (numPeers === null) return waited > Math.max(PUBLISHED_SECONDS, STALL_FACTOR * usual) ? "stalled" : "alive";
  return usual && waited > Math.max(SHORTEST_STALL_SECONDS, STALL_FACTOR * usual) ? "stalled" : "alive";
}

function sentenceOf(state, { numEpochs, epoch, endedAt, usualSeconds: usual, numPeers }, now) {
  const waited = endedAt === null ? null : asDuration(Math.max(0, now - endedAt));
  const place = `epoch ${asCount(epoch)} of ${asCount(numEpochs ?? 0)}`;
  const who = numPeers === null ? "" : `; ${counted(numPeers, "peer")} here`;
  const left = ((numEpochs ?? 0) - epoch) * usual;
  switch (state) {
    case "unreachable":
      return "The run's settings cannot be read.";
    case "over":
      return `The run is over: all ${counted(numEpochs, "epoch")} are trained.`;
    case "not begun":
      return "The run waits for its first epoch.";
    case "nobody here":
      return `Nobody trains now; ${place} was the last${waited ? `, ${waited} ago.` : "."}`;
    case "stalled":
      return `No epoch has ended for ${waited} after ${place}${usual ? `; usually one takes ${asDuration(usual)}` : ""}${who}.`;
    default:
      return `The run is at ${place}${who}${left ? `; about ${asDuration(left)} left.` : "."}`;
  }
}

function counted(number, noun) {
  return `${asCount(number)} ${noun}${number === 1 ? "" : "s"}`;
}
