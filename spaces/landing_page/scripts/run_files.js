/** What the run has published, checked value by value: peers and publishers are strangers. */

import { numberWithin, wholeWithin } from "./numbers.js";
import { readSizes } from "./model_sizes.js";

const COLUMNS = {
  loss: [-1e6, 1e6],
  num_peers: [0, 1e6],
  samples_per_second: [0, 1e9],
  epoch_seconds: [0, 1e9],
  round_seconds: [0, 1e9],
  share_averaged: [0, 1],
};
const LATEST_TIME = 4102444800; // the year 2100
const MOST_POINTS = 2000;
const MOST_CONTRIBUTORS = 500;
const MOST_PEERS = 24;
const LONGEST_TEXT = 96;
const SPANS = ["today", "week", "all"];

/** Return the settings of a run that the page uses, from `training_run.json`; null for what is impossible. */
export function readTrainingRun(values) {
  const of = flatSettings(values);
  const batch = wholeWithin(of.target_batch_size, 1, 1e9);
  const localSteps = wholeWithin(of.local_steps ?? 1, 1, 1e6);
  return {
    runId: text(of.run_id),
    sizes: readSizes(of.model_config),
    targetBatchSize: batch,
    samplesPerEpoch: batch && localSteps && batch * localSteps,
    localSteps,
    numEpochs: wholeWithin(of.num_epochs, 1, 1e12),
    dataset: typeof of.dataset_repository === "string" ? of.dataset_repository : "",
    datasetRevision: text(of.dataset_revision),
    bucket: text(of.bucket),
    bucketFolder: folderInBucket(of.run_id, of.generation ?? 0),
    compression: text(of.averaging_compression),
    min8BitElements: wholeWithin(of.min_8bit_elements, 1, 1e12) ?? 1,
    overlapsAveraging: of.delay_gradient_averaging === true,
    aggregationRule: text(of.aggregation_rule),
    tauRatio: numberWithin(of.tau_ratio, 1, 1e6),
    maxNormRatio: numberWithin(of.max_norm_ratio, 1, 1e6),
    numClippingIterations: wholeWithin(of.num_clipping_iterations, 1, 1e4),
    optimizerBits: of.optimizer_bits === 8 ? 8 : 32,
    checkpointIntervalEpochs: wholeWithin(of.checkpoint_interval_epochs, 1, 1e12),
    hasReel: Array.isArray(of.reel_prompts) && of.reel_prompts.length > 0,
    isOpen: !of.authorization_service && of.wire !== "hub",
  };
}

/** Return where the run's part of its bucket is; empty for names that no run has. */
function folderInBucket(runId, generation) {
  const isPlain = /^[A-Za-z0-9_-]{1,96}$/.test(text(runId)) && wholeWithin(generation, 0, 1e9) !== null;
  return isPlain ? `${runId}/generation-${generation}` : "";
}

/** Return settings side by side: those of format 2 are in sections. */
function flatSettings(values) {
  const of = values !== null && typeof values === "object" ? values : {};
  const sections = of.settings !== null && typeof of.settings === "object" ? Object.values(of.settings) : [];
  return Object.assign({}, of, ...sections.filter((section) => section !== null && typeof section === "object"));
}

/** Return what the page shows of `metrics/summary.json`; `isNonsense` if it has a newest point that cannot be true. */
export function readSummary(values) {
  const of = values !== null && typeof values === "object" ? values : {};
  const history = rows(of.history, ["epoch", "time", ...Object.keys(COLUMNS)], COLUMNS);
  const newest = row((name) => of.newest?.[name], Object.keys(COLUMNS), COLUMNS) ?? history.at(-1) ?? null;
  return {
    history,
    evaluations: rows(of.evaluations, ["epoch", "time", "loss"], COLUMNS),
    newest,
    isNonsense: newest === null && Boolean(of.newest),
    leaderboard: contributors(of.leaderboard),
    peers: peers(of.peers),
    usualEpochSeconds: numberWithin(of.usual_epoch_seconds, 0, 1e9),
    numContributors: wholeWithin(of.num_contributors, 0, 1e9) ?? 0,
  };
}

/** Return `{prompts, pictures}` from `progress_reel/index.json`; pictures that cannot be shown are left out. */
export function readReel(values) {
  const listed = Array.isArray(values?.pictures) ? values.pictures.slice(-MOST_POINTS) : [];
  const pictures = listed
    .filter((one) => wholeWithin(one?.epoch, 0, 1e12) !== null && /^[\w-][\w.-]*\.webp$/.test(one.file))
    .map((one) => ({
      epoch: one.epoch,
      file: one.file,
      time: numberWithin(one.time, 0, LATEST_TIME),
      width: wholeWithin(one.width, 1, 20000),
      height: wholeWithin(one.height, 1, 20000),
    }));
  const prompts = Array.isArray(values?.prompts) ? values.prompts : [];
  return { pictures, prompts: prompts.slice(0, 16).map((prompt) => String(prompt).slice(0, 300)) };
}

/** Return `{numRecords, numBytes}` of a dataset from its card, or null where the card does not say. */
export function readDatasetCard(card) {
  const block = card.startsWith("---") ? card.split("---")[1] : "";
  const sum = (name) =>
    [...block.matchAll(new RegExp(`^\\s*(?:- )?${name}: *(\\d{1,15})\\s*$`, "gm"))].reduce((all, match) => all + Number(match[1]), 0);
  const [numRecords, numBytes] = [sum("num_examples"), sum("num_bytes")];
  return numRecords > 0 && numBytes > 0 ? { numRecords, numBytes } : null;
}

function rows(columns, names, bounds) {
  const length = Math.min(MOST_POINTS, ...names.map((name) => (Array.isArray(columns?.[name]) ? columns[name].length : 0)));
  const wanted = names.filter((name) => name in bounds);
  const found = [];
  for (let index = 0; index < length; index += 1) {
    const one = row((name) => columns[name][index], wanted, bounds);
    if (one && one.epoch > (found.at(-1)?.epoch ?? 0)) found.push(one);
  }
  return found;
}

function row(value, names, bounds) {
  const one = { epoch: wholeWithin(value("epoch"), 1, 1e12), time: numberWithin(value("time"), 0, LATEST_TIME) };
  for (const name of names) one[name] = numberWithin(value(name), ...bounds[name]);
  return Object.values(one).includes(null) ? null : one;
}

function contributors(listed) {
  const all = Array.isArray(listed) ? listed.slice(0, MOST_CONTRIBUTORS) : [];
  return all
    .filter((one) => typeof one?.username === "string" && one.username !== "")
    .map((one) => ({
      username: text(one.username),
      ...Object.fromEntries(
        SPANS.flatMap((span) => [`samples_${span}`, `hours_${span}`]).map((name) => [name, numberWithin(one[name], 0, 1e15) ?? 0]),
      ),
    }));
}

/** Return `{username, speed}` of the peers of the newest epoch, the fastest first; whoever has no name or speed is left out. */
function peers(listed) {
  return (Array.isArray(listed) ? listed.slice(0, MOST_PEERS) : [])
    .map((one) => ({ username: text(one?.username), speed: numberWithin(one?.samples_per_second, 0, 1e9) }))
    .filter((one) => one.username && one.speed !== null)
    .sort((one, other) => other.speed - one.speed);
}

function text(value) {
  return typeof value === "string" ? value.slice(0, LONGEST_TEXT) : "";
}
