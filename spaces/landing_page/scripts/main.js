/** The page: reads its settings, then the run's public files, and shows each part as far as there is something to show. */

import { prepareCommunication, showCommunication } from "./communication.js";
import { prepareDevices, showDevices } from "./devices.js";
import { byId, outwardLink } from "./elements.js";
import { drawHeroPicture } from "./hero_picture.js";
import { fetchJson, fetchText } from "./hub_files.js";
import { prepareLeaderboard, showLeaderboard } from "./leaderboard.js";
import { prepareLiveSection, publishedCondition, showLiveSection } from "./live_section.js";
import { prepareMemoryAndData, showData, showMemory } from "./memory_and_data.js";
import { asCount, asDate, asLoss } from "./numbers.js";
import { prepareOutlierPlot, showOutlierPlot } from "./outlier_plot.js";
import { isRepository, readSettings } from "./page_settings.js";
import { prepareReel, showReel } from "./progress_reel.js";
import { readDatasetCard, readReel, readSummary, readTrainingRun } from "./run_files.js";
import { showVolunteer } from "./volunteer.js";

const REFRESH_MILLISECONDS = 60000;
const SPACE_LINKS = {
  training_dashboard: "Open the dashboard",
  text_to_image_demo: "Draw with the newest checkpoint",
  memory_calculator: "Open the memory calculator",
  join_training: "Open the join Space and its notebook",
};

async function start() {
  drawHeroPicture(byId("hero-picture"));
  for (const prepare of [prepareLiveSection, prepareLeaderboard, prepareReel, prepareOutlierPlot]) prepare();
  for (const prepare of [prepareCommunication, prepareDevices, prepareMemoryAndData]) prepare();
  document.addEventListener("click", copyCommand);
  const settings = await readSettings(location.search);
  showSettings(settings);
  if (settings.problem) {
    showUnreachable(settings.problem);
    return;
  }
  await follow(settings);
}

/** Read and show the run now, and again every minute while somebody looks at the page. */
async function follow(settings) {
  await showRun(settings);
  setTimeout(async function again() {
    if (!document.hidden) await showRun(settings);
    setTimeout(again, REFRESH_MILLISECONDS);
  }, REFRESH_MILLISECONDS);
}

async function showRun({ hub, run }) {
  const [trainingRun, committed] = await Promise.all([
    attempt(fetchJson(hub, run, "training_run.json"), readTrainingRun),
    attempt(fetchJson(hub, run, "metrics/summary.json"), readSummary),
  ]);
  if (!trainingRun.value) {
    const isNoRun = trainingRun.problem.kind === "missing";
    showUnreachable(trainingRun.problem.message + (isNoRun ? " It is not a training run." : ""));
    return;
  }
  const summary = newer(committed, await summaryInBucket(hub, trainingRun.value));
  showSettingsOfRun(trainingRun.value, summary.value?.newest);
  if (summary.value) {
    showMetrics(trainingRun.value, summary.value);
    showVolunteer(hub, run, summary.value);
  } else if (summary.problem.kind === "missing") showMetrics(trainingRun.value, readSummary({}));
  else showStatus("unreachable", summary.problem.message);
  await Promise.all([showReelOf(hub, run, trainingRun.value), showDataOf(hub, trainingRun.value, summary.value?.newest)]);
}

/** Read the summary in the run's bucket, if it has one: metrics go there more often than into the repository. */
async function summaryInBucket(hub, { bucket, bucketFolder }) {
  if (!isRepository(bucket) || !bucketFolder) return {};
  return attempt(fetchJson(hub, `buckets/${bucket}`, `${bucketFolder}/metrics/summary.json`), readSummary);
}

/** Return what was committed, or what is in the bucket if that is there and not older; as `published_metrics` does. */
function newer(committed, live) {
  const epoch = ({ value }) => value?.newest?.epoch ?? 0;
  return live.value && epoch(live) >= epoch(committed) ? live : committed;
}

async function showReelOf(hub, run, trainingRun) {
  const reel = trainingRun.hasReel && (await attempt(fetchJson(hub, run, "progress_reel/index.json"), readReel));
  if (reel && reel.value) showReel(hub, run, reel.value);
}

async function showDataOf(hub, trainingRun, newest) {
  const { dataset, datasetRevision } = trainingRun;
  const request = () => fetchText(hub, `datasets/${dataset}`, "README.md", datasetRevision || "main");
  const card = isRepository(dataset) && (await attempt(request(), readDatasetCard));
  showData(trainingRun, (card && card.value) || null, newest);
}

async function attempt(request, read) {
  try {
    return { value: read(await request) };
  } catch (problem) {
    return { problem };
  }
}

function showMetrics(run, summary) {
  const condition = publishedCondition(run, summary, Date.now() / 1000);
  if (summary.isNonsense) showStatus("unreachable", "The run’s metrics/summary.json has only impossible values.");
  else showStatus(condition.state, `${condition.sentence}${summary.newest ? ` Last news: ${asDate(summary.newest.time)}.` : ""}`);
  showNextStep(condition);
  showLiveSection(run, summary, condition);
  showLeaderboard(summary.leaderboard);
  const last = summary.evaluations.at(-1);
  byId("result-evaluation").textContent = last
    ? `On held-out records, the loss was ${asLoss(last.loss)} nats at epoch ${asCount(last.epoch)}.`
    : "";
}

function showSettingsOfRun(run, newest) {
  showCommunication(run, newest);
  showDevices(run);
  showMemory(run);
  showOutlierPlot(run);
  byId("door").textContent = run.isOpen
    ? "This run is open: everybody may join, with or without an account."
    : "This run admits members of its organisation: sign in to the Hub with a member’s account.";
  byId("account-optional").hidden = !run.isOpen;
  byId("account-member").hidden = run.isOpen;
  byId("batch-in-words").textContent = run.samplesPerEpoch ? `${asCount(run.samplesPerEpoch)} samples` : "enough samples";
}

function showStatus(state, text) {
  byId("status").dataset.state = state.replaceAll(" ", "-");
  byId("status-text").textContent = text;
  // Read out by screen readers, so not said again every minute.
  const spoken = ["not begun", "unreachable"].includes(state) ? text : "";
  if (byId("live-waiting").textContent !== spoken) byId("live-waiting").textContent = spoken;
}

function showUnreachable(text) {
  showStatus("unreachable", text);
  showNextStep({ state: "unreachable", advice: "See the repository" });
}

const LIVE_TITLES = {
  "not begun": "The run, before its first epoch",
  alive: "The run, live",
  over: "The run, from its first epoch to its last",
};

/** What a person does next is the page's first button; nobody is asked to join what is over or cannot be read. */
function showNextStep({ state, advice }) {
  const isOver = state === "over";
  const isAway = state === "unreachable";
  const demo = document.querySelector("[data-space=text_to_image_demo] a");
  const model = document.querySelector("[data-run-link] a");
  byId("next-step").textContent = isOver && !demo ? "See the model" : state === "stalled" ? "Join the run" : advice;
  byId("next-step").href = isOver ? (demo ?? model).href : isAway ? (model?.href ?? "#recipe") : "#join";
  if (isAway && !model) byId("next-step").textContent = "Start your own";
  for (const place of document.querySelectorAll("[data-until-over]")) place.hidden = isOver || isAway;
  byId("live-title").textContent = LIVE_TITLES[state] ?? "The run so far";
}

function showSettings({ hub, run, spaces, sourceCode }) {
  if (run) {
    document.title = `${run} – training together`;
    for (const place of document.querySelectorAll("[data-run]")) place.textContent = run;
    for (const place of document.querySelectorAll("[data-run-link]")) place.replaceChildren(outwardLink(`${hub}/${run}`, run));
    const organisation = run.split("/")[0];
    byId("organisation").replaceChildren(outwardLink(`${hub}/${organisation}`, organisation));
    byId("sign-up").replaceChildren(outwardLink(`${hub}/join`, "account on the Hub"));
  }
  for (const place of document.querySelectorAll("[data-space]")) {
    const space = spaces[place.dataset.space];
    if (space) place.replaceChildren(outwardLink(space, place.textContent || SPACE_LINKS[place.dataset.space]));
    else (place.closest("[data-needs-space]") ?? place).hidden = true;
  }
  document.querySelector(".pages").hidden = !document.querySelector(".pages a");
  byId("source-code").hidden = !sourceCode;
  if (sourceCode) byId("source-code").replaceChildren(outwardLink(sourceCode, "Source code"));
}

async function copyCommand({ target }) {
  if (!target.matches("button.copy")) return;
  const command = target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(command.textContent.trim());
    target.textContent = "Copied";
  } catch {
    // A page inside another one may not write to the clipboard: the text is selected, Ctrl-C does the rest.
    getSelection().selectAllChildren(command);
    target.textContent = "Selected";
  }
}

start();
